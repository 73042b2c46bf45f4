"""Nodes of a search as text: configurations, changes with their outcomes, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from llmzero_ray.agents.llm.context_budget import phase_cost
from llmzero_ray.agents.llm.context_metrics import (
    FEW_POINTS,
    ends_text,
    gain_text,
    is_tie,
    parts_text,
    validation_course,
)
from llmzero_ray.agents.llm.prompt_text import score
from llmzero_ray.hyperparameters import SPACE, diff, format_value, short
from llmzero_ray.hyperparameters.verl_keys import (
    LORA_ALPHA,
    LORA_RANK,
    LR,
    LR_SCHEDULER,
    MINI_BATCH,
    ROLLOUT_N,
    TEMPERATURE,
    TRAIN_BATCH,
)
from llmzero_ray.records import Hyperparameters, HyperparameterValue, ResumeFrom
from llmzero_ray.records.agents import NodeView, OfferedCheckpoint, ProposalRequest
from llmzero_ray.records.metrics import (
    ENTROPY,
    KL,
    MIXED_GROUPS,
    REWARDS,
    Curves,
    accuracy_error,
    series,
)
from llmzero_ray.utils.text import first_words, number, number_ranges, one_line

MOST_CHANGES = 8
"""Maximum number of changes shown for one node."""
MOST_NODES = 32
"""Maximum number of nodes of the tree that get a line."""
FEWER_POINTS = 4
"""Maximum number of validations in the line of a phase below the shown one."""


# --- configurations -----------------------------------------------------------------------------------------


def configuration(full: Hyperparameters, root: Hyperparameters, hidden: Collection[str] = ()) -> str:
    """Configuration as YAML with short names, one line per key. Comments mark differences from the root and
    give the learning rate with the adapter's scale. Keys in `hidden` have a line only if they differ."""
    differs = diff(root, full)
    order = {row.key: i for i, row in enumerate(SPACE)}
    lines = []
    shown = (key for key in full if key in differs or key not in hidden)
    for key in sorted(shown, key=lambda k: (order.get(k, len(order)), k)):
        beside = [f"root: {_value(key, differs[key][0])}"] if key in differs else []
        if key == LR and (scaled := _scaled_rate(full)):
            beside.append(f"x lora_alpha / lora_rank: {scaled}")
        note = f"  # {'; '.join(beside)}" if beside else ""
        lines.append(f"{short(key)}: {_value(key, full[key])}{note}")
    return "\n".join(lines)


def main_settings(full: Hyperparameters) -> str:
    """`lr 0.001, lr_scheduler cosine, temperature 1, batch_size 8, n 8`."""
    shown = (LR, LR_SCHEDULER, TEMPERATURE, TRAIN_BATCH, ROLLOUT_N)
    return ", ".join(f"{short(key)} {_value(key, full[key])}" for key in shown if key in full)


def _scaled_rate(full: Hyperparameters) -> str:
    """lr x lora_alpha / lora_rank. Empty if it is not known, or lr itself."""
    rate, alpha, rank = (full.get(key) for key in (LR, LORA_ALPHA, LORA_RANK))
    if not isinstance(rate, int | float) or not isinstance(alpha, int | float) or not isinstance(rank, int):
        return ""
    return number(rate * alpha / rank) if rank > 0 and alpha != rank else ""


def changes(old: Hyperparameters, new: Hyperparameters) -> str:
    """`lr 0.001 -> 0.0005, n 8 -> 12`, at most MOST_CHANGES of them. A mini batch that only follows the batch
    size does not count."""
    differs = diff(old, new)
    if _n_updates(old) == _n_updates(new) is not None and TRAIN_BATCH in differs:
        differs.pop(MINI_BATCH, None)
    found = [
        f"{short(key)} {_value(key, before)} -> {_value(key, after)}"
        for key, (before, after) in differs.items()
    ]
    left = len(found) - MOST_CHANGES
    return ", ".join(found[:MOST_CHANGES] + ([f"and {left} more"] if left > 0 else [])) or "nothing"


def _n_updates(full: Hyperparameters) -> float | None:
    batch, mini = full.get(TRAIN_BATCH), full.get(MINI_BATCH)
    return batch / mini if isinstance(batch, int) and isinstance(mini, int) and mini else None


