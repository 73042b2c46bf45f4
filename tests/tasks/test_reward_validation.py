"""What a reward must do before anything is trained with it, and that it stays as it was then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared import load_task
from llmzero_ray.prepared.manifest import RewardEntry
from llmzero_ray.prepared.reward import open_reward
from llmzero_ray.prepared.reward_validation import validate_reward
from llmzero_ray.prepared.reward_validation.calls import call_arguments
from llmzero_ray.prepared.reward_validation.probe_responses import GOLD_FORMS, hostile_responses
from llmzero_ray.prepared.reward_validation.report import ValidationReport, shown, validation_table
from llmzero_ray.prepared.sandbox import Isolation, Sandbox, SandboxLimits
from llmzero_ray.tasks.sources.prepare import prepare_source
from llmzero_ray.tasks.sources.summary import Summary
from llmzero_ray.tasks.task_yaml import parse_task_file
from tests.marks import needs_sandbox
from tests.tasks.builders import row, write_task
from tests.tasks.synthetic import write_jsonl

pytestmark = needs_sandbox

GOOD = """
import re
def score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    found = re.findall(r"<answer>([^<]*)</answer>", solution_str)
    answer = found[-1].strip() if found else ""
    right = float(answer != "" and answer == ground_truth)
    return {"score": right, "acc": right, "pred": answer}
