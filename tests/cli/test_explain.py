"""The explain command: its JSON for programs, its table for people, its messages."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from llmzero_ray.cli.explain import (
    explain_directory,
    explain_history,
    explain_outcomes,
    render_decisions,
)
from llmzero_ray.cli.main import main
from llmzero_ray.coordinator.replay import DecisionRow
from llmzero_ray.errors import ConfigError
from llmzero_ray.journal import Journal
from llmzero_ray.records.events import Decided
from llmzero_ray.search import SearchRules, TreeSearch
from llmzero_ray.search.decision import reason_in_words
from tests.builders import Driver, make_config

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "jobs" / "examples" / "paper"
RULES = SearchRules()
HISTORY: list[dict[str, Any]] = [
    {"id": 0, "kind": "root", "on": None, "status": "completed", "score": 0.5},
    {"id": 1, "kind": "evolve", "on": 0, "status": "failed", "score": 0.6},
    {"id": 2, "kind": "debug", "on": 1, "status": "completed", "score": 0.7},
    {"id": 3, "kind": "evolve", "on": 2, "status": "running", "score": None},
]


def run(tmp_path: Path, data: Any, option: str, *more: str) -> tuple[int, str]:
    """Exit code and path of a file with `data`, explained in this process."""
    path = tmp_path / "input.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return explain([option, str(path), *more]), str(path)


def explain(arguments: list[str]) -> int:
    """The command's exit code."""
    return main(["explain", *arguments])


# --- history ------------------------------------------------------------------------------------------------


def test_a_history_is_explained_with_state_descent_and_next_decision() -> None:
    output = explain_history(HISTORY, RULES)
    assert list(output) == ["s_min", "s_max", "best", "nodes", "descent", "next"]
    assert (output["s_min"], output["s_max"], output["best"]) == (0.5, 0.7, 2)
    assert output["nodes"]["1"] == {
        "parent": 0,
        "N": 1,
        "v_val": 0,
        "v_fail": 1,
        "v_early": 0,
        "v_unval": 0,
        "debug_depth": 0,
        "pruned": True,
        "terminal": True,
        "in_flight": 0,
    }
    assert {key: output["nodes"]["0"][key] for key in ("parent", "N", "v_val", "in_flight")} == {
        "parent": None,
        "N": 3,
        "v_val": 2,
        "in_flight": 1,
    }
    assert output["next"] == {"action": "evolve", "on": 2}


def test_one_descent_entry_per_visited_level_has_effective_visits_and_candidates_only() -> None:
    top, below = explain_history(HISTORY, RULES)["descent"]
    assert {key: top[key] for key in ("at", "N", "k_fair", "k_cap", "cap", "full")} == {
        "at": 0,
        "N": 4,
        "k_fair": 2,
        "k_cap": 2,
        "cap": 2,
        "full": True,
    }
    assert list(top["children"]) == ["2"]
    assert top["children"]["2"]["Q"] == 1.0
    assert top["children"]["2"]["uct"] == pytest.approx(1 + 1.414 * (1.3862943611198906 / 2) ** 0.5)
    assert (below["at"], below["N"], below["k_fair"], below["children"]) == (2, 2, 1, {})
    assert below["uct_new"] == pytest.approx(1 + 1.414 * 0.6931471805599453**0.5)


def test_a_forced_scratch_run_a_wait_and_a_stop_visit_no_level() -> None:
    evolved = [HISTORY[0]] + [
        {"id": k, "kind": "evolve", "on": 0, "status": "completed", "score": 0.1} for k in range(1, 6)
    ]
    scratch = explain_history(evolved, RULES)
    assert (scratch["descent"], scratch["next"]) == ([], {"action": "scratch", "on": 0})
    waiting = explain_history([{**HISTORY[0], "status": "running"}], RULES)
    assert (waiting["descent"], waiting["next"]) == ([], {"action": "wait", "on": None})
    spent = explain_history(HISTORY, RULES, budget=4)
    assert (spent["descent"], spent["next"]) == ([], {"action": "stop", "on": None})
    assert spent["stop_reason"] == "budget"


def test_an_empty_history_asks_for_the_root() -> None:
    assert explain_history([], RULES) == {
        "s_min": None,
        "s_max": None,
        "best": None,
        "nodes": {},
        "descent": [],
        "next": {"action": "root", "on": None},
    }


def test_rules_can_be_set_for_one_explanation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = run(tmp_path, HISTORY, "--history", "--set", "C=0", "--set", "max_evolve_children=4")
    output = json.loads(capsys.readouterr().out)
    assert code == 0
    assert output["descent"][0]["cap"] == 4
    assert output["descent"][0]["uct_new"] == output["descent"][0]["Q_prior"] == 0.0


# --- closed loop --------------------------------------------------------------------------------------------


