"""Requests to the early stopper, built from recorded phases that nothing stopped (`recorded_phases`).

    python -m benchmarks.stop_requests [--every] [--out FILE]
    python -m benchmarks.stop_requests --table    # what stops save and lose: rules, language model

Phases of real training, each against another phase of its search as the incumbent (stop_recorded.py), at the
validations at which it has not beaten it yet. Pairs whose best scores lie within the noise of a run are left
out, as chance decides them; of the incumbents that beat a phase, two are kept, the closest ones. With
`--every` the set has all these validations, otherwise the middle one of each pair: the file of `llmzero
prompt-eval`, which also asks another model (`--cases FILE --agent early_stopper`).

`stop_answers.json` has the chances, in percent, that a Claude model gave to every request. It answered in
eight conversations. None saw a later curve of a phase before it had judged the earlier one, nor the curve of
a phase as incumbent that it judged.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.stop_recorded import RECORDED as PHASES
from benchmarks.stop_recorded import Recorded, at_validations, load
from llmzero_ray.agents.expert import ExpertEarlyStopper
from llmzero_ray.config import SearchConfig, parse_config
from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.hyperparameters import complete
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.methods.prompt_eval.cases import RECORDED, RecordedRequest, write_cases
from llmzero_ray.records.agents import NodeView, StopRequest, TaskView
from llmzero_ray.report.formatting import TextTable, table
from llmzero_ray.stopping.request import stop_request

CONFIG = Path(__file__).parent.parent / "jobs" / "configs" / "local.yaml"
FILE = RECORDED / "phases.json.gz"
ANSWERS = Path(__file__).parent / "stop_answers.json"
N_TRAIN = 4096
RUN_NOISE = 0.02
"""Difference of two best scores up to which chance decides."""
LOSSES = 2
"""Incumbents a losing phase is judged against."""


def main() -> None:
    """Write the set, or print the answers' table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--every", action="store_true", help="at every validation, not the middle one alone")
    parser.add_argument("--table", action="store_true", help="print what each judge saves and loses")
    given = parser.parse_args()
    if given.table:
        print(answers_table())
        return
    out: Path = given.out
    found = tuple(stop_cases(every=given.every))
    write_cases(found, out)
    print(f"{len(found)} requests, {sum(not case.wins for case in found)} of phases that never win: {out}")


@dataclass(frozen=True, kw_only=True)
class Rivals:
    """A recorded phase and the incumbent that it is judged against."""

    name: str
    recorded: Mapping[str, Any]
    search: Recorded
    chain: Sequence[NodeView]
    """Resume chain of the incumbent."""
    running: NodeView
    """The phase, had it run to its end."""
    behind: Sequence[NodeView]
    """The phase at each validation at which it has not beaten the incumbent yet."""

    def case(self, now: NodeView) -> RecordedRequest:
        """The request at one of these validations."""
        return RecordedRequest(
            name=f"{self.name} at step {now.curves.steps[-1]}",
            agent="early_stopper",
            request=_request(self.recorded, self.search, now, self.chain),
            n_val=self.search.n_val,
            n_gpus=1,
            wins=_margin(self.running, self.chain[-1]) > 0,
        )


def rivals() -> Iterator[Rivals]:
    """All pairs, search by search."""
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
            yield Rivals(
                name=f"{path.stem}/{running.node} against {incumbent.node}",
                recorded=recorded,
                search=search,
                chain=chain,
                running=running,
                behind=behind,
            )


def stop_cases(*, every: bool = False) -> Iterator[RecordedRequest]:
    """The request at the middle one of the validations of each pair, or at all of them."""
    for pair in rivals():
        for now in pair.behind if every else [pair.behind[len(pair.behind) // 2]]:
            yield pair.case(now)


def answers_table() -> TextTable:
    """Table of what each judge saves and loses if it ends every phase at its first STOP."""
    phases = [[pair.case(now) for now in pair.behind] for pair in rivals()]
    cases = [case for phase in phases for case in phase]
    chances: dict[str, int] = json.loads(ANSWERS.read_text(encoding="utf-8"))
    stops = {"rules": {case.name for case in cases if _rules_stop(case)}}
    for limit in (5, 10, 15, 20):
        stops[f"model, chance below {limit} %"] = {case.name for case in cases if chances[case.name] < limit}
    stops["hindsight"] = {case.name for case in cases if not case.wins}
    rows = [(judge, *_outcome(phases, names)) for judge, names in stops.items()]
    return table(("judge", "losing phases stopped", "their steps saved", "winners stopped"), rows)


def _rules_stop(case: RecordedRequest) -> bool:
    assert isinstance(case.request, StopRequest)
    return ExpertEarlyStopper(n_val=case.n_val).judge(case.request).stop


def _outcome(phases: Sequence[Sequence[RecordedRequest]], stops: set[str]) -> tuple[str, str, str]:
    """Cells of one judge, which answers the requests of these names with STOP."""
    stopped: dict[bool, list[bool]] = {True: [], False: []}
    steps = saved = 0
    for cases in phases:
        wins, running = bool(cases[0].wins), _running(cases[0])
        at = [_running(case).curves.steps[-1] for case in cases if case.name in stops]
        stopped[wins].append(bool(at))
        if not wins:
            steps, saved = steps + running.n_steps, saved + running.n_steps - min(at, default=running.n_steps)
    losing, winning = (f"{sum(stopped[wins])} of {len(stopped[wins])}" for wins in (False, True))
    return losing, f"{saved / steps:.0%}", winning


def _running(case: RecordedRequest) -> NodeView:
    assert isinstance(case.request, StopRequest)
    return case.request.running


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
