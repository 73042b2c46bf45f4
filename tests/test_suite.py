"""The suite: problems with right answers, a hash that freezes a task, and a headroom measurement that goes
on."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re
import shutil
import statistics
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.suite import headroom, real, scores, tasks
from benchmarks.suite.families.long_sums import LongSums
from benchmarks.suite.families.operation_codes import OperationCodes
from benchmarks.suite.noisy_reward import compute_score
from benchmarks.suite.plan import CHECKED, LAST_METHODS, LAST_SEEDS, METHODS, plan
from benchmarks.suite.plan import main as write_plan
from benchmarks.suite.tasks import (
    BASE,
    CAPPED,
    LATE,
    TASKS,
    SuiteTask,
    config,
    digest,
    settings,
    task_named,
)
from llmzero_ray.agents.llm.messages import LlmCall, TextBlock
from llmzero_ray.agents.llm.recorded import RecordedResponses
from llmzero_ray.agents.llm.response_schemas import TOOLS
from llmzero_ray.config import load_config
from llmzero_ray.config.schedule import read_schedule
from llmzero_ray.config.yaml_text import read_yaml, to_yaml
from llmzero_ray.errors import ConfigError, TaskError
from llmzero_ray.methods.compare.plan import ComparedRun, ComparePlan, configs
from llmzero_ray.methods.values import scheduled
from llmzero_ray.prepared.confirmation import check_spare_rows, write_confirmation
from llmzero_ray.prepared.task import load_task
from llmzero_ray.tasks.prepare import FamilySpec
from llmzero_ray.tasks.rewards import marked_answer
from tests.blackbox import inputs
from tests.marks import needs_sandbox

ROOT = Path(__file__).parent.parent
FAMILIES = (LongSums(), LATE, CAPPED, OperationCodes())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_problems_repeat_with_their_seed_and_some_demonstrations_are_right(family: Any) -> None:
    problems = list(itertools.islice(family.problems(7), 200))
    assert problems == list(itertools.islice(family.problems(7), 200))
    rng = random.Random(1)
    scores = [
        marked_answer.compute_score("x", family.demonstration(one, rng), one.answer)["score"]
        for one in problems
    ]
    assert 0 < sum(map(float, scores)) <= 200


def test_answers_of_codes_are_the_operations_of_their_letters() -> None:
    """Every letter has one operation on all its problems, and it is digit by digit."""
    family = OperationCodes()
    for problem in itertools.islice(family.problems(1), 300):
        a, b = problem.prompt[1:].split(",")
        assert len(problem.answer) == len(a) == len(b) == 2
        meanings = family._meanings()[problem.prompt[0]]
        assert meanings[0] != meanings[1]


def test_chains_of_capped_registers_pass_the_default_cap_and_fit_the_evaluation() -> None:
    """One token a character and one for the end: the shortest needs more than 24, the longest 31 of 32."""
    whole = dataclasses.replace(CAPPED, worked=(0.0, 0.0, 1.0), direct=(0.0, 0.0, 1.0))
    problems = itertools.islice(CAPPED.problems(1), 300)
    lengths = {len(whole.demonstration(one, random.Random(1))) + 1 for one in problems}
    found = config(task_named("register_capped"), Path("data"))
    assert min(lengths) > 24 == found.root.overrides["resp"]
    assert max(lengths) <= found.eval.max_response_length == 32


def test_noise_flips_three_training_scores_in_ten_and_no_other() -> None:
    def score(index: int, split: str) -> dict[str, float]:
        return compute_score("x", "#4", "4", {"index": index, "split": split})

    train = [score(index, "train") for index in range(2000)]
    assert 0.26 < sum(one["score"] == 0.0 for one in train) / 2000 < 0.34
    assert all(one["acc"] == 1.0 for one in train)
    assert all(score(index, "val")["score"] == 1.0 for index in range(200))
    assert train == [score(index, "train") for index in range(2000)]


def test_every_task_is_a_search_with_the_same_default_and_a_hash_of_its_own() -> None:
    found = [config(task, Path("data")) for task in TASKS]
    assert len(TASKS) >= 6
    assert len({json.dumps(one.root.overrides, sort_keys=True) for one in found}) == 1
    assert len({digest(task) for task in TASKS}) == len(TASKS)


def test_a_changed_family_gets_its_own_directory_and_leaves_the_other_tasks_alone() -> None:
    """Neither its old rows and model are used again, nor is the headroom of others measured again."""
    late = task_named("register_late")
    fewer = dataclasses.replace(late, family=dataclasses.replace(LATE, most=LATE.most - 1))
    here = Path("data")
    assert settings(fewer, here)["task.dir"] != settings(late, here)["task.dir"]
    assert digest(fewer) != digest(late)
    noisy = task_named("sum_noisy")
    assert settings(noisy, here)["task.dir"] != settings(task_named("sum"), here)["task.dir"]
    assert (
        settings(task_named("sum"), here)["task.dir"] == settings(task_named("sum_alpha"), here)["task.dir"]
    )
    assert digest(task_named("sum")) != digest(task_named("sum_alpha"))


@needs_sandbox
def test_a_made_task_has_items_to_confirm_on_its_kept_model_and_a_noisy_one_its_reward(
    tmp_path: Path,
) -> None:
    task = dataclasses.replace(task_named("register_capped"), is_noisy=True)
    sizes = {"train": 64, "val": 32, "test": 32}
    tasks.write(tmp_path, task, FamilySpec(family=task.family, sizes=sizes, seed=1, make_model=True))
    made = load_task(tmp_path)
    assert made.n_train == 64
    check_spare_rows(made)
    assert write_confirmation(made, 5, tmp_path / "fresh.parquet") == tasks.N_CONFIRM
    assert (tmp_path / "noisy_reward.py").is_file()
    kept = tasks.model_of(task) / tasks.WEIGHTS
    assert (Path(str(made.model_path)) / tasks.WEIGHTS).read_bytes() == kept.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_kept_model_of_a_task_reads_and_says_its_prompts(task: SuiteTask) -> None:
    """No character of a problem or of its answer is unknown to the kept tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tasks.model_of(task))
    problems = list(itertools.islice(task.family.problems(1), 50))
    rng = random.Random(1)
    for problem in problems:
        text = problem.prompt + task.family.demonstration(problem, rng)
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


