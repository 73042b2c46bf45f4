"""Context of each agent's prompt: plain values for the templates, computed from the agents' requests.

`stable_context` is constant during a search and comes first in every prompt, so that it can be cached. The
other functions return the values that change with each call. Pure: no files, no clock. The context of a
forced fresh start has no checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeAlias, get_args

from llmzero_ray.agents.expert.early_stopper import (
    RULE,
    ExpertEarlyStopper,
    phase_outlook,
    takes_off,
)
from llmzero_ray.agents.knowledge import Knowledge, MetricNote
from llmzero_ray.agents.llm import context_nodes as nodes
from llmzero_ray.agents.llm.context_budget import budget_lines, fitting_steps, without_own_steps
from llmzero_ray.agents.llm.context_metrics import (
    FEW_POINTS,
    SEGMENTS,
    describe,
    summarise,
    validation_course,
)
from llmzero_ray.agents.llm.prompt_text import middle_cut, quote, safe_name, score
from llmzero_ray.config.search_config import Priors
from llmzero_ray.dynamics.features import observe, truncated
from llmzero_ray.dynamics.incumbent import score_to_beat
from llmzero_ray.hyperparameters import (
    SPACE,
    VERL_SPACE,
    Parameter,
    Space,
    clip_is_inert,
    diff,
    format_value,
    short,
)
from llmzero_ray.hyperparameters.space import NOT_TRAINED
from llmzero_ray.hyperparameters.verl_keys import (
    CLIP_HIGH,
    CLIP_LOW,
    MAX_RESPONSE,
    TRAIN_BATCH,
    USE_KL_IN_REWARD,
)
from llmzero_ray.records import DiagnosisState, Hyperparameters, Proposal
from llmzero_ray.records.agents import (
    AgentName,
    Answer,
    EarlierVerdict,
    ErrorRequest,
    MemoryView,
    NodeView,
    ProposalRequest,
    Standing,
    StopRequest,
    TaskView,
)
from llmzero_ray.records.metrics import (
    ENTROPY,
    GRAD_NORM,
    KL,
    LENGTH,
    LENGTH_AT_MAX,
    LENGTH_MAX,
    MEMORY_ALLOCATED,
    MEMORY_HOST,
    MEMORY_RESERVED,
    MIXED_GROUPS,
    REWARDS,
    STEP_TIME,
    Curves,
    accuracy_error,
    series,
)
from llmzero_ray.records.significance import Difference
from llmzero_ray.stopping.request import saving_text
from llmzero_ray.utils.text import first_words, number, one_line

Context: TypeAlias = dict[str, Any]
"""Template variable -> JSON-serializable value."""

MOST_SOURCES = 8
"""Maximum data sources that are listed."""
MOST_TOKENS = 8000
"""Estimated tokens, with tool schema and image, above which a proposer's request gets tighter limits."""


@dataclass(frozen=True, kw_only=True)
class PromptLimits:
    """Maximum characters and lines of those parts of a proposer's request that may shrink."""

    detailed: bool = True
    """Whether phases other than the shown one have more than scores, reward and KL."""
    said_before: int = 300
    """Characters of each explanation that came with an earlier phase of the path."""
    phases: int = nodes.MOST_NODES
    answers: int = 4
    """Number of greedy answers, and of sampled ones."""
    answer: int = 200
    """Characters of each prompt and each answer."""
    kinds: int = 20
    """Number of kinds of questions whose scores are shown."""
    courses: int = SEGMENTS
    """Number of segments for the course of a long series."""
    scores: int = FEW_POINTS
    """Number of scores shown for a phase's checkpoints."""
    said: int = 600
    """Characters of each explanation that came with the shown phase."""
    hints: int = 4000
    """Characters of all hints together."""


