"""What is measured after the search: confirmation, test split and the default recipe, by events alone."""

from __future__ import annotations

import dataclasses
from typing import Any

from llmzero_ray.coordinator import node_view, replay
from llmzero_ray.records import Checkpoint, ComputeLimit, TokenCost, TokenCounts
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.events import REFERENCE
from tests.builders import ROOT, Driver, make_config, make_proposal, make_result, make_scored
from tests.coordinator.builders import ended, no_curves, two_slots

# --- the winner is confirmed --------------------------------------------------------------------------------


def confirming(k: int = 3, **final: Any) -> Driver:
    """A search of four nodes that has ended and confirms its winner; scores .5, .6, .9, .8."""
    rules = {"rho_min": 0.0}
    search = Driver(make_config(confirm={"k": k}, search=rules, final={"default_recipe": False, **final}))
    search.search_to_end([0.5, 0.6, 0.9, 0.8])
    return search


def confirmed(node: int, mean: float) -> ev.FinalScored:
    scored = make_scored(f"confirm-{node}", mean)
    return dataclasses.replace(scored, split="confirm", node=node, source=f"final:confirm-{node}")


def asked(search: Driver) -> list[str]:
    return [one.what for one in search.core.outstanding() if isinstance(one, cmd.Evaluate)]


def test_the_best_strategies_are_confirmed_on_fresh_items_before_anything_is_tested() -> None:
    search = confirming()
    done = []
    for mean in (0.70, 0.75, 0.60):
        evaluation = search.only(cmd.Evaluate)
        assert evaluation.split == "confirm"
        done.append(evaluation.node)
        search.post(confirmed(evaluation.node, mean))
    assert done == [2, 3, 1]
    # Node 3 is better on fresh items, though node 2 has the better validation score.
    assert search.core.best is not None
    assert search.core.best.node == search.core.final.winner == 3
    assert search.core.search.best is not None
    assert search.core.search.best.id == 2
    assert asked(search) == ["base"]
    search.post(dataclasses.replace(make_scored("base"), source="final:base"))
    best = search.only(cmd.Evaluate)
    assert (best.what, best.split, best.node) == ("best", "test", 3)
    search.post(dataclasses.replace(make_scored("best"), source="final:best"))
    search.post(ev.OutcomeWritten())
    assert search.core.finished is not None
    assert (search.core.finished.best, search.core.finished.best_score) == (3, 0.8)


def test_a_coordinator_that_dies_while_it_confirms_goes_on_with_what_is_left() -> None:
    search = confirming()
    search.post(confirmed(2, 0.70))
    again = replay(search.journal, ROOT)
    again.apply(ev.CoordinatorStarted(epoch=2, host="here", pid=2))
    waiting = [one.what for one in again.resume() if isinstance(one, cmd.Evaluate)]
    assert waiting == asked(search) == ["confirm-3"]
    assert [job.what for job in again.final.confirmed if job.done] == ["confirm-2"]


def test_what_cannot_be_confirmed_does_not_win_unless_nothing_can() -> None:
    search = confirming(k=2)
    search.post(ev.FinalFailed(what="confirm-2", reason="it broke", source="final:confirm-2"))
    search.post(confirmed(3, 0.1))
    assert search.core.final.winner == 3
    search = confirming(k=1)
    search.post(ev.FinalFailed(what="confirm-2", reason="it broke", source="final:confirm-2"))
    assert search.core.final.winner == 2


def test_equals_on_fresh_items_are_told_apart_by_their_validation_scores() -> None:
    search = confirming(k=2)
    search.post(confirmed(2, 0.7))
    search.post(confirmed(3, 0.7))
    assert search.core.final.winner == 2


def test_a_users_stop_while_it_confirms_names_the_best_validation_score() -> None:
    search = confirming()
    search.post(confirmed(2, 0.1))
    search.post(ev.UserStop(reason="enough", source="user:1"))
    search.post(ev.OutcomeWritten())
    assert search.core.finished is not None
    assert search.core.finished.best == 2


def test_every_node_is_tested_after_the_search_where_that_is_asked_for() -> None:
    search = Driver(make_config(final={"test": "all", "default_recipe": False}, search={"rho_min": 0.0}))
    search.search_to_end([0.5, 0.6, 0.9, 0.8])
    tested = []
    while asked(search):
        what = asked(search)[0]
        tested.append(what)
        search.post(dataclasses.replace(make_scored(what), source=f"final:{what}"))
    assert tested == ["base", "best", "node-3", "node-1", "node-0"]