"""
ROWS = [row(number, f"question {number}", f"City {number % 5}") for number in range(40)]


def report(tmp_path: Path, source: str = GOOD, rows: Any = ROWS, gold: str | None = None) -> ValidationReport:
    path = tmp_path / "mine.py"
    path.write_text(source)
    limits = SandboxLimits(cpu_s=1, losses=1)
    reward = RewardEntry(path=path.name, name="score", gold_response=gold)
    return validate_reward(reward, tmp_path, rows, limits=limits)


def failed(found: ValidationReport) -> list[str]:
    return [check.name for check in found.checks if not check.passed]


def test_a_good_reward_passes_every_check(tmp_path: Path) -> None:
    found = report(tmp_path)
    assert found.passed and failed(found) == []
    assert found.gold_response == "<answer>{answer}</answer>"
    assert (found.n_rows, found.isolation) == (40, "bubblewrap")
    head, *lines = validation_table(found.entry())
    assert head == ("validation", "found", "needed", "result")
    assert [line[0] for line in lines] == [check.name for check in found.checks]
    assert {line[3] for line in lines} == {"passed"}
    assert "passed validation on 40 rows" in found.text()


PAYS_SILENCE = ('answer != "" and answer == ground_truth', "not found or answer == ground_truth")
PAYS_WORDS = ("answer == ground_truth", "answer.lower().startswith(('city', 'zz'))")
CONTROLS = ("right = ", "if '\\0' in solution_str: raise ValueError('control')\n    right = ")
RIGHT, EMPTY, GARBAGE = "right answers score 1", "empty answers score 0", "meaningless answers score 0"
CONSTANT, SAME, KEYS = "constant answer", "same answer, same score", "same keys, finite numbers"
NO_THOUGHT = "answers without thought"


@pytest.mark.parametrize(
    ("change", "checks"),
    [
        (("answer == ground_truth", "answer == ground_truth + '!'"), [RIGHT]),
        (('"score": right', '"score": right / 2'), [RIGHT]),
        (PAYS_SILENCE, [EMPTY, GARBAGE, CONSTANT, NO_THOUGHT]),
        (PAYS_WORDS, [GARBAGE, CONSTANT, NO_THOUGHT]),
        (("answer == ground_truth", "answer.startswith('City')"), [CONSTANT, NO_THOUGHT]),
        (('"pred": answer', '"pred": str(hash(answer))'), [SAME]),
        (('"pred": answer', '"pred": SEEN.append(1) or len(SEEN)'), [SAME]),
        (('"pred": answer}', '**({"pred": answer} if found else {})}'), [KEYS]),
        (CONTROLS, ["hostile answers raise nothing", "every call gives a result"]),
    ],
)
def test_each_fault_is_found_by_the_checks_that_are_for_it(
    tmp_path: Path, change: tuple[str, str], checks: list[str]
) -> None:
    source = GOOD.replace(*change) + "SEEN = []\n"
    assert change[1] in source
    assert failed(report(tmp_path, source)) == checks


@pytest.mark.slow
def test_a_slow_reward_is_refused_after_a_few_rows(tmp_path: Path) -> None:
    busy = "end = time.process_time() + 0.3\n    while time.process_time() < end: pass\n    right = "
    # Its own clock stands still.
    source = "import time\nclock = time.process_time\ntime.process_time = lambda: 0.0\n"
    source += GOOD.replace("right = ", busy.replace("time.process_time()", "clock()"))
    found = report(tmp_path, source, ROWS[:2])
    assert [(check.name, check.passed) for check in found.checks] == [("processor time of a row", False)]
    assert "needed: p99 < 50 ms" in found.text()


def test_what_fails_is_named_with_shortened_rows(tmp_path: Path) -> None:
    rows = [row(number, f"question {number}", "y" * 500) for number in range(10)]
    text = report(tmp_path, GOOD.replace("== ground_truth", "== 'z'"), rows).text()
    assert "did not pass validation on 10 rows" in text
    assert "right answers score 1: 0.0% of 10, written as {answer}; needed: 99%" in text
    assert text.count("any row ") == 3 and "... (500 characters)" in text
    assert max(map(len, text.splitlines())) < 600


@pytest.mark.slow
def test_one_wrong_answer_in_a_hundred_is_forgiven_and_two_are_not(tmp_path: Path) -> None:
    rows = [row(number, f"question {number}", f"City {number}") for number in range(100)]
    for wrong, passed in ((1, True), (2, False)):
        odd = [row(number, f"question {number}", "a<b") for number in range(wrong)]
        assert ("right answers score 1" not in failed(report(tmp_path, rows=[*rows[wrong:], *odd]))) is passed


@pytest.mark.slow
@pytest.mark.parametrize("form", GOLD_FORMS)
def test_usual_forms_of_right_answers_are_found_out(tmp_path: Path, form: str) -> None:
    before, after = form.split("{answer}")
    source = GOOD.replace(
        're.findall(r"<answer>([^<]*)</answer>", solution_str)',
        f"re.findall('^' + re.escape({before!r}) + '(City .*?)' + re.escape({after!r}) + '$', solution_str)",
    )
    assert report(tmp_path, source).gold_response == form


@pytest.mark.slow
def test_a_form_of_ones_own_is_taken_as_it_is(tmp_path: Path) -> None:
    source = GOOD.replace("<answer>([^<]*)</answer>", "~(.*)~")
    assert failed(report(tmp_path, source)) == ["right answers score 1"]
    assert report(tmp_path, source, gold="~{answer}~").passed


def test_of_several_wordings_the_first_is_the_right_answer(tmp_path: Path) -> None:
    rows = [row(n, f"question {n}", json.dumps({"target": [f"City {n}", "x"]})) for n in range(10)]
    source = "import json\n" + GOOD.replace("== ground_truth", "in json.loads(ground_truth)['target']")
    assert report(tmp_path, source, rows).passed


@pytest.mark.slow
def test_worked_solutions_with_one_result_are_one_constant_answer(tmp_path: Path) -> None:
    """As in GSM8K: every ground truth is a text of its own, results repeat."""
    reads_last = """
def score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    words, gold = solution_str.split(), ground_truth.split()[-1]
    answer = words[-1] if words and words[-1].isdigit() else ""
    right = float(answer == gold)
    return {"score": right, "acc": right, "pred": answer}
