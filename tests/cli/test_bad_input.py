"""Wrong input at the command line: one clear message, the exit code of its kind, nothing started, nothing
lost."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from llmzero_ray.cli import steering
from llmzero_ray.cli.main import main
from llmzero_ray.config import SearchConfig, load_config, resolve_config
from llmzero_ray.config.changes import read_settings
from llmzero_ray.config.presets import path_of
from llmzero_ray.coordinator import extension_problem
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.errors import ConfigError, EngineVersionError, TaskError
from llmzero_ray.journal import Journal
from llmzero_ray.launch import actors
from llmzero_ray.launch import start as launch
from llmzero_ray.launch.preflight import check_platform
from llmzero_ray.prepared import load_task
from llmzero_ray.prepared.task import check_same_task, task_facts
from llmzero_ray.records.events import OutcomeWritten, PhaseStarted, SearchFinished
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.presence import is_extension_requested
from llmzero_ray.utils.private_files import private_file
from tests.builders import Driver
from tests.searches import scripted_search

Run = Callable[..., tuple[int, str]]
ADDRESSES = (
    "s3://bucket/runs", "S3://bucket", "gs://b/runs", "az://b/r", "hdfs://h:9000/r", "https://h/r",
    "dbfs:/runs", "s3:/bucket/runs", "file://host/runs", "C:\\runs", "D:/runs", "\\\\server\\runs",
)  # fmt: skip


@pytest.fixture
def config(tmp_path: Path, task_dir: Path) -> Path:
    """A configuration that could be searched, with every path in the test's own directory."""
    path = tmp_path / "search.yaml"
    path.write_text(yaml.safe_dump(scripted_search(tmp_path, task_dir)))
    return path


