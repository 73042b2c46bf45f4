"""Searches of version 0.1, as they were left on the disk: each opens, replays, reports and goes on.

They lie in runs/, each with the task in runs/task; what was said of them is in data/searches.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.blackbox import commands, inputs, journals, public_api, tables
from tests.searches import page_data

ENDED = ("finished", "failed", "two_slots", "steered", "model")
AGENTS = ("error_analyzer-#.json", "error_analyzer-#.#.call.json")
AGENTS += ("proposer-#.#.call.json", "proposer-#.#.png")
ADAPTER = ("adapter_config.json", "adapter_model.safetensors", "manifest.json", "score.json")
"""Files of an adapter that a repeated phase saved."""
_NUMBER = re.compile(r"(?<![\w.])[-+−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def recorded(name: str) -> Any:
    path = inputs.DATA / "searches" / name
    return json.loads(path.read_text()) if path.suffix == ".json" else path.read_text()


@pytest.mark.parametrize("name", tables.RECORDED_RUNS)
def test_what_is_said_of_a_search_is_what_was_said(name: str, tmp_path: Path) -> None:
    for key, text in tables.search_texts(name, tmp_path / "runs").items():
        assert text == recorded(f"{name}.{key}.txt"), key


@pytest.mark.parametrize("name", tables.RECORDED_RUNS)
def test_a_replay_takes_the_same_decisions_and_ends_in_the_same_tree(name: str) -> None:
    found = json.loads(json.dumps(public_api.replayed(inputs.RUNS / name)))
    assert found == recorded(f"{name}.replay.json")
    assert [decision["differences"] for decision in found["decisions"] if decision["differences"]] == []


@pytest.mark.parametrize("name", tables.RECORDED_RUNS)
def test_a_moved_search_replays_like_the_one_that_was_not(name: str, tmp_path: Path) -> None:
    moved = public_api.replayed(inputs.copy_of(name, tmp_path / "elsewhere"))
    assert moved == public_api.replayed(inputs.RUNS / name)


@pytest.mark.parametrize("name", tables.RECORDED_RUNS)
def test_the_configuration_of_a_search_loads_with_every_value(name: str) -> None:
    path = inputs.RUNS / name / "search.yaml"
    before = tables.flat(yaml.safe_load(path.read_text()))
    after = tables.flat(public_api.load_stored(path).to_json())
    now = public_api.RENAMED
    assert {key: after.get(now.get(key, key)) for key in before if key not in public_api.REMOVED} == {
        key: value for key, value in before.items() if key not in public_api.REMOVED
    }


def test_journals_are_of_the_form_that_is_written_down(tmp_path: Path) -> None:
    """The checksums of every body, by a second implementation."""
    for name in tables.RECORDED_RUNS:
        root = inputs.copy_of(name, tmp_path)
        numbers = [body["number"] for body in journals.bodies(root / "journal")]
        assert numbers == list(range(1, recorded(f"{name}.replay.json")["events"] + 1))
    assert list((inputs.RUNS / "compacted" / "journal").glob("*.segment"))


# --- the outcome, written again -----------------------------------------------------------------------------


def numbers_of(report: str) -> Counter[str]:
    """Every number in the tables of a report."""
    rows = [line for line in report.splitlines() if line.startswith("|") and not line.startswith("| ---")]
    return Counter(number for row in rows for number in _NUMBER.findall(row))


def numbers_in(root: Path) -> set[str]:
    """Every number in the tables of report.md and in the data of report.html, which has all of them."""
    found, todo = set(numbers_of((root / "report.md").read_text())), [page_data(root / "report.html")]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo += value.values()
        elif isinstance(value, list):
            todo += value
        else:
            shown = f"{value:.4f} {value}" if isinstance(value, float) else str(value)
            found.update(_NUMBER.findall(shown))
    return found


def written_again(name: str, tmp_path: Path) -> tuple[Path, Any]:
    """A recorded search whose outcome was written again, and the strategy it had before."""
    root = inputs.copy_of(name, tmp_path / "runs")
    strategy = yaml.safe_load((root / "strategy.yaml").read_text())
    for file in ("report.md", "strategy.yaml"):
        (root / file).unlink()
    public_api.write_outcome(root)
    return root, strategy


def comparable(strategy: dict[str, Any], recorded_one: dict[str, Any]) -> dict[str, Any]:
    """A strategy without the engine settings that went, or were not there yet when another was recorded."""
    gone = {name.removeprefix("engine.") for name in public_api.REMOVED}
    then = recorded_one["setting"]["engine"].keys() - gone
    kept = {key: value for key, value in strategy["setting"]["engine"].items() if key in then}
    return {**strategy, "setting": {**strategy["setting"], "engine": kept}}


@pytest.mark.parametrize("name", ENDED)
def test_a_report_written_again_has_every_number_it_had(name: str, tmp_path: Path) -> None:
    root, strategy = written_again(name, tmp_path)
    before = numbers_of((inputs.RUNS / name / "report.md").read_text())
    gone = {"1.177"} if name == "steered" else set()  # a clone has a reason of its own now
    assert set(before) - numbers_in(root) == gone
    assert sum(before.values()) > 50
    again = yaml.safe_load((root / "strategy.yaml").read_text())
    assert comparable(again, strategy) == comparable(strategy, strategy)
    for path in (inputs.RUNS / name / "best").iterdir():
        if path.name != "README.md":
            assert (root / "best" / path.name).read_bytes() == path.read_bytes()


def test_a_report_of_the_demo_is_written_with_its_page(tmp_path: Path) -> None:
    root, strategy = written_again("demo", tmp_path)
    before = numbers_of((inputs.RUNS / "demo" / "report.md").read_text())
    assert set(before) - numbers_in(root) == set()
    again = yaml.safe_load((root / "strategy.yaml").read_text())
    again, strategy = {**again, "adapter": {}}, {**strategy, "adapter": {}}  # the record is without weights
    assert comparable(again, strategy) == comparable(strategy, strategy)


@pytest.mark.parametrize("name", ENDED)
def test_the_strategy_of_a_search_loads(name: str) -> None:
    path = inputs.RUNS / name / "strategy.yaml"
    loaded = public_api.load_strategy(path)
    assert [phase.node for phase in loaded.phases] == [
        phase["node"] for phase in yaml.safe_load(path.read_text())["phases"]
    ]


# --- going on -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("paused", marks=pytest.mark.long), "killed"])
def test_an_interrupted_search_goes_on_to_its_end(name: str, head_address: str, tmp_path: Path) -> None:
    storage = tmp_path / "runs"
    root = inputs.copy_of(name, storage)
    inputs.copy_of("task", tmp_path)
    (tmp_path / "model").mkdir()
    for path in (root / "search.yaml", *(root / "journal").glob("*.json")):  # steps that took a second
        journals.rewrite(
            path,
            {
                f"{quote}script.step_s{quote}: {s}": f"{quote}script.step_s{quote}: 0.02"
                for quote in ('"', "")
                for s in ("1.5", "0.5")
            },
        )
    before = public_api.replayed(root)
    done = subprocess.run(
        [sys.executable, "-m", public_api.COMMAND_MODULE, "resume", str(root)],
        cwd=public_api.CHECKOUT,
        env=commands.environment({"RAY_ADDRESS": head_address, "RAY_AUTH_MODE": "disabled"}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    result = done.stdout + done.stderr
    assert done.returncode == 0, result
    assert "has ended (budget) after 4 runs" in result
    after = public_api.replayed(root)
    assert after["decisions"][: len(before["decisions"])] == before["decisions"]
    assert [run[1] for run in after["runs"].values()] == ["completed"] * len(after["runs"])
    interrupted = max(before["runs"], key=int)
    assert after["runs"][interrupted][3] == 1  # its second attempt
    assert after["runs"][interrupted][4] == (1 if name == "killed" else 0)  # losses: a pause is none
    # 0.1 drew pictures; since 0.2 report.html draws them
    kept = {file for file in recorded("layout.json") if not file.startswith("plots/")}
    assert layout(root) >= {*kept, "report.html"}


def layout(root: Path) -> set[str]:
    """The files of a search as patterns: numbers are #."""
    return {re.sub(r"\d+", "#", str(path.relative_to(root))) for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ENDED)
def test_the_records_lie_as_is_written_down(name: str) -> None:
    assert layout(inputs.RUNS / name) <= {
        *recorded("layout.json"),
        *(f"nodes/#/agents/{file}" for file in AGENTS),
        *(f"checkpoints/#/step_#.#/{file}" for file in ADAPTER),
    }
