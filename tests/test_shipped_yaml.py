"""Every YAML file in the repository is read by what reads it in use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from mkdocs.config import load_config as load_site
from ray.autoscaler._private.util import prepare_config, validate_config

from llmzero_ray.config import SearchConfig, hub_model, load_config, presets
from llmzero_ray.config.schedule import read_schedule
from llmzero_ray.config.yaml_text import load_file
from llmzero_ray.hyperparameters import normalize
from llmzero_ray.methods.compare.plan import ComparedRun, ComparePlan, configs
from llmzero_ray.search import MethodRules
from llmzero_ray.tasks.sft.config import load_sft
from llmzero_ray.tasks.task_yaml import load_task_file
from tests.test_kubernetes import check as check_manifest

ROOT = Path(__file__).parent.parent
# Not in the repository: what .gitignore names.
NOT_OURS = {".venv", "build", "dist", "runs", "data", "outputs"}


def load_slips(path: Path) -> None:
    assert all(slip["says"] for slip in yaml.safe_load(path.read_text()))


def load_mapping(path: Path) -> None:
    """For files whose reader takes any mapping."""
    content = yaml.safe_load(path.read_text())
    assert isinstance(content, dict)
    assert content


def load_cluster(path: Path) -> None:
    validate_config(prepare_config(yaml.safe_load(path.read_text())))


def load_root(path: Path) -> None:
    if path.name == "mkdocs.yml":
        load_site(str(path))
    else:
        load_cluster(path)


def load_manifest(path: Path) -> None:
    if path.name == "podmonitor.yaml":  # the Prometheus operator's; see test_dashboard.py
        load_mapping(path)
    else:
        check_manifest(yaml.safe_load(path.read_text()))


def load_sweep(path: Path) -> None:
    recipes = yaml.safe_load(path.read_text())
    assert len({tuple(sorted(normalize(recipe).items())) for recipe in recipes}) == 8


def load_suite(path: Path) -> None:
    if path.name == "arms.yaml":
        assert all(normalize(changed) for changed in yaml.safe_load(path.read_text()).values())
    else:
        load_config(path)


def compared(path: Path) -> dict[ComparedRun, SearchConfig]:
    return configs(load_file(ComparePlan, path), path.parent)


# Folder of a file, relative to the root -> its reader.
READERS: dict[str, Callable[[Path], object]] = {
    ".": load_root,
    ".github/ISSUE_TEMPLATE": load_mapping,
    ".github/workflows": load_mapping,
    "benchmarks": load_sweep,
    "benchmarks/suite": load_suite,
    "deploy": load_cluster,
    "deploy/k8s": load_manifest,
    "jobs/configs": load_config,
    "jobs/configs/compare": compared,
    "jobs/configs/tasks": load_task_file,
    "jobs/configs/warm_start": load_sft,
    "llmzero_ray/config/shipped/grids": lambda path: MethodRules.read({"grid": str(path)}),
    "llmzero_ray/config/shipped/ranges": lambda path: MethodRules.read({"ranges": str(path)}),
    "llmzero_ray/config/shipped/schedules": lambda path: MethodRules.read({"schedule": str(path)}),
    "prompts": load_mapping,
    "tests/cli": load_slips,
}


def shipped() -> list[Path]:
    files = [path.relative_to(ROOT) for ending in ("*.yaml", "*.yml") for path in ROOT.rglob(ending)]
    return sorted(path for path in files if not NOT_OURS.intersection(path.parts))


@pytest.mark.parametrize("path", shipped(), ids=str)
def test_every_shipped_yaml_is_accepted_by_its_reader(path: Path) -> None:
    assert str(path.parent) in READERS, f"{path}: name its reader here"
    READERS[str(path.parent)](ROOT / path)


def test_a_shipped_task_is_found_by_its_name_and_the_presets_for_one_gpu_train_on_it() -> None:
    task = load_task_file(str(presets.path_of("gsm_symbolic")))
    for name in ("one_gpu", "one_gpu_40gb", "one_gpu_80gb"):
        config = load_config(name)
        assert config.task.dir == str(Path.cwd() / task.dir)
        assert hub_model(str(config.model.path))[0] is not None


def test_the_files_of_every_shipped_task_lie_beside_it() -> None:
    tasks = [load_task_file(str(presets.path_of(name))) for name in presets.task_names()]
    files = [file for task in tasks for file in task.files or ()]
    assert [Path(file).is_file() for file in files] == [True]


def test_the_papers_setting_tells_agents_what_the_paper_does_and_no_conclusions() -> None:
    config = load_config(ROOT / "jobs/configs/paper_4b.yaml")
    assert config.agents.priors == "appendix_f"


def test_each_ablation_of_table_2_switches_off_one_part_of_the_search() -> None:
    found = {
        run.method: (config.agents.visual, config.search.multi_stage, config.stopper.enabled)
        for run, config in compared(ROOT / "jobs/configs/compare/table2.yaml").items()
        if config.search.method == "llmzero" and config.budget.runs == 16
    }
    assert found == {
        "llmzero": (True, True, True),
        "no_visual": (False, True, True),
        "no_multi_stage": (True, False, True),
        "no_early_stopping": (True, True, False),
    }


def test_table_3_trains_the_papers_schedules_on_the_tasks_that_they_were_not_found_on() -> None:
    found = compared(ROOT / "jobs/configs/compare/table3.yaml")
    assert {run.task for run in found} == {"papersearchqa", "wildsci", "chemcot"}
    transfer = found[ComparedRun("wildsci", "ssmr_transfer", 1)].search
    assert (transfer.method, transfer.schedule) == ("schedule", read_schedule("ssmr"))
    methods = {run.method: config.search.method for run, config in found.items()}
    assert methods == {
        "llmzero": "llmzero",
        "practitioner": "default",
        "random": "random",
        "ssmr_transfer": "schedule",
        "guidebook": "guidebook",
    }


def test_the_configs_of_the_two_machines_ship() -> None:
    assert {"jobs/configs/local.yaml", "jobs/configs/qwen3_4b.yaml", "cluster.yaml"} <= set(
        map(str, shipped())
    )