def _value(key: str, value: HyperparameterValue) -> str:
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_value(key, v) for v in value) + "]"
    if isinstance(value, str):
        text = one_line(value, 80)
        plain = text.replace("-", "").replace("_", "").isalnum() and text not in ("true", "false", "null")
        return text if plain else "'" + text.replace("'", "''") + "'"
    return format_value(key, value)


# --- nodes --------------------------------------------------------------------------------------------------


def title(node: NodeView) -> str:
    """`node 3 (evolve, early stopped after 24 of 40 steps)`."""
    done = max((*node.curves.steps, *node.curves.val_steps), default=0)
    length = f"{done} of {node.n_steps} steps" if done != node.n_steps else f"{done} steps"
    return f"node {node.node} ({node.kind}, {node.status.replace('_', ' ')} after {length})"


def start_of(at: ResumeFrom | None) -> str:
    """`node 3 step 20`, or `the base model`."""
    return "the base model" if at is None else f"node {at.node} step {at.step}"


def validation(node: NodeView, n_val: int, *, base: int = 0, paired: bool = False) -> str:
    """Validation scores of the phase, its start score and the standard error of one score. Steps are shifted
    by `base`. With `paired`, known paired differences from the start follow the scores."""
    curves = node.curves
    gains = zip(curves.val_steps, curves.val_gains, strict=False) if paired else ()
    beside = {base + step: f" ({gain_text(gain)})" for step, gain in gains if gain is not None}
    points = [
        (base + step, value)
        for step, value in zip(curves.val_steps, curves.val_scores, strict=True)
        if math.isfinite(value)
    ]
    start = f"start {score(curves.start_score)}; " if curves.start_score is not None else ""
    if not points:
        return f"{start}not validated yet"
    best = max(value for _, value in points)
    error = accuracy_error(best, n_val)
    return f"{start}{validation_course(points, beside=beside)} (standard error {error:.3f}, {n_val} items)"


def outcome(node: NodeView) -> str:
    """Outcome of a node in a few words: start, best and last score, or how it failed."""
    if node.failure is not None:
        return f"failed ({node.failure.failure_class}: {one_line(node.failure.cause, 120)})"
    curves = node.curves
    if node.score is None:
        return "no score yet"
    at = f"@{node.best_step}" if node.best_step is not None else ""
    start = f"{score(curves.start_score)} -> " if curves.start_score is not None else ""
    last = f", last {curves.val_scores[-1]:.3f}" if curves.val_scores else ""
    return f"validation {start}best {score(node.score)}{at}{last}"


def below(request: ProposalRequest) -> str:
    """`node 2`, or `nodes 2, 4 to 6`: ended phases below the shown one."""
    ended = [view.node for view in request.siblings if view.status not in ("running", "pending")]
    return f"node{'' if len(ended) == 1 else 's'} {number_ranges(ended)}" if ended else ""


def stop_note(node: NodeView) -> str:
    """Reason why a phase ended before its last step. Empty if it did not."""
    if node.status != "early_stopped":
        return ""
    return one_line(node.stop_reason, 160) or "no reason was recorded"


# --- checkpoints --------------------------------------------------------------------------------------------


def checkpoint_lines(offered: Sequence[OfferedCheckpoint], most: int = FEW_POINTS) -> list[str]:
    """One line per node: `node 3: saved steps 5 to 40 by 5; validation 10: 0.344 (-0.021 ± 0.012), ...`, with
    paired differences from the best checkpoint. All saved steps are listed as ranges, and at most `most`
    scores. The last line has the best checkpoint and those that tie with it, if differences are known."""
    by_node: dict[int, list[OfferedCheckpoint]] = {}
    for one in sorted(offered, key=lambda c: (c.global_step, c.node)):
        by_node.setdefault(one.node, []).append(one)
    return [*(f"node {node}: {_saved(found, most)}" for node, found in by_node.items()), *_ties(by_node)]