def test_the_final_test_may_be_called_best() -> None:
    assert make_config(final={"test": "best"}).final.test is True


# --- after the search ---------------------------------------------------------------------------------------


def test_the_default_recipe_is_trained_in_one_phase_for_the_strategys_total_steps() -> None:
    search = ended()
    spec = search.only(cmd.RunPhase).spec
    assert (spec.node, spec.n_steps, spec.resume_from) == (REFERENCE, 30, None)
    root = search.core.runs[0].spec
    assert root is not None
    assert (spec.hyperparameters, spec.seed) == (root.hyperparameters, root.seed)
    assert spec.checkpoint_dir == "/storage/demo/reference/checkpoints"


def test_base_best_and_default_recipe_are_scored_on_the_test_split_once_each() -> None:
    search = ended()
    search.train(REFERENCE, score=0.6, best_step=10)
    order = []
    for _ in range(3):
        evaluate = search.only(cmd.Evaluate)
        assert evaluate.split == "test"
        order.append((evaluate.what, evaluate.adapter))
        search.post(make_scored(evaluate.what))
    assert order == [
        ("base", None),
        ("best", "/storage/demo/checkpoints/0001/step_000020"),
        ("reference", "/storage/demo/reference/checkpoints/step_000010"),
    ]
    assert search.only(cmd.WriteOutcome)
    search.post(ev.OutcomeWritten())
    assert search.core.finished is not None
    assert (search.core.finished.reason, search.core.finished.best) == ("budget", 1)
    assert len([e for e in search.journal if isinstance(e, ev.FinalScored)]) == 3


def test_the_reference_is_no_node_of_the_tree_and_costs_no_gpu_hours_of_the_search() -> None:
    search = ended(budget={"gpu_hours": 5.0})
    search.train(REFERENCE, gpu_hours=9.0)
    assert len(search.core.search.nodes) == 4
    assert search.core.gpu_hours == 0.0


def test_test_scores_do_not_reach_the_agents_views() -> None:
    search = ended()
    search.train(REFERENCE, score=0.6)
    search.post(make_scored("base", mean=0.123456))
    views = [node_view(search.core, node, no_curves) for node in search.core.search.nodes]
    assert "0.123456" not in repr(views)


def test_with_two_slots_training_and_scoring_go_side_by_side() -> None:
    search = two_slots(runs=2)
    search.train(0, score=0.5)
    search.propose(1)
    search.train(1, score=0.6)
    assert search.only(cmd.RunPhase).slot == 0
    assert search.only(cmd.Evaluate).slot == 1


def measuring() -> Driver:
    """A search of two slots that trains the reference in slot 0 and has scored base and best in slot 1."""
    search = Driver(make_config(budget={"runs": 2}, slots={"count": 2}))
    search.ready(0, 1)
    search.train(0, score=0.5)
    search.propose(1)
    search.train(1, score=0.6)
    for what in ("base", "best"):
        assert search.none(cmd.CloseSlot)
        assert search.only(cmd.Evaluate).what == what
        search.post(make_scored(what))
    return search


def test_an_idle_slot_is_given_back_while_only_the_reference_trains() -> None:
    search = measuring()
    assert search.only(cmd.CloseSlot).slot == 1
    search.post(ev.SlotClosed(slot=1))
    assert search.none(cmd.CloseSlot)
    search.train(REFERENCE, score=0.4)
    evaluate = search.only(cmd.Evaluate)
    assert (evaluate.what, evaluate.slot) == ("reference", 0)
    search.post(make_scored("reference"))
    assert search.only(cmd.WriteOutcome)


def test_slots_that_the_root_leaves_idle_are_reserved_once_a_second_phase_can_begin() -> None:
    search = Driver(make_config(slots={"count": 2, "reserve": "when_needed"}))
    assert search.core.wanted_slots == [0]
    search.ready(0)
    search.start(0)
    assert (search.core.wanted_slots, search.none(cmd.FitSlots)) == ([0], True)
    search.train(0, score=0.5)
    assert search.core.runs[1].slot == 0
    fit = search.only(cmd.FitSlots)
    assert (fit.count, search.core.wanted_slots) == (2, [0, 1])
    search.ready(1)
    assert [search.core.runs[node].slot for node in (1, 2)] == [0, 1]
    assert [type(event) for event in search.journal].count(ev.SlotsNeeded) == 1