@pytest.fixture
def run(config: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """`llmzero search` with settings on top; its exit code and standard error."""

    def search(*settings: str) -> tuple[int, str]:
        code = main(["search", str(config), *(part for setting in settings for part in ("--set", setting))])
        return code, capsys.readouterr().err

    return search


@pytest.mark.parametrize(
    ("key", "address"),
    [
        *(("storage", address) for address in ADDRESSES),
        *((key, ADDRESSES[0]) for key in ("task.dir", "model.path", "agents.prompts")),
    ],
)
def test_an_address_in_place_of_a_path_is_refused_and_nothing_is_made(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, address: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    code, message = run(f"{key}={address}")
    assert code == 2
    assert f"{key}: {address} is a" in message
    assert "must be a path on" in message
    assert ("`journal: s3://bucket/prefix`" in message) == (address[:2].lower() in ("s3", "gs", "az"))
    assert not any((tmp_path / "empty").iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["status", "s3://b/demo"],
        ["list", "--storage", "gs://b/runs"],
        ["show", "demo", "0", "--storage", "s3:/b/runs"],
        ["diff", "s3://b/demo:0", "s3://b/demo:1"],
        ["resume", "s3://b/demo"],
        ["search", "s3://b/search.yaml"],
        ["search", "s3://b/data", "Solve it."],
        ["draft", "s3://b/data", "Solve it."],
        ["prepare", "s3://b/task.yaml"],
        ["prepare", "search.yaml", "--set", "task.dir=s3://b/task"],
        ["init", "--out", "s3://b/search.yaml"],
        ["init", "--from", "s3://b/run.sh"],
        ["export", "demo", "--verl", "s3://b/scripts"],
        ["merge", "demo", "--out", "s3://b/model"],
        ["tables", "demo", "--out", "s3://b/tables"],
        ["retrain", "s3://b/strategy.yaml"],
        ["retrain", "demo", "--storage", "s3://b/runs"],
        ["compare", "s3://b/compare.yaml"],
        ["warm-start", "s3://b/warm_start.yaml"],
        ["score", "--jsonl", "s3://b/rows.jsonl"],
        ["prompt-eval", "--out", "s3://b/results.json"],
        ["explain", "s3://b/demo"],
    ],
)
def test_every_command_refuses_an_address_in_place_of_a_path(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    before = sorted(config.parent.rglob("*"))
    monkeypatch.chdir(config.parent)
    assert main(words) == 2
    message = capsys.readouterr().err
    assert "is an address; must be a path on a file system" in message
    assert "\n" not in message.strip()
    assert sorted(config.parent.rglob("*")) == before


def test_a_file_address_is_the_path_that_it_names(tmp_path: Path) -> None:
    config = resolve_config(
        {"name": "x", "storage": f"file://{tmp_path}/a%20b", "task": {"dir": "file:/data/t"}}
    )
    assert config.storage == f"{tmp_path}/a b"
    assert config.task.dir == "/data/t"


def test_a_key_in_a_refused_address_is_not_shown(run: Run) -> None:
    _, message = run("storage=s3://AKIA:hidden@bucket/runs")
    assert "s3://bucket/runs is an address" in message
    assert "hidden" not in message


@pytest.mark.parametrize("address", ["hdfs://h/x", "http://h/x", "ftp://h/x"])
def test_a_journal_where_no_store_is_supported_is_refused_before_anything_starts(
    run: Run, address: str
) -> None:
    code, message = run(f"journal={address}")
    assert code == 2
    assert "must be the address of an object store (s3, gs, gcs, az, abfs, abfss)" in message


def test_a_search_that_has_trained_refuses_another_configuration_and_shows_the_difference(
    run: Run, config: Path, tmp_path: Path, task_dir: Path
) -> None:
    loaded = load_config(config)
    storage = SearchStorage(loaded.storage, "demo")
    storage.check()
    storage.adopt_config(loaded)
    search = Driver(loaded)
    search.ready()
    search.start(0)
    assert any(isinstance(event, PhaseStarted) for event in search.journal)
    journal = Journal(storage.paths.journal)
    for event in search.journal:
        journal.append(event)
    before = sorted(path.name for path in storage.paths.journal.iterdir())
    code, message = run("seed=9", "phase.n_steps=12")
    assert code == 2
    assert "was started with another configuration" in message
    assert "seed: 1 -> 9" in message
    assert "phase.n_steps: 10 -> 12" in message
    assert sorted(path.name for path in storage.paths.journal.iterdir()) == before


@pytest.fixture
def finished(config: Path, tmp_path: Path, task_dir: Path) -> Path:
    """The directory of a search of that configuration that has finished."""
    final = {"test": False, "default_recipe": False}
    config.write_text(yaml.safe_dump(scripted_search(tmp_path, task_dir, final=final)))
    loaded = load_config(config)
    storage = SearchStorage(loaded.storage, loaded.name)
    storage.check()
    storage.adopt_config(loaded)
    search, journal = Driver(loaded), Journal(storage.paths.journal)
    search.search_to_end([0.3, 0.5])
    search.post(OutcomeWritten(problem=""))
    assert isinstance(search.journal[-1], SearchFinished)
    for event in search.journal:
        journal.append(event)
    return storage.paths.root


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("budget.runs=2", None),
        (
            "budget.gpu_hours=9",
            "demo has finished (budget): budget.gpu_hours=9.0 would not extend the search: ",
        ),
        ("slots.count=2", "budget.runs is 2 and 2 runs have begun. Higher limits do, such as budget.runs=6"),
        ("seed=3", "seed"),
        ("budget.rums=9", "did you mean 'runs'"),
    ],
)
def test_a_setting_that_does_not_extend_a_finished_search_is_refused_with_what_would(
    finished: Path, run: Run, capsys: pytest.CaptureFixture[str], setting: str, expected: str | None
) -> None:
    code = main(["resume", str(finished), "--set", setting])
    out, err = capsys.readouterr()
    if expected is None:  # as it is already
        assert (code, "search demo has ended (budget)" in out) == (0, True)
        return
    assert (code, out, expected in err, len(err.splitlines())) == (2, "", True, 1), err
    code, message = run(setting)
    assert (code, expected in message) == (2, True)
    assert list(finished.glob("requests/*")) == []


def test_a_file_with_other_limits_shows_the_outcome_and_what_it_did_not_use(
    finished: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({**content, "slots": {"count": 2}}))
    assert main(["search", str(config)]) == 0
    out = capsys.readouterr().out
    assert "demo has finished with other settings; not used: slots.count=2" in out
    assert "search demo has ended (budget)" in out


