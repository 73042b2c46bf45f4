"""Every number that a proposer reads of a phase equals one computed straight from what was recorded."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmzero_ray.agents.llm.context import proposer_context, stable_context
from llmzero_ray.agents.llm.prompts import Prompts
from llmzero_ray.dynamics.stored_outcomes import with_outcomes
from llmzero_ray.records import ItemOutcome, MetricPoint, ResumeFrom
from llmzero_ray.records.agents import NodeView, OfferedCheckpoint, ProposalRequest
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import MetricWriter, load_curves
from tests.agents import curves as c

PROMPTS = Prompts.load()
REWARD, KL_LOSS = "critic/score/mean", "actor/kl_loss"
SCALES = {REWARD: 1.0, "critic/score/mixed_groups": 1.0, KL_LOSS: 1e-4, "response_length/mean": 2000.0}
NUMBER = r"-?[\d.]*\d(?:e-?\d+)?"
DIFFERENCE = r"([+-][\d.]*\d) ± ([\d.]*\d)"


@dataclass(frozen=True)
class Phase:
    """What was recorded of a phase: right answers by row at the validated steps, and a value by step."""

    accs: Mapping[int, np.ndarray]
    series: Mapping[str, np.ndarray]

    @property
    def scores(self) -> dict[int, float]:
        return {step: float(accs.mean()) for step, accs in self.accs.items()}

    def gain(self, step: int) -> tuple[float, float]:
        return paired(self.accs[step], self.accs[0])

    @property
    def best(self) -> int:
        return max((step for step in self.accs if step), key=lambda step: (self.scores[step], -step))


def paired(new: np.ndarray, old: np.ndarray) -> tuple[float, float]:
    gains = new - old
    return float(gains.mean()), float(gains.std(ddof=1) / np.sqrt(len(gains)))


def phase(rng: np.random.Generator, n: int, every: int, start: np.ndarray) -> Phase:
    accs = {0: start}
    for step in sorted({*range(every, n + 1, every), n}):
        answered = rng.integers(0, 2, len(start)).astype(float)
        accs[step] = np.where(rng.random(len(start)) < 0.3, answered, start)
    series = {
        name: scale * (rng.random() + rng.normal() * np.arange(n) / n + rng.random() * rng.random(n))
        for name, scale in SCALES.items()
    }
    return Phase(accs, series)


def request_of(directory: Path, phases: Sequence[Phase]) -> ProposalRequest:
    """The last phase is asked about; each but the first began at the last step of the one before."""
    storage, base, views = SearchStorage(directory, "search"), 0, list[NodeView]()
    offered = list[OfferedCheckpoint]()
    for node, one in enumerate(phases):
        n = len(one.series[REWARD])
        with MetricWriter(storage, node, 0) as writer:
            for step in range(n + 1):
                accs = one.accs.get(step, ())
                items = tuple(
                    ItemOutcome(
                        index=i,
                        data_source="toy",
                        score=float(acc),
                        acc=float(acc),
                        cut=i % 3 == 0,
                        pred="" if i % 5 == 0 else "7",
                    )
                    for i, acc in enumerate(accs)
                )
                writer.write(
                    MetricPoint(
                        node=node,
                        attempt=0,
                        step=step,
                        global_step=base + step,
                        wall_s=float(step),
                        metrics={name: float(v[step - 1]) for name, v in one.series.items() if step},
                        val_score=one.scores.get(step),
                        items=items,
                    )
                )
        curves = load_curves(storage, node, gains=True)
        start = ResumeFrom(node=node - 1, step=views[-1].n_steps) if node else None
        views.append(c.node(curves, node=node, resume_from=start))
        offered += c.checkpoints(views[-1], every=1)
        base += n
    best = max(views, key=lambda view: view.score or 0.0)
    request = ProposalRequest(
        task=c.TASK, on=views[-1], path=tuple(views), siblings=(), best=best, default=c.TINY,
        checkpoints=tuple(one for one in offered if one.val_score is not None), from_scratch=False,
    )  # fmt: skip
    return with_outcomes(storage, request)


def section(text: str, title: str) -> list[str]:
    """The lines of a section, without its empty ones."""
    lines = text.partition(f"\n## {title}")[2].partition("\n## ")[0].splitlines()
    return [line for line in lines[1:] if line]


def near(printed: str, exact: float, digits: int = 3) -> bool:
    """Whether a printed number is the exact one, rounded to `digits` that count, or two where it is tiny."""
    digits = 2 if abs(exact) < 1e-3 else digits
    return float(printed) == pytest.approx(exact, rel=0.51 * 10 ** (1 - digits), abs=1e-12)


def same_score(printed: str, exact: float) -> bool:
    return float(printed) == pytest.approx(exact, abs=0.00051)


def check_metric(line: str, values: np.ndarray, validated: Sequence[int]) -> None:
    steps = np.arange(1, len(values) + 1)
    if len(values) < 5:
        check_points(line.partition(": ")[2], dict(zip(steps, values, strict=True)))
        return
    summary = re.search(rf"[:,] \+?({NUMBER}) ± ({NUMBER})(?:, one step scatters by ({NUMBER}))?;", line)
    assert summary is not None, line
    (slope, level), covariance = np.polyfit(steps, values, 1, cov=True)
    if summary[3] is not None:
        beside = values - (slope * steps + level)
        assert near(summary[3], np.sqrt((beside**2).sum() / (len(values) - 2)), digits=2)
    assert near(summary[1], slope * (steps[-1] - steps[0]))
    assert near(summary[2], np.sqrt(covariance[0, 0]) * (steps[-1] - steps[0]), digits=2)
    head, _, points = line.partition("; by step ")
    if points:
        assert len(values) <= (20 if line.partition(":")[0] in (REWARD, KL_LOSS) else 10)
        check_points(points, dict(enumerate(values, start=1)))
        return
    head, _, segments = line.partition("; means up to step ")
    check_segments(segments, values, validated)
    extremes = rf"min ({NUMBER})@(\d+), max ({NUMBER})@(\d+)(?:; jumps at step \d+)?$"
    found = re.search(rf"; {extremes}", head)
    assert found is not None, head
    low, low_at, high, high_at = found.groups()
    assert near(low, values.min()) and values[int(low_at) - 1] == values.min()
    assert near(high, values.max()) and values[int(high_at) - 1] == values.max()


def check_points(text: str, exact: Mapping[int, float]) -> None:
    points = dict(part.split(": ") for part in text.split(", "))
    assert [*map(int, points)] == [*exact]
    assert all(near(points[str(step)], value) for step, value in exact.items())


def check_segments(text: str, values: np.ndarray, validated: Sequence[int]) -> None:
    ends = [int(part.split(": ")[0]) for part in text.split(", ")]
    assert len(ends) <= 12 and ends[-1] == len(values)
    assert len(validated) < 6 or set(ends) <= set(validated)
    check_points(text, {b: float(values[a:b].mean()) for a, b in zip([0, *ends], ends, strict=False)})


def check_scores(text: str, one: Phase) -> int:
    """Check every `step: score` and every difference in a text; return how many there are."""
    pairs = re.findall(r"(\d+): (0\.\d+|1\.000)(?!\d)", text)
    assert all(same_score(score, one.scores[int(step)]) for step, score in pairs)
    return len(pairs)


def check_gain(value: str, error: str, exact: tuple[float, float]) -> bool:
    return same_score(value, exact[0]) and same_score(error, exact[1])


def means(values: np.ndarray) -> tuple[float, float]:
    """Means over the first and the last points."""
    n = min(len(values), max(2, min(10, len(values) // 5)))
    return float(values[:n].mean()), float(values[-n:].mean())


def ends(values: np.ndarray) -> tuple[float, float]:
    return (float(values[0]), float(values[-1])) if len(values) < 5 else means(values)


def check_wrong(text: str, accs: np.ndarray) -> None:
    """Every third answer is cut off, and every fifth one is empty."""
    wrong = np.flatnonzero(accs < 0.5)
    found = re.search(r"(\d+) wrong \((\d+) cut off, (\d+) unanswered\)", text)
    assert (found is not None) == (len(wrong) > 0)
    if found is not None:
        exact = [len(wrong), sum(wrong % 3 == 0), sum((wrong % 3 > 0) & (wrong % 5 == 0))]
        assert [int(n) for n in found.groups()] == exact


def check_tree_line(line: str, one: Phase) -> None:
    last = max(one.accs)
    for name, step in (("best ", one.best), ("last ", last)) if one.best != last else (("", last),):
        found = re.search(rf"[ ,]{name}([\d.]+)@{step} \({DIFFERENCE}\)", line)
        assert found is not None, line
        assert same_score(found[1], one.scores[step])
        assert check_gain(found[2], found[3], one.gain(step))
    known = {"reward": REWARD, "KL": KL_LOSS}
    known["mixed groups"] = "critic/score/mixed_groups"
    if ", shown," in line:
        known = {}
    else:
        check_wrong(line, one.accs[last])
    for word, name in known.items():
        found = re.search(rf"; {word} ({NUMBER})(?: -> ({NUMBER})| on average)", line)
        assert found is not None, line
        first, end = ends(one.series[name])
        assert near(found[1], first if found[2] else float(np.mean(one.series[name])))
        assert found[2] is None or near(found[2], end)


def check_checkpoints(lines: Sequence[str], phases: Sequence[Phase]) -> None:
    *nodes, ties = lines
    places = [(node, step) for node, one in enumerate(phases) for step in one.accs if step]
    base = np.cumsum([0, *(max(one.accs) for one in phases)])
    node, step = max(places, key=lambda at: (phases[at[0]].scores[at[1]], base[at[0]] + at[1]))
    best = phases[node].accs[step]
    assert ties.startswith(f"- best is node {node} step {step} ({phases[node].scores[step]:.3f})")
    level = {at for at in places if at != (node, step) and tied(paired(phases[at[0]].accs[at[1]], best))}
    assert said_ties(ties) == level
    for other, line in enumerate(nodes):
        printed = re.findall(rf"(\d+): ([\d.]+)(?: \({DIFFERENCE}\))?", line.partition("; validation ")[2])
        assert printed
        for at, score, gain, error in printed:
            accs = phases[other].accs[int(at)]
            assert same_score(score, float(accs.mean()))
            if (other, int(at)) == (node, step):
                assert gain == ""
            else:
                assert check_gain(gain, error, paired(accs, best))


def tied(gain: tuple[float, float]) -> bool:
    return abs(gain[0]) <= 2 * gain[1]


def said_ties(line: str) -> set[tuple[int, int]]:
    return {
        (int(node), step)
        for node, steps in re.findall(r"node (\d+) steps? ([\d, toby]*\d)", line.partition("a tie: ")[2])
        for step in ranges(steps)
    }


def ranges(text: str) -> Iterator[int]:
    for part in text.split(", "):
        low, high, by = (*map(int, re.findall(r"\d+", part)), None, None)[:3]
        yield from range(low or 0, (high or low or 0) + 1, by or 1)


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.tuples(st.integers(3, 32), st.integers(3, 32)),
    every=st.integers(1, 10),
    n_items=st.integers(4, 60),
)
def test_every_printed_number_of_a_phase_is_the_one_that_was_recorded(
    seed: int, n: tuple[int, int], every: int, n_items: int
) -> None:
    rng = np.random.default_rng(seed)
    phases: list[Phase] = []
    for length in n:
        start = phases[-1].accs[max(phases[-1].accs)] if phases else rng.integers(0, 2, n_items).astype(float)
        phases.append(phase(rng, length, every, start))
    with tempfile.TemporaryDirectory() as directory:
        request = request_of(Path(directory), phases)
    on, knowledge = phases[-1], PROMPTS.knowledge
    call: dict[str, Any] = proposer_context(request, knowledge, n_val=n_items)
    text = PROMPTS.render("proposer", stable_context("proposer", request.task, knowledge), call).user

    course, sampled, *wrong = section(text, "Validation of node 1")
    check_wrong("".join(wrong), on.accs[max(on.accs)])
    assert same_score(re.findall(r"start ([\d.]+);", course)[0], on.scores[0])
    found = re.findall(rf"(\d+): [\d.]+ \({DIFFERENCE}\)", course)
    n_validated = len(on.accs) - 1
    for n_shown in (check_scores(course, on), len(found)):
        assert n_shown == n_validated if n_validated <= 12 else 10 <= n_shown <= 12
    assert all(check_gain(gain, error, on.gain(int(step))) for step, gain, error in found)
    reward, began = re.findall(rf"(?:reward of|had) ({NUMBER})[;.]", sampled)
    assert near(reward, means(on.series[REWARD])[1])
    assert near(began, on.series[REWARD][0])
    said_of_base = rf"base model(?: scores|,) ({NUMBER}) \(sampled at temperature [\d.]+: reward ({NUMBER})\)"
    ((base, first),) = re.findall(said_of_base, text)
    assert same_score(base, phases[0].scores[0]) and near(first, phases[0].series[REWARD][0])

    said = section(text, "Metrics of node 1")
    lines = [line.removeprefix("- ") for line in said if line.startswith("- ")]
    for line in lines:
        check_metric(line, on.series[line.split(": ")[0]], sorted(step for step in on.accs if step))
    assert sorted(line.split(": ")[0] for line in lines) == sorted(SCALES)

    tree = [line for line in section(text, "All phases of the search") if line.startswith("- node ")]
    assert len(tree) == 2
    for line, one in zip(tree, phases, strict=True):
        check_tree_line(line, one)
    check_checkpoints(
        [line for line in section(text, "Checkpoints offered") if line.startswith("- ")], phases
    )