def test_the_last_phase_of_the_budget_needs_no_second_slot() -> None:
    search = Driver(make_config(budget={"runs": 2}, slots={"count": 2, "reserve": "when_needed"}))
    search.ready(0)
    for node in (0, 1):
        if node:
            search.propose(1)
        search.train(node, score=0.5)
    assert (search.core.end_reason, search.core.wanted_slots) == ("budget", [0])
    assert not any(isinstance(event, ev.SlotsNeeded) for event in search.journal)


def test_runs_from_scratch_need_all_slots_at_once() -> None:
    search = Driver(make_config(search={"method": "random"}, slots={"count": 2, "reserve": "when_needed"}))
    search.ready(0)
    assert search.core.wanted_slots == [0, 1]


def test_a_higher_number_of_slots_changes_nothing_before_they_are_needed() -> None:
    search = Driver(make_config(slots={"count": 2, "reserve": "when_needed"}))
    search.ready(0)
    search.start(0)
    search.post(ev.SettingsChanged(changes={"slots.count": 3}, before={"slots.count": 2}))
    assert search.core.wanted_slots == [0]
    search.train(0, score=0.5)
    assert search.only(cmd.FitSlots).count == 3
    assert search.core.wanted_slots == [0, 1, 2]


def test_a_slot_that_was_given_back_comes_again_when_the_search_is_extended() -> None:
    search = measuring()
    search.post(ev.SlotClosed(slot=1))
    fit = search.only(
        cmd.FitSlots, search.post(ev.SettingsChanged(changes={"budget.runs": 5}, before={"budget.runs": 2}))
    )
    assert (fit.count, search.core.wanted_slots) == (2, [0, 1])
    search.ready(1)
    assert search.none(cmd.CloseSlot)


def test_scoring_is_repeated_once_when_its_runner_is_lost_and_then_left_out() -> None:
    search = ended(final={"default_recipe": False})
    assert search.only(cmd.Evaluate).what == "base"
    search.lose()
    assert search.only(cmd.Evaluate, search.ready()).id == "evaluate-base-1-0-2"
    search.lose()
    failed = [e for e in search.journal if isinstance(e, ev.FinalFailed)]
    assert [e.what for e in failed] == ["base"]
    assert search.only(cmd.Evaluate, search.ready()).what == "best"


def test_a_default_recipe_that_fails_leaves_its_score_out_and_nothing_else() -> None:
    search = ended()
    search.start(REFERENCE)
    search.fail(REFERENCE)
    for _ in range(2):
        search.post(make_scored(search.only(cmd.Evaluate).what))
    assert search.only(cmd.WriteOutcome)
    failed = next(e for e in search.journal if isinstance(e, ev.FinalFailed))
    assert (failed.what, failed.reason) == ("reference", "the default recipe failed: something broke")


def test_a_default_recipe_lost_twice_is_left_out() -> None:
    search = ended(final={"test": False})
    for _ in range(2):
        search.start(REFERENCE)
        search.lose()
        search.ready()
    assert search.only(cmd.WriteOutcome)


def test_a_search_without_any_score_measures_the_base_model_only() -> None:
    search = Driver(make_config(budget={"runs": 2}))
    search.ready()
    search.fail(0)
    search.propose(1)
    search.fail(1)
    assert search.only(cmd.Evaluate).what == "base"
    search.post(make_scored("base"))
    assert search.only(cmd.WriteOutcome)


def test_without_a_final_block_nothing_is_measured() -> None:
    search = ended(final={"test": False, "default_recipe": False})
    assert search.only(cmd.WriteOutcome)


def test_a_person_may_end_the_final_measurements_too() -> None:
    search = ended()
    search.start(REFERENCE)
    assert search.only(cmd.WriteOutcome, search.post(ev.UserStop(reason="enough")))


def test_what_could_not_be_written_is_remembered() -> None:
    search = ended(final={"test": False, "default_recipe": False})
    search.post(ev.OutcomeWritten(problem="disk full"))
    assert search.core.problem == "disk full"
    assert search.core.stage == "finished"


# --- equal compute ------------------------------------------------------------------------------------------


