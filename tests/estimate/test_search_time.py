"""What a search will take: numbers that can be worked out by hand."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.agents.backend import AGENT_NAMES
from llmzero_ray.agents.expected_cost import TYPICAL_TOKENS, agent_prices, expected_dollars
from llmzero_ray.agents.llm.prices import Price
from llmzero_ray.config import SearchConfig, load_config, parse_config
from llmzero_ray.errors import ConfigError
from llmzero_ray.estimate import Cases, Estimate, MeasuredTimes, Tokens
from llmzero_ray.estimate.model_shape import adapter_bytes
from llmzero_ray.estimate.search_time import disk_bytes, first_limit
from llmzero_ray.hyperparameters.compute import validations
from llmzero_ray.tasks.tiny_model import SHAPE

ROOT = Path(__file__).parents[2]
MEASURED = MeasuredTimes(source="a test", step_s=10.0, validation_s=20.0, cold_start_s=60.0, warm_start_s=2.0)
FREE = Price.of((0.0, 0.0, 0.0, 0.0))
QWEN3_4B = {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


def config_of(**blocks: Any) -> SearchConfig:
    """Five runs of 40 steps, validated and saved every 10, proposals up to 100, stops from 10 on."""
    base: dict[str, Any] = {
        "name": "est",
        "budget": {"runs": 5},
        "phase": {"n_steps": 40, "max_steps": 100, "test_freq": 10, "save_freq": 10},
        "final": {"test": False, "default_recipe": False},
        "task": {"n_val": 100, "n_test": 200},
        "root": {"overrides": {"batch": 16, "mini_batch": 16, "n": 4}},
    }
    for key, value in blocks.items():
        base[key] = {**base.get(key, {}), **value}
    return parse_config(base)


def cases(config: SearchConfig, measured: MeasuredTimes = MEASURED, price: Price | None = FREE) -> Cases:
    prices = None if price is None else dict.fromkeys(AGENT_NAMES, price)
    dollars = None if prices is None else partial(expected_dollars, config, prices, measured.tokens)
    return Estimate(config).cases(measured, dollars)


def test_a_phase_is_validated_before_it_begins_at_every_interval_and_at_its_end() -> None:
    assert [validations(steps, 10) for steps in (40, 45, 10, 7, 1)] == [5, 6, 2, 2, 2]


def test_phases_are_as_long_as_stops_plan_and_proposals_make_them() -> None:
    assert [case.steps for case in cases(config_of())] == [40 + 4 * 10, 5 * 40, 40 + 4 * 100]
    assert [case.validations for case in cases(config_of())] == [5 + 4 * 2, 5 * 5, 5 + 4 * 11]


def test_without_a_stopper_no_phase_is_shorter_than_planned() -> None:
    low, planned, _ = cases(config_of(stopper={"enabled": False}))
    assert (low.steps, planned.steps) == (200, 200)


def test_hours_of_one_slot_add_up() -> None:
    # A phase of 40 steps: 400 s and five validations. One cold start, four warm ones.
    _, planned, _ = cases(config_of())
    assert planned.hours == pytest.approx((60 + 5 * (400 + 100) + 4 * 2) / 3600)
    assert planned.gpu_hours == pytest.approx(planned.hours)


def test_in_the_worst_case_every_phase_starts_cold() -> None:
    *_, high = cases(config_of())
    assert high.hours == pytest.approx((5 * 60 + 500 + 4 * (1000 + 11 * 20)) / 3600)


def test_slots_train_children_side_by_side_and_are_all_reserved_throughout() -> None:
    # The root alone, then two rounds of two; the second slot starts cold beside the first one.
    _, planned, _ = cases(config_of(slots={"count": 2, "gpus_per_node": 4}))
    assert planned.hours == pytest.approx((60 + 500 + 2 * (2 + 500) + 58) / 3600)
    assert planned.gpu_hours == pytest.approx(planned.hours * 8)


def test_slots_that_are_reserved_when_needed_cost_nothing_while_the_root_trains() -> None:
    late = {"count": 2, "gpus_per_node": 4, "reserve": "when_needed"}
    _, planned, _ = cases(config_of(slots=late))
    assert planned.gpu_hours == pytest.approx((planned.hours * 2 - (60 + 500) / 3600) * 4)


def test_a_phase_trains_no_longer_than_its_cap() -> None:
    _, planned, _ = cases(config_of(phase={"max_hours": 0.05}))
    assert planned.hours == pytest.approx((60 + 5 * 180 + 4 * 2) / 3600)


def test_the_default_recipe_is_trained_as_long_as_the_best_path_and_everything_is_tested() -> None:
    _, without, _ = cases(config_of())
    _, planned, _ = cases(config_of(final={"test": True, "default_recipe": True}))
    assert planned.reference_steps == 60  # 30 % of 200
    assert planned.validations == without.validations + 7
    # 60 steps with 7 validations from a warm start, and three passes over the test split of twice the size.
    assert planned.hours - without.hours == pytest.approx((2 + 600 + 7 * 20 + 3 * 40) / 3600)


def test_with_enough_slots_base_and_best_are_tested_beside_the_default_recipe() -> None:
    slots = {"count": 3}
    _, without, _ = cases(config_of(slots=slots))
    _, planned, _ = cases(config_of(slots=slots, final={"test": True, "default_recipe": True}))
    assert planned.hours - without.hours == pytest.approx((2 + 600 + 7 * 20 + 40) / 3600)


def test_without_stages_the_default_recipe_is_one_phase() -> None:
    config = config_of(final={"default_recipe": True}, search={"multi_stage": False})
    assert [case.reference_steps for case in cases(config)] == [10, 40, 100]


def test_an_unmeasured_validation_is_estimated_from_the_rollouts_of_a_step() -> None:
    alone = MeasuredTimes(source="a test", step_s=6.4, cold_start_s=0.0, warm_start_s=0.0)
    config = config_of(budget={"runs": 2}, stopper={"enabled": False})
    low, planned, _ = cases(config, alone)
    # 100 rows against 64 rollouts in 6.4 s: 10 s if a validated response costs what a trained one does.
    assert low.hours == pytest.approx(2 * (256 + 5 * 5.0) / 3600)
    assert planned.hours == pytest.approx(2 * (256 + 5 * 7.5) / 3600)


def test_a_search_that_is_expected_to_wait_for_its_model_takes_longer() -> None:
    _, offline, _ = cases(config_of())
    _, asked, _ = cases(config_of(agents={"backend": "claude"}))
    assert asked.hours - offline.hours == pytest.approx(4 * 20 / 3600)


def test_dollars_are_proposals_and_verdicts_at_the_price_of_their_tokens() -> None:
    config = config_of(
        agents={"backend": "claude", "visual": False}, stopper={"interval_steps": 10, "min_steps": 10}
    )
    price = Price.of((2.0, 10.0, 3.0, 0.5))
    tokens = {
        "proposer": Tokens(system=1000, input=500, output=100),
        "early_stopper": Tokens(system=200, input=100, output=10),
    }
    measured = MeasuredTimes(source="a test", step_s=10.0, tokens=tokens)
    low, planned, high = cases(config, measured, price=price)
    proposal, verdict = 1500 * 2 + 100 * 10, 100 * 2 + 10 * 10
    kept, written = 200 * 0.5, 200 * 4  # for an hour, at twice the input; the proposer's prompt is not kept
    # One verdict before the end, at steps 10, 20 and 30 of 40, and nine of them.
    assert low.dollars == pytest.approx(4 * (proposal + kept + verdict) / 1e6)
    assert planned.dollars == pytest.approx(4 * (proposal + 3 * (written + verdict)) / 1e6)
    longest = 2 * (1500 * 2 + 16_000 * 10) + 9 * (100 * 2 + written + (250 + 3850) * 10)
    assert high.dollars == pytest.approx(4 * longest / 1e6)


def test_pictures_cost_tokens_where_they_were_not_measured() -> None:
    price = Price.of((1.0, 0.0, 0.0, 0.0))
    blind = cases(config_of(agents={"backend": "claude", "visual": False}), price=price)[1].dollars
    seeing = cases(config_of(agents={"backend": "claude"}), price=price)[1].dollars
    assert blind is not None and seeing is not None and seeing > blind


def test_the_expert_is_free_a_model_has_its_price_and_an_agent_of_ones_own_is_unknown() -> None:
    assert agent_prices(config_of()) == dict.fromkeys(AGENT_NAMES, FREE)
    asked: dict[str, Any] = {"backend": "claude", "price": [1.0, 2.0, 3.0, 4.0]}
    usual = Price.of((1.0, 2.0, 3.0, 4.0))
    assert agent_prices(config_of(agents=asked)) == dict.fromkeys(AGENT_NAMES, usual)
    dear = {"proposer": {"model": "mine", "price": [5.0, 6.0, 7.0, 8.0]}}
    found = agent_prices(config_of(agents={**asked, "per_agent": dear}))
    assert found is not None
    assert (found["proposer"], found["early_stopper"]) == (Price.of((5.0, 6.0, 7.0, 8.0)), usual)
    own = config_of(agents={"backend": "my.agents:make"})
    assert agent_prices(own) is None
    assert cases(own, price=None)[1].dollars is None
    for agents in ({"model": "nobody"}, {"per_agent": {"proposer": {"model": "nobody"}}}):
        with pytest.raises(ConfigError, match="the price of 'nobody' is unknown"):
            agent_prices(config_of(agents={"backend": "claude", **agents}))


@pytest.mark.parametrize("method", ["default", "random", "pbt"])
def test_runs_that_a_method_plans_are_standard_phases_for_which_no_agent_is_asked(method: str) -> None:
    config = config_of(search={"method": method}, agents={"backend": "claude"}, phase={"max_steps": 200})
    _, planned, high = cases(config, price=Price.of((1.0, 2.0, 3.0, 4.0)))
    assert (planned.steps, high.steps) == (200, 200)
    assert (planned.dollars, high.dollars) == (0, 0)
    assert planned.hours == pytest.approx((60 + 5 * (400 + 100) + 4 * 2) / 3600)


def test_every_node_is_tested_where_all_are() -> None:
    _, best, _ = cases(config_of(final={"test": True}))
    _, every, _ = cases(config_of(final={"test": "all"}))
    assert every.hours - best.hours == pytest.approx(4 * 40 / 3600)


def test_typical_tokens_are_those_of_the_benchmark() -> None:
    kept = json.loads((ROOT / "benchmarks" / "agent_tokens.json").read_text())
    assert {agent: Tokens(**tokens) for agent, tokens in kept.items()} == TYPICAL_TOKENS


def test_the_limit_that_is_reached_first_is_named_with_its_share() -> None:
    # 0.714 h planned.
    limited = config_of(budget={"wall_clock_hours": 0.5, "gpu_hours": 0.6})
    limit = first_limit(limited, cases(limited)[1])
    assert limit is not None
    assert limit.key == "budget.wall_clock_hours"
    assert limit.share == pytest.approx(0.5 / (2568 / 3600))
    assert first_limit(config_of(budget={"gpu_hours": 10.0}), cases(config_of())[1]) is None


def test_dollars_end_a_search_only_where_the_expert_does_not_take_over() -> None:
    for on_cap, expected in (("expert", None), ("stop", "budget.dollars")):
        config = config_of(budget={"dollars": 0.01}, agents={"backend": "claude", "on_cap": on_cap})
        limit = first_limit(config, cases(config, price=Price.of((2.0, 10.0, 3.0, 0.5)))[1])
        assert (limit.key if limit else None) == expected


def test_adapters_are_counted_at_every_save_at_bests_and_at_the_end() -> None:
    config = config_of(
        phase={"n_steps": 45, "save_freq": 20, "test_freq": 15},
        stopper={"min_steps": 10},
        checkpoints={"rolling_freq": 0},
    )
    # Planned: 20, 40, 45. Low: 20, 40, 45 of the root, 10 of a child stopped there. High: besides at 15, 30,
    # ...: 5 of the root; 20, 40, ..., 100 with 15, 30, ..., 90 of a child, 60 being both.
    assert disk_bytes(config, 1, "planned") == 5 * 3
    assert disk_bytes(config, 1, "low") == 3 + 4 * 1
    assert disk_bytes(config, 1, "high") == 5 + 4 * 10


def test_each_slot_keeps_one_full_checkpoint_of_the_phase_it_trains() -> None:
    without = disk_bytes(config_of(checkpoints={"rolling_freq": 0}), 1, "planned")
    assert disk_bytes(config_of(slots={"count": 2}), 1, "planned") == without + 2 * 3


def test_an_adapter_of_rank_64_on_qwen3_4b_has_132_million_parameters() -> None:
    assert adapter_bytes(QWEN3_4B, rank=64, targets="all-linear") == 4 * 64 * 36 * 57344


def test_an_adapter_on_the_tiny_model_has_the_size_it_has_on_the_disk() -> None:
    found = adapter_bytes(SHAPE, rank=8, targets="all-linear")
    assert found == 233472  # 238,784 bytes as safetensors, names of the tensors included


def test_targets_are_a_pattern_as_peft_has_it() -> None:
    queries = adapter_bytes(QWEN3_4B, rank=1, targets=r".*\.q_proj")
    assert queries == 4 * 36 * (2560 + 32 * 128)
    assert adapter_bytes(QWEN3_4B, rank=1, targets="nothing") is None


def test_the_text_part_of_a_model_with_several_parts_is_what_counts() -> None:
    assert adapter_bytes({"text_config": QWEN3_4B}, rank=1, targets="all-linear") == 4 * 36 * 57344


@pytest.mark.parametrize("other", [{}, {"hidden_size": 8}, {**QWEN3_4B, "num_experts": 64}])
def test_the_size_of_an_adapter_on_other_layers_is_not_guessed(other: dict[str, Any]) -> None:
    assert adapter_bytes(other, rank=8, targets="all-linear") is None


@pytest.mark.parametrize(
    "path", sorted((ROOT / "jobs" / "configs").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_shipped_configuration_can_be_estimated(path: Path) -> None:
    low, planned, high = cases(load_config(path))
    assert 0 < low.hours <= planned.hours <= high.hours