_TIGHTER: tuple[Mapping[str, Any], ...] = (
    {"detailed": False},
    {"said_before": 120, "courses": 4, "scores": 3},
    {"answers": 2, "kinds": 8},
    {"answer": 120, "phases": 16},
    {"said": 300, "phases": 8, "hints": 1500},
    {"said_before": 40, "phases": 4, "hints": 500},
    {"said_before": 0, "said": 100, "answer": 60},
)
PROMPT_LIMITS = tuple(
    accumulate(_TIGHTER, lambda limits, less: replace(limits, **less), initial=PromptLimits())
)
"""Limits from widest to tightest. The least valuable parts shrink first."""
REWARD_CHARS = 300
"""Maximum characters of a reward's description."""
DESCRIPTION_CHARS = 800
"""Maximum characters of the task's description."""
ERROR_METRICS = (REWARDS[0], KL, GRAD_NORM, LENGTH, LENGTH_MAX)
"""Metrics in the error analyzer's context except memory."""
STOPPER_METRICS = (REWARDS[0], MIXED_GROUPS, LENGTH, ENTROPY, KL)
"""Metrics in the early stopper's context except validation."""
MOST_STANDINGS, MOST_VERDICTS, MOST_ENDED = 8, 4, 8
"""Maximum numbers of validations compared with the incumbent, of earlier verdicts, and of ended phases. The
latest ones are shown."""
MOST_VALIDATED = 5
"""Maximum number of later validations whose steps are named."""
STATES: Mapping[str, str] = {
    "slow": "it rises, but little",
    "declining": "validation falls or swings, without a collapse",
    "collapsing": "reward, entropy or KL break away",
    "inactive": "nothing is learnt",
}
"""State of a diagnosis -> its meaning. The other states are self-explanatory."""
_ALL_STATES: tuple[str, ...] = get_args(DiagnosisState)
_STOPPER_NOTES = ("val-core", *STOPPER_METRICS)
_TIME_AND_MEMORY = (STEP_TIME, MEMORY_RESERVED)
_KNOWN_BY_NAME = (*_TIME_AND_MEMORY, REWARDS[1])


# --- for a whole search -------------------------------------------------------------------------------------


def stable_context(
    agent: AgentName,
    task: TaskView,
    knowledge: Knowledge,
    *,
    n_val: int = 500,
    n_gpus: int = 1,
    visual: bool = True,
    multi_stage: bool = True,
    priors: Priors = "paper",
    space: Space = VERL_SPACE,
) -> Context:
    """Context that all calls of a search share: the task, its limits, notes on metrics and hyper-parameters.

    `n_val` is the number of validation items. `visual`: each call has a figure. `multi_stage`: phases may
    resume. `priors` selects the experience in the notes, `space` the hyper-parameters that a proposal may
    set.
    """
    knowledge = knowledge.with_priors(priors)
    notes = list(knowledge.metrics.values())
    told = knowledge.appendix.metrics if priors == "appendix_f" else {}  # all agents of the paper get these
    if agent == "early_stopper":
        notes = [note for note in notes if note.name in (told or _STOPPER_NOTES)]
    if agent == "error_analyzer":
        notes = [note for note in notes if note.name in (*ERROR_METRICS, MEMORY_RESERVED)]
    if agent == "proposer":  # their names say enough, and most requests lack them
        notes = [note for note in notes if note.name not in _KNOWN_BY_NAME or note.name in told]
    return {
        "task": {
            "name": safe_name(task.name),
            "data_sources": [safe_name(source, 40) for source in task.data_sources[:MOST_SOURCES]],
            "n_train": task.n_train,
            "n_val": n_val,
            "val_se": f"{accuracy_error(0.5, n_val):.3f}",
            "phase_steps": task.phase_steps,
            "max_phase_steps": task.max_phase_steps,
            "max_model_len": task.max_model_len,
            "max_prompt_length": task.max_prompt_length,
            "n_gpus": n_gpus,
            "eval_response_length": task.eval_response_length,
            "base_model": safe_name(task.base_model) if task.base_model else "",
            "n_parameters": "" if task.n_parameters is None else _millions(task.n_parameters),
            "description": task.description[:DESCRIPTION_CHARS],
            "reward": safe_name(task.reward) if task.reward else "",
            "reward_says": one_line(task.reward_says, REWARD_CHARS),
            "reward_ships": task.reward_ships,
            "test_steps": _every(task.test_freq),
            "save_steps": _every(task.save_freq),
            "chance": "" if task.chance is None else score(task.chance),
            "shortcut": _shortcut(task),
        },
        "metrics": [_metric(note) for note in notes if note.level != "background" or note.name in told],
        "states": [f"{state} ({STATES[state]})" if state in STATES else state for state in _ALL_STATES],
        "hyperparameters": [] if agent == "early_stopper" else _guide(knowledge.hyperparameters, space),
        "visual": visual,
        "multi_stage": multi_stage,
        "priors": priors,
    }