def test_a_task_without_a_kept_model_says_how_to_make_it() -> None:
    unknown = dataclasses.replace(task_named("register_late"), family=dataclasses.replace(LATE, name="new"))
    with pytest.raises(TaskError, match=r"python -m benchmarks\.suite\.freeze register_late"):
        digest(unknown)


def test_another_model_is_another_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_named("codes")
    before, here = digest(task), settings(task, Path("data"))["task.dir"]
    copied = tmp_path / task.family.name
    shutil.copytree(tasks.model_of(task), copied)
    monkeypatch.setattr(tasks, "MODELS", tmp_path)
    assert digest(task) == before
    (copied / tasks.WEIGHTS).write_bytes(b"another")
    assert digest(task) != before and settings(task, Path("data"))["task.dir"] != here


def measured(arm: str, seed: int, times: int = 1, score: float = 0.5) -> dict[str, Any]:
    return {
        "arm": arm,
        "seed": seed,
        "times": times,
        "validation": score,
        "test": score,
        "digest": digest(TASKS[0]),
        "wall_s": 36.0,
    }


def whole() -> list[dict[str, Any]]:
    """A complete measurement of arms a, b and c, of which b is the best."""
    known: list[dict[str, Any]] = []
    scores = {"default": 0.5, "a": 0.55, "b": 0.6, "c": 0.4}
    while (wanted := headroom.next_run(known, scores)) is not None:
        arm, seed = wanted["arm"], wanted["seed"]
        bonus = 0.01 * (seed - 102) + (0.1 if wanted["times"] == 3 else 0.0)
        known.append(measured(arm, seed, wanted["times"], scores[arm] + bonus))
    return known


def test_a_measurement_trains_the_default_then_every_arm_then_the_best_two_and_the_ceilings() -> None:
    order = [(run["arm"], run["seed"], run["times"]) for run in whole()]
    assert order == [
        *(("default", seed, 1) for seed in (101, 102, 103)),
        *((arm, 101, 1) for arm in "abc"),
        *((arm, seed, 1) for arm in "ba" for seed in (102, 103)),
        ("default", 101, 3),
        ("b", 101, 3),
    ]


