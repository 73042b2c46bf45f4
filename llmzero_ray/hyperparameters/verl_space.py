"""The space that searches use: VeRL's hyper-parameters with their couplings and their owners."""

from __future__ import annotations

from llmzero_ray.hyperparameters.access import FIXED, FROM_CONFIG, NEVER, OWNED_BY
from llmzero_ray.hyperparameters.couplings import (
    check_batches,
    check_gpus,
    check_lengths,
    check_task,
    follow_clip,
    follow_kl,
    follow_micro_batches,
    follow_mini_batch,
)
from llmzero_ray.hyperparameters.inert import inert_keys
from llmzero_ray.hyperparameters.space import Space
from llmzero_ray.hyperparameters.table import ADAPTER, PARAMETERS
from llmzero_ray.hyperparameters.verl_keys import VERL_KEYS, VERL_VERSION, is_verl_key

VERL_SPACE = Space(
    trainer="VeRL",
    version=VERL_VERSION,
    parameters=PARAMETERS,
    is_other_key=is_verl_key,
    other_keys=VERL_KEYS,
    follow=(follow_clip, follow_kl, follow_mini_batch, follow_micro_batches),
    checks=(check_batches, check_lengths, check_task, check_gpus),
    kept_at_resume=ADAPTER,
    inert=inert_keys,
    from_config=FROM_CONFIG,
    owned_by=OWNED_BY,
    fixed=FIXED,
    never=NEVER,
)