def _shortcut(task: TaskView) -> str:
    """`0.500, always the last one 0.560`: scores of answering with a random number of the prompt, and with a
    fixed one. Empty if a constant answer scores as much, or if they are not known."""
    name, fixed = task.fixed_pick or ("", 0.0)
    if task.blind_pick is None or max(task.blind_pick, fixed) <= (task.chance or 0.0):
        return ""
    return score(task.blind_pick) + (f", always the {name} one {score(fixed)}" if name else "")


def _every(freq: int | None) -> str:
    """`5, 10, 15, ...`; empty if it is not known."""
    return "" if freq is None else f"{freq}, {2 * freq}, {3 * freq}, ..."


def _millions(n_parameters: int) -> str:
    """`0.6 M`, `4.0 B`."""
    return f"{n_parameters / 1e9:.1f} B" if n_parameters >= 1e9 else f"{n_parameters / 1e6:.1f} M"


def _metric(note: MetricNote) -> Context:
    return {
        "name": note.name,
        "label": note.label,
        "description": note.description,
        "healthy": note.healthy,
        "confusion": note.confusion,
        "level": note.level,
    }


def _guide(notes: Mapping[str, str], space: Space) -> list[Context]:
    """Hyper-parameters that a proposal may change, grouped, with their allowed values and effects."""
    groups: dict[str, list[Context]] = {}
    for row in space.parameters:
        if row.group not in NOT_TRAINED and space.forbidden(row.key) is None:
            entry = {
                "name": row.alias,
                "key": _key_hint(row, space),
                "allowed": _range(row),
                "note": notes.get(row.key, row.doc),
                "brief": row.group == "memory" or row.alias.startswith("algo_kl"),
            }
            groups.setdefault(row.group, []).append(entry)
    others = [
        {
            "name": row.key,
            "key": "",
            "allowed": _range(row),
            "note": notes.get(row.key, row.doc),
            "brief": False,
        }
        for row in space.proposable
        if row not in VERL_SPACE.proposable  # the prompt names those, with a few words for all
    ]
    found: list[Context] = [{"group": group, "rows": rows} for group, rows in groups.items()]
    return found + ([{"group": "further", "rows": others}] if others else [])


def _key_hint(row: Parameter, space: Space) -> str:
    """Shortest unique end of VeRL's key, if the short name does not reveal it."""
    parts = row.key.split(".")
    if set(row.alias.split("_")) <= set(parts[-1].split("_")) and row.alias != "n":
        return ""
    # A single word such as `type` says little.
    shortest = 1 if "_" in parts[-1] else 2
    ends = (".".join(parts[-n:]) for n in range(shortest, len(parts)))
    return next((end for end in ends if space.names.get(end) == row.key), row.key)


def _range(row: Parameter) -> str:
    """Allowed values of a row in short form: `0..0.1`, `>= 1`, `true/false`, `constant/cosine`."""
    if row.kind == "bool":
        return "true/false"
    if row.choices:
        return "/".join(row.choices)
    if row.low is None or row.high is None:
        return ""
    return f"{row.low:g}..{row.high:g}" if row.high < 1e5 else f">= {row.low:g}"


# --- the proposer -------------------------------------------------------------------------------------------