def test_what_a_finished_search_is_compared_with_is_measured_anew_only_where_set_says_so(
    finished: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A default that has changed between two versions trains nothing by itself."""
    content = yaml.safe_load(config.read_text())
    content["final"]["default_recipe"] = "compute"
    config.write_text(yaml.safe_dump(content))
    assert main(["search", str(config)]) == 0
    out = capsys.readouterr().out
    assert "demo has finished with other settings; not used: final.default_recipe=compute" in out


@pytest.mark.parametrize(
    "words",
    [
        ["set", "slots.count=2"],
        ["set", "budget.gpu_hours=null", "slots.count=2"],
        ["budget", "--set", "runs=2"],
    ],
)
def test_a_change_that_does_not_extend_a_finished_search_is_not_sent_to_resume(
    finished: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main([words[0], str(finished), *words[1:]]) == 2
    err = capsys.readouterr().err
    assert "would not extend the search: budget.runs is 2 and 2 runs have begun" in err
    assert "Higher limits do, such as budget.runs=6" in err and "llmzero resume" not in err


@pytest.mark.parametrize("setting", ["budget.runs=12", "budget.target=0.9", "final.test=true"])
def test_the_command_that_a_finished_search_is_answered_with_extends_it(
    finished: Path, capsys: pytest.CaptureFixture[str], setting: str
) -> None:
    also = [] if setting == "final.test=true" else ["budget.gpu_hours=null", "budget.runs=9"]
    assert main(["set", str(finished), *also, setting]) == 2
    command = shlex.split(capsys.readouterr().err.split("`")[1])
    assert command[:3] == ["llmzero", "resume", str(finished)]
    follower = Follower.of(SearchStorage(str(finished.parent), finished.name))
    assert extension_problem(follower.core, read_settings(command[3:])) is None


def test_limits_of_a_finished_search_are_not_kept_but_sent_to_resume(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["set", str(finished), "--set", "runs=12"]) == 2
    assert f"`llmzero resume {finished} budget.runs=12`" in capsys.readouterr().err
    assert list(finished.glob("requests/*")) == []


def test_a_setting_that_the_end_overtakes_is_kept_and_sent_to_resume(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody answers it: the coordinator that could have has gone."""
    last = max((finished / "journal").glob("0*.json"))
    hidden = last.rename(finished / "last.json")
    owners = iter(["at work"])
    monkeypatch.setattr(steering, "owner", lambda _: next(owners, None))
    ask = steering.request

    def request(*given: Any, **fields: Any) -> str:
        hidden.rename(last)
        return ask(*given, **fields)

    monkeypatch.setattr(steering, "request", request)
    assert main(["set", str(finished), "runs=12"]) == 0
    assert f"the search ended first; `llmzero resume {finished}` continues" in capsys.readouterr().out
    assert is_extension_requested(finished)


@pytest.mark.parametrize("model", ["/nonexist", "./model", "~/model", "a/b/c", "models/m", "m"])
def test_a_model_directory_that_is_not_there_is_refused_before_anything_starts(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", model]) == 2
    assert f"there is no model directory {model}" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "given", "least"), [("--gpus", "-1", 0), ("--cpus", "0", 1)])
def test_hardware_that_cannot_be_is_refused_before_anything_starts(
    option: str, given: str, least: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(tmp_path), option, given]) == 2
    assert f"{option} is {given}; must be >= {least}" in capsys.readouterr().err


def test_a_server_that_cannot_be_started_is_one_message_and_leaves_no_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    asked, keys = [], []

    def start_server(_model: str, name: str, **_: Any) -> None:
        asked.append(name)
        raise actors.model_server.engine_error(ray.exceptions.ActorDiedError())

    def kept(*given: Any) -> Any:
        keys.append(private_file(*given))
        return keys[-1]

    (tmp_path / "my-model").mkdir()
    monkeypatch.chdir(tmp_path / "my-model")
    monkeypatch.setattr("llmzero_ray.cli.serve.check_model_dir", lambda _: ())
    monkeypatch.setattr("llmzero_ray.cli.serve.private_file", kept)
    monkeypatch.setattr(actors.head, "join_if_there", lambda: True)
    monkeypatch.setattr(actors.model_server, "start_server", start_server)
    assert main(["serve", "."]) == 5
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("llmzero: the model's server failed: The actor died")
    assert asked == ["my-model"]
    assert not keys[0].path.exists()


def test_data_that_changed_since_the_search_was_started_is_refused(task_dir: Path, tmp_path: Path) -> None:
    copy = damaged(task_dir, tmp_path)
    (copy / "manifest.json").unlink()
    known = task_facts(load_task(task_dir))
    manifest = json.loads((task_dir / "manifest.json").read_text())
    for split in manifest["splits"].values():
        split.pop("sha256")
    (copy / "manifest.json").write_text(json.dumps(manifest))
    check_same_task(known, load_task(copy))
    table = pq.read_table(copy / "val.parquet")
    pq.write_table(table.take(list(reversed(range(table.num_rows)))), copy / "val.parquet")
    with pytest.raises(
        TaskError, match=r"val.parquet: has changed since the search was started \(val split\)"
    ):
        check_same_task(known, load_task(copy))