def _saved(found: Sequence[OfferedCheckpoint], most: int) -> str:
    scored = [(c.step, c.val_score) for c in found if c.val_score is not None]
    beside = {c.step: f" ({gain_text(c.to_best)})" for c in found if c.to_best is not None}
    course = f"; validation {validation_course(scored, most, beside)}" if scored else ""
    one = "saved step" if len(found) == 1 else "saved steps"
    return f"{one} {number_ranges(c.step for c in found)}{course}"


def _ties(by_node: Mapping[int, Sequence[OfferedCheckpoint]]) -> list[str]:
    """`best is node 3 step 10 (0.805), ± one error; within two errors of it, a tie: node 1 step 10`. Empty if
    no difference is known."""
    known = [one for found in by_node.values() for one in found if one.val_score is not None]
    if all(one.to_best is None for one in known):
        return []
    best = max(known, key=lambda one: (one.to_best is None, one.val_score, one.global_step))
    level = [
        f"node {node} {'step' if len(steps) == 1 else 'steps'} {number_ranges(steps)}"
        for node, found in by_node.items()
        if (steps := [one.step for one in found if one.to_best is not None and is_tie(one.to_best)])
    ]
    tied = f"within two errors of it, a tie: {', '.join(level)}" if level else "none ties with it"
    return [f"best is node {best.node} step {best.step} ({score(best.val_score)}), ± one error; {tied}"]


# --- the whole tree -----------------------------------------------------------------------------------------


def tree_groups(
    request: ProposalRequest, most: int = MOST_NODES, *, detailed: bool = True
) -> list[dict[str, Any]]:
    """All phases of the search, one line each, grouped by the checkpoint they start from.

    `start` describes the group; for a forced fresh start it contains no step. Unplanned phases come last. In
    a tree of more than `most` nodes, the least relevant ones are only counted. `detailed` adds entropy, mixed
    groups, wrong answers, and the course of phases below the shown one.
    """
    views = _views(request)
    shown = _worth_showing(request, views, most)
    groups: dict[tuple[int, int] | None, list[NodeView]] = {}
    proposed = [view for view in views.values() if not view.hyperparameters]
    for node in sorted(views):
        view = views[node]
        if view.hyperparameters:
            at = view.resume_from
            groups.setdefault(None if at is None else (at.node, at.step), []).append(view)
    found, elsewhere = list[dict[str, Any]](), 0
    for place in sorted(groups, key=lambda place: place or (-1, 0)):
        kept = [view for view in groups[place] if view.node in shown]
        left = len(groups[place]) - len(kept)
        if not kept:
            elsewhere += left
            continue
        lines = [_tree_line(view, views, request, detailed=detailed) for view in kept]
        start = _start(place, views, with_step=not request.from_scratch)
        found.append({"start": start, "lines": lines + ([f"and {left} more"] if left else [])})
    if elsewhere:
        found.append({"start": "other checkpoints", "lines": [f"and {elsewhere} more"]})
    if proposed:
        lines = [f"node {view.node} ({view.kind}), below node {view.parent}" for view in proposed[:12]]
        found.append({"start": "a start that another slot is choosing right now", "lines": lines})
    return found


def _views(request: ProposalRequest) -> dict[int, NodeView]:
    """All phases by number, with their series if the request has them."""
    views = {view.node: view for view in (*request.tree, *request.path, request.on)}
    detailed = (*request.siblings, *(() if request.best is None else (request.best,)))
    return views | {
        one.node: replace(views[one.node], curves=one.curves, wrong=one.wrong)
        for one in detailed
        if one.node in views
    }


def _worth_showing(request: ProposalRequest, views: Mapping[int, NodeView], most: int) -> set[int]:
    """All nodes of a small tree. For a large one: the shown and the best node, running nodes, nodes that
    started where this phase may start, the path, then the best and the newest nodes."""
    first = [request.on.node, *([] if request.best is None else [request.best.node])]
    path = {view.node for view in request.path}
    near = [
        view.node
        for view in views.values()
        if view.status in ("running", "pending")
        or (view.resume_from is not None and view.resume_from.node == request.on.node)
    ]
    best = sorted(views, key=lambda node: -math.inf if (s := views[node].score) is None else s, reverse=True)
    wanted = [
        *first,
        *near,
        *sorted(path, reverse=True),
        *(n for pair in zip(best, sorted(views, reverse=True), strict=True) for n in pair),
    ]
    return set(list(dict.fromkeys(node for node in wanted if node in views))[:most])


