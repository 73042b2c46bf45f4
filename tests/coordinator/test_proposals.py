"""The first run, proposals, and what agents see, by events alone."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.config import load_config
from llmzero_ray.coordinator import (
    CoordinatorCore,
    build_request,
    earlier_verdicts,
    incumbent_chain,
    node_view,
    overlay_record,
    replay,
    request_record,
    task_view,
)
from llmzero_ray.dynamics.incumbent import scores_along
from llmzero_ray.errors import ConfigError
from llmzero_ray.estimate import Estimate
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.records import ResumeFrom, StopDecision
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.agents import ErrorRequest, ProposalRequest
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.records.metrics import Curves
from llmzero_ray.stopping.request import stop_request
from llmzero_ray.storage import SearchPaths
from tests.builders import LR, ROOT, Driver, make_config, make_proposal, make_scored
from tests.coordinator.builders import after_root, no_curves, verdict

RECIPE = Path(__file__).parents[2] / "jobs" / "configs" / "qwen3_4b.yaml"
SCALE = "actor_rollout_ref.model.lora_rank"


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
        (make_proposal(max_response_length=4096), "context length is 1536"),
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


# --- memory -------------------------------------------------------------------------------------------------


def on_gpus(**changes: Any) -> Driver:
    """A search with the preset for Qwen3-4B on 8 GPUs of 40 GB."""
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


@pytest.mark.parametrize("backend", ["claude", "expert"])
def test_a_language_model_is_always_offered_the_best_checkpoint(backend: str) -> None:
    agents = {"backend": backend}
    search = Driver(make_config(budget={"runs": 12}, agents=agents, search={"C": 50.0, "rho_min": 0.0}))
    search.ready()
    search.train(0, score=0.3)
    search.propose(1, make_proposal(resume=(0, 10)))
    search.train(1, score=0.9)
    elsewhere = 0
    for node in range(2, 9):
        propose = search.only(cmd.Propose)
        request = build_request(search.core, propose, no_curves)
        assert isinstance(request, ProposalRequest) and request.best is not None and request.best.node == 1
        offered = {one.node for one in request.checkpoints}
        on_path = {view.node for view in request.path}
        assert offered == (on_path | {1} if backend == "claude" else on_path)
        start = (1, 20) if 1 in offered else (propose.on, 20)
        if start[0] not in on_path:
            elsewhere += 1
            assert request.base(ResumeFrom(node=1, step=20)) == request.best.hyperparameters
        search.propose(node, make_proposal(resume=start, lr=1e-4 / node))
        spec = search.core.runs[node].spec
        assert spec is not None and spec.resume_from == ResumeFrom(node=start[0], step=start[1])
        search.train(node, score=0.1)
    assert bool(elsewhere) == (backend == "claude")


def test_a_phase_is_shown_with_the_reasons_for_its_changes() -> None:
    search = after_root()
    search.propose(1, make_proposal(resume=(0, 10), lr=2e-4))
    search.train(1, score=0.2)
    assert [(one.new, one.reason) for one in node_view(search.core, 1, no_curves).changes] == [
        (2e-4, "because")
    ]
    assert node_view(search.core, 0, no_curves).changes == ()


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
