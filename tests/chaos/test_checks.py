"""Each check sees what it is there for, on a small search on the disk into which a violation is planted."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from llmzero_ray.journal import Journal
from llmzero_ray.records import Event, ItemOutcome, MetricPoint, PhaseResult
from llmzero_ray.records import events as ev
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.manifests import write_manifest
from llmzero_ray.storage.metric_files import MetricWriter, compact
from tests.builders import Driver, make_config
from tests.fakes import BASE_SCORE, learn

from . import checks
from .killer import Killer
from .witness import Witness

N_VAL = 4
N_STEPS = 20
RATES = {0: 1e-3, 1: 5e-4, 2: 5e-4 + 1e-6}
"""Node -> learning rate, as the configuration and the proposals of the builders have it."""


def score_of(node: int, step: int) -> float:
    return learn(BASE_SCORE, step, RATES[node]) if step else BASE_SCORE


def point_of(node: int, step: int) -> MetricPoint:
    score = score_of(node, step)
    validated = step % 10 == 0
    items = tuple(ItemOutcome(index=i, data_source="toy", score=1.0, acc=1.0) for i in range(N_VAL))
    return MetricPoint(
        node=node,
        attempt=0,
        step=step,
        global_step=step,
        wall_s=float(step),
        metrics={"critic/score/mean": score} if step else {},
        val_score=score if validated else None,
        items=items if validated else (),
    )


def events_of(n_runs: int = 3, lose: int | None = None) -> list[Event]:
    """A search from start to end; the phase of node `lose` is lost once, after its full checkpoint."""
    driver = Driver(
        make_config(
            budget={"runs": n_runs},
            final={"test": False, "default_recipe": False},
            checkpoints={"rolling_freq": 2},
        )
    )
    driver.ready()
    for node in range(n_runs):
        if node:
            driver.propose(node)
        driver.start(node)
        if node == lose:
            driver.lose(restart_step=8)
            driver.ready()
            driver.start(node)
        driver.finish(node, score=score_of(node, N_STEPS))
    driver.post(ev.OutcomeWritten())
    return driver.journal


class Place:
    """A search on the disk, to be damaged."""

    def __init__(self, root: Path) -> None:
        self.storage = SearchStorage(root, "demo")

    @property
    def root(self) -> Path:
        return self.storage.paths.root

    def write(self, events: Iterable[Event]) -> Place:
        journal = Journal(self.storage.paths.journal)
        for second, event in enumerate(events):
            journal.append(event, now=float(second))
        return self

    def train(self, node: int, steps: Iterable[int] = range(N_STEPS + 1)) -> None:
        with MetricWriter(self.storage, node, 0) as writer:
            for step in steps:
                writer.write(point_of(node, step))
        compact(self.storage, node, 0)
        for step in (10, 20):
            folder = self.storage.paths.adapter(node, step)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "adapter_config.json").write_text("{}")
            write_manifest(folder, {"step": step})

    def witness(self) -> Witness:
        found = Witness(self.storage)
        found.look()
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(tmp_path).write(events_of())
    for node in range(3):
        found.train(node)
    return found


def test_a_search_that_nothing_happened_to_passes_every_check(place: Place) -> None:
    witness = place.witness()
    assert witness.over
    assert checks.broken(witness, n_val=N_VAL) == []
    assert list(checks.scripted_curves(witness, {})) == []
    assert checks.same_curves(witness, witness) == (3, [])


def _unfinished(place: Place) -> None:
    newest = max(place.storage.paths.journal.glob("*.json"))
    newest.unlink()


def _torn(place: Place) -> None:
    newest = max(place.storage.paths.journal.glob("*.json"))
    newest.write_text(newest.read_text()[:-20])


def _gap(place: Place) -> None:
    place.train(1, [*range(7), *range(8, N_STEPS + 1)])


def _duplicate(place: Place) -> None:
    place.train(1, [*range(N_STEPS + 1), N_STEPS])


def _half_validated(place: Place) -> None:
    node = place.storage.paths.node(1)
    (node / "val_items.parquet").unlink()


def _no_adapter(place: Place) -> None:
    (place.storage.paths.adapter(2, 20) / "manifest.json").unlink()


def _damaged_adapter(place: Place) -> None:
    (place.storage.paths.adapter(2, 10) / "adapter_config.json").write_text("{} ")


def _temporary(place: Place) -> None:
    (place.root / ".report.md.0a1b2c3d.tmp").write_text("")


def _partial(place: Place) -> None:
    (place.storage.paths.checkpoints(1) / "step_000020.partial").mkdir()


def _rolling(place: Place) -> None:
    place.storage.paths.rolling(1, 0).mkdir(parents=True)


def _request(place: Place) -> None:
    (place.root / "requests").mkdir()
    (place.root / "requests" / "1.json").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (_unfinished, "the search has not finished: it is writing"),
        (_torn, "is torn"),
        (_gap, "node 1: 20 steps done, its points are of steps"),
        (_duplicate, "node 1: 20 steps done, its points are of steps"),
        (_half_validated, "node 1: 0 items of 4 at the validation of step 0"),
        (_no_adapter, "node 2: the adapter of step 20 cannot be used: it has no manifest.json"),
        (_damaged_adapter, "node 2: the adapter of step 10 cannot be used: adapter_config.json"),
        (_temporary, ".report.md.0a1b2c3d.tmp is left"),
        (_partial, "checkpoints/0001/step_000020.partial is left"),
        (_rolling, "nodes/0001/rolling is left"),
        (_request, "requests/1.json is left"),
    ],
)
def test_damage_on_the_disk_is_seen(place: Place, damage: Callable[[Place], None], expected: str) -> None:
    damage(place)
    assert [found for found in checks.broken(place.witness(), n_val=N_VAL) if expected in found] != []


def test_an_outcome_that_changes_after_it_was_seen_is_a_violation(place: Place) -> None:
    witness = place.witness()
    outcome = witness.seen[1]
    assert isinstance(outcome, PhaseResult)
    witness.seen[1] = dataclasses.replace(outcome, best_score=0.9)
    assert [found.split(":")[0] for found in checks.outcomes_kept(witness)] == ["node 1"]
    witness.seen[7] = outcome
    assert len(list(checks.outcomes_kept(witness))) == 2


def test_a_journal_that_tells_another_story_than_was_seen_is_a_violation(place: Place) -> None:
    witness = place.witness()
    witness.core.runs[1].attempt = 1
    witness.core.gpu_hours = 2.0
    found = list(checks.journal_is_the_truth(witness))
    assert [line.split(" is ")[0] for line in found] == ["runs", "hours"]


def test_a_decision_that_the_rules_do_not_take_is_a_violation(tmp_path: Path) -> None:
    events = events_of()
    changed = [
        dataclasses.replace(event, seen={**event.seen, "n_created": 17})
        if isinstance(event, ev.Decided) and event.node == 2
        else event
        for event in events
    ]
    witness = Place(tmp_path).write(changed).witness()
    assert len(list(checks.decisions(witness))) == 1


def test_a_phase_that_is_charged_more_time_than_it_took_is_a_violation(tmp_path: Path) -> None:
    events = events_of()
    dear = [
        dataclasses.replace(event, result=dataclasses.replace(event.result, gpu_hours=1.0))
        if isinstance(event, ev.PhaseFinished) and event.node == 2
        else event
        for event in events
    ]
    found = list(checks.budgets(Place(tmp_path).write(dear).witness()))
    assert [line.split(",")[0].split(":")[0] for line in found] == ["1.000000 GPU hours were busy", "node 2"]


def test_a_stopped_phase_that_was_lost_is_charged_once_though_its_time_is_told_twice(
    tmp_path: Path,
) -> None:
    driver = Driver(make_config(budget={"runs": 2}, final={"test": False, "default_recipe": False}))
    driver.ready()
    driver.start(0)
    driver.post(ev.UserStop(reason="enough"))
    driver.lose()
    hours = 8.0 / 3600
    events = [
        dataclasses.replace(event, salvaged=dataclasses.replace(event.salvaged, gpu_hours=hours))
        if isinstance(event, ev.RunnerLost) and event.salvaged is not None
        else dataclasses.replace(event, result=dataclasses.replace(event.result, gpu_hours=hours))
        if isinstance(event, ev.PhaseFinished)
        else event
        for event in driver.journal
    ]
    assert sum(isinstance(event, ev.RunnerLost | ev.PhaseFinished) for event in events) == 2
    journal = Journal((place := Place(tmp_path)).storage.paths.journal)
    for second, event in enumerate(events):
        # Training takes ten seconds more than the events before it.
        journal.append(event, now=second + 10.0 * isinstance(event, ev.RunnerLost | ev.PhaseFinished))
    assert [line for line in checks.budgets(place.witness()) if line.startswith("node 0")] == []


def test_more_repeated_steps_than_a_full_checkpoint_may_cost_are_a_violation(tmp_path: Path) -> None:
    events = events_of(lose=1)
    kept = Place(tmp_path / "kept").write(events).witness()
    (lost,) = checks.losses(kept)
    assert (lost.node, checks.steps_lost(lost)) == (1, 0)
    far = [
        dataclasses.replace(event, salvaged=dataclasses.replace(event.salvaged, steps_done=11))
        if isinstance(event, ev.RunnerLost) and event.salvaged is not None
        else event
        for event in events
    ]
    found = list(checks.repeats(Place(tmp_path / "far").write(far).witness()))
    assert found == ["node 1: 3 steps are repeated after a loss, 2 may be"]


def test_a_curve_that_differs_from_the_undisturbed_one_is_a_violation(place: Place, tmp_path: Path) -> None:
    other = Place(tmp_path / "other").write(events_of())
    for node in range(3):
        other.train(node)
    with MetricWriter(other.storage, 1, 0) as writer:
        for step in range(N_STEPS + 1):
            point = point_of(1, step)
            off = {name: value + 0.001 for name, value in point.metrics.items()}
            writer.write(dataclasses.replace(point, metrics=off) if step == 13 else point)
    compact(other.storage, 1, 0)
    common, found = checks.same_curves(other.witness(), place.witness())
    assert (common, [line.split(":")[0] for line in found]) == (3, ["node 1 step 13"])
    found = list(checks.scripted_curves(other.witness(), {}))
    assert [line.split(":")[0] for line in found] == ["node 1 step 13"]


def test_an_adapter_that_is_there_although_the_journal_says_it_is_gone_is_a_violation(place: Place) -> None:
    witness = place.witness()
    witness.core.runs[1].lost_steps = frozenset({10})
    assert list(checks.adapters(witness)) == [
        "node 1: the adapter of step 10 is there, and the journal says it is gone"
    ]


def test_the_same_seed_plans_the_same_strikes_half_of_them_at_named_places() -> None:
    planned = [strike for strike, _ in zip(Killer(3).strikes(), range(400), strict=False)]
    assert planned == [strike for strike, _ in zip(Killer(3).strikes(), range(400), strict=False)]
    assert planned != [strike for strike, _ in zip(Killer(4).strikes(), range(400), strict=False)]
    assert 160 < sum(strike.place is not None for strike in planned) < 240
    victims = {strike.victim for strike in planned}
    assert victims == {"any", "coordinator", "stopper", "runner", "machine", "command", "head"}


def test_states_are_compared_by_everything_a_core_remembers(place: Place) -> None:
    before, after = (checks.state_of(place.witness().core) for _ in range(2))
    assert before == after
    assert json.loads(before["runs"])[0]["node"] == 0
