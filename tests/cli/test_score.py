"""`python -m jobs.score`: one result per good line, a message per bad one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.cli.main import main
from llmzero_ray.tasks import shipped_rewards as registry

ROW = {
    "data_source": "ssmr_beat",
    "solution_str": "\\boxed{A}",
    "ground_truth": "A",
    "extra_info": {"index": 0},
}


def score(arguments: list[str]) -> int:
    """The command's exit code."""
    return main(["score", *arguments])


def write(path: Path, *rows: Any) -> str:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def results(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_every_row_gives_its_result_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chain = {"data_source": "chain_sum", "solution_str": "#7", "ground_truth": "8"}
    name = write(tmp_path / "rows.jsonl", ROW, "", chain, {**ROW, "solution_str": "\\boxed{C}"})
    assert score(["--jsonl", name]) == 0
    out, err = capsys.readouterr()
    assert [(row["acc"], row["pred"]) for row in results(out)] == [(1.0, "A"), (0.0, "7"), (0.0, "C")]
    assert err == ""


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        ("{", "write one JSON object a line"),
        ("[1]", "a row is an object with data_source"),
        ("[" * 100_000, "write one JSON object a line"),
        (json.dumps({**ROW, "data_source": "unheard"}), "Name a reward"),
        (json.dumps({**ROW, "solution_str": None}), "solution_str is null; it must be text"),
        (json.dumps({key: ROW[key] for key in ROW if key != "ground_truth"}), "ground_truth is missing"),
        (json.dumps({**ROW, "ground_truth": ["A"]}), "composite ground truths as a JSON string"),
        (json.dumps({**ROW, "extra_info": "x"}), "extra_info is 'x'; it must be an object"),
    ],
)
def test_a_bad_line_is_named_with_its_cure_and_the_good_ones_are_scored(
    line: str, cure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write(tmp_path / "rows.jsonl", ROW, line, ROW)
    assert score(["--jsonl", name]) == 2
    out, err = capsys.readouterr()
    assert [row["acc"] for row in results(out)] == [1.0, 1.0]
    assert f"{name}, line 2: " in err and cure in err
    assert "1 of 3 rows could not be scored" in err


def test_a_line_that_is_no_utf8_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xff\xfe\n" + json.dumps(ROW).encode() + b"\n")
    assert score(["--jsonl", str(path)]) == 2
    out, err = capsys.readouterr()
    assert len(results(out)) == 1 and "line 1: not JSON" in err


def test_a_chemistry_row_without_rdkit_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    name = write(tmp_path / "rows.jsonl", {**ROW, "data_source": "chemcot_edit_add"})
    assert score(["--jsonl", name]) == 2
    assert "RDKit" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "", "\n\n"])
