"""The offline error analyzer: one kind of fix per class of failure, going further each time."""

from __future__ import annotations

from typing import Any

import pytest

from llmzero_ray import hyperparameters as hp
from llmzero_ray.agents.expert import ExpertErrorAnalyzer
from llmzero_ray.hyperparameters.verl_keys import (
    GPU_MEMORY,
    GRAD_CLIP,
    GRADIENT_CHECKPOINTING,
    KL_LOSS_COEF,
    LOG_PROB_MICRO,
    LR,
    MAX_NUM_SEQS,
    MAX_RESPONSE,
    MAX_TOKENS,
    MICRO_BATCH,
    MINI_BATCH,
    OPTIMIZER_OFFLOAD,
    PARAM_OFFLOAD,
    REF_MICRO,
    ROLLOUT_N,
    TRAIN_BATCH,
)
from llmzero_ray.records import (
    FailureClass,
    Hyperparameters,
    HyperparameterValue,
    PhaseFailure,
    Proposal,
    ResumeFrom,
)
from llmzero_ray.records.agents import ErrorAnalyzer, ErrorRequest, MemoryView, NodeView, OfferedCheckpoint
from tests.agents import curves as c

ANALYZER: ErrorAnalyzer = ExpertErrorAnalyzer()
ROOT = c.PRACTITIONER


def failed(
    failure_class: FailureClass,
    hyperparameters: Hyperparameters = ROOT,
    *,
    node: int = 5,
    cause: str = "it broke",
    log: str = "",
    steps_done: int = 0,
    base_step: int = 0,
) -> NodeView:
    return NodeView(
        node=node,
        kind="evolve",
        status="failed",
        hyperparameters=hyperparameters,
        n_steps=60,
        base_step=base_step,
        failure=PhaseFailure(
            node=node, failure_class=failure_class, cause=cause, log_tail=log, steps_done=steps_done
        ),
    )


def ask(*chain: NodeView, **more: Any) -> Proposal:
    values: dict[str, Any] = {
        "task": c.BIG_TASK,
        "failed": chain[-1],
        "chain": chain,
        "default": ROOT,
        "checkpoints": (),
    }
    return ANALYZER.analyze(ErrorRequest(**{**values, **more}))


def changed(proposal: Proposal) -> dict[str, HyperparameterValue]:
    return {change.key: change.new for change in proposal.changes}


def saved(node: int, step: int, score: float | None = None, base_step: int = 0) -> OfferedCheckpoint:
    return OfferedCheckpoint(node=node, step=step, global_step=base_step + step, val_score=score)


# --- memory -------------------------------------------------------------------------------------------------


def test_memory_is_first_met_by_smaller_pieces_that_train_the_same() -> None:
    new = changed(ask(failed("oom")))
    # "auto" stands for 16 sequences here: half of it.
    assert new[MICRO_BATCH] == 8
    assert new[MAX_NUM_SEQS] == 128
    assert float(str(new[GPU_MEMORY])) < 0.5
    assert not {MAX_RESPONSE, ROLLOUT_N, LR} & set(new)


def test_a_server_without_room_for_its_cache_gets_more_of_the_card() -> None:
    log = "ValueError: No available memory for the cache blocks."
    assert changed(ask(failed("oom", log=log)))[GPU_MEMORY] == 0.6


@pytest.mark.parametrize(("share", "log"), [(0.2, "CUDA out of memory"), (0.95, "no KV cache blocks")])
@pytest.mark.parametrize("times", [1, 3])
def test_who_ran_out_of_memory_never_gets_less_of_the_card(share: float, log: str, times: int) -> None:
    base = hp.complete(ROOT, {"gpu_memory_utilization": share})
    chain = [failed("oom", base, node=5 + n, log=log) for n in range(times)]
    assert GPU_MEMORY not in changed(ask(*chain))


def test_memory_that_runs_out_again_is_met_by_offloading_then_by_all_that_gets_smaller() -> None:
    once = failed("oom")
    twice = failed("oom", hp.complete(ROOT, changed(ask(once))), node=6)
    new = changed(ask(once, twice))
    assert new[MICRO_BATCH] == 4
    assert (new[PARAM_OFFLOAD], new[OPTIMIZER_OFFLOAD], new[GRADIENT_CHECKPOINTING]) == (True, True, True)
    assert not {MAX_RESPONSE, ROLLOUT_N} & set(new)

    thrice = failed("oom", hp.complete(twice.hyperparameters, new), node=7)
    least = changed(ask(once, twice, thrice))
    assert (least[MICRO_BATCH], least[MAX_NUM_SEQS]) == (1, 16)
    assert not {MAX_RESPONSE, ROLLOUT_N} & set(least)

    # Only when nothing else is left does the task get smaller.
    again = failed("oom", hp.complete(thrice.hyperparameters, least), node=8)
    last = changed(ask(once, twice, thrice, again))
    assert (last[MAX_RESPONSE], last[ROLLOUT_N]) == (4608, 4)


