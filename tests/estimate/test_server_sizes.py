"""What `auto` becomes for vLLM's servers, from the default recipe and the estimate of memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from llmzero_ray.config import (
    FIXED_NUM_SEQS,
    FIXED_UTILIZATION,
    SearchConfig,
    load_config,
    parse_config,
    stored_config,
)
from llmzero_ray.config.changes import differing_keys
from llmzero_ray.estimate import Estimate
from llmzero_ray.estimate.fit import assess
from llmzero_ray.estimate.server_sizes import largest_share, with_recorded_sizes, with_server_sizes
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.hyperparameters.verl_keys import GPU_MEMORY, MAX_NUM_SEQS
from tests.blackbox import commands, inputs

CONFIGS = Path(__file__).parents[2] / "jobs" / "configs"
AUTO = ("engine.max_num_seqs=auto", "engine.gpu_memory_utilization=auto")


def preset(name: str, *changes: str) -> SearchConfig:
    return load_config(CONFIGS / f"{name}.yaml", (*AUTO, *changes))


def chosen(config: SearchConfig) -> tuple[SearchConfig, list[str]]:
    """The configuration with numbers, and what is said of them."""
    said: list[str] = []
    return with_server_sizes(Estimate(config), said.append), said


def sizes(config: SearchConfig) -> tuple[object, object]:
    engine = chosen(config)[0].engine
    return engine.max_num_seqs, engine.gpu_memory_utilization


def test_a_server_gets_what_a_step_asks_of_it_with_room_for_larger_groups() -> None:
    # 128 x 8 answers over 8 servers are 128, half as many again where n grows to 12.
    assert sizes(preset("qwen3_4b"))[0] == 192
    # Of 16 x 8: 16 on each, 24 where n grows, but 512 rows of a validation are 64.
    small = ("root.overrides.batch=16", "root.overrides.mini_batch=16", "task.n_val=512")
    assert sizes(preset("qwen3_4b", *small))[0] == 64
    assert sizes(preset("qwen3_4b", *small, "task.n_val=8"))[0] == 24
    # Two GPUs a server: half as many servers, and 256 is the most.
    assert sizes(preset("qwen3_8b"))[0] == 256


@pytest.mark.parametrize(
    "name", ["qwen3_0.6b", "qwen3_4b", "qwen3_8b", "one_gpu", "one_gpu_40gb", "one_gpu_80gb"]
)
def test_the_share_is_one_step_below_the_largest_with_which_every_stage_fits(name: str) -> None:
    config, _ = chosen(preset(name))
    share = config.engine.gpu_memory_utilization
    assert isinstance(share, float)
    found = Estimate(config).gpu_memory

    def status(at: float) -> set[str]:
        return {assess(one.shape, replace(one.setup, utilization=at)).status for one in found}

    assert status(share) == {"fits"} == status(share + 0.05)
    assert status(share + 0.1) != {"fits"}
    assert largest_share(found) == pytest.approx(share + 0.05)


def test_a_card_on_which_nothing_fits_comfortably_gets_what_is_tight() -> None:
    config, said = chosen(preset("qwen3_8b", "slots.gpu_memory_gib=30"))
    found = Estimate(config).gpu_memory
    assert largest_share(found) is None
    assert "no worse than tight" in said[1]
    assert {one.status for one in found} <= {"fits", "tight"}
    # Where nothing fits at all, the search is refused as with any number.
    hopeless, said = chosen(preset("qwen3_8b", "slots.gpu_memory_gib=8"))
    assert hopeless.engine.gpu_memory_utilization == FIXED_UTILIZATION
    assert "no share is estimated to fit" in said[1]


def test_offloaded_parameters_leave_the_server_more() -> None:
    one = preset("one_gpu_40gb", "root.overrides.param_offload=true")
    assert sizes(one)[1] >= sizes(preset("one_gpu_40gb"))[1]  # type: ignore[operator]


@pytest.mark.parametrize("changes", [("engine.platform=cpu",), ("engine.backend=a:b",)])
def test_without_gpus_the_numbers_are_fixed_and_nothing_is_said(changes: tuple[str, ...]) -> None:
    config = preset("qwen3_4b", *changes)
    assert sizes(config) == (FIXED_NUM_SEQS, FIXED_UTILIZATION)
    assert chosen(config)[1] == []


def test_without_the_card_or_the_model_the_share_is_fixed_and_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no driver answers
    for change, why in (
        ("slots.gpu_memory_gib=null", "set slots.gpu_memory_gib"),
        ("model.path=/nowhere/other", "without an estimate"),
    ):
        config, said = chosen(preset("qwen3_4b", change))
        assert config.engine.gpu_memory_utilization == FIXED_UTILIZATION
        assert why in said[1]


def test_a_users_numbers_win_and_nothing_is_said_of_them() -> None:
    config = load_config(CONFIGS / "qwen3_4b.yaml")
    assert chosen(config) == (config, [])
    one, said = chosen(preset("qwen3_4b", "engine.gpu_memory_utilization=0.4"))
    assert one.engine.gpu_memory_utilization == 0.4
    assert len(said) == 1 and said[0].startswith("engine.max_num_seqs auto: 192, as one server gets 128")


def test_a_resume_takes_what_the_search_began_with() -> None:
    began, _ = chosen(preset("qwen3_4b"))
    again = with_recorded_sizes(preset("qwen3_4b"), began)
    assert differing_keys(began, again) == {}
    other = with_recorded_sizes(preset("qwen3_4b", "engine.max_num_seqs=64"), began)
    assert list(differing_keys(began, other)) == ["engine.max_num_seqs"]
    assert with_recorded_sizes(preset("qwen3_4b"), None) == preset("qwen3_4b")


def test_a_command_takes_the_recorded_numbers_of_a_search_that_has_trained(tmp_path: Path) -> None:
    root = inputs.copy_of("finished", tmp_path / "runs")
    written = yaml.safe_load((root / "search.yaml").read_text())
    data = stored_config(written, source="search.yaml").to_json()
    recorded = data["engine"]["max_num_seqs"]
    assert recorded == FIXED_NUM_SEQS
    for given, code in ((recorded, 0), ("auto", 0), (recorded + 8, 2)):
        data["engine"]["max_num_seqs"] = given
        (tmp_path / "search.yaml").write_text(yaml.safe_dump(data))
        said = commands.run(["search", "search.yaml"], tmp_path)
        assert said.exit == code, said
        assert (f"engine.max_num_seqs: {recorded} -> {given}" in said.err) == (code == 2)


def test_what_was_not_chosen_yet_composes_with_the_fixed_numbers() -> None:
    root = root_hyperparameters(parse_config({"name": "plain"}), None)
    assert (root[MAX_NUM_SEQS], root[GPU_MEMORY]) == (FIXED_NUM_SEQS, FIXED_UTILIZATION)