def test_headroom_is_the_best_static_minus_the_default_over_the_seeds() -> None:
    found = headroom.summary(whole())
    assert (found["best_arm"], found["headroom"]) == ("b", pytest.approx(0.1))
    assert found["noise"] == pytest.approx(0.01)
    assert found["ceiling"] == pytest.approx(0.69)
    assert found["default_at_3"] == pytest.approx(0.59)


def test_a_torn_last_line_is_measured_again_and_another_definition_is_refused(tmp_path: Path) -> None:
    path, run = tmp_path / "sum.runs.jsonl", measured("default", 101)
    path.write_text(json.dumps(run) + '\n{"arm": "def')
    assert headroom._read(path, digest(TASKS[0])) == [run]
    assert path.read_text() == json.dumps(run) + "\n"
    with pytest.raises(ConfigError, match="another definition"):
        headroom._read(path, "another")


def test_the_table_is_of_this_definition_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "headroom.json"
    headroom._keep(path, TASKS[0], whole())
    assert headroom.headrooms(path) == {"sum": pytest.approx(0.1)}
    assert "| sum | saturates fast; negative control | 0.500 | 0.010 | 0.600 (b) | +0.100" in headroom.table(
        json.loads(path.read_text())
    )
    other = dataclasses.replace(TASKS[0], set={"model.lora_alpha": 4})
    monkeypatch.setattr(tasks, "TASKS", (other, *TASKS[1:]))
    assert headroom.headrooms(path) == {}