def test_a_closed_loop_tells_every_decision_and_where_each_node_ended_up() -> None:
    rows = [
        {"id": 0, "status": "completed", "score": 0.5},
        {"id": 1, "status": "failed", "score": 0.6},
        {"id": 2, "status": "completed", "score": 0.7},
    ]
    assert explain_outcomes(rows, SearchRules(max_evolve_children=1)) == {
        "decisions": [
            {"id": 0, "action": "root", "on": None},
            {"id": 1, "action": "evolve", "on": 0},
            {"id": 2, "action": "debug", "on": 1},
        ],
        "final_parents": {"0": None, "1": 0, "2": 0},
        "best": 2,
        "next": {"action": "evolve", "on": 2},
    }


def test_rows_that_no_run_was_begun_for_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": k, "status": "running", "score": None} for k in range(3)]
    code, _ = run(tmp_path, rows, "--closed-loop")
    shown = capsys.readouterr()
    output = json.loads(shown.out)
    assert (code, output["next"], output["unused_rows"]) == (0, {"action": "wait", "on": None}, [1, 2])
    assert "rows 1, 2 were not used: the rules say wait" in shown.err


def test_the_budget_ends_a_closed_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    explain(["--closed-loop", str(PAPER / "ssmr.json"), "--budget", "10"])
    output = json.loads(capsys.readouterr().out)
    assert (output["next"]["action"], output["stop_reason"], output["best"]) == ("stop", "budget", 5)
    assert "unused_rows" not in output


@pytest.mark.parametrize("name", ["chemcot", "papersearchqa", "ssmr", "wildsci"])
def test_the_shipped_examples_are_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(["--closed-loop", str(PAPER / f"{name}.json")]) == 0
    assert len(json.loads(capsys.readouterr().out)["decisions"]) == (10 if name == "ssmr" else 16)