def _start(place: tuple[int, int] | None, views: Mapping[int, NodeView], *, with_step: bool) -> str:
    if place is None:
        return "the base model"
    node, step = place
    if not with_step:
        return f"node {node}"
    curves = views[node].curves if node in views else Curves()
    scores = dict(zip(curves.val_steps, curves.val_scores, strict=True))
    return f"node {node} step {step}" + (f" ({score(scores[step])})" if step in scores else "")


def _tree_line(
    view: NodeView, views: Mapping[int, NodeView], request: ProposalRequest, *, detailed: bool
) -> str:
    at = view.resume_from
    source = request.default if at is None else views[at.node].hyperparameters if at.node in views else {}
    tried = changes(source, view.hyperparameters) if source else "?"
    if tried == "nothing":
        tried = "the root's configuration" if at is None else "unchanged"
    beside = detailed and any(one.node == view.node for one in request.siblings)
    status = "" if view.status == "completed" else f", {view.status.replace('_', ' ')}"
    shown = ", shown" if view.node == request.on.node else ""  # its metrics and answers have sections
    head = f"node {view.node} ({view.kind}{status}{shown}, {view.n_steps} steps): {tried}"
    ending = [
        _came(view, whole=beside),
        *([] if shown else _moved(view, ("reward", "KL"), whole=beside)),
        *([] if shown or not detailed else [*_moved(view, ("entropy", "mixed groups")), wrong_text(view)]),
        "its score is in doubt" if view.doubts else "",
        phase_cost(request.budget, view),
    ]
    return f"{head} => {'; '.join(part for part in ending if part)}"


def _came(view: NodeView, *, whole: bool = False) -> str:
    """`best 0.634@5 (-0.010 ± 0.016), last 0.535@20 (-0.108 ± 0.017)`, with differences from the start. One
    score if the last is the best. With `whole`, the validations in between are added."""
    failure = view.failure
    failed = [] if failure is None else [f"failed ({failure.failure_class}) at step {failure.steps_done + 1}"]
    curves = view.curves
    points = [(s, v) for s, v in zip(curves.val_steps, curves.val_scores, strict=True) if math.isfinite(v)]
    if not points:
        waits = view.status in ("running", "pending")
        return "".join(failed) or ("not validated yet" if waits else score(view.score))
    gains = dict(zip(curves.val_steps, curves.val_gains, strict=False))
    best, last = max(points, key=lambda point: (point[1], -point[0])), points[-1]
    named = [("", last)] if best == last else [("best ", best), ("last ", last)]
    scores = [
        f"{name}{value:.3f}@{step}" + (f" ({gain_text(gain)})" if (gain := gains.get(step)) else "")
        for name, (step, value) in named
    ]
    all_of_it = whole and len(points) > len(named)
    course = [f"validation {validation_course(points, FEWER_POINTS)}"] if all_of_it else []
    return ", ".join([*failed, *scores, *course]) + (" so far" if view.status == "running" else "")


def _moved(view: NodeView, words: Sequence[str], *, whole: bool = False) -> list[str]:
    """`reward 0.344 -> 0.551`, `KL 0.01 -> 0.17`: first and last levels of the known series. With `whole`,
    the means of four parts: `reward 0.344 -> 0.281 -> 0.4 -> 0.551`."""
    reward = next((name for name in REWARDS if len(series(view.curves, name))), REWARDS[0])
    names = {"reward": reward, "KL": KL, "entropy": ENTROPY, "mixed groups": MIXED_GROUPS}
    text = parts_text if whole else ends_text
    return [f"{word} {text(one)}" for word in words if len(one := series(view.curves, names[word])) > 1]


def wrong_text(view: NodeView) -> str:
    """Wrong answers of the last validation: `58 wrong (9 cut off, 4 unanswered)`. Empty if not known."""
    if view.wrong is None:
        return ""
    n, cut, unanswered = view.wrong
    return f"{n} wrong ({cut} cut off{'' if unanswered is None else f', {unanswered} unanswered'})"


