"""Which phases are given the score of what they start from, so that it need not be measured again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.coordinator.plan import phase_seed
from llmzero_ray.hyperparameters import scored_alike
from llmzero_ray.records import Checkpoint, ItemOutcome, KnownStart, MetricPoint, PhaseSpec, ResumeFrom
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.metrics import VAL_TOKENS
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import (
    MetricWriter,
    compact,
    load_curves,
    load_items,
    load_points,
    lost_phase,
    stored_items,
    with_gain,
    with_tokens,
)
from tests.builders import LR, Driver, make_config, make_proposal, make_result

GPUS = {"platform": "gpu"}


def after_root(asked: str = "auto", **engine: Any) -> tuple[Driver, PhaseSpec]:
    """A search whose root scored .3 before its first step, .4 at 10 and .5 at 20; (it, the root's spec)."""
    search = Driver(make_config(phase={"validate_start": asked}, engine=engine or GPUS))
    root = search.only(cmd.RunPhase, search.ready()).spec
    search.start(0)
    result = dataclasses.replace(
        make_result(0),
        start_score=0.3,
        val_tokens=700.0,
        checkpoints=tuple(
            Checkpoint(step=step, path=f"/elsewhere/0/{step}", val_score=score)
            for step, score in ((10, 0.4), (20, None))
        ),
    )
    search.post(ev.PhaseFinished(node=0, phase_attempt=0, result=result))
    return search, root


def known(search: Driver, node: int, resume: tuple[int, int] | None, **changes: Any) -> KnownStart | None:
    """Of the phase that a proposal for `node` becomes."""
    given: KnownStart | None = search.only(
        cmd.RunPhase, search.propose(node, make_proposal(resume=resume, **(changes or {"lr": 5e-4})))
    ).spec.known_start
    return given


def test_on_gpus_a_child_is_given_its_checkpoints_score_and_the_root_is_measured() -> None:
    search, root = after_root()
    assert root.known_start is None
    at = ResumeFrom(node=0, step=10)
    assert known(search, 1, (0, 10)) == KnownStart(source=at, score=0.4, val_tokens=700.0)


def test_a_checkpoint_that_was_saved_without_a_validation_is_measured() -> None:
    search, _ = after_root()
    assert known(search, 1, (0, 20)) is None


def test_the_base_model_is_measured_once_and_by_the_phase_that_did() -> None:
    search, _ = after_root()
    base = KnownStart(source=ResumeFrom(node=0, step=0), score=0.3, val_tokens=700.0)
    assert known(search, 1, None) == base
    # A phase that took it over is not a source, and its first step's score is the root's.
    taken = dataclasses.replace(make_result(1), start_score=0.3, start_from=base.source)
    search.start(1)
    search.post(ev.PhaseFinished(node=1, phase_attempt=0, result=taken))
    assert known(search, 2, None, lr=6e-4) == base


@pytest.mark.parametrize(
    ("asked", "platform", "expected"),
    [
        ("auto", "cpu", None),
        ("auto", "auto", False),
        ("always", "gpu", None),
        ("first", "cpu", True),
        ("first", "gpu", True),
    ],
)
def test_who_may_take_a_score_over_follows_the_setting(
    asked: str, platform: str, expected: bool | None
) -> None:
    found = known(after_root(asked, platform=platform)[0], 1, (0, 10))
    assert (None if found is None else found.on_cpu) == expected


def test_another_way_to_validate_is_measured_again() -> None:
    one = {LR: 1e-3, "actor_rollout_ref.rollout.val_kwargs.temperature": 0.0, "data.max_prompt_length": 64}
    assert scored_alike(one, {**one, LR: 5e-4, "data.max_response_length": 512})
    for key, value in {
        "actor_rollout_ref.rollout.val_kwargs.temperature": 0.5,
        "data.max_prompt_length": 32,
        "data.truncation": "left",
    }.items():
        assert not scored_alike(one, {**one, key: value}), key
    allow = {"data.truncation": {"kind": "choice", "choices": ["error", "left"]}}
    search = Driver(make_config(engine=GPUS, agents={"allow": allow}))
    search.ready()
    search.start(0)
    kept = (Checkpoint(step=10, path="/elsewhere/0/10", val_score=0.4),)
    search.post(
        ev.PhaseFinished(
            node=0, phase_attempt=0, result=dataclasses.replace(make_result(0), checkpoints=kept)
        )
    )
    assert known(search, 1, (0, 10), **{"data.truncation": "left"}) is None


def test_the_journal_keeps_whose_validation_it_was() -> None:
    search, _ = after_root()
    known(search, 1, (0, 10))
    search.start(1)
    at = ResumeFrom(node=0, step=10)
    result = dataclasses.replace(make_result(1), start_score=0.4, start_from=at)
    search.post(ev.PhaseFinished(node=1, phase_attempt=0, result=result))  # through JSON and back
    outcome = search.core.runs[1].outcome
    assert outcome is not None and outcome.start_from == at
    assert phase_seed(1, 1) != phase_seed(1, 0)


# --- on the disk --------------------------------------------------------------------------------------------


def answered(step: int, accs: tuple[float, ...], taken_from: ResumeFrom | None = None) -> MetricPoint:
    return MetricPoint(
        node=1,
        attempt=0,
        step=step,
        global_step=10 + step,
        wall_s=float(step),
        metrics={"actor/loss": 1.0} if step else {},
        val_score=sum(accs) / len(accs),
        items=tuple(
            ItemOutcome(index=i, data_source="toy", score=a, acc=a, response=f"{step}:{i}")
            for i, a in enumerate(accs)
        ),
        taken_from=taken_from,
    )


@pytest.mark.parametrize(
    ("sampled", "mean"), [({0: 600.0, 5: 800.0}, 700.0), ({5: 800.0}, 800.0), ({}, None)]
)
def test_a_result_says_what_one_of_its_validations_sampled_on_average(
    tmp_path: Path, sampled: dict[int, float], mean: float | None
) -> None:
    _, spec = after_root()
    storage = SearchStorage(tmp_path, "demo")
    with MetricWriter(storage, 1, 0) as writer:
        for step in (0, 1, 5):
            found = {VAL_TOKENS: sampled[step]} if step in sampled else {"actor/loss": 1.0}
            writer.write(dataclasses.replace(answered(step, (1.0,)), metrics=found))
    told = with_tokens(storage, dataclasses.replace(spec, node=1), make_result(1))
    assert told.val_tokens == mean


def test_a_phase_that_took_its_start_over_has_rows_curves_and_gains_as_one_that_measured_it(
    tmp_path: Path,
) -> None:
    storage, at = SearchStorage(tmp_path, "demo"), ResumeFrom(node=0, step=10)
    with MetricWriter(storage, 0, 0) as writer:
        writer.write(dataclasses.replace(answered(10, (1.0, 0.0, 0.0, 0.0)), node=0))
    compact(storage, 0, 0)
    items = stored_items(storage, at)
    assert [item.response for item in items] == ["10:0", "10:1", "10:2", "10:3"]
    with MetricWriter(storage, 1, 0) as writer:
        writer.write(dataclasses.replace(answered(0, (1.0, 0.0, 0.0, 0.0), at), items=items))
        writer.write(answered(5, (1.0, 1.0, 0.0, 0.0)))
    assert [point.taken_from for point in load_points(storage, 1)] == [at, None]
    lost = lost_phase(storage, 1, "it died", n_gpus=1, attempt=0)
    assert (lost.start_score, lost.start_from) == (0.25, at)
    result = with_gain(storage, make_result(1, best_step=5))
    assert result.gain == 0.25
    compact(storage, 1, 0)
    curves = load_curves(storage, 1, gains=True)
    assert (curves.start_score, curves.val_scores) == (0.25, (0.5,))
    assert curves.val_gains[0] is not None and curves.val_gains[0][0] == 0.25
    assert load_items(storage, 1)[0] == items


def test_a_score_whose_answers_are_gone_is_taken_over_without_them(tmp_path: Path) -> None:
    assert stored_items(SearchStorage(tmp_path, "demo"), ResumeFrom(node=0, step=10)) == ()