# --- wrong input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "more", "message"),
    [
        ("[", (), "is not valid JSON"),
        ("\udcff", (), "is not valid JSON"),
        ("[" * 100_000, (), "is not valid JSON"),
        ('[{"id": 0, "id": 1}]', (), "an object repeats a key among id, id"),
        ("{}", (), "the file must hold a list of objects"),
        ([{**HISTORY[0], "score": float("nan")}], (), "history entry 0 (id 0): score is nan"),
        ([HISTORY[0], {**HISTORY[1], "on": 8}], (), "history entry 1: node 8 is unknown"),
        (HISTORY, ("--set", "max_evolve_childs=2"), "did you mean 'max_evolve_children'?"),
        (HISTORY, ("--set", "rho_min=2"), "search rules: rho_min is 2; must be a number >= 0 and <= 1"),
        (HISTORY, ("--budget", "0"), "--budget is 0 runs; must be >= 1"),
    ],
)
def test_wrong_input_gives_one_clear_message_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: Any, more: tuple[str, ...], message: str
) -> None:
    path = tmp_path / "input.json"
    text = data if isinstance(data, str) else json.dumps(data)
    path.write_bytes(text.encode(errors="surrogateescape"))
    assert explain(["--history", str(path), *more]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(["--history", str(tmp_path / "none.json")]) == 2
    assert "none.json cannot be read: No such file" in capsys.readouterr().err
    assert explain(["--closed-loop", str(tmp_path)]) == 2


@pytest.mark.parametrize("arguments", [["a", "--history", "b"], ["--history", "a", "--closed-loop", "b"]])
def test_exactly_one_thing_is_explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(arguments) == 2
    assert "explain needs one thing to explain" in capsys.readouterr().err


def test_the_command_ends_with_a_message_and_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "h.json"
    path.write_text(json.dumps([{**HISTORY[0], "status": "done"}]))
    command = [sys.executable, "-m", "jobs.explain", "--history", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("HistoryError: history entry 0 (id 0): status is 'done'")


def test_explaining_a_history_loads_nothing_heavy(tmp_path: Path) -> None:
    path = tmp_path / "h.json"
    path.write_text(json.dumps(HISTORY))
    unwanted = ("ray", "torch", "verl", "rich", "numpy", "pyarrow")
    code = (
        f"import sys; from llmzero_ray.cli.main import main; main(['explain', '--history', {str(path)!r}]); "
        f"print([m for m in {unwanted} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# --- words and table ----------------------------------------------------------------------------------------


def search_of(*runs: tuple[Any, int | None, Any, float | None], **rules: Any) -> TreeSearch:
    search = TreeSearch(SearchRules(**rules), budget=rules.pop("budget", 8))
    for kind, on, status, score in runs:
        node = search.create(kind, on)
        if status != "running":
            search.tell(node, status, score)
    return search


R = ("root", None, "completed", 0.5)


@pytest.mark.parametrize(
    ("search", "words"),
    [
        (search_of(), "first run of the search"),
        (
            search_of(("root", None, "running", None)),
            "nothing can be created before one of the 1 running runs ends",
        ),
        (search_of(R), "0: new child 1.000 without a rival"),
        (search_of(R, ("evolve", 0, "completed", 0.4)), "0: new child 2.177 > node 1 1.177"),
        (
            search_of(R, ("evolve", 0, "completed", 0.6)),
            "0: node 1 2.177 >= new child 1.177; 1: new child 1.000 without a rival",
        ),
        (
            search_of(R, ("evolve", 0, "completed", 0.6), max_evolve_children=1),
            "0: full, node 1 2.177; 1: new child 1.000 without a rival",
        ),
        (
            search_of(R, ("evolve", 0, "completed", 0.6), rho_min=0.6),
            "1 of 2 runs from scratch = 0.500 < 0.6; node 1 is the best so far",
        ),
        (
            search_of(("root", None, "failed", None), max_debug_children=0),
            "exhausted: no node can get another child",
        ),
        (search_of(R, *[("evolve", 0, "running", None)] * 7), "budget: 8 of 8 runs begun"),
    ],
)
def test_a_decision_is_put_into_words_with_its_numbers(search: TreeSearch, words: str) -> None:
    assert reason_in_words(search.ask()) == words


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("user", "user: a person ended the search"),
        ("target", "target: a limit of the search was reached"),
        ("gpu_hours", "gpu_hours: a limit of the search was reached"),
    ],
)
def test_an_end_that_the_rules_did_not_choose_says_who_did(reason: Any, words: str) -> None:
    stop = dataclasses.replace(search_of(R).ask(), action="stop", on=None, stop_reason=reason)
    assert reason_in_words(stop) == words


def test_of_a_deep_descent_the_last_levels_are_shown() -> None:
    chain = [("evolve", k, "completed", 0.6 + k / 10) for k in range(6)]
    words = reason_in_words(search_of(R, *chain, max_evolve_children=1, rho_min=0).ask())
    assert words.startswith("(3 levels above); 3: full, node 4 ")
    assert words.endswith("6: new child 1.000 without a rival")


def test_decisions_are_rendered_as_a_table_with_what_the_replay_says() -> None:
    rows = [
        DecisionRow(node=0, action="root", on=None, reason="first run", outcome="completed 0.5000"),
        DecisionRow(node=1, action="evolve", on=0, reason="a > b", differences=("on: recorded 0, now 2",)),
        DecisionRow(node=None, action="stop", on=None, reason="budget"),
    ]
    out = io.StringIO()
    Console(file=out, width=160).print(render_decisions(rows))
    lines = [line for line in out.getvalue().splitlines() if "│" in line]
    assert len(lines) == 3
    assert "first run" in lines[0]
    assert "completed 0.5000" in lines[0]
    assert "the same" in lines[0]
    assert "on: recorded 0, now 2" in lines[1]
    assert "stop" in lines[2]


# --- search directory ---------------------------------------------------------------------------------------


def recorded_search(directory: Path, *, forge: bool = False) -> Path:
    """A whole search on disk: root, failed run, its fix, one more; `forge` changes a recorded decision."""
    driver = Driver(make_config(budget={"runs": 4}))
    driver.ready()
    driver.train(0, score=0.5)
    driver.propose(1)
    driver.start(1)
    driver.fail(1, score=0.55)
    driver.propose(2)
    driver.train(2, score=0.6)
    driver.propose(3)
    driver.train(3, score=0.4, status="early_stopped", stop_reason="verdict: collapse")
    journal = Journal(directory / "journal")
    for event in driver.journal:
        if forge and isinstance(event, Decided) and event.node == 3:
            event = dataclasses.replace(event, on=0)
        journal.append(event, now=0.0)
    return directory


def test_a_search_directory_is_replayed_and_every_decision_explained(tmp_path: Path) -> None:
    rows = explain_directory(recorded_search(tmp_path))
    assert [(row.node, row.action, row.on) for row in rows] == [
        (0, "root", None),
        (1, "evolve", 0),
        (2, "debug", 1),
        (3, "evolve", 2),
        (None, "stop", None),
    ]
    assert [row.differences for row in rows] == [()] * 5
    assert rows[2].outcome == "completed 0.6000, moved to 0"


def test_a_search_that_is_still_running_is_explained_so_far(tmp_path: Path) -> None:
    driver = Driver(make_config())
    driver.ready()
    journal = Journal(tmp_path / "journal")
    for event in driver.journal:
        journal.append(event, now=0.0)
    assert [(row.node, row.action, row.outcome) for row in explain_directory(tmp_path)] == [
        (0, "root", "no result")
    ]


def test_a_search_directory_is_shown_as_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain([str(recorded_search(tmp_path))]) == 0
    shown = capsys.readouterr().out
    assert "5 decisions replayed, all the same as in the journal." in shown
    assert "budget: 4 of 4 runs begun" in shown
    assert "early stopped 0.4000" in shown


def test_a_decision_that_the_rules_would_not_take_is_shown_and_fails_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain([str(recorded_search(tmp_path, forge=True))]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 differ from the journal." in shown
    assert "on: recorded 0, now 2" in shown


def test_a_directory_without_a_search_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="there is no search here"):
        explain_directory(tmp_path)
    assert explain([str(tmp_path)]) == 2
    assert "there is no search here" in capsys.readouterr().err


def test_rules_are_not_set_for_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain([str(tmp_path), "--set", "C=1"]) == 2
    assert "a directory has its own rules" in capsys.readouterr().err
