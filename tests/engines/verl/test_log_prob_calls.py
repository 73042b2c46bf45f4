"""VeRL's FSDP worker by itself: policy and reference in one call, and in VeRL's two."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from llmzero_ray.engines.verl.environment import process_env
from llmzero_ray.tasks.tiny_model import make_model, make_tokenizer, save
from tests.builders import verl_settings

pytestmark = [pytest.mark.verl, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
PROGRAM = """
    import sys

    import torch
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import response_from_nested

    from llmzero_ray.engines.verl.overrides import all_overrides, compose
    from llmzero_ray.engines.verl.workers import AND_REFERENCE, PhaseWorker
    from tests.builders import verl_settings
    from tests.engines.test_overrides import spec

    config = compose(all_overrides(verl_settings(model_path=sys.argv[1]), spec(n=4, batch=8), 64))
    worker = PhaseWorker(config=config.actor_rollout_ref, role="actor")
    worker.init_model()
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in worker.actor.engine.module.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)

    def ragged(values):
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)

    lengths = [(3 + i % 5, 2 + i % 7) for i in range(32)]
    rows = [torch.randint(3, 90, (prompt + response,)) for prompt, response in lengths]
    masks = [torch.ones(response, dtype=torch.int64) for _, response in lengths]
    given = {
        "prompts": ragged([row[:prompt] for row, (prompt, _) in zip(rows, lengths)]),
        "responses": ragged([row[prompt:] for row, (prompt, _) in zip(rows, lengths)]),
        "response_mask": ragged(masks),
        "loss_mask": ragged(masks),
        "input_ids": ragged(rows),
        "position_ids": ragged([torch.arange(len(row)) for row in rows]),
    }

    def batch(**extra):
        data = TensorDict(given, batch_size=len(rows))
        tu.assign_non_tensor(data, compute_loss=False, temperature=0.9, **extra)
        return data

    policy = worker.compute_log_prob(batch(calculate_entropy=True))
    reference = worker.compute_log_prob(batch(calculate_entropy=False, no_lora_adapter=True))
    expected = response_from_nested(reference["log_probs"], given["response_mask"])
    both = worker.compute_log_prob(batch(calculate_entropy=True, **{AND_REFERENCE: True}))
    for name in ("log_probs", "entropy"):
        assert torch.equal(both[name].values(), policy[name].values()), name
    assert torch.equal(both["ref_log_prob"].values(), expected.values())
    assert torch.equal(both["ref_log_prob"].offsets(), given["response_mask"].offsets())
    assert not torch.equal(response_from_nested(policy["log_probs"], given["response_mask"]).values(),
                           expected.values())
    assert "ref_log_prob" not in policy.keys()
    print("same")
"""


def test_one_call_gives_the_bits_of_two(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    save(make_model(tokenizer, seed=1), tokenizer, tmp_path)
    process = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "RAY_LOCAL_WORLD_SIZE": "1"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path)],
        env={**process_env(verl_settings()), **process, **address, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "same", done.stderr[-3000:]
