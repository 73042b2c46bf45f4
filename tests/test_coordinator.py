"""The rules of the coordinator's core, by events alone."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmzero_ray.config import load_config
from llmzero_ray.coordinator import (
    CoordinatorCore,
    build_request,
    busy_gpu_hours,
    check_decisions,
    earlier_verdicts,
    extension_problem,
    incumbent_chain,
    node_view,
    over_budget,
    overlay_record,
    replay,
    request_record,
    task_view,
)
from llmzero_ray.dynamics.incumbent import scores_along
from llmzero_ray.errors import ConfigError, JournalError
from llmzero_ray.estimate import Estimate
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.records import (
    Checkpoint,
    ComputeLimit,
    Event,
    PhaseFailure,
    PhaseResult,
    ResumeFrom,
    StopDecision,
    TokenCost,
    TokenCounts,
    from_json,
    to_json,
)
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.agents import ErrorRequest, ProposalRequest
from llmzero_ray.records.commands import Command
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.records.metrics import Curves
from llmzero_ray.stopping.request import stop_request
from llmzero_ray.storage import SearchPaths
from tests.builders import (
    LR,
    ROOT,
    Driver,
    make_config,
    make_failure,
    make_proposal,
    make_result,
    make_scored,
)

RECIPE = Path(__file__).parent.parent / "jobs" / "configs" / "qwen3_4b.yaml"
SCALE = "actor_rollout_ref.model.lora_rank"


def no_curves(_: int) -> Curves:
    return Curves()


def verdict(
    node: int, *, stop: bool = True, attempt: int = 0, source: str = "stopper:v1"
) -> ev.VerdictPosted:
    decision = StopDecision(stop=stop, reason="cannot win", rule="early_stopper")
    return ev.VerdictPosted(
        node=node,
        phase_attempt=attempt,
        step=10,
        decision=decision,
        source=source,
    )


# --- the first run ------------------------------------------------------------------------------------------


def test_nothing_is_decided_before_a_slot_is_ready() -> None:
    assert Driver().core.outstanding() == []


def test_the_root_is_run_1_of_the_budget_and_trains_the_root_overrides_without_a_proposer() -> None:
    search = Driver()
    run = search.only(cmd.RunPhase, search.ready())
    assert (run.spec.node, run.spec.kind, run.spec.resume_from, run.spec.base_step) == (0, "root", None, 0)
    assert run.spec.hyperparameters[LR] == 1e-3
    assert search.none(cmd.Propose)
    assert search.core.search.ask().seen.created == 1


def test_the_roots_response_cap_defaults_to_what_the_server_has_room_for() -> None:
    config = make_config(
        engine={"max_prompt_length": 64, "max_response_length": 24}, eval={"max_response_length": 24}
    )
    assert root_hyperparameters(config, 512)["data.max_response_length"] == 24


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"lrr": 1.0}, "did you mean"),
        ({"lr": 5.0}, "must be a number in"),
        ({"lora_rank": 8}, "set model.lora_rank"),
        ({"train_batch_size": 16, "mini_batch_size": 5}, "multiple of the mini batch"),
        ({"train_batch_size": 1024}, "512 training items"),
    ],
)
def test_a_root_override_that_cannot_train_is_a_config_error(
    overrides: dict[str, float], expected: str
) -> None:
    config = make_config().model_copy(update={"root": make_config(root={"overrides": overrides}).root})
    with pytest.raises(ConfigError, match=expected) as error:
        root_hyperparameters(config, 512)
    assert str(error.value).startswith("root.overrides")


# --- proposals ----------------------------------------------------------------------------------------------


def after_root(**config: object) -> Driver:
    """A search whose root has finished with .5 at step 20, adapters saved at 10 and 20."""
    search = Driver(make_config(**config))
    search.ready()
    search.train(0, score=0.5)
    return search


def test_after_the_root_the_proposer_is_asked_on_it() -> None:
    propose = after_root().only(cmd.Propose)
    assert (propose.node, propose.on, propose.from_scratch, propose.rejected) == (1, 0, False, None)


def test_a_proposal_becomes_a_phase_with_its_changes_on_the_parents_configuration() -> None:
    search = after_root()
    run = search.only(cmd.RunPhase, search.propose(1, make_proposal(resume=(0, 20), n_steps=30, lr=5e-4)))
    assert run.spec.hyperparameters[LR] == 5e-4
    assert run.spec.hyperparameters["actor_rollout_ref.rollout.n"] == 4
    assert (run.spec.resume_from, run.spec.base_step, run.spec.n_steps) == (
        ResumeFrom(node=0, step=20),
        20,
        30,
    )
    assert run.spec.adapter == "/storage/demo/checkpoints/0000/step_000020"


def test_global_steps_add_up_along_the_resume_chain() -> None:
    search = after_root()
    search.propose(1, make_proposal(resume=(0, 10)))
    search.train(1, score=0.6)
    assert search.only(cmd.Propose).on == 1
    search.propose(2, make_proposal(resume=(1, 20)))
    assert search.core.runs[2].base_step == 30


def test_a_step_that_is_not_saved_goes_back_once_and_then_means_the_nearest_saved_one_before_it() -> None:
    search = after_root()
    again = search.only(cmd.Propose, search.propose(1, make_proposal(resume=(0, 15))))
    assert again.rejected == "step 15 of node 0 is not saved; saved are 10, 20. Name one of them."
    search.propose(1, make_proposal(resume=(0, 15)), tries=1)
    run = search.core.runs[1]
    assert run.spec is not None
    assert run.spec.resume_from == ResumeFrom(node=0, step=10)
    assert run.note == "step 15 of node 0 is not saved: resumed from step 10"


def test_without_any_saved_step_before_it_the_phase_starts_from_the_base_model() -> None:
    search = after_root()
    for tries in range(2):
        search.propose(1, make_proposal(resume=(0, 5)), tries=tries)
    run = search.core.runs[1]
    assert run.spec is not None
    assert (run.spec.resume_from, run.spec.adapter, run.spec.base_step) == (None, None, 0)
    assert run.note.endswith("started from the base model")


@pytest.mark.parametrize(
    ("proposal", "expected"),
    [
        (make_proposal(learning_rat=1.0), "did you mean"),
        (make_proposal(lr=7.0), "must be a number in"),
        (make_proposal(resume=(7, 10)), "checkpoints are offered of nodes 0"),
        (make_proposal(n_steps=61), "must be between 1 and 60"),
        (make_proposal(n_steps=0), "must be between 1 and 60"),
        (make_proposal(resume=(0, 20), lora_rank=8), "keeps its shape"),
        (make_proposal(max_response_length=4096), "room for 1536"),
        (make_proposal(train_batch_size=16, mini_batch_size=5), "multiple of the mini batch"),
        (make_proposal(**{"actor_rollout_ref.model.path": "/etc"}), "may not be changed"),
        (make_proposal(**{"trainer.logger": "x"}), "may not be changed"),
    ],
)
def test_a_proposal_that_breaks_a_rule_goes_back_with_the_message(
    proposal: ev.Proposal, expected: str
) -> None:
    search = after_root()
    again = search.only(cmd.Propose, search.propose(1, proposal))
    assert expected in (again.rejected or "")
    assert (again.node, again.tries) == (1, 1)


def test_one_hyper_parameter_named_twice_goes_back() -> None:
    search = after_root()
    twice = dataclasses.replace(make_proposal(), changes=make_proposal().changes * 2)
    assert "twice" in (search.only(cmd.Propose, search.propose(1, twice)).rejected or "")


def test_a_corrected_proposal_is_taken() -> None:
    search = after_root()
    search.propose(1, make_proposal(lr=7.0))
    run = search.only(cmd.RunPhase, search.propose(1, make_proposal(lr=2e-3), tries=1))
    assert run.spec.hyperparameters[LR] == 2e-3
    assert search.core.runs[1].note == ""


def test_after_two_corrections_the_parents_own_configuration_is_continued_and_the_journal_says_so() -> None:
    search = after_root()
    for tries in range(2):
        assert search.only(cmd.Propose, search.propose(1, make_proposal(lr=7.0), tries=tries))
    run = search.only(cmd.RunPhase, search.propose(1, make_proposal(lr=7.0), tries=2))
    assert run.spec.hyperparameters == search.core.runs[0].spec.hyperparameters  # type: ignore[union-attr]
    assert run.spec.resume_from == ResumeFrom(node=0, step=20)
    planned = next(e for e in search.journal if isinstance(e, ev.PhasePlanned) and e.node == 1)
    assert planned.proposal is None
    assert "3 proposals were refused" in planned.note
    assert "continued" in planned.note


def test_an_agent_without_an_answer_is_replaced_by_continuing_the_parent() -> None:
    search = after_root()
    run = search.only(cmd.RunPhase, search.post(ev.ProposalFailed(node=1, reason="timeout")))
    assert run.spec.resume_from == ResumeFrom(node=0, step=20)
    assert "timeout" in search.core.runs[1].note


def test_a_continued_parent_goes_on_from_its_best_step_not_from_its_last() -> None:
    search = Driver()
    search.ready()
    search.train(0, score=0.5, best_step=10)
    run = search.only(cmd.RunPhase, search.post(ev.ProposalFailed(node=1, reason="timeout")))
    assert run.spec.resume_from == ResumeFrom(node=0, step=10)


def test_an_answer_to_an_older_question_is_ignored() -> None:
    search = after_root()
    search.propose(1, make_proposal(lr=7.0))
    assert search.propose(1, make_proposal(), tries=0) == []
    assert search.core.runs[1].stage == "proposing"


def test_a_forced_scratch_run_is_offered_no_checkpoint_and_must_not_resume() -> None:
    search = Driver(make_config(budget={"runs": 12}))
    search.ready()
    search.train(0, score=0.5)
    for node in range(1, 6):
        search.propose(node, make_proposal(resume=None, lr=1e-3 + node * 1e-5))
        search.train(node, score=0.5 - node * 0.01)
    propose = search.only(cmd.Propose)
    assert propose.from_scratch
    request = build_request(search.core, propose, no_curves)
    assert isinstance(request, ProposalRequest)
    assert (request.from_scratch, request.checkpoints, request.n_scratch) == (True, (), 1)
    refused = search.only(cmd.Propose, search.propose(propose.node, make_proposal(resume=(0, 10))))
    assert "resume_from must be null" in (refused.rejected or "")
    run = search.only(cmd.RunPhase, search.propose(propose.node, make_proposal(lora_rank=8), tries=1))
    assert (run.spec.resume_from, run.spec.kind) == (None, "scratch")
    assert run.spec.hyperparameters[SCALE] == 8


def test_without_multi_stage_no_checkpoint_is_offered() -> None:
    search = after_root(search={"multi_stage": False})
    refused = search.only(cmd.Propose, search.propose(1, make_proposal(resume=(0, 10))))
    assert "resume_from must be null" in (refused.rejected or "")


def test_every_node_has_a_seed_of_its_own_and_the_same_one_in_every_replay() -> None:
    first, second = after_root(), after_root()
    seeds = []
    for search in (first, second):
        search.propose(1)
        runs = search.core.runs
        seeds.append([runs[node].spec.seed for node in (0, 1)])  # type: ignore[union-attr]
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 2


# --- what agents see ----------------------------------------------------------------------------------------


def test_the_proposer_sees_the_path_the_siblings_the_best_and_the_saved_checkpoints() -> None:
    search = Driver(make_config(budget={"runs": 8}))
    search.ready()
    search.train(0, score=0.5)
    search.propose(1, make_proposal(resume=(0, 10)))
    search.train(1, score=0.2)
    propose = search.only(cmd.Propose)
    assert propose.on == 0
    request = build_request(search.core, propose, no_curves)
    assert isinstance(request, ProposalRequest)
    assert [view.node for view in request.path] == [0]
    assert [view.node for view in request.siblings] == [1]
    assert request.best is not None
    assert request.best.node == 0
    assert [(c.node, c.step, c.global_step) for c in request.checkpoints] == [(0, 10, 10), (0, 20, 20)]
    assert request.task.max_model_len == 1536


def test_the_proposer_sees_every_other_node_of_the_tree_with_the_checkpoint_it_starts_from() -> None:
    search = Driver(make_config(budget={"runs": 8}))
    search.ready()
    search.train(0, score=0.5)
    search.propose(1, make_proposal(resume=(0, 10)))
    search.train(1, score=0.2)
    series = Curves(steps=(1,), metrics={"loss": (1.0,)}, val_steps=(1,), val_scores=(0.2,))
    request = build_request(search.core, search.only(cmd.Propose), lambda _: series)
    assert isinstance(request, ProposalRequest)
    assert request.on.node == 0
    (other,) = request.tree
    assert (other.node, other.parent, other.resume_from) == (1, 0, ResumeFrom(node=0, step=10))
    assert other.curves == Curves(val_steps=(1,), val_scores=(0.2,))
    assert request_record(request)["tree"] == [1]


def test_a_failed_phase_is_shown_to_the_error_analyzer_with_its_chain_of_failures() -> None:
    search = Driver(make_config(budget={"runs": 8}))
    search.ready()
    search.fail(0, saved=(10,))
    search.propose(1)
    search.fail(1)
    analyze = search.only(cmd.Analyze)
    request = build_request(search.core, analyze, no_curves)
    assert isinstance(request, ErrorRequest)
    chain = [view.node for view in request.chain]
    assert chain[-1] == analyze.on == request.failed.node
    assert request.failed.failure is not None


def test_curves_are_loaded_for_nodes_that_have_trained_only() -> None:
    search = after_root()
    asked: list[int] = []

    def load(node: int) -> Curves:
        asked.append(node)
        return Curves(steps=(1,))

    assert node_view(search.core, 1, load).curves == Curves()
    assert node_view(search.core, 0, load).curves.steps == (1,)
    assert asked == [0]


def test_the_incumbents_chain_is_cut_where_the_next_phase_resumed_and_its_scores_are_by_global_step() -> None:
    search = after_root()
    search.propose(1, make_proposal(resume=(0, 10)))
    search.train(1, score=0.7)
    curves = {
        0: Curves(steps=(5, 10, 15), val_steps=(5, 10, 15), val_scores=(0.1, 0.2, 0.9), start_score=0.05),
        1: Curves(steps=(5, 10), base_step=10, val_steps=(5, 10), val_scores=(0.3, 0.4), start_score=0.2),
    }
    push = cmd.PushIncumbent(id="i", node=1, path=((0, 10, 0), (1, None, 10)))
    chain = incumbent_chain(search.core, push, curves.__getitem__)
    assert [(view.node, view.curves.steps) for view in chain] == [(0, (5, 10)), (1, (5, 10))]
    assert scores_along(chain) == ((0, 0.05), (5, 0.1), (10, 0.2), (15, 0.3), (20, 0.4))


def test_a_restarted_stopper_gets_the_verdicts_of_this_attempt_alone() -> None:
    search = after_root()
    search.propose(1)
    search.start(1)
    search.post(verdict(1, stop=False))
    assert [v.step for v in earlier_verdicts(search.core, 1, 0)] == [10]
    assert earlier_verdicts(search.core, 1, 1) == ()


def test_what_an_agent_was_asked_is_kept_without_the_series() -> None:
    search = after_root()
    curves = Curves(steps=(1, 2), metrics={"loss": (1.0, 0.5)}, val_steps=(2,), val_scores=(0.4,))
    request = build_request(search.core, search.only(cmd.Propose), lambda _: curves)
    kept = request_record(request)["on"]["curves"]
    assert (kept["steps"], kept["metrics"], kept["val_scores"]) == (2, ["loss"], [0.4])
    assert json.loads(json.dumps(request_record(request)))["from_scratch"] is False


def test_a_judgement_is_kept_with_both_curves_in_global_steps() -> None:
    search = after_root()
    search.propose(1, make_proposal(resume=(0, 20)))
    search.start(1)
    curves = Curves(steps=(5,), base_step=20, val_steps=(5,), val_scores=(0.4,))
    running = node_view(search.core, 1, lambda _: curves)
    decision = StopDecision(stop=True, reason="cannot win", rule="early_stopper")
    best = dataclasses.replace(
        node_view(search.core, 0, no_curves), curves=Curves(val_steps=(20,), val_scores=(0.5,)), score=0.5
    )
    request = stop_request(
        search.core.config, task_view(search.core), running, (best,), (), lambda _: {}, n_val=100
    )
    record = overlay_record(running, decision, request)
    assert (record["decision"], record["running"], record["incumbent"]) == (decision, [(25, 0.4)], 0)
    assert record["incumbent_path"] == ((20, 0.5),)
    (standing,) = record["standings"]
    assert standing.at_same_step is None
    assert standing.to_best.gain == pytest.approx(-0.1)
    assert record["saves"].steps == running.n_steps - 5
    assert overlay_record(running, decision, None)["standings"] == ()


def test_the_stage_of_a_search_is_one_word() -> None:
    core = CoordinatorCore(SearchPaths(root=ROOT))
    assert core.stage == "new"
    search = Driver(make_config(budget={"runs": 2}))
    search.ready()
    assert search.core.stage == "searching"
    search.train(0)
    search.propose(1)
    search.train(1)
    assert search.core.stage == "measuring"
    search.train(REFERENCE)
    for _ in range(3):
        search.post(make_scored(search.only(cmd.Evaluate).what))
    assert search.core.stage == "writing"
    search.post(ev.OutcomeWritten())
    assert search.core.stage == "finished"


# --- failures and losses ------------------------------------------------------------------------------------


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


def on_gpus(**changes: Any) -> Driver:
    """A search with the recipe for Qwen3-4B on 8 GPUs of 40 GB."""
    settings = ["search.rho_min=0", *(f"{key}={value}" for key, value in changes.items())]
    config = load_config(RECIPE, settings)
    search = Driver(config, Estimate(config).memory_facts())
    search.ready()
    return search


def test_a_phase_that_does_not_fit_into_memory_goes_back_with_the_remedy() -> None:
    search = on_gpus()
    search.train(0)
    too_large = make_proposal(resume=(0, 20), max_token_len_per_gpu=131_072)
    again = search.only(cmd.Propose, search.propose(1, too_large))
    assert again.rejected is not None
    assert "Made larger by the change of max_token_len_per_gpu." in again.rejected
    assert "What would help: max_token_len_per_gpu 131072 -> 65536" in again.rejected
    smaller = make_proposal(resume=(0, 20), max_token_len_per_gpu=16_384)
    assert search.only(cmd.RunPhase, search.propose(1, smaller, tries=1)).spec.node == 1
    # What a user asks for is not judged.
    search.train(1)
    changes = {"actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 131_072}
    search.post(ev.CloneAsked(of=0, step=20, changes=changes, source="user:1"))
    search.propose(2)
    search.train(2)
    assert search.core.runs[3].clone is not None
    assert search.core.runs[3].stage == "planned"


def test_an_out_of_memory_moves_what_the_search_thinks_fits_and_so_does_its_replay() -> None:
    search = on_gpus()
    search.start(0)
    asked = search.only(cmd.Analyze, search.fail(0, failure_class="oom"))
    request = build_request(search.core, asked, no_curves)
    assert isinstance(request, ErrorRequest)
    assert request.memory is not None
    assert "corrected by what phases of this search took" in request.memory.verdict
    assert "actor_rollout_ref.actor.ppo_max_token_len_per_gpu" in request.memory.fix
    # The same again is refused, a repair that needs less is let through.
    unchanged = make_proposal(lr=1e-4)
    refused = search.only(cmd.Analyze, search.propose(1, unchanged)).rejected
    assert refused is not None
    assert "does not fit" in refused
    repair = make_proposal(lr=None, max_token_len_per_gpu=20_480)
    assert search.only(cmd.RunPhase, search.propose(1, repair, tries=1)).spec.node == 1
    assert search.core.memory is not None
    again = replay(search.journal, ROOT)
    assert again.memory is not None
    assert again.memory.learned == search.core.memory.learned != {}
    # A phase that trains there shows that there was room.
    search.train(1, score=0.6)
    assert search.core.memory.problem(search.core.runs[1].spec.hyperparameters) == ""  # type: ignore[union-attr]


def test_a_journal_without_facts_of_memory_judges_no_phase() -> None:
    search = Driver(load_config(RECIPE))
    search.ready()
    search.train(0)
    too_large = make_proposal(resume=(0, 20), max_token_len_per_gpu=131_072)
    assert search.only(cmd.RunPhase, search.propose(1, too_large)).spec.node == 1


def test_a_failed_phase_is_data_and_gets_a_debug_child() -> None:
    search = Driver()
    search.ready()
    analyze = search.only(cmd.Analyze, search.fail(0))
    assert (analyze.node, analyze.on) == (1, 0)
    assert search.only(cmd.RunPhase, search.propose(1)).spec.kind == "debug"


def test_a_lost_runner_is_not_a_failed_node_and_its_phase_is_repeated_on_the_next_one() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    search.lose()
    assert search.core.search.node(0).status == "running"
    assert search.none(cmd.RunPhase)
    again = search.only(cmd.RunPhase, search.ready())
    assert (again.spec.node, again.spec.attempt) == (0, 1)


def test_the_same_loss_twice_makes_a_failed_node_of_class_resource() -> None:
    search = Driver()
    search.ready()
    for _ in range(2):
        search.start(0)
        search.lose()
        search.ready()
    outcome = search.core.runs[0].outcome
    assert isinstance(outcome, PhaseFailure)
    assert outcome.failure_class == "resource"
    assert [saved.step for saved in outcome.checkpoints] == [10]
    assert search.core.search.node(0).status == "failed"
    assert search.only(cmd.Analyze).on == 0


def test_a_runner_lost_before_it_was_handed_the_phase_costs_the_phase_nothing() -> None:
    search = Driver()
    search.ready()
    for _ in range(3):
        search.lose()
        assert search.only(cmd.RunPhase, search.ready()).spec.attempt == 0
    assert search.core.runs[0].losses == 0


def test_what_a_voided_attempt_reports_later_is_ignored() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    late = ev.PhaseFinished(node=0, phase_attempt=0, result=PhaseResult(**{**vars(finished()), "node": 0}))
    search.lose()
    assert search.post(late) == []
    assert search.core.runs[0].outcome is None


def finished() -> PhaseResult:
    search = Driver()
    search.ready()
    search.train(0)
    outcome = search.core.runs[0].outcome
    assert isinstance(outcome, PhaseResult)
    return outcome


def test_a_slot_lost_while_its_next_phase_is_proposed_gets_the_phase_when_it_is_back() -> None:
    search = after_root()
    search.lose()
    assert search.none(cmd.RunPhase)
    search.propose(1)
    assert search.none(cmd.RunPhase)
    assert search.only(cmd.RunPhase, search.ready()).spec.node == 1


def test_a_score_that_is_no_number_counts_as_none() -> None:
    search = Driver()
    search.ready()
    search.train(0, score=float("nan"))
    assert search.core.search.node(0).score is None
    assert search.core.best is None


# --- stopping phases ----------------------------------------------------------------------------------------


def test_a_verdict_stops_the_phase_and_only_a_verdict_makes_it_early_stopped() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    stop = search.only(cmd.StopPhase, search.post(verdict(0)))
    assert stop.reason == "verdict: early_stopper: cannot win"
    search.finish(0, status="early_stopped", stop_reason=stop.reason)
    assert search.core.search.node(0).status == "early_stopped"


def test_a_verdict_to_continue_is_kept_and_stops_nothing() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    assert search.post(verdict(0, stop=False)) == []
    assert len(search.core.runs[0].verdicts) == 1


def test_a_verdict_on_an_earlier_attempt_is_ignored() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    search.lose()
    search.ready()
    search.start(0)
    search.post(verdict(0, attempt=0))
    assert search.none(cmd.StopPhase)


def test_a_second_verdict_changes_nothing() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    search.post(verdict(0))
    assert search.post(verdict(0, source="stopper:v2")) == []


def test_a_phase_lost_after_its_verdict_is_not_repeated_and_ends_early_stopped() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    search.post(verdict(0))
    search.lose()
    outcome = search.core.runs[0].outcome
    assert isinstance(outcome, PhaseResult)
    assert outcome.status == "early_stopped"


def test_a_phase_that_had_to_be_killed_because_it_did_not_stop_has_failed() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    search.post(verdict(0))
    killed = make_failure(0, failure_class="timeout")
    search.post(ev.RunnerLost(slot=0, node=0, phase_attempt=0, reason="did not stop", salvaged=killed))
    assert search.core.search.node(0).status == "failed"


def test_the_incumbent_is_pushed_after_every_finish_with_its_path_cut_where_it_was_resumed() -> None:
    search = Driver()
    search.ready()
    assert search.none(cmd.PushIncumbent)
    push = search.only(cmd.PushIncumbent, search.train(0, score=0.5))
    assert (push.node, push.path) == (0, ((0, 20, 0),))
    search.propose(1, make_proposal(resume=(0, 10)))
    push = search.only(cmd.PushIncumbent, search.train(1, score=0.7, best_step=20))
    assert (push.node, push.path) == (1, ((0, 10, 0), (1, 20, 10)))
    search.propose(2)
    push = search.only(cmd.PushIncumbent, search.train(2, score=0.1))
    assert push.node == 1


# --- the end of a search ------------------------------------------------------------------------------------


def test_the_search_ends_when_the_budget_is_spent() -> None:
    search = Driver()
    search.search_to_end([0.5, 0.6, 0.4, 0.3])
    assert (search.core.stage, search.core.end_reason) == ("measuring", "budget")
    assert search.none(cmd.Propose)


def test_the_target_ends_the_search() -> None:
    search = Driver(make_config(budget={"runs": 9, "target": 0.6}))
    search.search_to_end([0.5, 0.6])
    assert search.core.end_reason == "target"


def test_gpu_hours_count_from_the_reservation_of_a_slot_idle_time_included() -> None:
    search = Driver(make_config(budget={"runs": 9, "gpu_hours": 1.0}))
    search.ready()
    search.now = 1800.0
    search.train(0, gpu_hours=0.1)
    assert search.core.end_reason is None
    search.now = 3600.0
    search.propose(1)
    search.train(1, gpu_hours=0.1)
    assert search.core.end_reason == "gpu_hours"
    assert (search.core.gpu_hours, search.core.meter.gpu_hours(3600.0)) == (0.2, 1.0)


def test_machines_of_failed_cards_are_known_again_after_a_replay() -> None:
    search = Driver()
    search.ready()
    search.post(ev.RunnerLost(slot=0, node=None, phase_attempt=0, reason="Xid 79", avoided="ab"))
    search.post(ev.RunnerLost(slot=0, node=None, phase_attempt=0, reason="its process died"))
    search.post(ev.RunnerLost(slot=0, node=None, phase_attempt=0, reason="Xid 79", avoided="cd"))
    assert search.core.avoided_nodes == replay(search.journal, ROOT).avoided_nodes == {"ab", "cd"}


def test_gpu_hours_of_a_lost_attempt_count_as_busy() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    left = dataclasses.replace(make_failure(0), gpu_hours=0.7)
    search.post(ev.RunnerLost(slot=0, node=0, phase_attempt=0, reason="dead", salvaged=left))
    search.ready()
    search.train(0, gpu_hours=0.4)
    assert search.core.gpu_hours == pytest.approx(1.1)


def test_a_pause_gives_hardware_back_and_its_time_is_not_counted() -> None:
    search = Driver(make_config(slots={"gpus_per_node": 2}))
    search.ready()
    search.now = 3600.0
    search.post(ev.SearchPaused(reason="night"))
    search.now = 9 * 3600.0
    search.post(ev.CoordinatorStarted(epoch=2, host="here", pid=2, previous_alive=3600.0))
    search.ready()
    assert search.core.meter.gpu_hours(10 * 3600.0) == 4.0


def test_the_time_in_which_a_cluster_was_gone_is_not_counted() -> None:
    search = Driver()
    search.ready()
    search.now = 9 * 3600.0
    search.post(ev.CoordinatorStarted(epoch=2, host="here", pid=2, previous_alive=3600.0))
    assert search.core.meter.gpu_hours(10 * 3600.0) == 2.0


def test_time_under_way_counts_in_gpu_hours_and_a_reached_limit_is_reported_once() -> None:
    search = Driver(
        make_config(budget={"runs": 9, "gpu_hours": 4.0, "wall_clock_hours": 9.0}, slots={"gpus_per_node": 2})
    )
    search.now = 1000.0
    search.ready()
    search.start(0)
    assert busy_gpu_hours(search.core, 1000.0 + 1800.0) == 1.0
    assert list(over_budget(search.core, worked_s=60.0, now=1000.0 + 3600.0)) == []
    (reached,) = over_budget(search.core, worked_s=60.0, now=1000.0 + 2 * 3600.0)
    assert (reached.kind, reached.used, reached.limit) == ("gpu_hours", 4.0, 4.0)
    (late,) = over_budget(search.core, worked_s=9 * 3600.0, now=1000.0)
    assert late.kind == "wall_clock"
    assert len(search.post(reached, reached)) == 1


def test_a_cap_stops_the_running_phase_as_completed_and_begins_no_other() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    stop = search.only(cmd.StopPhase, search.post(ev.BudgetReached(kind="wall_clock", used=2.0, limit=2.0)))
    assert stop.reason == "budget: wall_clock"
    search.finish(0, stop_reason=stop.reason)
    assert search.core.search.node(0).status == "completed"
    assert search.core.end_reason == "wall_clock"


def test_a_cap_does_not_turn_a_phase_with_a_verdict_into_a_completed_one() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    search.post(verdict(0))
    assert search.post(ev.BudgetReached(kind="wall_clock", used=2.0, limit=2.0)) == []
    assert search.only(cmd.StopPhase).reason.startswith("verdict")


def test_a_cap_drops_a_phase_that_is_still_being_proposed() -> None:
    search = after_root()
    search.post(ev.BudgetReached(kind="wall_clock", used=2.0, limit=2.0))
    assert search.core.runs[1].status == "cancelled"
    assert search.propose(1) == []
    assert search.core.end_reason == "wall_clock"


def test_a_cap_ends_a_phase_that_waits_for_its_repeat_with_what_it_left() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    search.lose()
    search.post(ev.BudgetReached(kind="wall_clock", used=2.0, limit=2.0))
    outcome = search.core.runs[0].outcome
    assert isinstance(outcome, PhaseResult)
    assert outcome.status == "completed"
    assert search.core.end_reason == "wall_clock"


def test_a_person_ends_the_search_without_final_measurements_but_with_its_outcome_written() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    stop = search.only(cmd.StopPhase, search.post(ev.UserStop(reason="Ctrl-C")))
    assert stop.reason == "user"
    assert search.only(cmd.WriteOutcome, search.finish(0, stop_reason="user"))
    end = search.only(cmd.End, search.post(ev.OutcomeWritten()))
    assert (end.reason, end.exit_code) == ("user", 0)
    assert search.core.finished is not None
    assert search.core.finished.best == 0


def test_exhausted_trees_end_the_search() -> None:
    rules = {"max_evolve_children": 1, "max_debug_children": 0, "rho_min": 0.0}
    search = Driver(make_config(budget={"runs": 30}, search=rules))
    search.ready()
    search.train(0, score=0.5)
    search.propose(1)
    search.fail(1)
    assert search.core.end_reason == "exhausted"


# --- several slots ------------------------------------------------------------------------------------------


def two_slots(runs: int = 6) -> Driver:
    search = Driver(make_config(budget={"runs": runs}, slots={"count": 2}))
    search.ready(0, 1)
    return search


def test_a_second_slot_waits_while_only_the_root_trains() -> None:
    search = two_slots()
    assert [run.slot for run in search.core.runs.values()] == [0]


def test_both_slots_get_work_once_the_root_has_finished() -> None:
    search = two_slots()
    given = search.train(0, score=0.5)
    asked = [(c.node, c.on) for c in given if isinstance(c, cmd.Propose)]
    assert asked == [(1, 0), (2, 0)]
    assert [search.core.runs[node].slot for node in (1, 2)] == [0, 1]


def test_the_second_decision_sees_the_first_ones_run() -> None:
    search = two_slots()
    search.train(0, score=0.5)
    seen = [e.seen["running"] for e in search.journal if isinstance(e, ev.Decided)]
    assert seen == [0, 0, 1]


def test_a_slot_that_is_lost_does_not_disturb_the_other_one() -> None:
    search = two_slots()
    search.train(0, score=0.5)
    search.propose(1)
    search.propose(2)
    search.start(1)
    search.start(2)
    search.lose(1)
    assert search.only(cmd.RunPhase).spec.node == 1
    assert search.only(cmd.RunPhase, search.ready(1)).spec.attempt == 1


def test_the_search_ends_when_the_last_of_several_running_phases_has() -> None:
    search = two_slots(runs=3)
    search.train(0, score=0.5)
    search.propose(1)
    search.propose(2)
    search.train(1, score=0.6)
    assert search.core.end_reason is None
    search.train(2, score=0.4)
    assert search.core.end_reason == "budget"


def test_the_target_reached_in_one_slot_stops_the_other() -> None:
    search = Driver(make_config(budget={"runs": 6, "target": 0.6}, slots={"count": 2}))
    search.ready(0, 1)
    search.train(0, score=0.5)
    search.propose(1)
    search.propose(2)
    search.start(2)
    stop = search.only(cmd.StopPhase, search.train(1, score=0.7))
    assert (stop.node, stop.slot, stop.reason) == (2, 1, "budget: target")


# --- after the search ---------------------------------------------------------------------------------------


def ended(**config: object) -> Driver:
    """A search of 4 runs that has just ended; node 1, resumed from step 10 of the root, is the best at step
    20."""
    search = Driver(make_config(**config))
    search.ready()
    search.train(0, score=0.5)
    search.propose(1, make_proposal(resume=(0, 10)))
    search.train(1, score=0.7)
    for node in (2, 3):
        search.propose(node)
        search.train(node, score=0.4)
    return search


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


def measuring(**config: object) -> Driver:
    """A search of two slots that trains the reference in slot 0 and has scored base and best in slot 1."""
    search = Driver(make_config(budget={"runs": 2}, slots={"count": 2, **dict(config)}))  # type: ignore[arg-type]
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


def test_shared_slots_stay_for_the_next_search() -> None:
    assert measuring(shared="tables").none(cmd.CloseSlot)


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
    assert search.only(cmd.Evaluate, search.ready()).id == "evaluate-base-1"
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


# --- interruptions ------------------------------------------------------------------------------------------


def next_coordinator(search: Driver) -> list[Command]:
    return search.post(ev.CoordinatorStarted(epoch=2, host="here", pid=2))


def test_a_pause_ends_the_work_and_its_phase_begins_again_at_no_charge() -> None:
    search = Driver()
    search.ready()
    for _ in range(3):
        search.start(0)
        assert search.only(cmd.End, search.post(ev.SearchPaused(reason="Ctrl-C"))).exit_code == 0
        assert search.core.stage == "interrupted"
        next_coordinator(search)
        assert search.only(cmd.RunPhase, search.ready())
    assert (search.core.runs[0].losses, search.core.runs[0].attempt) == (0, 3)


def test_an_abort_carries_its_exit_code_and_can_be_resumed() -> None:
    search = after_root()
    end = search.only(cmd.End, search.post(ev.SearchAborted(reason="wrong VeRL", exit_code=5)))
    assert (end.reason, end.exit_code) == ("wrong VeRL", 5)
    next_coordinator(search)
    assert search.only(cmd.Propose).node == 1


def test_a_pause_during_scoring_repeats_it_at_no_charge() -> None:
    search = ended(final={"default_recipe": False})
    for _ in range(3):
        search.post(ev.SearchPaused(reason="Ctrl-C"))
        next_coordinator(search)
        assert search.only(cmd.Evaluate, [*search.ready(), *search.core.resume()][-1:]).what == "base"


# --- replay -------------------------------------------------------------------------------------------------


def play(seed: int, n_slots: int, n_events: int) -> Driver:
    """A search in which agents, runners, hardware and the stopper do whatever the dice say."""
    dice = random.Random(seed)
    search = Driver(make_config(budget={"runs": dice.randint(2, 8)}, slots={"count": n_slots}))
    for _ in range(n_events):
        moves: list[Event] = [ev.SlotReady(slot=s.index) for s in search.core.slots if not s.ready]
        for command in search.core.outstanding():
            moves += answers(search, command, dice)
        if search.core.finished is not None:
            more = {"budget.runs": len(search.core.search.nodes) + 2}
            if search.core.n_extensions == 2 or extension_problem(search.core, more) is not None:
                break
            search.post(next_start(search), ev.SearchExtended(changes=more))
        elif moves:
            search.post(dice.choice(moves))
        else:
            break
    return search


def answers(search: Driver, command: Command, dice: random.Random) -> list[Event]:
    """What may happen in reply to a command."""
    if isinstance(command, cmd.Propose | cmd.Analyze):
        resume = dice.choice([None, (command.on, dice.choice([5, 10, 17])), (99, 1)])
        proposal = make_proposal(resume=resume, lr=dice.choice([1e-3, 5e-4, 9.0]))
        return [
            ev.Proposed(node=command.node, proposal=proposal, tries=command.tries),
            ev.Proposed(node=command.node, proposal=make_proposal(), tries=command.tries),
            ev.ProposalFailed(node=command.node, reason="away", tries=command.tries),
        ]
    if isinstance(command, cmd.RunPhase):
        return run_answers(search, command, dice)
    if isinstance(command, cmd.Evaluate):
        return [
            make_scored(command.what),
            ev.FinalFailed(what=command.what, reason="no"),
            ev.RunnerLost(slot=command.slot, node=None, phase_attempt=0, reason="dead"),
        ]
    if isinstance(command, cmd.WriteOutcome):
        return [ev.OutcomeWritten()]
    if isinstance(command, cmd.End):
        return [next_start(search)]
    return []


def next_start(search: Driver) -> ev.CoordinatorStarted:
    return ev.CoordinatorStarted(epoch=len(search.journal), host="h", pid=1)


def run_answers(search: Driver, command: cmd.RunPhase, dice: random.Random) -> list[Event]:
    node, attempt = command.spec.node, command.spec.attempt
    if not search.core.runs[node].started:
        return [ev.PhaseStarted(node=node, slot=command.slot, phase_attempt=attempt)] * 3
    score = dice.choice([None, dice.random()])
    result = dataclasses.replace(
        finished(), node=node, best_score=score, best_step=None if score is None else 10
    )
    return [
        *[ev.PhaseFinished(node=node, phase_attempt=attempt, result=result)] * 3,
        ev.PhaseFailed(node=node, phase_attempt=attempt, failure=make_failure(node, saved=(10,))),
        ev.RunnerLost(
            slot=command.slot, node=node, phase_attempt=attempt, reason="dead", salvaged=make_failure(node)
        ),
        verdict(node, attempt=attempt, source=f"stopper:{node}-{attempt}-{dice.random()}"),
        *dice.choice([[], [], [ev.BudgetReached(kind="wall_clock", used=1.0, limit=1.0)]]),
        *dice.choice([[], [], [], [ev.UserStop(reason="u")], [ev.SearchPaused(reason="p")]]),
    ]


@given(seed=st.integers(0, 10**6), n_slots=st.integers(1, 3))
def test_replaying_the_journal_rebuilds_the_same_search_with_the_same_work_outstanding(
    seed: int, n_slots: int
) -> None:
    search = play(seed, n_slots, n_events=60)
    again = replay(search.journal, ROOT)
    assert again.outstanding() == search.core.outstanding()
    assert again.search.nodes == search.core.search.nodes
    assert again.runs == search.core.runs
    assert again.slots == search.core.slots


@given(seed=st.integers(0, 10**6), n_slots=st.integers(1, 3))
def test_every_decision_taken_again_is_the_recorded_one(seed: int, n_slots: int) -> None:
    search = play(seed, n_slots, n_events=60)
    assert [check.differences for check in check_decisions(search.journal, ROOT) if check.differences] == []


@given(seed=st.integers(0, 10**6), n_slots=st.integers(1, 3))
def test_whatever_happens_a_search_ends_and_never_exceeds_its_budget(seed: int, n_slots: int) -> None:
    search = play(seed, n_slots, n_events=3000)
    assert search.core.finished is not None
    assert len(search.core.search.nodes) <= search.core.config.budget.runs
    trained = [run for run in search.core.runs.values() if run.stage == "planned"]
    assert trained == []


def test_a_crash_between_a_finish_and_its_decision_loses_neither() -> None:
    search = Driver()
    search.ready()
    search.train(0, score=0.5)
    cut = next(i for i, e in enumerate(search.journal) if isinstance(e, ev.PhaseFinished)) + 1
    core = replay(search.journal[:cut], ROOT)
    record = next(command for command in core.resume() if isinstance(command, cmd.Record))
    assert isinstance(record.event, ev.Decided)
    assert (record.event.action, record.event.on) == ("evolve", 0)


def test_a_restarted_coordinator_is_given_running_phases_again_by_the_same_name() -> None:
    search = Driver()
    before = search.only(cmd.RunPhase, search.ready())
    search.start(0)
    assert search.only(cmd.RunPhase, replay(search.journal, ROOT).resume()) == before


def test_what_was_decided_is_what_the_journal_says_even_where_the_rules_would_decide_otherwise() -> None:
    search = Driver(make_config(budget={"runs": 8}))
    search.ready()
    search.train(0, score=0.5)
    search.propose(1, make_proposal(resume=(0, 10)))
    search.train(1, score=0.9)
    index, decided = next(
        (i, e) for i, e in enumerate(search.journal) if isinstance(e, ev.Decided) and e.node == 2
    )
    other = dataclasses.replace(decided, on=0 if decided.on == 1 else 1)
    journal = [*search.journal[:index], other]
    assert replay(journal, ROOT).runs[2].on == other.on
    differences = [check.differences for check in check_decisions(journal, ROOT) if check.differences]
    assert differences == [(f"on: recorded {other.on!r}, now {decided.on!r}",)]


def test_a_moved_search_trains_in_its_new_place() -> None:
    search = after_root()
    search.propose(1, make_proposal(resume=(0, 20)))
    moved = replay(search.journal, Path("/new/demo"))
    spec = search.only(cmd.RunPhase, moved.outstanding()).spec
    assert spec.adapter == "/new/demo/checkpoints/0000/step_000020"
    assert spec.checkpoint_dir == "/new/demo/checkpoints/0001"


def test_a_journal_that_does_not_begin_with_its_search_is_refused() -> None:
    with pytest.raises(JournalError, match="must be SearchStarted"):
        replay([ev.SlotReady(slot=0)], ROOT)


def test_two_searches_in_one_journal_are_refused() -> None:
    journal = Driver().journal
    with pytest.raises(JournalError, match="second SearchStarted"):
        replay([*journal, journal[0]], ROOT)


def test_an_event_the_core_does_not_know_is_refused() -> None:
    core = CoordinatorCore(SearchPaths(root=ROOT))
    core.handle(Driver().journal[0])
    with pytest.raises(JournalError, match="no event of a search"):
        core.handle(Event())


def test_a_journal_without_gains_is_read_as_ever() -> None:
    data = to_json(make_result(0))
    del data["gain"], data["gain_error"]
    assert from_json(data) == make_result(0)


# --- compute ------------------------------------------------------------------------------------------------


def computing(**budget: Any) -> Driver:
    """A search with 1,000 tokens, of which each phase of 20 steps reports 300."""
    search = Driver(make_config(budget={"runs": 9, "compute": 1000.0, **budget}))
    search.ready()
    return search


def train_counted(search: Driver, node: int, tokens: float = 300.0) -> None:
    search.start(node)
    result = dataclasses.replace(
        make_result(node), tokens=TokenCounts(rollout=tokens / 2, trained=tokens / 2)
    )
    search.post(ev.PhaseFinished(node=node, phase_attempt=0, result=result))


def limit_of(search: Driver, node: int) -> float:
    spec = search.core.runs[node].spec
    assert spec is not None and spec.compute is not None
    return spec.compute.amount


def test_each_phase_may_compute_what_is_left_and_the_search_ends_when_no_step_fits() -> None:
    search = computing()
    for node, left in enumerate([1000.0, 700.0, 400.0, 100.0]):
        if node:
            search.propose(node)
        assert limit_of(search, node) == left
        train_counted(search, node, min(300.0, left))
    assert (search.core.end_reason, search.core.compute) == ("compute", 1000.0)


def test_agents_are_told_what_is_left_and_what_each_phase_took_as_it_is_charged() -> None:
    search = computing(token_cost={"rollout": 2.0, "trained": 1.0})
    search.start(0)
    tokens = TokenCounts(rollout=100.0, trained=60.0)
    result = dataclasses.replace(make_result(0), tokens=tokens, val_tokens=10.0)
    search.post(ev.PhaseFinished(node=0, phase_attempt=0, result=result))
    curves = Curves(val_steps=(10, 20), val_scores=(0.4, 0.5))
    request = build_request(search.core, search.only(cmd.Propose), lambda _: curves)
    left = request.budget.compute
    assert left == ComputeLimit(amount=1000.0 - 260.0, cost=TokenCost(rollout=2.0, trained=1.0))
    assert request.budget.whole_compute == 1000.0
    # Three validations of 10 tokens each, the one at step 0 included, are no part of the 20 steps.
    assert request.budget.root_step == TokenCounts(rollout=70.0 / 20, trained=60.0 / 20)
    assert isinstance(request, ProposalRequest)
    assert (request.on.tokens, request.on.step_tokens) == (tokens, request.budget.root_step)
    search.propose(1)
    assert limit_of(search, 1) == left.amount


def test_a_failed_phase_is_asked_about_with_what_is_left_after_it() -> None:
    search = computing()
    search.start(0)
    failure = dataclasses.replace(
        make_failure(0), steps_done=4, tokens=TokenCounts(rollout=40.0, trained=60.0), gpu_hours=0.5
    )
    search.post(ev.PhaseFailed(node=0, phase_attempt=0, failure=failure))
    request = build_request(search.core, search.only(cmd.Analyze), no_curves)
    assert isinstance(request, ErrorRequest)
    assert request.budget.compute is not None and request.budget.compute.amount == 900.0
    assert request.failed.step_tokens == TokenCounts(rollout=10.0, trained=15.0)
    assert request.failed.gpu_hours == 0.5


@pytest.mark.parametrize("on_cap", ["expert", "stop"])
def test_dollars_are_told_by_run_and_whether_they_end_the_search(on_cap: str) -> None:
    search = Driver(make_config(budget={"runs": 4, "dollars": 5.0}, agents={"on_cap": on_cap}))
    search.ready()
    search.train(0, score=0.5)
    search.core.dollars = 0.6
    asked = build_request(search.core, search.only(cmd.Propose), no_curves).budget
    assert (asked.dollars, asked.dollars_per_run, asked.dollars_end_it) == (4.4, None, on_cap == "stop")
    search.propose(1)
    search.train(1, score=0.4)
    assert build_request(search.core, search.only(cmd.Propose), no_curves).budget.dollars_per_run == 0.6


def test_failed_phases_count_and_costs_weigh_tokens() -> None:
    search = computing(token_cost={"rollout": 2.0, "trained": 0.0})
    search.start(0)
    failure = dataclasses.replace(
        make_failure(0), steps_done=20, tokens=TokenCounts(rollout=400.0, trained=1e6)
    )
    search.post(ev.PhaseFailed(node=0, phase_attempt=0, failure=failure))
    assert (search.core.end_reason, search.core.compute) == (None, 800.0)


def test_a_planned_run_gets_its_share_whatever_the_others_spent() -> None:
    """The third of four random recipes may compute a quarter of the budget, though the first two took
    more than theirs."""
    search = Driver(
        make_config(budget={"runs": 8, "compute": 1000.0}, search={"method": "random", "recipes": 4})
    )
    search.ready()
    for node in range(3):
        search.propose(node, make_proposal(lr=1e-4 * (node + 2), n_steps=60))
        assert limit_of(search, node) == 250.0
        train_counted(search, node, 400.0)
    assert search.core.end_reason is None


def test_a_raised_compute_lets_an_ended_search_go_on() -> None:
    search = computing()
    train_counted(search, 0, 1000.0)
    assert search.core.end_reason == "compute"
    assert extension_problem(search.core, {"budget.compute": 2000.0}) is None


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