def length_text(view: NodeView) -> str:
    """`uncut ones of less than 21 characters score 0.520, the others 0.310`. Empty if not known."""
    if view.by_length is None:
        return ""
    middle, shorter, longer = view.by_length
    return f"uncut ones of less than {middle} characters score {score(shorter)}, the others {score(longer)}"


def places_text(view: NodeView) -> str:
    """`41% of all name the prompt's first number, 45% its last (right: 33%, 35%)`. Empty if not known."""
    if view.places is None:
        return ""
    first, last, right_first, right_last = (f"{share:.0%}" for share in view.places)
    right = f"right: {right_first}, {right_last}"
    return f"{first} of all name the prompt's first number, {last} its last ({right})"


def best_line(request: ProposalRequest) -> str:
    """The best node, with the base model's own score. Empty before any node has a score."""
    views = _views(request)
    first = next(
        (
            view
            for _, view in sorted(views.items())
            if view.resume_from is None and view.hyperparameters and view.curves.start_score is not None
        ),
        None,
    )
    best = request.best
    if first is None:
        scored = best is not None and best.score is not None
        return f"The best is node {best.node} with {score(best.score)}." if best and scored else ""
    base, sampled = first.curves.start_score, _sampled_start(first.curves)
    assert base is not None
    at = _value(TEMPERATURE, first.hyperparameters.get(TEMPERATURE))
    beside = "" if sampled is None else f" (sampled at temperature {at}: reward {number(sampled)})"
    if best is None or best.score is None:
        return f"The base model scores {score(base)}{beside}."
    if best.score <= base:
        named = f"the best phase is node {best.node} ({score(best.score)})"
        return f"Nothing beats the base model, {score(base)}{beside}, yet; {named}."
    named = f"The best is node {best.node} with {score(best.score)}"
    return f"{named}; the base model scores {score(base)}{beside}."


def other_bases(request: ProposalRequest) -> list[str]:
    """Configurations that changes are relative to if another phase's checkpoint is resumed, each as
    differences from the shown configuration."""
    if request.from_scratch:
        return []
    shown = request.base(None)
    others = sorted({one.node for one in request.checkpoints} - {request.on.node})
    return [
        f"from node {node}: {_instead(shown, request.base(ResumeFrom(node=node, step=0)))}" for node in others
    ]


def reasons(view: NodeView, most: int) -> str:
    """Reasons given for the changes of a phase, cut between words to at most `most` characters."""
    return first_words(
        "; ".join(f"{short(one.key)}: {one.reason.rstrip('.')}" for one in view.changes if one.reason), most
    )


def said_lines(path: Sequence[NodeView], most: int) -> list[str]:
    """Reasons for the changes of each phase, or its diagnosis if none were given."""
    said = {
        view.node: reasons(view, most)
        or ("" if view.diagnosis is None else first_words(view.diagnosis.summary, most))
        for view in path
    }
    return [f"node {node}: {text}" for node, text in said.items() if text]


def _instead(shown: Hyperparameters, other: Hyperparameters) -> str:
    values = [f"{short(key)} {_value(key, new)}" for key, (_, new) in diff(shown, other).items()]
    return ", ".join(values) or "the same"


def sampled_gap(node: NodeView) -> str:
    """Reward of sampled rollouts at the end and at the start of the phase, to compare with greedy validation.
    Empty without both."""
    curves = node.curves
    reward = next((one for one in (series(curves, name) for name in REWARDS) if len(one)), None)
    if reward is None or not curves.val_scores:
        return ""
    temperature = _value(TEMPERATURE, node.hyperparameters.get(TEMPERATURE))
    first = _sampled_start(curves)
    began = ""
    if first is not None:
        prompts = _value(TRAIN_BATCH, node.hyperparameters.get(TRAIN_BATCH))
        began = f"; those of step 1's {prompts} prompts, before any update, had {number(first)}"
    return (
        f"Next to these greedy scores, the last rollouts, sampled at temperature {temperature}, have a mean "
        f"reward of {number(reward.last)}{began}."
    )


def _sampled_start(curves: Curves) -> float | None:
    """Mean reward of the first step's rollouts, which were sampled from the phase's starting policy."""
    found = (one for one in (series(curves, name) for name in REWARDS) if len(one))
    return next((one.values[0] for one in found if one.steps[0] == 1), None)
