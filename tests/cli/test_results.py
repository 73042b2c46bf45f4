"""`list`, `show`, `diff`, `report` and `--json`: what searches hold, in text and for programs."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.cli.main import main
from llmzero_ray.cli.search import _known
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.locate import find
from llmzero_ray.storage.presence import SearchLock
from llmzero_ray.ui.server import Searches
from tests.report.conftest import Written, finished, scripted

__all__ = ["finished"]


def printed(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    code = main([str(word) for word in words])
    output = capsys.readouterr()
    assert code == 0, output.err
    return output.out


def refused(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    assert main([str(word) for word in words]) == 2
    return capsys.readouterr().err


def test_list_names_every_search_with_its_stage_and_its_best_score(
    finished: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    output = printed(capsys, "list", "--storage", finished.root.parent)
    assert "demo" in output
    assert "0.7800 (node 2)" in output
    (row,) = json.loads(printed(capsys, "list", "--json", "--storage", finished.root.parent))
    assert (row["name"], row["runs"], row["best"], row["best_score"]) == ("demo", 6, 2, 0.78)


def test_a_renamed_directory_is_moved_back_before_its_search_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise a search would begin, or another one continue, in the directory of the search's name."""
    search = scripted(tmp_path).ready()
    moved = search.root.rename(search.root.with_name("demo-old"))
    for there, target in ((False, search.root), (True, "OTHER_STORAGE/demo")):
        if there:
            search.root.mkdir()
        back = f"holds the search demo, which continues only under its own name: `mv {moved} {target}`"
        assert back in printed(capsys, "status", moved)
        assert back in refused(capsys, "resume", moved)
        assert not there or not list(search.root.iterdir())


def test_a_link_to_a_search_is_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = scripted(tmp_path).ready().root
    latest = tmp_path / "latest"
    latest.symlink_to(root)
    monkeypatch.chdir(root / "journal")
    for path in (latest, "..", "../../latest"):
        config = _known(str(path), "runs", [])
        assert os.path.samefile(Path(config.storage, config.name), root)
        assert Path(config.storage).name == root.parent.name
        assert "own name" not in printed(capsys, "status", path)
    moved = root.rename(root.with_name("demo-old"))
    latest.unlink()
    latest.symlink_to(moved)
    assert f"`mv {moved} {root}`" in refused(capsys, "resume", latest)


