"""The Python interface: what importing it loads, results as tables, and searches run from Python."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import llmzero_ray
from llmzero_ray.config import TrackingConfig, load_config, parse_config
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.errors import ConfigError, TaskError
from llmzero_ray.prepared.manifest import RewardEntry
from llmzero_ray.prepared.reward import open_reward
from llmzero_ray.report.tables import CHANGES, ITEMS, NODES, SCORES
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.trackers import make_trackers
from llmzero_ray.tasks.families.echo import Echo
from tests.actors.conftest import Search as HeadSearch
from tests.actors.conftest import make_search, task_dir
from tests.blackbox.inputs import copy_of
from tests.builders import with_blocks
from tests.marks import needs_sandbox
from tests.report.conftest import Written, finished
from tests.searches import CHECKOUT, code_of_the_page, scripted_search

__all__ = ["finished", "make_search", "task_dir"]

QUICK = {"final": {"test": False, "default_recipe": False}}


# --- what importing loads


def test_importing_the_package_loads_the_standard_library_alone() -> None:
    code = (
        "import sys; before = set(sys.modules); import llmzero_ray; dir(llmzero_ray)\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) - sys.stdlib_module_names == {"llmzero_ray"}


def test_opening_results_loads_neither_ray_nor_torch(finished: Written) -> None:
    code = (
        "import sys, llmzero_ray\n"
        "search = llmzero_ray.open(sys.argv[1]); search.nodes(), search.metrics(), search.scores()\n"
        "print(*({'ray', 'torch', 'verl', 'transformers', 'matplotlib'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(finished.root)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == []


def test_every_public_name_is_there_and_others_are_not() -> None:
    assert {name for name in llmzero_ray.__all__ if getattr(llmzero_ray, name, None) is None} == set()
    assert set(llmzero_ray.__all__) <= set(dir(llmzero_ray))
    with pytest.raises(AttributeError, match="no attribute 'search_tree'"):
        llmzero_ray.search_tree  # noqa: B018


def test_the_package_is_typed() -> None:
    assert (Path(llmzero_ray.__file__).parent / "py.typed").is_file()


# --- results


def test_a_search_is_opened_by_directory_and_by_name(finished: Written) -> None:
    by_path = llmzero_ray.open(finished.root)
    by_name = llmzero_ray.open(finished.root.name, storage=finished.root.parent)
    assert by_path.nodes().equals(by_name.nodes())
    assert (by_path.name, by_path.best) == ("demo", 2)
    assert by_path.stage == "interrupted"  # its journal ends before its last word, and nobody is at work


def test_what_is_no_search_is_refused_with_the_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path))):
        llmzero_ray.open(tmp_path)


@pytest.mark.parametrize("given", [3, None, b"runs/demo"])
def test_what_is_no_path_is_refused_with_its_type(given: Any) -> None:
    expected = f"cannot be a {type(given).__name__}; give a path"
    for use in (llmzero_ray.open, llmzero_ray.Search, llmzero_ray.retrain):
        with pytest.raises(ConfigError, match=expected):
            use(given)
    for use in (llmzero_ray.open, llmzero_ray.retrain):
        with pytest.raises(ConfigError, match=f"storage {expected}"):
            use("demo", storage=given)


def test_a_path_with_a_null_character_is_refused() -> None:
    with pytest.raises(ConfigError, match="no null character"):
        llmzero_ray.open("runs/demo/\0x")


def test_the_nodes_are_a_table_of_one_row_each(finished: Written) -> None:
    rows = llmzero_ray.open(finished.root).nodes()
    assert list(rows.column_names) == list(NODES)
    by_node = {row["node"]: row for row in rows.to_pylist()}
    assert list(by_node) == [0, 1, 2, 3, 4, 5]
    assert (by_node[0]["kind"], by_node[0]["resume_node"], by_node[0]["score"]) == ("root", None, 0.6)
    assert (by_node[2]["resume_node"], by_node[2]["resume_step"], by_node[2]["base_step"]) == (1, 10, 30)
    assert (by_node[2]["best_step"], by_node[2]["global_step"], by_node[2]["score"]) == (20, 50, 0.78)
    assert (by_node[3]["status"], by_node[3]["ended_by"].split(":")[0]) == ("failed", "oom")
    assert [node for node, row in by_node.items() if row["in_strategy"]] == [0, 1, 2]
    assert json.loads(by_node[2]["hyperparameters"])["actor_rollout_ref.actor.optim.lr"] == 2e-4


def test_metrics_items_and_changes_are_tables_of_a_node_or_of_all(finished: Written) -> None:
    search = llmzero_ray.open(finished.root)
    metrics = search.metrics(1)
    assert metrics["step"].to_pylist() == list(range(21))
    assert metrics["global_step"].to_pylist() == list(range(20, 41))
    assert metrics["critic/score/mean"].to_pylist()[1:] == pytest.approx([0.3 + 0.01 * i for i in range(20)])
    assert set(search.metrics()["node"].to_pylist()) == set(range(6))
    items = search.items(1, 10)
    assert list(items.column_names) == list(ITEMS)
    assert (items.num_rows, sum(items["acc"].to_pylist())) == (100, 70.0)
    assert set(search.items(1)["step"].to_pylist()) == {0, 10, 20}
    changes = search.changes(2)
    assert list(changes.column_names) == list(CHANGES)
    assert ("actor_rollout_ref.rollout.temperature", "1.0", "0.9") in [
        (row["key"], row["old"], row["new"]) for row in changes.to_pylist()
    ]
    assert set(search.changes()["node"].to_pylist()) >= {1, 2, 3}


def test_scores_are_those_of_the_report_and_become_a_data_frame(finished: Written) -> None:
    scores = llmzero_ray.open(finished.root).scores()
    assert list(scores.column_names) == list(SCORES)
    frame = scores.to_pandas().set_index(["policy", "split"])
    assert frame.loc[("best", "test"), "mean"] == 0.8
    assert frame.loc[("base", "test"), "n"] == 100
    assert frame.loc[("reference", "validation"), "mean"] == 0.77


def test_the_strategy_is_that_of_the_file_and_the_report_can_be_written_again(finished: Written) -> None:
    search = llmzero_ray.open(finished.root)
    strategy = search.strategy()
    assert strategy is not None
    assert strategy.to_yaml() == (finished.root / "strategy.yaml").read_text()
    assert search.adapter == finished.root / "checkpoints/0002/step_000020"
    before = finished.report
    assert search.write_report().read_text() == before


def test_the_strategy_needs_no_checkpoint(finished: Written, tmp_path: Path) -> None:
    root = Path(shutil.copytree(finished.root, tmp_path / "demo"))
    shutil.rmtree(root / "checkpoints")
    whole = llmzero_ray.open(root).strategy()
    assert whole is not None and whole.to_yaml() == (root / "strategy.yaml").read_text()
    shutil.rmtree(root / "best")
    assert llmzero_ray.open(root).strategy() == whole.model_copy(update={"adapter": {}})


def test_a_node_that_is_not_there_is_named_with_those_that_are(finished: Written) -> None:
    search = llmzero_ray.open(finished.root)
    for ask in (search.metrics, search.items, search.changes):
        with pytest.raises(ConfigError, match="no node 17; it has 0, 1, 2, 3, 4, 5"):
            ask(17)
        for other in ([0], True, "0"):
            with pytest.raises(ConfigError, match="must be its number"):
                ask(other)
    assert search.items(np.float64(1)).equals(search.items(1))


# --- settings


def settings_of(monkeypatch: pytest.MonkeyPatch, config: Any, **settings: Any) -> Any:
    """The configuration with which `run` would start a search."""
    found: list[Any] = []

    class StoppedError(Exception):
        """Nothing is to be started."""

    def launch(config: Any, given: Any, make_task: Any, say: Any) -> Any:
        found.append((config, given))
        raise StoppedError

    monkeypatch.setattr("llmzero_ray.api.launch", launch)
    with pytest.raises(StoppedError):
        llmzero_ray.run(config, **settings)
    return found[0]


def test_settings_replace_single_fields_of_a_block(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = scripted_search(tmp_path, tmp_path)
    allow = {"data.truncation": {"kind": "choice", "choices": ["error", "left"]}}
    config, given = settings_of(
        monkeypatch,
        data,
        budget={"runs": 7},
        root={"overrides": {"learning_rate": 2e-3, "n": 8}},
        agents={"allow": allow},
        **{"phase.n_steps": 6, "engine.overrides.script.step_s": 0.5},
    )
    assert (config.budget.runs, config.phase.n_steps, config.phase.test_freq) == (7, 6, 5)
    assert config.root.overrides == {"learning_rate": 2e-3, "train_batch_size": 16, "n": 8}
    assert config.engine.overrides == {"script.step_s": 0.5}
    assert list(config.agents.allow) == ["data.truncation"]
    assert given == ["budget", "root", "agents", "phase.n_steps", "engine.overrides.script.step_s"]
    assert data["budget"] == {"runs": 2}  # what was given is left alone


def test_a_file_its_data_and_a_configuration_give_the_same_search(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = scripted_search(tmp_path, tmp_path)
    path = tmp_path / "search.yaml"
    path.write_text(yaml.safe_dump(data))
    made = [settings_of(monkeypatch, one)[0] for one in (path, str(path), data, parse_config(data))]
    assert made == [load_config(path)] * 4


@pytest.mark.parametrize(
    ("first", "then", "stopped"), [("llmzero", "random", False), ("pbt", "llmzero", True)]
)
def test_another_method_has_its_own_default_of_the_stopper(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: str, then: str, stopped: bool
) -> None:
    data = with_blocks(scripted_search(tmp_path, tmp_path), {"search": {"method": first}, "stopper": {}})
    for config in (data, parse_config(data)):
        found, _ = settings_of(monkeypatch, config, search={"method": then})
        assert found.stopper.enabled is stopped
    given = parse_config(with_blocks(data, {"stopper": {"enabled": not stopped}}))
    found, _ = settings_of(monkeypatch, given, search={"method": then})
    assert found.stopper.enabled is not stopped


def test_wrong_settings_are_refused_in_the_words_of_the_file(tmp_path: Path) -> None:
    data = scripted_search(tmp_path, tmp_path)
    with pytest.raises(ConfigError, match="did you mean 'runs'"):
        llmzero_ray.run(data, budget={"rnus": 7})
    with pytest.raises(ConfigError, match="cannot be a list"):
        llmzero_ray.run([1])  # type: ignore[arg-type]


def test_a_task_that_is_missing_is_an_exception(tmp_path: Path) -> None:
    with pytest.raises(TaskError):
        llmzero_ray.run(scripted_search(tmp_path, tmp_path / "nothing"))
    assert not (tmp_path / "runs").exists()


def test_prepare_opens_the_task_of_a_configuration(tmp_path: Path, task_dir: Path) -> None:
    said: list[str] = []
    task = llmzero_ray.prepare(scripted_search(tmp_path, task_dir), progress=said.append)
    assert (task.n_train, task.n_val, said) == (64, 32, [])
    family = {
        "name": "x",
        "task": {"dir": str(tmp_path / "t"), "family": "echo", "n_train": 16, "n_test": 16},
    }
    made = llmzero_ray.prepare(
        with_blocks(family, {"model": {"path": str(tmp_path)}}), task={"n_val": 8}, progress=said.append
    )
    assert (made.n_train, made.n_val, made.n_test) == (16, 8, 16)
    assert any(line.startswith("preparing the task") for line in said)


# --- plug-ins by name


def register(monkeypatch: pytest.MonkeyPatch, group: str, name: str, value: str) -> None:
    """As a package does whose pyproject.toml holds this entry point."""

    def found(**wanted: str) -> Any:
        points = (importlib.metadata.EntryPoint(name=name, value=value, group=group),)
        return importlib.metadata.EntryPoints(points).select(**wanted)

    monkeypatch.setattr("llmzero_ray.utils.plugins.entry_points", found)


@pytest.mark.parametrize(
    ("field", "group", "value"),
    [
        ("engine.backend", "llmzero_ray.engines", "tests.fakes:make_engine"),
        ("agents.backend", "llmzero_ray.agents", "tests.slow_agents:make_agents"),
        ("agents.proposer", "llmzero_ray.proposers", "tests.slow_agents:make_agents"),
        ("search.method", "llmzero_ray.methods", "llmzero_ray.search.tree_search:TreeSearch"),
    ],
)
def test_a_name_that_a_package_registers_is_taken_and_others_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, field: str, group: str, value: str
) -> None:
    from llmzero_ray.launch.preflight import check_backends

    register(monkeypatch, group, "of_a_package", value)
    block, key = field.split(".")
    data = with_blocks(scripted_search(tmp_path, tmp_path), {block: {key: "of_a_package"}})
    check_backends(parse_config(data), 0.0, [].append)
    wrong = parse_config(with_blocks(data, {block: {key: "of_a_packige"}}))
    with pytest.raises(ConfigError, match=rf"{field} is 'of_a_packige'.*{group}.*mean 'of_a_package'"):
        check_backends(wrong, 0.0, [].append)


class Letters(Echo):
    """A family of another package."""

    name = "letters"


def test_a_family_that_a_package_registers_makes_tasks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    register(monkeypatch, "llmzero_ray.families", "letters", f"{__name__}:Letters")
    task = {"dir": str(tmp_path / "t"), "family": "letters", "n_train": 16, "n_val": 8, "n_test": 8}
    config = with_blocks(scripted_search(tmp_path, tmp_path), {"task": task})
    assert llmzero_ray.prepare(config).family == "letters"
    assert llmzero_ray.prepare(config).n_train == 16  # opened again


def test_a_proposer_of_a_plug_in_stands_in_for_the_backends_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from llmzero_ray.agents.backend import make_agents
    from llmzero_ray.agents.expert import ExpertEarlyStopper, ExpertErrorAnalyzer

    (tmp_path / "halving_alone.py").write_text(code_of_the_page("class HalvingProposer"))
    monkeypatch.syspath_prepend(tmp_path)
    register(monkeypatch, "llmzero_ray.proposers", "halving", "halving_alone:make_proposer")
    agents = make_agents(parse_config({"name": "x", "agents": {"proposer": "halving"}}), 32)
    assert type(agents.proposer).__name__ == "HalvingProposer"
    assert isinstance(agents.error_analyzer, ExpertErrorAnalyzer)
    assert isinstance(agents.early_stopper, ExpertEarlyStopper)


def test_a_reward_of_a_package_is_the_module_of_the_prepared_task(monkeypatch: pytest.MonkeyPatch) -> None:
    from llmzero_ray.tasks.sources.custom import reward_entry
    from llmzero_ray.tasks.task_yaml import OwnReward

    register(monkeypatch, "llmzero_ray.rewards", "digits", "my_package.rewards:score_digits")
    entry = reward_entry(OwnReward(kind="digits", gold="<{answer}>"))
    assert (entry.module, entry.name, entry.gold_response) == (
        "my_package.rewards",
        "score_digits",
        "<{answer}>",
    )
    with pytest.raises(ValueError, match="must be exact_match, mcq, math, regex, python, digits"):
        OwnReward(kind="digit")


@needs_sandbox
def test_a_reward_of_a_package_is_tried_in_the_sandbox(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from llmzero_ray.prepared.manifest import RewardEntry
    from llmzero_ray.prepared.reward import sandbox_of

    package = tmp_path / "of_a_stranger"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "rewards.py").write_text("async def later(**row): ...\ndef now(**row): return 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    sandbox_of(RewardEntry(module="of_a_stranger.rewards", name="now"), Path()).close()
    for name, message in (("later", "of_a_stranger.rewards:later is asynchronous"), ("lost", "lost")):
        with pytest.raises(TaskError, match=message):
            sandbox_of(RewardEntry(module="of_a_stranger.rewards", name=name), Path())


# --- searches from Python


def test_a_search_runs_under_a_running_event_loop_and_is_found_again(
    make_search: Callable[..., HeadSearch],
) -> None:
    import ray

    search = make_search(budget={"runs": 2})

    async def notebook() -> Any:
        running = llmzero_ray.run(search.config)
        assert running.status().max_runs in (None, 2)
        assert llmzero_ray.prepare(search.config).n_train == search.task.n_train
        found = await running
        assert llmzero_ray.open(found.root).nodes().equals(found.nodes())
        return found

    found = asyncio.run(notebook())
    assert (found.stage, found.nodes()["status"].to_pylist()) == ("finished", ["completed"] * 2)
    assert ray.is_initialized(), "the cluster of this process was left"
    again = llmzero_ray.run(search.config)
    assert again.done
    assert again.status().stage == "finished"
    assert again.wait().nodes().equals(found.nodes())
    with pytest.raises(ConfigError, match="is not running: it takes no request"):
        again.hint("too late")


@pytest.mark.slow
def test_a_search_is_paused_and_goes_on_from_python(make_search: Callable[..., HeadSearch]) -> None:
    search = make_search({"step_s": 0.2}, budget={"runs": 2})
    running = llmzero_ray.run(search.config)
    search.until_step(0, 2)
    assert running.status().training == (0,)
    with pytest.raises(TimeoutError, match="still running"):
        running.wait(timeout_s=0)
    beside = llmzero_ray.run(search.config)  # another part of the program finds it at work
    beside.hint("watch the lengths")
    running.pause()
    assert running.wait().stage == beside.wait().stage == "interrupted"
    goes_on = llmzero_ray.run(search.config, **{"engine.stop_deadline_s": 700.0, "agents.approve": True})
    search.until(lambda: goes_on.status().waiting == (1,))
    goes_on.approve(1, {"lr": 4e-4}, n_steps=5, reason="colder")
    assert goes_on.wait().stage == "finished"
    assert (search.core.runs[1].note, search.core.runs[1].outcome.steps_done) == (
        "edited by a person: colder",
        5,
    )
    assert search.core.hints == ["watch the lengths"]


@pytest.mark.slow
def test_the_proposer_and_the_stop_rule_of_the_page_run_beside_a_rule_that_raises(
    head_address: str, task_dir: Path, tmp_path: Path
) -> None:
    proposer, rule = code_of_the_page("class HalvingProposer"), code_of_the_page("class Patience")
    for text, limit in ((proposer, 22), (rule, 20)):
        assert len([line for line in text.splitlines() if line.strip()]) <= limit
    (tmp_path / "halving.py").write_text(proposer)
    (tmp_path / "script.py").write_text(code_of_the_page("halving:make_proposer"))
    (tmp_path / "patience.py").write_text(rule)
    broken = "class Broken:\n    def check(self, phase): raise RuntimeError('no file')\n"
    (tmp_path / "broken.py").write_text(f"{broken}def make_rule(settings): return Broken()\n")
    installed = tmp_path / "of_a_stranger-1.0.dist-info"  # what pip writes for a package with entry points
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: of-a-stranger\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(
        "[llmzero_ray.stop_rules]\nbroken = broken:make_rule\npatience = patience:make_rule\n"
    )
    # The root's scores fall from the first step on.
    data = scripted_search(
        tmp_path,
        task_dir,
        {"sink": [0], "slow": [0], "step_s": 0.5},
        budget={"runs": 3},
        phase={"n_steps": 30, "test_freq": 1},
        stopper={"rules": ["broken", "patience"]},
        **QUICK,
    )
    config = tmp_path / "search.yaml"
    config.write_text(yaml.safe_dump(data))
    env = {**os.environ, "RAY_ADDRESS": head_address, "PYTHONPATH": str(CHECKOUT)}
    command = [sys.executable, str(tmp_path / "script.py"), str(config)]
    done = subprocess.run(command, env=env, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished: 3 nodes" in done.stdout
    assert re.search(r"^1 actor_rollout_ref.actor.optim.lr 0.001 -> 0.0005$", done.stdout, flags=re.M)
    root, *others = llmzero_ray.open(tmp_path / "runs" / "demo").nodes().to_pylist()
    assert [node["rationale"] for node in others] == ["halved"] * 2
    assert root["status"] == "early_stopped"
    assert root["ended_by"].startswith("verdict: patience: no score since step 1 was better than")
    log = (tmp_path / "runs" / "demo" / "logs" / "stopper.log").read_text()
    assert log.count("stop rule broken failed and is left out") == 1


def test_the_tracker_of_the_page_writes_one_line_for_each_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = code_of_the_page("class EventLog")
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    (tmp_path / "event_log.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    storage = SearchStorage.at(copy_of("finished", tmp_path))
    (tracker,) = make_trackers(storage, TrackingConfig(backends=("event_log:EventLog",)), None)
    tracker.check()
    tracker.finish()
    kinds = [line.split()[1] for line in (storage.paths.root / "events.log").read_text().splitlines()]
    assert kinds == [type(event).__name__ for event in Follower.of(storage).events]
    assert kinds[-1] == "SearchFinished"


@needs_sandbox
def test_the_reward_of_the_page_scores_a_number_by_its_distance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = code_of_the_page("def compute_score")
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    (tmp_path / "closeness.py").write_text(code)
    entry = RewardEntry(path="closeness.py", name="compute_score")
    with open_reward(entry, tmp_path) as reward:
        row = {"data_source": "mine", "ground_truth": "7"}
        outcomes = reward.score([{**row, "solution_str": text} for text in ("so 7", "it is 9", "none")])
    assert [outcome.result for outcome in outcomes] == [
        {"score": 1.0, "acc": 1.0},
        {"score": pytest.approx(1 / 3), "acc": 0.0},
        {"score": 0.0, "acc": 0.0},
    ]