def test_a_plan_refuses_tasks_without_headroom_and_the_seeds_of_headroom() -> None:
    headroom = {"sum": 0.0, "sum_long": 0.1}
    found = plan("dev", ["default", "expert"], ["sum", "sum_long"], [1, 2], headroom, Path("data"))
    assert [task["headroom"] for task in found["tasks"]] == [0.0, 0.1]
    eight = plan("dev", ["default", "best_of_8"], ["sum"], [1], headroom, Path("data"))
    assert [method["times"] for method in eight["methods"]] == [1, 8]
    with pytest.raises(
        ConfigError, match=r"codes: no measured headroom\. .* benchmarks\.suite\.headroom codes"
    ):
        plan("dev", ["default"], ["sum", "codes"], [1], headroom, Path("data"))
    with pytest.raises(ConfigError, match=r"seeds \[101\]"):
        plan("dev", ["default"], ["sum"], [1, 101], headroom, Path("data"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "give either --methods and --seeds, or --last"),
        (["--methods", "default"], "give either --methods and --seeds, or --last"),
        (["--last", "--seeds", "1"], "give either --methods and --seeds, or --last"),
        (["--last", "--tasks", "sum_ever"], "plan: the suite has no task 'sum_ever'"),
    ],
)
def test_the_last_seeds_are_planned_on_request_alone_and_bad_input_is_one_message(
    given: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["plan", "dev", *given, "--data", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        write_plan()
    assert message in f"{ended.value.code} {capsys.readouterr().err}"
    assert list(tmp_path.iterdir()) == []


def test_the_plan_of_the_last_table_has_its_methods_and_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a task that headroom was measured of."""
    monkeypatch.setattr(
        "sys.argv", ["plan", "last", "--last", "--tasks", "sum_long", "--data", str(tmp_path)]
    )
    write_plan()
    made = yaml.safe_load(capsys.readouterr().out)
    assert [method["name"] for method in made["methods"]] == list(LAST_METHODS)
    assert made["seeds"] == list(LAST_SEEDS) and Path(made["base"]).is_file()


@pytest.mark.parametrize("method", [name for name in METHODS if name.startswith("as_")])
def test_published_strategies_replay_on_the_suites_default(method: str) -> None:
    """Every phase of theirs gives values for the small recipe."""
    schedule = read_schedule(METHODS[method]["search.schedule"])
    root = {"actor_rollout_ref.actor.optim.lr": 1e-3}
    assert all(isinstance(scheduled(schedule, root, n), dict) for n in range(len(schedule.phases)))


# --- committed scores ---------------------------------------------------------------------------------------


def comparison(directory: Path, **changed: Any) -> Path:
    """A comparison of random search and the default on sum_alpha, of which one run has ended."""
    task = task_named("sum_alpha")
    made: dict[str, Any] = {**settings(task, directory / "data"), **CHECKED, **changed}
    given = {
        "base": str(BASE),
        "tasks": [{"name": task.name, "set": made}],
        "methods": [{"name": name, "set": METHODS[name]} for name in ("random", "default")],
        "seeds": [1, 2],
    }
    search = inputs.copy_of("finished", directory / "made")
    search.rename(directory / "sum_alpha-random-2")
    (directory / "compare.json").write_text(json.dumps({"plan": given, "code": "c0de"}))
    return directory


def test_scores_of_what_has_ended_are_taken_over_and_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "scores.json"
    one = scores.ended(comparison(tmp_path))
    assert [(row["task"], row["method"], row["seed"], row["code"]) for row in one] == [
        ("sum_alpha", "random", 2, "c0de")
    ]
    assert one[0]["digest"] == digest(task_named("sum_alpha")) and 0 <= one[0]["test"] <= 1
    kept.write_text(json.dumps([{**one[0], "test": 0.0}, {**one[0], "seed": 1, "test": 0.25}]))
    monkeypatch.setattr("sys.argv", ["scores", "--file", str(kept), "--add", str(tmp_path)])
    scores.main()
    rows = scores.read(kept)
    assert [(row["seed"], row["test"]) for row in rows] == [(1, 0.25), (2, one[0]["test"])]
    mean = (0.25 + one[0]["test"]) / 2
    assert f"| sum_alpha | {one[0]['base']:.3f} | {mean:.3f} ± " in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["scores", "--file", str(kept), "--tasks", "sum_long"])
    scores.main()
    assert "sum_alpha" not in capsys.readouterr().out
    one_table = ["scores", "--file", str(kept), "--methods", "random", "--seeds", "1", "2", "3"]
    monkeypatch.setattr("sys.argv", one_table)
    scores.main()
    assert capsys.readouterr().out.startswith("2 pairs: sum_alpha 2.")
    monkeypatch.setattr("sys.argv", one_table[:-4])
    with pytest.raises(SystemExit):
        scores.main()
    assert "give --methods and --seeds together" in capsys.readouterr().err
    said = scores.line(rows, "random", "sum_alpha")
    assert said.startswith(f"not of this run: random scored {mean:.3f} ± ") and "(2 seeds; for the" in said


def test_a_run_that_crashed_counts_with_the_base_models_score(tmp_path: Path) -> None:
    directory = comparison(tmp_path)
    (directory / "sum_alpha-default-1.code").write_text("5")
    crashed = {row["method"]: row for row in scores.ended(directory)}["default"]
    assert (crashed["test"], crashed["problem"]) == (crashed["base"], "the search ended with exit code 5")


def test_the_last_table_counts_pairs_that_all_its_methods_have() -> None:
    def row(method: str, seed: int, test: float, code: str = "a") -> dict[str, Any]:
        spent = 11.0 if method == "tpe" else 10.0
        known = {"task": "sum", "base": 0.4, "problem": "", "compute": spent}
        return {**known, "method": method, "seed": seed, "test": test, "code": code}

    rows = [row("expert", seed, 0.6 + seed / 100) for seed in (11, 12, 13)]
    rows += [row("pbt", 11, 0.70), row("pbt", 12, 0.72, code="b"), row("expert", 1, 0.99)]
    text = scores.compared(rows, ("expert", "pbt"), (11, 12, 13))
    assert "2 pairs: sum 2." in text
    assert "| expert | 0.715 | 0.710 to 0.720 | 1.25 | +0.000 ± 0.000 | 0.50 | 0 of 2 |  | 0 |" in text
    assert "| pbt | 0.710 | 0.700 to 0.720 | 1.75 | +0.005 ± 0.005 | 0.38 | 0 of 2 |  | 0 |" in text
    assert "| lead of expert over | pbt |\n|---|---|\n| sum | +0.005 ± 0.005 |" in text
    assert "| sum | 0.400 |" in scores.table(rows) and text.endswith("2 versions of the code: a, b.")
    assert scores.compared(rows, ("expert", "another")) == "nothing was measured"
    assert " x | 0 |" not in text  # its rows are of two versions of the code, each priced by its own pilot
    rows = [row("expert", 1, 0.99), *(row(method, 21, 0.9) for method in ("expert", "tpe", "pbt", "default"))]
    rows += [row(method, 107, 0.8) for method in ("expert", "claude")]
    development, last, model, mended, later = re.split("Last table:|A language model", scores.tables(rows))
    assert "0.990 (1)" in development and "0.900 (1)" not in development
    assert "1 pairs: sum 1." in last and "| expert | 0.900 |" in last
    assert "| 0 of 1 | 1.10 x | 0 |" in last and "| 0 of 1 | 1.00 x | 0 |" in last
    assert "(seeds 104 to 106)" in model and "nothing was measured" in model
    assert "(seeds 110 to 112)" in later and "nothing was measured" in later
    assert "(seeds 107 to 109)" in mended and "| claude | 0.800 |" in mended


def test_scores_of_another_definition_are_refused_or_left_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no comparison"):
        scores.ended(tmp_path)
    with pytest.raises(ConfigError, match="sum_alpha is not the suite's task of that name"):
        scores.ended(comparison(tmp_path, **{"model.lora_alpha": 1}))
    row = {
        "task": "sum_alpha",
        "digest": "of before",
        "method": "random",
        "seed": 1,
        "test": 0.5,
        "base": 0.4,
    }
    assert scores.current([row]) == []
    with pytest.raises(ConfigError, match="no score of random on sum_alpha"):
        scores.line([], "random", "sum_alpha")
    assert scores.table([]) == "nothing was measured"


def test_the_demo_prints_the_committed_score_of_random_search() -> None:
    said = scores.line(scores.current(scores.read()), "random", "sum_alpha")
    assert f"    {said}\n" in (ROOT / "docs" / "demo.md").read_text()
    assert "benchmarks.suite.scores --of random sum_alpha" in (ROOT / "Makefile").read_text()


def test_the_table_of_headroom_is_printed_without_measuring(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def measure(*_: Any) -> None:
        raise AssertionError("nothing is to be trained")

    monkeypatch.setattr(headroom, "measure", measure)
    known = json.loads(headroom.TABLE.read_text(encoding="utf-8"))
    named, line = next(iter(known.items()))
    file = tmp_path / "headroom.json"
    file.write_text(json.dumps({named: line, "sum_slow": {**line, "digest": "of another definition"}}))
    monkeypatch.setattr("sys.argv", ["headroom", "--table", "--out", str(file)])
    headroom.main()
    printed = capsys.readouterr().out
    assert f"| {named} |" in printed and f"{line['headroom']:+.3f}" in printed
    assert "sum_slow" not in printed


def test_recorded_answers_of_a_language_model_belong_to_the_searches_that_are_scored(tmp_path: Path) -> None:
    with tarfile.open(tasks.HERE / "llm_answers.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    answered = [row for row in scores.read() if row["method"] in ("claude", "claude_again")]
    scored = {f"{row['task']}-{row['method']}-{row['seed']}" for row in answered}
    assert {search.name for search in tmp_path.iterdir()} == scored
    call = LlmCall(
        agent="proposer",
        node=1,
        system="?",
        content=(TextBlock(text="?"),),
        tool=TOOLS["proposer"],
        max_tokens=1,
    )
    for search in tmp_path.iterdir():
        config = load_config(search / "search.yaml")
        assert (config.name, config.agents.backend) == (search.name, "recorded")
        recorded = RecordedResponses(str(search)).client(1, "proposer-0.0")
        assert recorded.answer(call).input["diagnosis"]["summary"]


def test_a_pair_of_the_second_tier_says_what_its_reward_pays_without_thought(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real.make("larger", tmp_path)
    printed = capsys.readouterr()
    assert printed.out == ""  # it holds the plan
    assert "the question itself" in printed.err


def test_the_plan_of_the_second_tier_is_a_comparison_at_equal_budget(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text(to_yaml(real.recipe(tmp_path)), encoding="utf-8")
    planned = real.comparison("real", {"larger": tmp_path}, list(real.METHODS), [201])
    runs = configs(ComparePlan.model_validate({**planned, "base": str(base)}), tmp_path)
    static = runs[ComparedRun("larger", "cool_fast", 201)].search.schedule
    assert static is not None and static.phases[0].changes == {"temperature": 0.6, "lr": 2e-4}
    assert len(runs) == len(real.METHODS)


def test_questions_of_the_second_tier_are_many_and_right() -> None:
    draw = random.Random(1)
    for kind, of in (
        ("larger of two", max),
        ("middle of three", lambda found: sorted(found)[1]),
        ("smallest of three", min),
        ("sums, two digits", sum),
    ):
        made = dict(real.KINDS[kind](draw) for _ in range(500))
        assert len(made) > 400
        for question, truth in made.items():
            assert truth == of([int(number) for number in re.findall(r"\d+", question)])
    for question, truth in (real.KINDS["sums, differences, products"](draw) for _ in range(500)):
        (sum_,) = re.findall(r"is (\d+ [-+*] \d+)\?", question)
        assert truth == eval(sum_) and isinstance(truth, int) and truth >= 0


def test_the_page_has_the_scores_of_the_searches_that_were_run_again() -> None:
    page = Path("docs/suite.md").read_text(encoding="utf-8")
    kept = {(row["task"], row["method"], row["seed"]): row["test"] for row in scores.read()}
    again = [(task, seed) for task, method, seed in kept if method == "claude_again"]
    assert len(again) == 12
    for name in {task for task, _ in again}:
        cells = []
        for method in ("claude", "claude_again", "expert"):
            found = [kept[task, method, seed] for task, seed in again if task == name]
            error = statistics.stdev(found) / len(found) ** 0.5
            cells.append(f"{statistics.fmean(found):.3f} ± {error:.3f}")
        assert f"| {' | '.join(cells)} |" in page


def test_the_page_has_the_scores_of_the_kept_searches() -> None:
    page = Path("docs/suite.md").read_text(encoding="utf-8").partition("## A pretrained model")[2]
    rows = real.scores().rows
    assert {row[1] for row in rows} > {"pilot", "expert", "claude"}
    names = {
        "larger": "larger of two numbers",
        "middle": "middle of three numbers",
        "mixed": "sums, differences, products",
        "smallest": "smallest of three numbers",
        "sums_99": "sums of two digits",
    }
    lines = page.splitlines()
    for pair, method, seed, base, test, *_ in rows:
        own = f"| {names[pair]} | {'' if method == 'pilot' else f'{seed} |'}"
        found = {
            number for line in lines if line.startswith(own) for number in re.findall(r"\d\.\d{3}", line)
        }
        assert {base, test} - {"–"} <= found, (pair, method, seed)
    for pair, method, _, test, *leads in real.leads(rows).rows:
        if method in ("expert", "claude"):
            assert leads[0].replace("0.", ".").removeprefix("+") in page, (pair, method)
        if method == "cool_fast" or (method.startswith("cool") and pair == "mixed"):
            assert test.removeprefix("0") in page
            assert leads[0].replace("0.", ".") in page, (pair, method)
            assert leads[1].replace("0.", ".") in page, (pair, method)


def test_kept_searches_hold_no_path_of_their_comparison_and_no_weights(tmp_path: Path) -> None:
    archive, name = tmp_path / "kept.tar.xz", "larger-expert-203"
    search = tmp_path / "other" / name
    with tarfile.open(real.SEARCHES) as kept:
        members = [one for one in kept if one.name.split("/")[0] == name]
        kept.extractall(tmp_path / "other", members=members, filter="data")
    storage = read_yaml(search / "search.yaml")["storage"].encode()
    (search / "best").mkdir()
    (search / "best" / "adapter_model.safetensors").write_bytes(b"weights")
    (tmp_path / "other" / "larger-expert-204" / "journal").mkdir(parents=True)  # has not ended
    tarfile.open(archive, "w:xz").close()
    assert real.keep(tmp_path / "other", archive) == [name]
    with tarfile.open(archive) as kept:
        files = {one.name: one_file.read() for one in kept if (one_file := kept.extractfile(one)) is not None}
    assert not any(storage in content for content in files.values())
    assert b"runs/other" in files[f"{name}/journal/00000001.e001.json"]
    assert not any("safetensors" in path for path in files)
    assert [row[:3] for row in real.scores(archive).rows] == [("larger", "expert", "203")]