def test_where_micro_batches_are_packed_the_budget_of_tokens_shrinks_not_their_sizes() -> None:
    packed = hp.complete(ROOT, {"dynamic_bsz": True, "max_token_len_per_gpu": 24_576})
    new = changed(ask(failed("oom", packed)))
    assert new[MAX_TOKENS] == 12_288
    assert not {MICRO_BATCH, LOG_PROB_MICRO, REF_MICRO} & set(new)
    # A sequence is never split: the budget holds the longest prompt and response.
    short = hp.complete(ROOT, {"dynamic_bsz": True, "max_token_len_per_gpu": 8000})
    assert changed(ask(failed("oom", short)))[MAX_TOKENS] == 1024 + 6144


def test_the_memory_estimate_of_the_search_is_followed_where_there_is_one() -> None:
    memory = MemoryView(
        verdict="does not fit: tightest is update",
        remedies=("max_token_len_per_gpu 16384 -> 8192: 9.0 GiB less there, then fits",),
        fix={MAX_TOKENS: 8192, PARAM_OFFLOAD: True},
        fix_verdict="fits",
    )
    proposal = ask(failed("oom"), memory=memory)
    assert changed(proposal) == {MAX_TOKENS: 8192, PARAM_OFFLOAD: True}
    assert "tightest is update. With these changes it fits." in proposal.rationale


def test_pieces_that_cannot_get_smaller_go_straight_to_offloading() -> None:
    ones = {"micro_batch_size": 1, "log_prob_micro_batch_size": 1, "ref_micro_batch_size": 2}  # no effect
    new = changed(ask(failed("oom", hp.complete(ROOT, ones))))
    assert new[GRADIENT_CHECKPOINTING] is True


def test_a_lost_process_is_met_like_lack_of_host_memory_without_offloading_to_it() -> None:
    first = failed("resource")
    again = changed(ask(first, failed("resource", node=6)))
    assert MICRO_BATCH in again
    assert not {PARAM_OFFLOAD, OPTIMIZER_OFFLOAD} & set(again)


# --- NaN ----------------------------------------------------------------------------------------------------


def test_nan_is_met_by_smaller_clipped_steps_and_further_each_time() -> None:
    new = changed(ask(failed("nan")))
    assert (new[LR], new[GRAD_CLIP], new[KL_LOSS_COEF]) == (2.5e-5, 0.5, 0.002)
    again = changed(ask(failed("nan"), failed("nan", node=6)))
    assert (again[LR], again[GRAD_CLIP]) == (1.3e-5, 0.25)


def test_nan_goes_back_to_a_checkpoint_from_well_before_it() -> None:
    view = failed("nan", steps_done=38)
    own = (saved(5, 10, 0.30), saved(5, 20, 0.33), saved(5, 30, 0.31), saved(5, 36, 0.40))
    assert ask(view, checkpoints=own).resume_from == ResumeFrom(node=5, step=20)
    assert ask(view, checkpoints=own[3:]).resume_from is None


# --- configuration ------------------------------------------------------------------------------------------


def test_a_refused_value_that_is_named_goes_back_to_what_the_root_trained_with() -> None:
    odd = hp.complete(ROOT, {"micro_batch_size": 32, "temperature": 0.8, "n": 12})
    proposal = ask(failed("config", odd, cause="ppo_micro_batch_size_per_gpu must divide the sequences"))
    assert changed(proposal)[MICRO_BATCH] == "auto"
    assert not {LR, "actor_rollout_ref.rollout.temperature"} & set(changed(proposal))


def test_a_refusal_without_a_name_takes_everything_back_but_capacity_and_the_adapter() -> None:
    odd = hp.complete(ROOT, {"temperature": 0.8, "n": 12, "lora_rank": 32})
    assert changed(ask(failed("config", odd, cause="AssertionError"))) == {
        "actor_rollout_ref.rollout.temperature": 1.0
    }


def test_a_response_cap_without_room_goes_back_when_it_is_named() -> None:
    odd = {**ROOT, MAX_RESPONSE: 20_000}
    proposal = ask(failed("config", odd, cause="data.max_response_length=20000: no room"))
    assert changed(proposal) == {MAX_RESPONSE: 6144}


