"""Function that VeRL's reward workers load instead of a user's reward.

It scores each answer in a sandbox, as during reward validation. A reward worker keeps one sandbox for its
lifetime and scores waiting answers in batches. An answer that cannot be scored has no score, and VeRL leaves
it out. Not here: the sandbox (prepared/sandbox), ending a phase with too many unscored answers
(reward_calls.py).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.reward import top_of
from llmzero_ray.prepared.reward_validation import result_problem
from llmzero_ray.prepared.sandbox import ForeignValue, SandboxService
from llmzero_ray.prepared.verl_rows import plain

if TYPE_CHECKING:
    from llmzero_ray.engines.verl.settings import VerlSettings

SOURCE = f"pkg://{__name__}"
"""Value for VeRL's `reward.custom_reward_function.path`; the function's name is `compute_score`."""
_OPTION = "confined"


def kwargs_of(settings: VerlSettings) -> dict[str, Any]:
    """VeRL's `reward_kwargs` that tell `compute_score` what to run."""
    return {
        _OPTION: {
            "path": settings.reward_source,
            "name": settings.reward_name,
            "module": settings.reward_module,
            "sha256": settings.reward_sha256,
            "keys": None if settings.reward_keys is None else json.dumps(settings.reward_keys),
            "allow_unsandboxed": settings.reward_unsandboxed,
        }
    }


async def compute_score(
    *,
    confined: Mapping[str, Any],
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    **others: Any,
) -> dict[str, Any]:
    """Result of the reward. Values other than numbers, text and None are replaced by their class's name.

    A validated reward gets only the arguments that it got during reward validation (the task's columns of
    `extra_info`), so that it cannot detect training. Other rewards get all plain values.

    Raises:
        TaskError: this answer cannot be scored; the message says why.
        RewardError: no answer can be scored, because the reward cannot be started or was given up.
    """
    row = {"data_source": data_source, "solution_str": solution_str, "ground_truth": ground_truth}
    if confined["keys"] is None:
        row |= {"extra_info": dict(extra_info or {}), **others}
    else:
        given = extra_info or {}
        row["extra_info"] = {key: given[key] for key in json.loads(confined["keys"]) if key in given}
    service = service_of(
        *(confined[key] for key in ("path", "name", "module", "sha256")), bool(confined["allow_unsandboxed"])
    )
    outcome = await asyncio.wrap_future(service.submit(plain(row)))
    if problem := outcome.problem or result_problem(outcome.result):
        raise TaskError(f"the reward {problem}")
    return {
        key: str(value) if isinstance(value, ForeignValue) else value for key, value in outcome.result.items()
    }


@cache
def service_of(
    path: str, name: str, module: str | None, sha256: str | None, allow_unsandboxed: bool
) -> SandboxService:
    """This process's sandbox for the reward. The first call starts it."""
    service = SandboxService(
        str(top_of(module)) if module else path,
        name,
        module=module,
        sha256=sha256,
        allow_unsandboxed=allow_unsandboxed,
    )
    _services.append(service)
    return service


_services: list[SandboxService] = []


def renew() -> None:
    """Retry the rewards of this process that were given up."""
    for service in _services:
        service.renew()
