"""Records, writes and reads requests that searches made to their agents.

A case holds the request as a value, not as a prompt, so that other prompts can be tried on it. The set that
ships is in recorded/. It has requests from `make demo` on real VeRL, from checkpoints whose continuations
were measured there (benchmarks/first_proposals.py), from phases that ran to their end there
(benchmarks/stop_requests.py), and from the strategies printed in the LLMZero paper
(benchmarks/published_requests.py). Requests after a failure hold the output of vLLM and VeRL, or the engine's
message about a step that is not finite.
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from llmzero_ray.coordinator import (
    CoordinatorCore,
    budget_of,
    build_request,
    earlier_verdicts,
    incumbent_chain,
    node_view,
    started_core,
    task_view,
)
from llmzero_ray.dynamics.incumbent import score_to_beat
from llmzero_ray.dynamics.stored_outcomes import with_outcomes
from llmzero_ray.errors import ConfigError, JournalError
from llmzero_ray.journal import read_all
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records import from_json, register_record, to_json
from llmzero_ray.records.agents import (
    AgentName,
    Budget,
    EarlierVerdict,
    ErrorRequest,
    KindScore,
    MemoryView,
    NodeView,
    OfferedCheckpoint,
    ProposalRequest,
    Standing,
    StopRequest,
    TaskView,
)
from llmzero_ray.records.metrics import Curves
from llmzero_ray.records.significance import Difference
from llmzero_ray.stopping.request import stop_request
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import load_curves, load_items
from llmzero_ray.utils.files import replace_file

RECORDED = Path(__file__).parent / "recorded"
"""Directory of the set that ships."""
_DIGITS = 4
"""Significant digits of recorded floats."""
Request: TypeAlias = ProposalRequest | ErrorRequest | StopRequest

for _record in (
    Budget, Curves, Difference, EarlierVerdict, ErrorRequest, KindScore, MemoryView, NodeView,
    OfferedCheckpoint, ProposalRequest, Standing, StopRequest, TaskView,
):  # fmt: skip
    register_record(_record)


@register_record
@dataclass(frozen=True, kw_only=True)
class RecordedRequest:
    """One recorded request."""

    name: str
    agent: AgentName
    request: Request
    n_val: int
    """Number of validation items of the search."""
    n_gpus: int
    """Number of GPUs of a slot."""
    multi_stage: bool = True
    wins: bool | None = None
    """Early stopper: whether the running phase beat the incumbent later. None for other agents."""
    better: Mapping[str, int] = field(default_factory=dict)
    """Hyper-parameter -> 1 (raise) or -1 (lower), if that is known to be better than keeping its value. Empty
    if nothing is known."""


def recorded_cases(search: Path) -> Iterator[RecordedRequest]:
    """Requests of a search, in the order in which they were made. Left out are later tries, and requests
    about a running phase that had already won or whose final score is unknown.

    Raises:
        ConfigError: there is no search.
        JournalError: its journal is damaged.
    """
    storage = SearchStorage.at(search)
    events = read_all(storage.journal_to_read())
    whole = started_core(events, storage.paths.root)
    n_val = int(_facts(whole)["n_val"])
    case = functools.partial(
        RecordedRequest,
        n_val=n_val,
        n_gpus=whole.config.slots.n_gpus,
        multi_stage=whole.config.search.multi_stage,
    )
    core = CoordinatorCore(storage.paths)
    seen = set[int]()

    def curves_of(node: int) -> Curves:
        return load_curves(storage, node, gains=True)

    for event in events:
        if isinstance(event, ev.VerdictPosted):
            request = _verdict_request(core, event, storage, curves_of, n_val)
            if request is not None and (wins := _wins(whole, request)) is not None:
                name = f"{search.name}/{event.node} at step {event.step}"
                yield case(name=name, agent="early_stopper", request=request, wins=wins)
        core.apply(event)
        for command in core.outstanding() if isinstance(event, ev.Decided) else ():
            if isinstance(command, cmd.Propose | cmd.Analyze) and command.node not in seen:
                seen.add(command.node)
                agent: AgentName = "proposer" if isinstance(command, cmd.Propose) else "error_analyzer"
                made = build_request(core, command, curves_of)
                if isinstance(made, ProposalRequest):
                    made = with_outcomes(storage, made, _facts(whole).get("val"))
                yield case(name=f"{search.name}/{command.node}", agent=agent, request=made)


def write_cases(cases: Sequence[RecordedRequest], path: Path) -> None:
    """Write a recorded set.

    Raises:
        StorageError: the file cannot be written.
    """
    text = json.dumps([_rounded(to_json(case)) for case in cases], separators=(",", ":"))
    replace_file(path, gzip.compress(text.encode(), mtime=0))


def read_cases(place: Path) -> tuple[RecordedRequest, ...]:
    """Cases in a file, or in all files of a directory.

    Raises:
        ConfigError: there are none, or a file cannot be read.
    """
    files = sorted(place.glob("*.json.gz")) if place.is_dir() else [place]
    found: list[RecordedRequest] = []
    for file in files:
        try:
            found += from_json(json.loads(gzip.decompress(file.read_bytes())))
        except (OSError, EOFError, ValueError, TypeError, JournalError) as error:
            raise ConfigError(f"{file}: holds no recorded requests ({error}).") from error
    if not found or not all(isinstance(case, RecordedRequest) for case in found):
        raise ConfigError(f"{place}: holds no recorded requests; record some with --record SEARCH.")
    return tuple(found)


def _verdict_request(
    core: CoordinatorCore, event: ev.VerdictPosted, storage: SearchStorage, curves_of: Any, n_val: int
) -> StopRequest | None:
    """Request to the early stopper. None if a rule decided without the incumbent, or at the last step."""
    pushed = [command for command in core.outstanding() if isinstance(command, cmd.PushIncumbent)]
    if not pushed or event.decision.rule != "early_stopper" or event.node < 0:
        return None
    running = node_view(core, event.node, lambda node: curves_of(node).until(event.step))
    chain = incumbent_chain(core, pushed[0], curves_of)
    if event.step >= running.n_steps:
        return None  # a stop would save nothing
    verdicts = earlier_verdicts(core, event.node, event.phase_attempt)
    return stop_request(
        core.config,
        task_view(core),
        running,
        chain,
        verdicts,
        lambda node: load_items(storage, node, responses=False),
        n_val=n_val,
        budget=budget_of(core, event.node),
    )


def _wins(whole: CoordinatorCore, request: StopRequest) -> bool | None:
    """Whether the phase beat the incumbent later. None if that is unknown, or it had already done so."""
    run = whole.runs[request.running.node]
    target = score_to_beat(request.incumbent.score, request.incumbent_path)
    if run.status != "completed" or run.score is None or target is None:
        return None
    won = max(request.running.curves.val_scores, default=target) > target
    return None if won else run.score > target


def _facts(core: CoordinatorCore) -> Mapping[str, Any]:
    assert core.started is not None
    return core.started.task


def _rounded(data: Any) -> Any:
    if isinstance(data, float):
        return float(f"{data:.{_DIGITS}g}")
    if isinstance(data, dict):
        return {key: _rounded(value) for key, value in data.items()}
    return [_rounded(value) for value in data] if isinstance(data, list) else data
