"""Requests to the early stopper, built from recorded phases that ran to their end (`recorded_phases`).

    python -m benchmarks.stop_requests [--out FILE]

Each request shows a phase of real training, with another phase of its search as the incumbent
(stop_recorded.py), at the middle one of the validations at which the phase has not yet beaten the incumbent.
Pairs whose best scores are within the noise of a run are left out, because chance decides them. Of the
incumbents that beat a phase, only the two closest are kept. `llmzero prompt-eval --agent early_stopper` sends
these requests to a model.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.stop_recorded import RECORDED as PHASES
from benchmarks.stop_recorded import Recorded, at_validations, load
from llmzero_ray.config import SearchConfig, parse_config
from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.hyperparameters import complete
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.methods.prompt_eval.cases import RECORDED, RecordedRequest, write_cases
from llmzero_ray.records.agents import NodeView, StopRequest, TaskView
from llmzero_ray.stopping.request import stop_request

CONFIG = Path(__file__).parent.parent / "jobs" / "configs" / "local.yaml"
FILE = RECORDED / "phases.json.gz"
N_TRAIN = 4096
RUN_NOISE = 0.02
"""Difference of two best scores up to which chance decides."""
LOSSES = 2
"""Number of incumbents against which a losing phase is judged."""


def main() -> None:
    """Write the set."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=FILE)
    out: Path = parser.parse_args().out
    found = tuple(stop_cases())
    write_cases(found, out)
    print(f"{len(found)} requests, {sum(not case.wins for case in found)} of phases that never win: {out}")


def stop_cases() -> Iterator[RecordedRequest]:
    """The requests, search by search."""
    for path in sorted(PHASES.glob("*.json")):
        recorded, search = json.loads(path.read_text(encoding="utf-8")), load(path.stem)
        lost = Counter[int]()
        pairs = itertools.permutations(search.views, 2)
        for running, incumbent in sorted(pairs, key=lambda pair: (pair[0].node, abs(_margin(*pair)))):
            chain, margin = search.chains[incumbent.node], _margin(running, incumbent)
            behind = [
                now
                for now in at_validations(search, running.node)
                if max(now.curves.val_scores) <= (incumbent.score or 0.0)
            ]
            related = running.node in [view.node for view in chain]
            if related or not behind or abs(margin) <= RUN_NOISE or lost[running.node] == LOSSES:
                continue
            lost[running.node] += margin < 0
            now = behind[len(behind) // 2]
            yield RecordedRequest(
                name=f"{path.stem}/{running.node} against {incumbent.node} at step {now.curves.steps[-1]}",
                agent="early_stopper",
                request=_request(recorded, search, now, chain),
                n_val=search.n_val,
                n_gpus=1,
                wins=margin > 0,
            )


def _request(
    recorded: Mapping[str, Any], search: Recorded, now: NodeView, chain: Sequence[NodeView]
) -> StopRequest:
    config = _config()
    root = root_hyperparameters(config, N_TRAIN)

    def told(view: NodeView) -> NodeView:
        changes = recorded["phases"][view.node]["changes"]
        return dataclasses.replace(view, hyperparameters=complete(root, changes))

    task = TaskView(
        name=recorded["task"],
        n_train=N_TRAIN,
        phase_steps=recorded["n_steps"],
        max_phase_steps=2 * recorded["n_steps"],
        max_model_len=config.engine.max_prompt_length + config.engine.max_response_length,
        max_prompt_length=config.engine.max_prompt_length,
        test_freq=min(step for step in now.curves.val_steps if step > 0),
    )
    chain = [told(view) for view in chain]
    return stop_request(
        config, task, told(now), chain, (), lambda node: search.outcomes.get(node, {}), n_val=search.n_val
    )


@cache
def _config() -> SearchConfig:
    return parse_config(read_yaml(CONFIG))


def _margin(running: NodeView, incumbent: NodeView) -> float:
    return (running.score or 0.0) - (incumbent.score or 0.0)


if __name__ == "__main__":
    main()