def proposer_context(
    request: ProposalRequest,
    knowledge: Knowledge,
    *,
    n_val: int = 500,
    n_gpus: int = 1,
    limits: PromptLimits = PROMPT_LIMITS[0],
) -> Context:
    """Context of the proposer: the node's configuration, dynamics and validation, all phases of the search,
    checkpoints, and the remaining budget."""
    on, scratch = request.on, request.from_scratch
    path = () if scratch else request.path
    base = request.base(None)
    budget = request.budget if scratch else replace(request.budget, root_step=None)
    return {
        "from_scratch": scratch,
        "n_scratch": request.n_scratch,
        "node": {
            "number": on.node,
            "title": nodes.title(on),
            "base_step": 0 if scratch else on.base_step,
            "outcome": "" if on.failure is None and on.curves.val_scores else nodes.outcome(on),
            "said": "" if on.diagnosis is None else first_words(on.diagnosis.summary, limits.said),
            "predicted": "" if on.predicted is None else score(on.predicted),
            "differs": nodes.changes(base, on.hyperparameters) if diff(base, on.hyperparameters) else "",
            "reasons": nodes.reasons(on, limits.said),
        },
        "early_stop": nodes.stop_note(on),
        "base_configuration": nodes.configuration(base, request.default, _idle_keys(request, base)),
        "bases": nodes.other_bases(request),
        "clip_inert": f"{base.get(CLIP_LOW)}, {base.get(CLIP_HIGH)}" if clip_is_inert(base) else "",
        "validation": nodes.validation(on, n_val, paired=True),
        "paired": any(gain is not None for gain in on.curves.val_gains),
        "sampled": nodes.sampled_gap(on),
        "wrong": nodes.wrong_text(on),
        "by_length": nodes.length_text(on),
        "places": nodes.places_text(on),
        "below": nodes.below(request),
        "kinds": _kinds(on, limits.kinds),
        "metrics": summarise(_truncation(on), knowledge.metrics, _not_binding(request), limits.courses),
        "said_before": nodes.said_lines(
            [view for view in path if view.node != on.node and limits.said_before], limits.said_before
        ),
        "tree": nodes.tree_groups(request, limits.phases, detailed=limits.detailed),
        "detailed": limits.detailed,
        "standing": nodes.best_line(request),
        "quartered": bool(request.siblings),
        "answers": answer_lines(on, limits),
        "doubts": list(on.doubts or ()),
        "compared": any(one.to_best is not None for one in request.checkpoints),
        "checkpoints": [] if scratch else nodes.checkpoint_lines(request.checkpoints, limits.scores),
        "epochs": _epochs(request.task, base),
        "max_phase_steps": request.task.max_phase_steps,
        "fitting": "" if (fit := fitting_steps(budget, on, request.task, n_gpus)) is None else str(fit),
        "budget": budget_lines(
            budget,
            on,
            request.task.phase_steps,
            n_gpus,
            test_freq=request.task.test_freq,
            others=(*request.tree, *request.path),
        ),
        "hints": _hints(request.hints, limits.hints),
        "rejected": request.rejected or "",
        "refused_answer": answer_text(request.refused) if request.rejected else "",
    }


def _not_binding(request: ProposalRequest) -> tuple[str, ...]:
    """Metrics that do not matter in this search: step time without a limit on hours, memory if no phase ran
    out of it, and the reward after KL if no KL is subtracted."""
    limit = request.budget
    timed = limit.gpu_hours is not None or limit.wall_clock_hours is not None
    paid = request.on.hyperparameters.get(USE_KL_IN_REWARD) is not False
    hidden = (
        (STEP_TIME, timed),
        (MEMORY_RESERVED, _ran_out(request)),
        (REWARDS[1], paid),
    )
    return tuple(name for name, shown in hidden if not shown)


def _truncation(view: NodeView) -> Curves:
    """Curves of a phase in which the share of truncated answers replaces that of longest answers."""
    known, cap = view.curves.metrics, view.hyperparameters.get(MAX_RESPONSE)
    if LENGTH_AT_MAX not in known or not isinstance(cap, int):
        return view.curves
    found = truncated(view.curves, cap)
    at = dict(zip(found.steps, found.values, strict=True))
    return replace(view.curves, metrics={**known, LENGTH_AT_MAX: tuple(map(at.get, view.curves.steps))})


