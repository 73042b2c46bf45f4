"""`llmzero prepare task.yaml`: its output, refused inputs, and that a search opens the prepared task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmzero_ray.cli.main import main
from llmzero_ray.config import load_config
from llmzero_ray.engines.base import Slot
from llmzero_ray.engines.verl.factory import verl_settings
from llmzero_ray.engines.verl.overrides import engine_overrides
from llmzero_ray.tasks.commands import prepare as command
from llmzero_ray.tasks.prepare import prepare
from tests.marks import needs_sandbox

ROOT = Path(__file__).parents[2]
REWARD = """
import re
def score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    found = re.findall(r"<answer>([^<]*)</answer>", solution_str)
    right = float(bool(found) and found[-1].strip() == ground_truth)
    return {"score": right, "acc": right, "fmt_ok": float(bool(found)), "pred": found[-1] if found else ""}
"""


def write(tmp_path: Path, rows: list[Any] | str | None = None, **changes: Any) -> str:
    """A task.yaml with its data and reward beside it."""
    cities = [{"country": f"country {n}", "city": f"City {n % 7}"} for n in range(40)]
    text = rows if isinstance(rows, str) else "\n".join(map(json.dumps, cities if rows is None else rows))
    (tmp_path / "rows.jsonl").write_text(text)
    (tmp_path / "mine.py").write_text(REWARD)
    task = {
        "name": "capitals",
        "files": "rows.jsonl",
        "dir": str(tmp_path / "task"),
        "prompt": "Which city is the capital of {country}?",
        "answer": "city",
        "reward": "exact_match",
        "n_train": 20,
        "n_val": 5,
        "n_test": 5,
    }
    path = tmp_path / "task.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in {**task, **changes}.items() if v is not None}))
    return str(path)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["prepare", *arguments])
    return code, capsys.readouterr().err


def test_a_task_yaml_is_prepared_and_summarised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    rows: list[Any] = [{"country": f"c\x1b[2J{n}", "city": f"City {n}"} for n in range(40)]
    rows[5]["city"] = ""
    path = write(tmp_path, rows, n_test=500)
    assert main(["prepare", path]) == 0
    out = capsys.readouterr().out
    for part in (
        "preparing the task: reading: rows.jsonl",
        "preparing the task: done (100%)",
        f"task capitals in {tmp_path / 'task'} made from 40 rows:",
        "no gold answer",
        "rows.jsonl, row 6: city is empty",
        "warning: test has",
        "500 were asked for",
        f"task: {{dir: {tmp_path / 'task'}}}",
    ):
        assert part in out
    samples = [line.split("│") for line in out.splitlines() if "capital of" in line]
    assert [[cell.strip() for cell in line[4:7]] for line in samples] == [["1", "0", "0"]] * 5
    assert "\x1b[2J" not in out and "verdict" not in out
    assert main(["prepare", path]) == 0
    assert "was there already" in capsys.readouterr().out


def test_fields_can_be_set_from_the_command_line(tmp_path: Path) -> None:
    path = write(tmp_path)
    settings = ["--set", "n_train=10", "--set", f"dir={tmp_path / 'other'}", "--set", "reward=exact_match"]
    assert main(["prepare", path, *settings]) == 0
    assert prepare(dir=tmp_path / "other", family=None).n_train == 10


@needs_sandbox
def test_the_validation_table_is_shown_for_a_users_reward(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["prepare", write(tmp_path, reward={"python": "mine.py:score"})]) == 0
    out = capsys.readouterr().out
    assert "preparing the task: validating the reward" in out
    assert "100.0% of 30, written as <answer>{answer}</answer>" in out
    assert out.count("passed") == 10 and "FAILED" not in out


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        ("", {}, "rows.jsonl is an empty file; fill or remove it"),
        ('{"country": "a", "city": "b"}\n[1]\n', {}, "leave none for"),
        ([{"country": "a", "town": "b"}] * 5, {}, "city"),
        (None, {"prompt": "Which {city", "n_val": 0}, "n_val is 0"),
        (None, {"promt": "x"}, "did you mean 'prompt'?"),
        (None, {"budget": {"runs": 2}}, "holds keys of a task.yaml (answer, dir"),
        (None, {"reward": {"python": "no.py:score"}}, "no.py does not exist"),
        (None, {"dataset": "unheard", "prompt": None}, "one of chemcot, papersearchqa, ssmr, wildsci"),
    ],
)
def test_what_cannot_be_prepared_is_refused_with_its_cure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: Any, changes: dict[str, Any], message: str
) -> None:
    code, err = refusal(capsys, write(tmp_path, rows, **changes))
    assert code == 2 and message in err and "Traceback" not in err
    assert not (tmp_path / "task").exists()


def test_a_search_yaml_is_recognised_and_has_no_rows_for_ray(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "search.yaml"
    path.write_text(yaml.safe_dump({"name": "demo", "task": {"dir": str(tmp_path / "none")}}))
    code, err = refusal(capsys, str(path))
    assert code == 2 and f"task directory {tmp_path / 'none'} does not exist" in err
    code, err = refusal(capsys, str(path), "--ray")
    assert code == 2 and "search.yaml is none: it has none of the keys prompt" in err


def test_ray_without_a_cluster_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.head.join_if_there", lambda: False)
    code, err = refusal(capsys, write(tmp_path), "--ray")
    assert code == 4 and "leave --ray out" in err


@pytest.mark.slow
def test_on_a_cluster_the_same_files_come_out(head: str, tmp_path: Path) -> None:
    here, there = (write(tmp_path, dir=str(tmp_path / name)) for name in ("here", "there"))
    assert main(["prepare", here, "--set", f"dir={tmp_path / 'here'}"]) == 0
    done = subprocess.run(
        [sys.executable, "-m", "jobs.prepare", there, "--ray"],
        cwd=ROOT,
        env={**os.environ, "RAY_ADDRESS": head},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "20 train, 5 val, 5 test" in done.stdout
    for split in ("train", "val", "test"):
        file = f"{split}.parquet"
        assert (tmp_path / "here" / file).read_bytes() == (tmp_path / "there" / file).read_bytes()


@needs_sandbox
@pytest.mark.slow
def test_verl_loads_the_sandbox_in_place_of_a_reward_of_ones_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "jobs.prepare", write(tmp_path, reward={"python": "mine.py:score"})]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    search = tmp_path / "search.yaml"
    search.write_text(
        yaml.safe_dump({"name": "demo", "task": {"dir": str(tmp_path / "task")}, "model": {"path": "x"}})
    )
    config = load_config(search)
    task = prepare(dir=config.task.dir, family=config.task.family)
    assert (task.name, task.n_train, task.data_sources) == ("capitals", 20, ("capitals",))
    slot = Slot(search="demo", index=0, placement_groups=("",), gpus_per_node=1, cpus_per_gpu=1)
    (tmp_path / "overrides.json").write_text(
        json.dumps(engine_overrides(verl_settings(config, task, slot, str(tmp_path))))
    )
    code = (
        "import asyncio, json, sys\n"
        "from pathlib import Path\n"
        "from llmzero_ray.engines.verl.overrides import compose\n"
        "from verl.trainer.ppo.reward import get_custom_reward_fn\n"
        "function = get_custom_reward_fn(compose(json.loads(Path(sys.argv[1]).read_text())))\n"
        "row = dict(data_source='capitals', ground_truth='City 1', extra_info={'index': 0, 'num_turns': 2})\n"
        "async def scores():\n"
        "    texts = ('<answer>City 1</answer>', '')\n"
        "    return await asyncio.gather(*(function(solution_str=text, **row) for text in texts))\n"
        "print([found['score'] for found in asyncio.run(scores())])\n"
    )
    loading = [sys.executable, "-c", code, str(tmp_path / "overrides.json")]
    done = subprocess.run(loading, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["[1.0, 0.0]"], done.stderr
    (tmp_path / "task" / "reward.py").write_text(REWARD + "# changed\n")
    done = subprocess.run(loading, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "has changed since the task was made" in done.stderr


def test_a_tiny_model_that_is_never_right_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = prepare(dir=tmp_path / "task", family="echo", n_train=4, n_val=2, n_test=2, make_model=False)
    (tmp_path / "search.yaml").write_text(f"name: demo\nstorage: {tmp_path}\ntask: {{family: echo}}\n")
    monkeypatch.setattr(command, "task_of", lambda *_: replace(made, greedy_val_accuracy=0.0))
    assert main(["prepare", str(tmp_path / "search.yaml")]) == 0
    assert "warning: the base model is never right" in capsys.readouterr().out
