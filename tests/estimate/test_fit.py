"""Verdicts and remedies, and the paper's practitioner on 8 GPUs of 40 GB."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmzero_ray.estimate.fit import assess
from llmzero_ray.utils.text import GIB

from .builders import SIZES, judged, practitioner, setup, shape

# --- the paper ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_with_small_micro_batches_the_practitioner_fits_on_8b(micro_batch: int) -> None:
    config = practitioner(micro_batch=micro_batch)
    assert judged(config, "8B").status != "does not fit"


def test_with_a_micro_batch_of_one_whole_group_it_fails_on_8b_alone() -> None:
    # 8 sequences at their caps: 36 layers keep 8 KiB a token each, beside 16 GiB of logits.
    config = practitioner(micro_batch=8)
    assert [judged(config, size).status == "does not fit" for size in SIZES] == [False, False, False, True]
    failed = judged(config, "8B")
    assert failed.worst.name == "update"


# --- in general -----------------------------------------------------------------------------------------


def test_a_phase_that_fits_needs_no_remedy() -> None:
    found = assess(shape("0.6B"), setup(utilization=0.5))
    assert (found.status, found.remedies) == ("fits", ())


def test_only_high_sizes_beyond_a_limit_are_tight() -> None:
    fitting = setup(utilization=0.5)
    peak = max(stage.total.high for stage in assess(shape("8B"), fitting).stages)
    usual = max(stage.total.likely for stage in assess(shape("8B"), fitting).stages)

    def status(gpu_bytes: float) -> str:
        # vLLM's share stays what it was.
        utilization = 0.5 * 39.4 * GIB / gpu_bytes
        return assess(shape("8B"), replace(fitting, gpu_bytes=gpu_bytes, utilization=utilization)).status

    assert status(peak * 1.001) == "fits"
    assert status((peak + usual) / 2) == "tight"
    assert status(usual * 0.999) == "does not fit"


def test_the_worst_stage_and_its_largest_item_are_named() -> None:
    found = assess(shape("4B"), setup(micro_batch=16, prompt=2048, response=6144))
    assert found.status == "does not fit"
    assert found.reason.startswith("does not fit: tightest is update with about ")
    assert "largest there: logits and entropy, 39.0 GiB" in found.reason


def test_remedies_are_estimated_with_only_that_change() -> None:
    phase = setup(micro_batch=16, prompt=2048, response=6144)
    found = assess(shape("4B"), phase)
    halved = next(remedy for remedy in found.remedies if remedy.change == "micro_batch_size 16 -> 8")
    after = assess(shape("4B"), replace(phase, micro_batch=8))
    update = next(stage for stage in after.stages if stage.name == "update")
    assert halved.saved == pytest.approx(found.worst.total.likely - update.total.likely)
    assert halved.status == after.status


def test_remedies_that_make_it_fit_come_first_and_none_makes_it_worse() -> None:
    for size in SIZES:
        for micro_batch in (8, 16, 32):
            found = assess(shape(size), setup(micro_batch=micro_batch, prompt=2048, response=6144))
            order = [("fits", "tight", "does not fit").index(remedy.status) for remedy in found.remedies]
            assert order == sorted(order)
            assert all(remedy.saved > 0 for remedy in found.remedies)


def test_a_server_without_room_for_its_weights_fails_with_the_remedy() -> None:
    found = assess(shape("8B"), setup(utilization=0.4, max_model_len=10_240))
    assert (found.status, found.worst.name) == ("does not fit", "server start")
    assert found.cache_tokens == 0
    changes = [remedy.change for remedy in found.remedies]
    assert "engine.tensor_model_parallel_size 1 -> 2" in changes
    assert "engine.gpu_memory_utilization higher: 0.4 -> 0.5" in changes


def test_a_budget_that_holds_no_full_sequence_is_refused_as_verl_does() -> None:
    phase = setup(dynamic_bsz=True, max_tokens=8192, log_prob_max_tokens=8192, prompt=2048, response=8192)
    found = assess(shape("0.6B"), phase)
    assert found.status == "does not fit"
    assert "set max_token_len_per_gpu to at least 10240" in found.reason
    assert assess(shape("0.6B"), replace(phase, ulysses=2)).status == "fits"


def test_budgets_are_never_halved_below_the_longest_sequence() -> None:
    phase = setup(
        dynamic_bsz=True, max_tokens=65_536, log_prob_max_tokens=65_536, prompt=2048, response=40_000
    )
    found = assess(shape("8B"), phase)
    assert found.status == "does not fit"
    assert any(remedy.change == "max_token_len_per_gpu 65536 -> 42048" for remedy in found.remedies)