"""
    rows = [row(number, f"question {number}", f"way {number}: {number % 4}") for number in range(40)]
    found = report(tmp_path, reads_last, rows, gold="{answer}")
    assert failed(found) == []
    [constant] = [check for check in found.checks if check.name == CONSTANT]
    assert constant.needed.startswith("<= 0.250")
    generous = reads_last.replace("answer == gold", "answer in (gold, '0')")
    assert failed(report(tmp_path, generous, rows, gold="{answer}")) == [CONSTANT, NO_THOUGHT]


def test_each_data_source_has_its_own_constant_answer(tmp_path: Path) -> None:
    other = [{**each, "data_source": "other"} for each in ROWS]
    names = [check.name for check in report(tmp_path, rows=[*ROWS, *other]).checks]
    assert {"constant answer to sums", "constant answer to other"} <= set(names)


@pytest.mark.slow
def test_a_reward_that_hangs_is_refused_in_bounded_time(tmp_path: Path) -> None:
    source = GOOD.replace("right = ", "while 'zzqx' in solution_str: pass\n    right = ")
    text = report(tmp_path, source).text()
    assert "used more than 1 s of processor time" in text and "was not tried" in text


def test_what_cannot_be_vetted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="is asynchronous; the sandbox runs plain functions alone"):
        report(tmp_path, GOOD.replace("def score", "async def score"))
    with pytest.raises(TaskError, match="cannot be validated without rows"):
        report(tmp_path, rows=[])


def test_hostile_responses_are_the_same_two_hundred_every_time() -> None:
    responses = hostile_responses()
    assert len(responses) == 200 and len(set(responses)) > 190
    assert responses == hostile_responses()
    assert max(map(len, responses)) >= 1_000_000
    assert any("\x00" in each for each in responses) and "".join(responses).encode()


def test_texts_are_shown_short_and_harmless() -> None:
    assert shown("a\x1b[2J") == "'a\\x1b[2J'"
    assert shown("x" * 10_000) == f"'{'x' * 59}... (10000 characters)"


# --- as it was validated ------------------------------------------------------------------------------------


def own_task(tmp_path: Path, source: str = GOOD, **reward: Any) -> Summary:
    (tmp_path / "mine.py").write_text(source)
    cities = [{"country": f"country {n}", "city": f"City {n % 7}"} for n in range(40)]
    data = {
        "name": "capitals",
        "files": str(write_jsonl(tmp_path / "rows.jsonl", cities)),
        "dir": str(tmp_path / "task"),
        "prompt": "Which city is the capital of {country}?",
        "answer": "city",
        "reward": {"python": f"{tmp_path / 'mine.py'}:score", **reward},
        "n_train": 20,
        "n_val": 5,
        "n_test": 5,
    }
    return prepare_source(parse_task_file(data))


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """A task whose reward is the good one; what changes it takes a copy."""
    return own_task(tmp_path_factory.mktemp("validated"))


@pytest.fixture
def own_copy(validated: Summary, tmp_path: Path) -> Path:
    """Directory of a copy of that task."""
    return Path(shutil.copytree(validated.task.directory, tmp_path / "task"))


def test_a_task_keeps_what_its_reward_was_validated_as(validated: Summary) -> None:
    summary = validated
    task = load_task(summary.task.directory)
    assert task.reward_path == str(Path(task.directory) / "reward.py")
    assert (task.reward_module, task.reward_name) == (None, "score")
    assert task.reward_sha256 == digest_of(task.directory)
    assert set(task.reward_keys or ()) == {"index", "split", "row_id", "reward_options"}
    assert summary.validation is not None and summary.validation.isolation == "bubblewrap"
    assert [line[3] for line in summary.reward_table()[1:]] == ["passed"] * 10
    assert summary.trial is not None and (summary.trial.gold, summary.trial.garbage) == (1.0, 0.0)
    assert summary.warnings == ()


def test_another_function_of_the_same_file_is_another_reward(tmp_path: Path) -> None:
    source = f"{GOOD}\n\nother = score\n"
    made = own_task(tmp_path, source).task
    assert own_task(tmp_path, source).task == made
    with pytest.raises(TaskError, match="reward function is 'score' there, 'other' wanted"):
        own_task(tmp_path, source, python=f"{tmp_path / 'mine.py'}:other")


def test_opening_a_vetted_task_runs_no_code_of_the_user(
    validated: Summary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmzero_ray.prepared.sandbox.scorer.Sandbox._started", lambda _: 1 / 0)
    assert load_task(validated.task.directory) == validated.task


def digest_of(directory: str | Path) -> str:
    held = json.loads((Path(directory) / "manifest.json").read_text())
    return str(held["source"]["reward_sha256"])


def test_a_changed_reward_is_refused_by_the_task_and_by_the_sandbox(own_copy: Path) -> None:
    reward = own_copy / "reward.py"
    reward.write_text(GOOD + "# changed\n")
    with pytest.raises(TaskError, match=r"reward.py has changed since the task was made"):
        load_task(own_copy)
    with pytest.raises(TaskError, match=r"reward.py has changed since the task was made"):
        Sandbox(reward, "score", sha256=digest_of(own_copy))
    reward.unlink()
    with pytest.raises(TaskError, match=r"reward.py cannot be read"):
        load_task(own_copy)


def test_a_vetted_task_is_refused_on_a_machine_without_a_sandbox_unless_that_is_allowed(
    own_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Isolation(kind="none", why="bwrap is not installed")
    monkeypatch.setattr("llmzero_ray.prepared.sandbox.isolation.find_isolation", lambda: found)
    with pytest.raises(TaskError, match=r"read your files.*install bubblewrap.*allow_unsandboxed: true"):
        load_task(own_copy)
    manifest = own_copy / "manifest.json"
    held = json.loads(manifest.read_text())
    held["reward"]["allow_unsandboxed"] = True
    manifest.write_text(json.dumps(held))
    assert load_task(own_copy).reward_unsandboxed


def test_a_vetted_reward_may_define_dataclasses(tmp_path: Path) -> None:
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    task = own_task(tmp_path, f"{head}@dataclass\nclass A:\n    a: int = 0\n{GOOD}").task
    with Sandbox(task.reward_path, "score", sha256=task.reward_sha256) as sandbox:
        [outcome] = sandbox.score([call_arguments(ROWS[0], "")])
    assert outcome.result["acc"] == 0.0


def test_a_reward_that_does_not_pass_leaves_no_task_behind(tmp_path: Path) -> None:
    with pytest.raises(TaskError) as caught:
        own_task(tmp_path, GOOD.replace("answer == ground_truth", "answer.startswith('City')"))
    message = str(caught.value)
    assert f"reward {tmp_path / 'mine.py'}:score did not pass validation on 30 rows" in message
    assert "constant answer" in message and "Nothing was kept" in message
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == [
        "mine.py",
        "rows.jsonl",
    ]


@pytest.mark.slow
def test_when_no_form_is_right_the_message_says_how_to_name_one(tmp_path: Path) -> None:
    source = GOOD.replace("<answer>([^<]*)</answer>", "~(.*)~")
    with pytest.raises(TaskError, match=r"name the form as reward\.gold, such as '<answer>"):
        own_task(tmp_path, source)
    assert own_task(tmp_path, source, gold="~{answer}~").validation is not None


def test_the_reward_of_a_task_put_together_by_hand_runs_in_the_sandbox(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    source = GOOD + f"try:\n    open({str(mark)!r}, 'w').close()\nexcept OSError:\n    pass\n"
    directory = write_task(tmp_path / "task", reward={"path": "mine.py", "name": "score"})
    (directory / "mine.py").write_text(source)
    assert load_task(directory).reward_path == str(directory / "mine.py")
    assert not mark.exists()


def test_a_module_that_does_not_ship_runs_in_the_sandbox_unless_the_manifest_says_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, package = tmp_path / "ran", tmp_path / "path" / "their_package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "words.py").write_text("OPEN = '<answer>'\n")
    source = GOOD + f"try:\n    open({str(mark)!r}, 'w').close()\nexcept OSError:\n    pass\n"
    (package / "reward.py").write_text("from .words import OPEN\n" + source)
    monkeypatch.syspath_prepend(str(package.parent))
    entry = {"module": "their_package.reward", "name": "score", "gold_response": "<answer>{answer}</answer>"}
    task = load_task(write_task(tmp_path / "task", reward=entry))
    assert (task.reward_module, task.reward_top) == ("their_package.reward", str(package))
    assert task.reward_path == str(package / "reward.py")
    with open_reward(RewardEntry(**entry), tmp_path / "task") as confined:
        [right] = confined.score([call_arguments(ROWS[0], "<answer>City 0</answer>")])
    assert right.result["acc"] == 1.0
    assert not mark.exists()
    trusted = load_task(write_task(tmp_path / "other", reward={**entry, "in_place": True}))
    assert trusted.reward_top is None and mark.exists()


def test_the_code_of_a_path_cannot_run_in_place(tmp_path: Path) -> None:
    entry = {"path": "mine.py", "in_place": True}
    with pytest.raises(TaskError, match="in_place is for a module"):
        load_task(write_task(tmp_path / "task", reward=entry))