def damaged(task_dir: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "damaged"
    copy.mkdir()
    for path in task_dir.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def test_an_empty_parquet_is_named(run: Run, task_dir: Path, tmp_path: Path) -> None:
    copy = damaged(task_dir, tmp_path)
    pq.write_table(pq.read_table(copy / "test.parquet").slice(0, 0), copy / "test.parquet")
    code, message = run(f"task.dir={copy}")
    assert code == 2
    assert "test.parquet" in message


def test_a_wrong_column_is_named(run: Run, task_dir: Path, tmp_path: Path) -> None:
    copy = damaged(task_dir, tmp_path)
    pq.write_table(pa.table({"question": ["1+1"], "answer": ["2"]}), copy / "train.parquet")
    code, message = run(f"task.dir={copy}")
    assert code == 2
    assert "train.parquet" in message
    assert "prompt" in message


def test_a_refused_start_leaves_no_directory(run: Run, tmp_path: Path) -> None:
    assert run("storage=" + str(tmp_path / "new" / "runs"), "root.overrides.lr=3.0")[0] == 2
    assert not (tmp_path / "new").exists()


def test_a_plan_whose_runs_would_be_cut_is_refused(run: Run) -> None:
    code, message = run("search.method=random", "search.n_trials=1", "phase.n_steps=20", "phase.max_steps=30")
    assert code == 2
    assert "phase.max_steps is 30 and must be at least that" in message


def test_a_refused_start_keeps_a_directory_that_was_there(run: Run, tmp_path: Path) -> None:
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    assert run("root.overrides.lr=3.0")[0] == 2
    assert (tmp_path / "runs" / "demo").is_dir()


def a_preset_for_gpus(task_dir: Path, tmp_path: Path, *changes: str) -> SearchConfig:
    """The shipped preset for Qwen3-8B with changes; no GPU, no cluster and no model is there."""
    here = (f"task.dir={task_dir}", f"storage={tmp_path / 'runs'}")
    return load_config(path_of("qwen3_8b"), (*here, *changes))


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine lacks for GPUs is not an obstacle; starting or joining Ray is an error."""

    def start(*_given: object, **_options: object) -> None:
        raise AssertionError("something was started")

    monkeypatch.setattr(launch, "check_backends", lambda *_given: ())
    monkeypatch.setattr("ray.init", start)
    monkeypatch.setattr(actors.head, "connect", start)
    monkeypatch.setattr(actors.app, "start_on", start)


def test_a_preset_that_cannot_fit_is_refused_with_what_would_help(
    nothing_starts: None, task_dir: Path, tmp_path: Path
) -> None:
    changes = ("root.overrides.batch=64", "root.overrides.dynamic_bsz=false")
    config = a_preset_for_gpus(task_dir, tmp_path, *changes)
    with pytest.raises(
        ConfigError, match=r"the root does not fit on the GPUs.*tightest is update"
    ) as refused:
        launch.launch(config, (), lambda *_: load_task(task_dir), print)
    assert "dynamic_bsz false -> true" in str(refused.value)
    assert "slots.gpu_memory_gib (39.4)" in str(refused.value)
    assert not (tmp_path / "runs").exists()


def test_a_platform_of_auto_is_refused_where_a_cluster_is_joined(
    nothing_starts: None, task_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors.head, "_shared_address", lambda: "10.0.0.1:6379")
    config = a_preset_for_gpus(task_dir, tmp_path, "root.overrides.batch=64", "engine.platform=auto")
    with pytest.raises(ConfigError, match=r"engine\.platform is auto.*set engine\.platform to gpu or to cpu"):
        launch.launch(config, (), lambda *_: load_task(task_dir), print)
    assert not (tmp_path / "runs").exists()


def test_a_machine_without_the_vllm_of_gpus_is_refused_before_ray_is_started(
    nothing_starts: None, task_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors.head, "_shared_address", lambda: None)
    config = a_preset_for_gpus(task_dir, tmp_path, "root.overrides.batch=64")
    with pytest.raises(EngineVersionError, match=r"vllm 0\.27.* is installed; this engine needs 0\.24"):
        launch.launch(config, (), lambda *_: load_task(task_dir), print)
    assert not (tmp_path / "runs").exists()


def test_a_platform_of_auto_is_this_machines_where_no_cluster_is(
    task_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors.head, "_shared_address", lambda: None)
    check_platform(a_preset_for_gpus(task_dir, tmp_path, "engine.platform=auto"))


def test_a_head_that_does_not_start_is_explained_with_the_load(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_options: object) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr("actors.head.join_if_there", lambda: False)
    monkeypatch.setattr("ray.init", init)
    code, message = run()
    assert code == 4
    assert "llmzero: Ray did not start on this machine: The current node timed out during startup." in message
    assert "load average" in message
    assert "ray/session_latest/logs" in message