def test_the_search_yaml_of_a_copied_search_names_the_copy(
    finished: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the original, whose storage it names. Settings that this version would refuse do not matter."""
    copy = shutil.copytree(finished.root, tmp_path / "demo")
    written = copy / "search.yaml"
    written.write_text(written.read_text() + "colour: 1\n")
    assert find(str(written), "runs").paths.root == copy
    monkeypatch.chdir(copy)
    assert find("search.yaml", "runs").paths.root == copy
    own = tmp_path / "search.yaml"  # of a person
    own.write_text(f"name: other\nstorage: {tmp_path}\n")
    assert find(str(own), "runs").paths.root == tmp_path / "other"


def test_a_search_that_cannot_be_read_does_not_hide_the_others(
    finished: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "search.yaml").write_text("name: [")
    shutil.copytree(finished.root, tmp_path / "demo", ignore=shutil.ignore_patterns("checkpoints", "plots"))
    rows = json.loads(printed(capsys, "list", "--json", "--storage", tmp_path))
    assert [row["name"] for row in rows] == ["broken", "demo"]
    assert rows[0]["stage"].startswith("unreadable: ")
    assert rows[1]["best"] == 2


def test_a_directory_that_may_not_be_entered_does_not_hide_the_others(
    finished: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    shutil.copytree(finished.root, tmp_path / "demo", ignore=shutil.ignore_patterns("checkpoints", "plots"))
    stat = Path.stat

    def refusing(path: Path, **given: Any) -> Any:
        if path.parent == tmp_path / "closed":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **given)

    monkeypatch.setattr(Path, "stat", refusing)
    rows = json.loads(printed(capsys, "list", "--json", "--storage", tmp_path))
    assert [(row["name"], row["best"]) for row in rows] == [("closed", None), ("demo", 2)]
    assert rows[0]["stage"].startswith("unreadable: ") and "Permission denied" in rows[0]["stage"]
    assert [row["stage"] for row in Searches(tmp_path, None, steering=False).index()["searches"]] == [
        row["stage"] for row in rows
    ]
    assert printed(capsys, "status", ".", "--storage", tmp_path).startswith("demo")
    assert "has demo." in refused(capsys, "status", "nothing", "--storage", tmp_path)


def test_show_prints_what_the_model_that_planned_a_node_was_asked(
    finished: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished.root, tmp_path / "demo", ignore=shutil.ignore_patterns("checkpoints", "plots"))
    storage = SearchStorage.at(tmp_path / "demo")
    assert "node 2 has no recorded request" in refused(capsys, "show", tmp_path / "demo", "2", "--request")
    call = {"agent": "proposer", "system": ["# Role"], "user": ["# The phase below [node 0]\n\x1b[2Jend"]}
    storage.write_call(2, "proposer-0.0", call, None)
    refusal = {"refused": [{"answer": [{"type": "text", "text": "no"}], "reason": "Too dear."}]}
    storage.write_call(2, "proposer-1.0", {**call, **refusal}, None)
    storage.write_call(2, "zz-early_stopper", {**call, "agent": "early_stopper", "user": ["stop?"]}, None)
    asked = printed(capsys, "show", tmp_path / "demo", "2", "--request")
    assert asked.splitlines() == ["# Role", "# The phase below [node 0]", "end", "Too dear."]


def test_list_of_nothing_says_where_it_looked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "list", "--storage", tmp_path) == f"no search in {tmp_path}\n"
    assert "no such directory" in refused(capsys, "list", "--storage", tmp_path / "nothing")


def test_show_tells_a_node_in_global_steps_with_its_changes_and_reasons(
    finished: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(capsys, "show", finished.root, "2").splitlines()
    assert lines[0] == "demo, node 2: evolve, completed, in the best strategy"
    assert "starts from    node 1, step 10 (global step 30)" in lines
    assert "validations    0.7000@30, 0.7200@40, 0.7800@50" in lines
    assert any(line.startswith("changed        temperature 1 → 0.9: ") for line in lines)
    found = json.loads(printed(capsys, "show", finished.root, "2", "--json"))
    assert found["hyperparameters"]["actor_rollout_ref.rollout.temperature"] == 0.9
    assert found["validations"][-1] == {"global_step": 50, "score": 0.78}
    assert "it has 0, 1, 2, 3, 4, 5" in refused(capsys, "show", finished.root, "9")


def test_diff_compares_two_nodes(finished: Written, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = f"{finished.root}:0", f"{finished.root}:2"
    lines = printed(capsys, "diff", one, other).splitlines()
    assert "  lr  0.001 → 0.0002" in lines
    assert lines[-1] == "best validation  0.6000 → 0.7800"
    found = json.loads(printed(capsys, "diff", one, other, "--json"))
    assert found["changed"]["actor_rollout_ref.rollout.temperature"] == [1.0, 0.9]
    assert found["scores"] == [0.6, 0.78]
    assert "the same configuration" in printed(capsys, "diff", one, one)
    assert "name two searches, or a node of each" in refused(capsys, "diff", finished.root, other)


def test_diff_compares_two_searches(
    finished: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "the same configuration" in printed(capsys, "diff", finished.root, finished.root)


def test_report_writes_the_outcome_again(
    finished: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "demo"
    shutil.copytree(finished.root, copy, ignore=shutil.ignore_patterns("plots"))
    (copy / "report.md").unlink()
    output = printed(capsys, "report", copy)
    assert str(copy / "report.md") in output
    assert (copy / "report.md").read_text() == finished.report


def test_a_command_that_is_suggested_quotes_its_directory(
    finished: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "my runs" / "demo"
    shutil.copytree(finished.root, root, ignore=shutil.ignore_patterns("checkpoints", "plots"))
    assert f"`llmzero ui '{root}'`" in printed(capsys, "report", root)
    assert f"`llmzero status '{root}'` shows it" in refused(capsys, "list", root)
    shutil.rmtree(root / "journal")
    assert f"`llmzero resume '{root}'` starts it" in printed(capsys, "status", root)


def test_status_as_json_has_every_node(finished: Written, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, "status", finished.root, "--json"))
    assert (found["name"], found["best"], found["at_work"]) == ("demo", 2, None)
    assert [node["node"] for node in found["nodes"]] == [0, 1, 2, 3, 4, 5]
    assert found["nodes"][1]["hyperparameters"]["actor_rollout_ref.actor.optim.lr"] == 5e-4


def test_rm_deletes_what_it_listed_and_only_with_yes_or_an_answer(
    finished: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "demo"
    shutil.copytree(finished.root, copy)
    assert "without a terminal" in refused(capsys, "rm", copy) and copy.is_dir()
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, there in ((False, True), (True, False)):
        monkeypatch.setattr("typer.confirm", lambda _, answer=answer: answer)
        assert "  journal" in printed(capsys, "rm", copy)
        assert copy.is_dir() == there
    assert "there is no search here" in refused(capsys, "rm", copy, "--yes")


def test_rm_never_deletes_a_search_at_work_nor_a_folder_that_is_no_search(
    finished: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "demo"
    shutil.copytree(finished.root, copy)
    lock = SearchLock(copy)
    lock.acquire(private_head=True)
    try:
        assert main(["rm", str(copy), "--yes"]) == 3
        assert f"Stop it first: `llmzero stop {copy}`" in capsys.readouterr().err
    finally:
        lock.release()
    assert (copy / "journal").is_dir()
    thesis = tmp_path / "thesis"
    for name in ("chapter.tex", "search.yaml"):
        thesis.mkdir(exist_ok=True)
        assert "there is no search here" in refused(capsys, "rm", thesis, "--yes")
        (thesis / name).write_text("name: thesis\n")
    assert "there is no search here" in refused(capsys, "rm", thesis, "--yes")
    assert (thesis / "chapter.tex").is_file()


def test_the_log_of_a_damaged_search_is_printed(
    finished: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "demo"
    shutil.copytree(finished.root, copy)
    sorted((copy / "journal").glob("*.json"))[0].write_text("{")
    (copy / "logs").mkdir(exist_ok=True)
    (copy / "logs" / "coordinator.log").write_text("the disk is full\n")
    assert printed(capsys, "logs", copy).splitlines()[1:] == ["the disk is full"]


def test_logs_prints_the_end_of_the_coordinators_log_and_of_a_nodes(
    finished: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "demo"
    shutil.copytree(finished.root, copy)
    paths = SearchStorage.at(copy).paths
    paths.logs.mkdir(exist_ok=True)
    (paths.logs / "coordinator.log").write_text("".join(f"line {n}\n" for n in range(9)))
    paths.log(2).parent.mkdir(parents=True, exist_ok=True)
    paths.log(2).write_text("of the runner\n")
    assert printed(capsys, "logs", copy, "-n", "2").splitlines()[1:] == ["line 7", "line 8"]
    assert "--lines is -5; must be >= 0" in refused(capsys, "logs", copy, "--lines", "-5")
    assert printed(capsys, "logs", f"{copy}:best").splitlines()[1:] == ["of the runner"]
    assert "there is no such log; there are coordinator.log" in refused(capsys, "logs", copy, "0").replace(
        "logs/coordinator", "coordinator"
    )