def test_no_file_or_no_row_is_an_error(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    if content is not None:
        path.write_text(content)
    assert score(["--jsonl", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_a_kind_with_options_scores_any_data_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {**ROW, "data_source": "mine", "solution_str": "\\boxed{F}", "ground_truth": "F"}
    name = write(tmp_path / "rows.jsonl", row)
    assert set(registry.KINDS) == {"exact_match", "mcq", "math", "regex"}
    assert score(["--jsonl", name, "--reward", "mcq"]) == 0
    assert score(["--jsonl", name, "--reward", "mcq", "--option", "letters=ABCDEF"]) == 0
    assert score(["--jsonl", name, "--reward", "regex", "--option", 'pattern="\\\\{(.)"']) == 0
    assert score(["--jsonl", name, "--reward", "mcq", "--option", "letters"]) == 2
    assert [row["acc"] for row in results(capsys.readouterr().out)] == [0.0, 1.0, 1.0]


OWN = """
def paid(data_source, solution_str, ground_truth, extra_info=None, **others):
    print("noise")
    if solution_str == "raise":
        raise RuntimeError("no")
    return {"score": 0.5, "acc": 1} if solution_str != "object" else {"score": object()}
"""


def test_a_file_of_ones_own_may_print_and_raise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.py").write_text(OWN)
    rows = [{**ROW, "solution_str": text} for text in ("a", "raise", "object")]
    name = write(tmp_path / "rows.jsonl", *rows)
    assert score(["--jsonl", name, "--reward", f"{tmp_path / 'own.py'}:paid", "--allow-unsandboxed"]) == 2
    out, err = capsys.readouterr()
    assert results(out) == [{"score": 0.5, "acc": 1}]
    assert "line 2: the reward raises RuntimeError: no" in err
    assert "line 3: the reward returns" in err


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ("1.0", "returns float; it must return a dict with score and acc"),
        ("{'score': 1.0}", "returns no acc; keys expected: score and acc"),
        ("{'score': float('nan'), 'acc': 1.0}", "returns score = nan; it must be a finite number"),
    ],
)
def test_a_result_that_training_could_not_use_is_no_result(
    returned: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(f"def compute_score(**_):\n    return {returned}\n")
    name = write(tmp_path / "rows.jsonl", ROW)
    assert score(["--jsonl", name, "--reward", str(tmp_path / "own.py"), "--allow-unsandboxed"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and f"line 1: the reward {problem}" in err


def test_a_value_that_is_no_json_is_named_as_training_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = "def compute_score(**_):\n    return {'score': 1, 'acc': 1, 'pred': [2]}\n"
    (tmp_path / "own.py").write_text(own)
    name = write(tmp_path / "rows.jsonl", ROW)
    assert score(["--jsonl", name, "--reward", str(tmp_path / "own.py"), "--allow-unsandboxed"]) == 0
    assert results(capsys.readouterr().out) == [{"score": 1, "acc": 1, "pred": "a list"}]


def test_a_file_of_ones_own_is_given_a_truth_that_is_an_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = "def compute_score(ground_truth, **_):\n    return {'score': ground_truth['n'], 'acc': 1}\n"
    (tmp_path / "own.py").write_text(own)
    name = write(tmp_path / "rows.jsonl", {**ROW, "ground_truth": {"n": 0.25}})
    assert score(["--jsonl", name, "--reward", str(tmp_path / "own.py"), "--allow-unsandboxed"]) == 0
    assert results(capsys.readouterr().out) == [{"score": 0.25, "acc": 1}]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def compute_score(:\n", "line 1, does not compile"),
        ("raise ValueError('x')\n", "cannot be imported: ValueError: x"),
        ("score = 1\n", "no function 'compute_score'"),
        ("async def compute_score(**k):\n    return 1\n", "asynchronous"),
    ],
)
def test_a_file_that_is_no_reward_is_refused(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.py").write_text(text)
    name = write(tmp_path / "rows.jsonl", ROW)
    assert score(["--jsonl", name, "--reward", str(tmp_path / "bad.py"), "--allow-unsandboxed"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and why in err and "bad.py" in err


def test_an_unknown_reward_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert score(["--jsonl", write(tmp_path / "rows.jsonl", ROW), "--reward", "unheard"]) == 2
    assert (
        "unheard is neither a known kind (exact_match, mcq, math, regex) nor a Python file"
        in capsys.readouterr().err
    )


def test_the_reward_of_a_task_is_taken_from_its_manifest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    files = {split: {"file": f"{split}.parquet"} for split in ("train", "val", "test")}
    name = write(tmp_path / "rows.jsonl", ROW)
    for reward in (
        {"path": "own.py", "name": "paid", "allow_unsandboxed": True},
        {"module": "llmzero_ray.tasks.rewards.ssmr"},
    ):
        (tmp_path / "manifest.json").write_text(json.dumps({"splits": files, "reward": reward}))
        assert score(["--jsonl", name, "--task", str(tmp_path)]) == 0
    assert [row["score"] for row in results(capsys.readouterr().out)] == [0.5, 1.0]


def test_the_job_scores_without_ray(tmp_path: Path) -> None:
    name = write(tmp_path / "rows.jsonl", ROW)
    code = (
        "import runpy, sys; sys.argv = ['score', '--jsonl', sys.argv[1]]\n"
        "try: runpy.run_module('jobs.score', run_name='__main__')\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert 'ray' not in sys.modules and 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, name],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert results(done.stdout)[0]["acc"] == 1.0