def final_search(wanted: Any, cost: TokenCost | None = None, **blocks: Any) -> Driver:
    """Two phases in a row of 400 tokens each, cut at 150 and 200, and two in vain of 100; then the end. With
    `cost` their tokens were timed, those in vain at twice as many seconds."""
    final = {"test": True, "default_recipe": wanted}
    search = Driver(make_config(budget={"runs": 4}, final=final, search={"rho_min": 0.0}, **blocks))
    search.ready()
    for node, (score, resume, whole, kept) in enumerate(
        [(0.5, None, 400.0, 150.0), (0.8, (0, 20), 400.0, 200.0), (0.1, None, 100.0, 1.0)]
    ):
        if node:
            search.propose(node, make_proposal(resume=resume, lr=1e-4 * (node + 1)))
        search.start(node)
        result = make_result(node, score=score)
        saved = tuple(
            dataclasses.replace(one, tokens=TokenCounts(rollout=kept)) for one in result.checkpoints
        )
        tokens = TokenCounts(trained=whole)
        if cost is not None:
            tokens, times = TokenCounts(rollout=whole / 4, trained=whole * 3 / 4), 2 if node == 2 else 1
            own = TokenCost(rollout=times * cost.rollout, trained=times * cost.trained)
            result = dataclasses.replace(result, cost=own)
        result = dataclasses.replace(result, tokens=tokens, checkpoints=saved)
        search.post(ev.PhaseFinished(node=node, phase_attempt=0, result=result))
    search.propose(3, make_proposal(lr=9e-4))
    search.train(3, score=0.2)
    return search


def end_reference(search: Driver, scores: dict[int, float]) -> None:
    """The reference ends: 10 tokens a step, validated and saved where there is a score."""
    steps = max(scores)
    result = dataclasses.replace(
        make_result(REFERENCE, score=max(scores.values()), best_step=max(scores, key=lambda s: scores[s])),
        steps_done=steps,
        tokens=TokenCounts(rollout=10.0 * steps),
        checkpoints=tuple(
            Checkpoint(step=s, path=f"/r/{s}", val_score=v, tokens=TokenCounts(rollout=10.0 * s))
            for s, v in scores.items()
        ),
    )
    search.start(REFERENCE)
    search.post(ev.PhaseFinished(node=REFERENCE, phase_attempt=0, result=result))


def test_the_reference_is_trained_for_the_compute_of_the_strategy() -> None:
    """150 of the first phase up to where the second one resumed, and 200 of that; not its 40 steps."""
    spec = final_search("compute").only(cmd.RunPhase).spec
    assert spec.compute is not None and spec.compute.amount == 350.0
    assert spec.n_steps >= 40


def test_equal_compute_is_the_default_and_counts_seconds_as_the_strategys_phases_took_them() -> None:
    assert make_config().final.default_recipe == "compute"
    cost = TokenCost(rollout=0.5, trained=0.25)
    spec = final_search("compute", cost).only(cmd.RunPhase).spec
    assert spec.compute == ComputeLimit(amount=350 * 0.5, cost=cost)
    whole = final_search("whole", cost).only(cmd.RunPhase).spec
    assert whole.compute == ComputeLimit(amount=(400 + 400 + 100) * (0.5 / 4 + 0.25 * 3 / 4), cost=cost)


def test_a_recipe_whose_rate_depends_on_its_length_is_planned_with_the_steps_that_are_expected() -> None:
    """The root took 20 steps for 400 tokens, so that 350 are 18 of its steps."""
    assert final_search("compute").only(cmd.RunPhase).spec.n_steps == 400
    for overrides in ({"lr_scheduler": "cosine"}, {"lr_warmup_ratio": 0.1}):
        spec = final_search("compute", root={"overrides": overrides}).only(cmd.RunPhase).spec
        assert spec.n_steps == 18


def test_the_reference_of_the_whole_compute_is_scored_at_the_strategys_too() -> None:
    search = final_search("whole")
    spec = search.only(cmd.RunPhase).spec
    assert spec.compute is not None and spec.compute.amount == 900.0
    end_reference(search, {10: 0.3, 30: 0.5, 40: 0.6, 90: 0.7})
    jobs = search.core.final.jobs
    assert (jobs["reference"].step, jobs["reference-whole"].step) == (30, 90)


def test_phases_without_counted_tokens_leave_the_reference_to_steps() -> None:
    """As an engine leaves them that counts none."""
    search = Driver(make_config(budget={"runs": 2}, final={"test": True, "default_recipe": "compute"}))
    search.search_to_end([0.5, 0.6])
    spec = search.only(cmd.RunPhase).spec
    assert (spec.compute, spec.n_steps) == (None, 20)


def test_a_slot_that_is_wanted_again_while_it_closes_scores_with_its_next_runner() -> None:
    search = ended(final={"default_recipe": False})
    before = search.only(cmd.Evaluate)
    search.post(ev.SlotClosed(slot=before.slot))
    again = search.only(cmd.Evaluate, search.ready())
    assert (again.what, again.slot) == (before.what, before.slot)
    assert again.id != before.id