def _ran_out(request: ProposalRequest) -> bool:
    """Whether a phase of the search ran out of memory."""
    views = (*request.tree, *request.path, request.on)
    return any(view.failure is not None and view.failure.failure_class == "oom" for view in views)


def _idle_keys(request: ProposalRequest, full: Hyperparameters) -> tuple[str, ...]:
    """Keys that a proposal need not consider: memory settings while no phase ran out of memory, keys without
    effect, and keys that no proposal may set."""
    off = VERL_SPACE.inert(full)
    return tuple(
        row.key
        for row in SPACE
        if (row.group == "memory" and not _ran_out(request))
        or row.key in off
        or VERL_SPACE.forbidden(row.key) is not None
    )


def answer_lines(on: NodeView, limits: PromptLimits = PROMPT_LIMITS[0]) -> list[Context]:
    """Shown answers of the phase, greedy ones first: `title` in our own words, `text` as quoted data."""
    greedy = [one for one in on.answers if one.step is None]
    sampled = [one for one in on.answers if one.step is not None]
    shown = (*greedy[: limits.answers], *sampled[: limits.answers])
    prompts = ["", *(one.prompt for one in shown)]
    return [
        {"title": _answer_title(one), "text": _answer_text(one, limits.answer, repeats=one.prompt == before)}
        for one, before in zip(shown, prompts, strict=False)
    ]


def _answer_title(one: Answer) -> str:
    how = "" if one.step is None else f"sampled in step {one.step}, "
    kind = "right" if one.acc >= 0.5 else "wrong"
    return f"{how}{kind}, score {number(one.score)}{', cut off at the cap' if one.cut else ''}"