def test_several_named_values_go_back_together_and_what_hangs_on_them_follows() -> None:
    # The mini batch equals the batch here and follows it; temperature is not named and stays.
    odd = {**hp.complete(ROOT, {"temperature": 0.8}), TRAIN_BATCH: 100, MINI_BATCH: 100, MAX_RESPONSE: 20_000}
    proposal = ask(
        failed("config", odd, cause="data.train_batch_size=100 and data.max_response_length=20000")
    )
    assert changed(proposal) == {MAX_RESPONSE: 6144, TRAIN_BATCH: 128}


def test_a_configuration_that_no_fix_of_its_class_makes_valid_is_left_as_it_is() -> None:
    assert ask(failed("nan", {**ROOT, MAX_RESPONSE: 20_000})).changes == ()


# --- everything else ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure_class", ["mismatch", "reward", "engine", "timeout"])
def test_what_the_configuration_does_not_explain_is_tried_once_more_as_it_was(
    failure_class: FailureClass,
) -> None:
    proposal = ask(failed(failure_class))
    assert proposal.changes == ()
    assert proposal.n_steps == 60


@pytest.mark.parametrize("failure_class", ["engine", "timeout"])
def test_the_second_time_it_is_tried_with_smaller_pieces(failure_class: FailureClass) -> None:
    assert changed(ask(failed(failure_class), failed(failure_class, node=6)))[MICRO_BATCH] == 8


def test_a_phase_that_times_out_twice_is_shortened() -> None:
    assert ask(failed("timeout"), failed("timeout", node=6)).n_steps == 30


def test_a_second_mismatch_falls_back_to_the_value_that_is_named() -> None:
    odd = hp.complete(ROOT, {"temperature": 0.8})
    cause = "actor_rollout_ref.rollout.temperature: asked 0.8, found 1.0"
    again = ask(failed("mismatch", odd, cause=cause), failed("mismatch", odd, cause=cause, node=6))
    assert changed(again) == {"actor_rollout_ref.rollout.temperature": 1.0}


def test_a_refused_fix_leaves_out_what_was_named() -> None:
    proposal = ask(failed("oom"), rejected="max_num_seqs=128: the server was started with 256.")
    assert MAX_NUM_SEQS not in changed(proposal)
    assert MICRO_BATCH in changed(proposal)


def test_a_failed_phase_without_a_recorded_failure_is_tried_again() -> None:
    view = NodeView(node=5, kind="evolve", status="failed", hyperparameters=ROOT, n_steps=60, base_step=0)
    proposal = ask(view)
    assert proposal.changes == ()
    assert proposal.diagnosis.state == "failed"


# --- from where, and what is said ---------------------------------------------------------------------------


def test_what_the_failed_phase_trained_is_kept() -> None:
    view = failed("engine", steps_done=45, base_step=20)
    offered = (saved(1, 20, 0.30), saved(5, 20, 0.33, 20), saved(5, 40, 0.34, 20))
    proposal = ask(view, checkpoints=offered)
    assert proposal.resume_from == ResumeFrom(node=5, step=40)
    assert proposal.n_steps == 30  # 20 are left of 60: half a standard phase at least


def test_a_last_checkpoint_that_got_worse_yields_to_the_best_one() -> None:
    offered = (saved(5, 20, 0.40), saved(5, 40, 0.20))
    assert ask(failed("oom", steps_done=45), checkpoints=offered).resume_from == ResumeFrom(node=5, step=20)


def test_without_its_own_checkpoints_a_fix_starts_where_the_failed_phase_did() -> None:
    view = failed("oom", base_step=40)
    offered = (saved(1, 20, 0.30), saved(1, 40, 0.29), saved(1, 60, 0.50))
    assert ask(view, checkpoints=offered).resume_from == ResumeFrom(node=1, step=40)
    assert ask(failed("oom"), checkpoints=offered).resume_from is None


def test_the_diagnosis_names_class_cause_progress_and_the_end_of_the_log() -> None:
    view = failed("oom", cause="CUDA out of memory", log="a\n\nb\nc\nd\n", steps_done=7)
    diagnosis = ask(view).diagnosis
    assert diagnosis.summary == "Memory ran out after 7 steps: CUDA out of memory"
    assert diagnosis.evidence == ("CUDA out of memory", "b", "c", "d")


def test_the_rationale_shows_the_changes_and_the_epochs() -> None:
    rationale = ask(failed("nan")).rationale
    assert "lr 5e-5 -> 2.5e-5" in rationale
    assert "from the base model" in rationale
    assert "60 steps, to global step 60: 1.54 passes over the 5000 training items" in rationale