def _answer_text(one: Answer, max_chars: int, *, repeats: bool) -> str:
    whole = one.pred is not None and one.pred.strip() == one.response.strip() != ""
    pred = "all of it" if whole else first_words(one.pred or "", 80) or "(nothing)"
    taken = [] if one.pred is None else [f"taken as the answer: {pred}"]
    if one.expected and one.acc < 0.5:
        taken.append(f"expected: {first_words(one.expected, 80)}")
    if one.below is not None:
        node, response, right = one.below
        said = middle_cut(one_line(response, None), max_chars // 2) or "(nothing)"
        taken.append(f"node {node} answers, {'right' if right else 'wrong'}: {said}")
    prompt, response = (middle_cut(text, max_chars) for text in (one.prompt, one.response))
    asked = ["prompt: the one before"] if repeats else ["prompt:", prompt]
    text = "\n".join([*asked, "answer:", response, *taken])
    return quote(text, label="answer", max_lines=120, max_chars=2400, width=max_chars)


def answer_text(proposal: Proposal | None) -> str:
    """Rejected proposal in one line: start, length and changes. Empty if it is not known."""
    if proposal is None:
        return ""
    at = proposal.resume_from
    changed = "; ".join(f"{c.key} = {format_value(c.key, c.new)}" for c in proposal.changes) or "no change"
    return one_line(f"{proposal.n_steps} steps from {nodes.start_of(at)}: {changed}", 1000)


def _hints(hints: Sequence[str], max_chars: int) -> list[str]:
    """Newest hints that fit, oldest first, each on one line without control characters."""
    kept: list[str] = []
    for hint in (one_line(text, None) for text in reversed(hints)):
        if sum(map(len, kept)) + len(hint) > max_chars:
            break
        kept.insert(0, hint)
    return kept


def _kinds(on: NodeView, most: int) -> list[str]:
    """Scores by kind of question: `chem (250): 0.310 -> 0.332`, the largest kinds if there are many."""
    largest = sorted(on.kinds, key=lambda one: (-one.n, one.kind))[:most]
    lines = [
        f"{safe_name(one.kind, 40)} ({one.n}): {'' if one.start is None else f'{score(one.start)} -> '}"
        f"{score(one.last)}"
        for one in on.kinds
        if one in largest
    ]
    left = len(on.kinds) - most
    return [*lines, f"and {left} more"] if left > 0 else lines


def _epochs(task: TaskView, full: Hyperparameters) -> Context:
    batch = full.get(TRAIN_BATCH)
    size = batch if isinstance(batch, int) and not isinstance(batch, bool) and batch > 0 else 1
    return {"batch_size": size, "steps_per_epoch": max(1, task.n_train // size)}


# --- the error analyzer -------------------------------------------------------------------------------------


def error_context(request: ErrorRequest, *, n_val: int = 500, n_gpus: int = 1) -> Context:
    """Context of the error analyzer: the failure, its log as quoted data, the configuration, memory, and
    earlier attempts to fix this failure."""
    failed, failure = request.failed, request.failed.failure
    log = "" if failure is None else failure.log_tail
    return {
        "node": {
            "number": failed.node,
            "title": nodes.title(failed),
            "kind": failed.kind,
            "start": nodes.start_of(failed.resume_from),
        },
        "failure_class": "unknown" if failure is None else failure.failure_class,
        "cause": quote("" if failure is None else failure.cause, label="cause", max_lines=5, max_chars=600),
        "log": quote(log, label="log", max_lines=50, max_chars=5000, width=240),
        "memory": [
            _peak(failed.curves, name)
            for name in (MEMORY_RESERVED, MEMORY_ALLOCATED, MEMORY_HOST)
            if _has(failed, name)
        ],
        "estimate": _estimate(request.memory),
        "inert": _inert(failed.hyperparameters),
        "configuration": nodes.configuration(failed.hyperparameters, request.default),
        "validation": nodes.validation(failed, n_val),
        "metrics": [describe(series(failed.curves, n)) for n in ERROR_METRICS if _has(failed, n)],
        "chain": _chain(request.chain),
        "checkpoints": nodes.checkpoint_lines(request.checkpoints),
        "epochs": _epochs(request.task, failed.hyperparameters),
        "budget": budget_lines(
            request.budget, failed, request.task.phase_steps, n_gpus, test_freq=request.task.test_freq
        ),
        "rejected": request.rejected or "",
        "refused_answer": answer_text(request.refused) if request.rejected else "",
    }


def _inert(full: Hyperparameters) -> list[str]:
    """Keys without effect, grouped by reason: `algo_kl, algo_kl_type: it acts only while ...`."""
    by_reason: dict[str, list[str]] = {}
    for key, why in VERL_SPACE.inert(full).items():
        by_reason.setdefault(why, []).append(short(key))
    return [f"{', '.join(keys)}: {why}" for why, keys in by_reason.items()]


def _estimate(memory: MemoryView | None) -> list[str]:
    """GPU memory estimate as lines: whether the phase fits, single remedies, and a combination that fits."""
    if memory is None:
        return []
    together = ", ".join(f"{short(key)}: {format_value(key, value)}" for key, value in memory.fix.items())
    ending = [f"together: {together}: then {memory.fix_verdict}"] if together else []
    return [memory.verdict, *memory.remedies, *ending]


def _has(node: NodeView, name: str) -> bool:
    return len(series(node.curves, name)) > 0


def _peak(curves: Curves, name: str) -> str:
    one = series(curves, name)
    return f"{name}: at most {number(max(one.values))}, last {number(one.values[-1])}"


def _chain(chain: Sequence[NodeView]) -> list[str]:
    """Failed attempts, oldest first, each with its changes from the previous one."""
    lines = []
    for before, node in zip((None, *chain), chain, strict=False):
        tried = "" if before is None else nodes.changes(before.hyperparameters, node.hyperparameters) + " => "
        lines.append(f"{nodes.title(node)}: {tried}{nodes.outcome(node)}")
    return lines


# --- the early stopper --------------------------------------------------------------------------------------


def stop_context(
    request: StopRequest, *, n_val: int = 500, n_gpus: int = 1, checks: Sequence[str] = ()
) -> Context:
    """Context of the early stopper: validation of the running phase and of the incumbent by global step,
    their differences, the run noise, the rules' verdict, earlier verdicts, what a stop would save, and a few
    metrics. `checks` are findings of the deterministic rules."""
    running, incumbent = request.running, request.incumbent
    steps = (*running.curves.steps, *running.curves.val_steps)
    shown = [s for s in (series(running.curves, name) for name in STOPPER_METRICS) if len(s) > 1]
    ruled, found = ExpertEarlyStopper(n_val=n_val).judge(request), phase_outlook(request, n_val)
    now, freq = max(steps, default=0), request.task.test_freq or running.n_steps
    best = score_to_beat(incumbent.score, request.incumbent_path)
    return {
        "running": {
            "number": running.node,
            "base_step": running.base_step,
            "step": now,
            "n_steps": running.n_steps,
            "steps_left": max(0, running.n_steps - now),
            "validated_at": _later_validations(now, running.n_steps, freq),
            "validation": nodes.validation(running, n_val, base=running.base_step),
        },
        "incumbent": {
            "number": incumbent.node,
            "best": score(best),
            "behind": "" if incumbent.score in (None, best) else score(incumbent.score),
            "validation": validation_course(request.incumbent_path) or "no history",
        },
        "differs": nodes.changes(incumbent.hyperparameters, running.hyperparameters),
        "settings": nodes.main_settings(running.hyperparameters),
        "ended": [_ended(one) for one in request.ended[-MOST_ENDED:]],
        "metrics": [describe(one, running.curves.val_steps) for one in shown],
        "standings": [_standing(one) for one in request.standings[-MOST_STANDINGS:]],
        "noise": "" if found is None else score(found.noise),
        "take_off": takes_off(observe(running.curves, running.hyperparameters, n_val=n_val)),
        "rules": f"{'STOP' if ruled.stop else 'CONTINUE'}, {ruled.reason}",
        "verdicts": [_verdict(one) for one in request.verdicts[-MOST_VERDICTS:]],
        "saves": "" if request.saves is None else saving_text(request.saves),
        "budget": budget_lines(
            without_own_steps(request.budget, running),
            running,
            request.task.phase_steps,
            n_gpus,
            test_freq=request.task.test_freq,
            plans=False,
        ),
        "checks": [one_line(check, 200) for check in checks[:6]],
        "cap": running.hyperparameters.get(MAX_RESPONSE),
    }


def _later_validations(now: int, n_steps: int, freq: int) -> str:
    """`20, 30, 40`: later steps at which the phase is validated. If there are more than `MOST_VALIDATED`, the
    first ones and the last."""
    steps = [str(step) for step in (*range((now // freq + 1) * freq, n_steps, freq), n_steps)]
    left = len(steps) - MOST_VALIDATED
    return ", ".join(steps if left <= 0 else [*steps[: MOST_VALIDATED - 1], "...", steps[-1]])


def _ended(view: NodeView) -> str:
    """`node 3 (evolve): lr 0.001, lr_scheduler constant, temperature 1, batch_size 8, n 8; best 0.612`."""
    kind = f"{view.kind}, stopped early" if view.status == "early_stopped" else view.kind
    return f"node {view.node} ({kind}): {nodes.main_settings(view.hyperparameters)}; best {score(view.score)}"


def _standing(one: Standing) -> str:
    """`global step 25: 0.683; to the best -0.082 ± 0.023; at this step -0.031 ± 0.020`."""
    best = "" if one.to_best is None else f"; to the best {_difference(one.to_best)}"
    same = "" if one.at_same_step is None else f"; at this step {_difference(one.at_same_step)}"
    return f"global step {one.global_step}: {score(one.score)}{best}{same}"


def _difference(found: Difference) -> str:
    pairs = "" if found.paired else " (items not paired)"
    return f"{found.gain:+.3f} ± {found.standard_error:.3f}{pairs}"


def _verdict(one: EarlierVerdict) -> str:
    by = "yours" if one.rule == RULE else "by the rules"
    return f"step {one.step}: {'STOP' if one.stop else 'CONTINUE'} ({by}): {one_line(one.reason, 160)}"
