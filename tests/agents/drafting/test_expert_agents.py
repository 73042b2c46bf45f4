"""What rules make of a folder: a task that `prepare` accepts, or questions that say how to answer them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.config import load_config
from llmzero_ray.errors import ConfigError, StorageError
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.tasks.drafting.base import UserChoices
from llmzero_ray.tasks.drafting.draft import Draft, draft_task
from llmzero_ray.tasks.drafting.draft_files import write_draft
from llmzero_ray.tasks.drafting.expert_agents import ExpertDraftingAgents
from llmzero_ray.tasks.drafting.inspect_data import inspect_data
from llmzero_ray.tasks.sources.prepare import prepare_source
from llmzero_ray.tasks.task_yaml import load_task_file
from tests.agents.drafting.folders import Rows, questions, write_rows

SENTENCE = "Answer questions about numbers"
LETTERS = "ABCD"


def drafted(folder: Path, rows: Rows, *, name: str = "rows.jsonl", **given: Any) -> Draft:
    write_rows(folder / name, rows)
    return draft_task(inspect_data(folder), SENTENCE, UserChoices(**given), ExpertDraftingAgents())


def mcq(options: Callable[[int], Any], answer: Callable[[int], Any]) -> Rows:
    return questions(40, answer=answer, options=options)


def texts(i: int) -> list[str]:
    return [f"text {i} {letter}" for letter in LETTERS]


KINDS: dict[str, tuple[Rows, str]] = {
    "letters of a list": (mcq(texts, lambda i: LETTERS[i % 4]), "mcq"),
    "options in an object": (
        mcq(lambda i: dict(zip(LETTERS, texts(i), strict=True)), lambda i: LETTERS[i % 4]),
        "mcq",
    ),
    "texts of options": (mcq(texts, lambda i: texts(i)[i % 4]), "mcq"),
    "numbers of options": (mcq(texts, lambda i: i % 4), "mcq"),
    "a column per option": (
        [
            {**row, **dict(zip(LETTERS, texts(i), strict=True))}
            for i, row in enumerate(questions(40, lambda i: LETTERS[i % 4]))
        ],
        "mcq",
    ),
    "numbers": (questions(40, lambda i: i * 37 % 101), "math"),
    "tiny numbers": (questions(40, lambda i: (i * 37 % 101 + 1) / 10**7), "math"),
    "decimals with commas": (questions(40, lambda i: f"{i + 1},{i:03d}.5"), "math"),
    "LaTeX": (questions(40, lambda i: f"\\frac{{{i + 1}}}{{{i + 2}}}"), "math"),
    "labels": (questions(40, lambda i: ("yes", "no", "maybe")[i % 3]), "exact_match"),
    "short texts": (questions(40, lambda i: f"City {i}"), "exact_match"),
    "several wordings": (questions(40, lambda i: [f"City {i}", f"Town {i}"]), "exact_match"),
    "dates": (questions(40, lambda i: f"20{i:02d}-0{i % 9 + 1}-11"), "exact_match"),
    "codes": (questions(40, lambda i: f"AB-{i + 100}"), "exact_match"),
}


@pytest.mark.parametrize("what", KINDS)
def test_the_draft_of_a_plain_folder_is_prepared_as_it_was_written(what: str, tmp_path: Path) -> None:
    rows, kind = KINDS[what]
    draft = drafted(tmp_path / "in", rows)
    assert (draft.reward.kind, draft.open, draft.findings) == (kind, (), ())
    write_draft(draft, tmp_path / "out", {})
    task = load_task_file(tmp_path / "out" / "task.yaml", {"dir": str(tmp_path / "task")})
    summary = prepare_source(task)
    assert summary.warnings == () and (summary.task.n_train, summary.task.n_val) == (32, 4)
    assert summary.trial is not None
    assert (summary.trial.gold, summary.trial.empty, summary.trial.garbage) == (1.0, 0.0, 0.0)
    search = load_config(tmp_path / "out" / "search.yaml")
    root_hyperparameters(search, summary.task.n_train)
    assert any(line.startswith(f"reward {kind}: ") for line in draft.reward.evidence)


def test_the_prompt_shows_context_question_options_and_how_to_answer(tmp_path: Path) -> None:
    rows = [{**row, "context": f"Context {{{i}}}"} for i, row in enumerate(KINDS["letters of a list"][0])]
    template = drafted(tmp_path, rows).fields["prompt"]
    assert template.startswith("{context}\n\n{question}\n{options}\n\nReason step by step")
    assert template.endswith("\\boxed{{}}.")


def test_options_in_a_list_are_no_doubt(tmp_path: Path) -> None:
    assert drafted(tmp_path, KINDS["letters of a list"][0]).spec.doubts == ()


def test_labels_are_listed_in_the_prompt(tmp_path: Path) -> None:
    assert "one of: maybe, no, yes." in drafted(tmp_path, KINDS["labels"][0]).fields["prompt"]


def test_labels_are_those_of_all_rows(tmp_path: Path) -> None:
    rows = questions(3_000, lambda i: "no" if i < 1_500 else "rare" if i == 2_000 else "yes")
    draft = drafted(tmp_path, rows, name="rows.parquet")
    assert draft.fields["prompt"].count("one of: no, rare, yes.") == 1
    others = [{**row, "answer": f"label {i}"} if i % 250 == 1 else row for i, row in enumerate(rows)]
    draft = drafted(tmp_path, others, name="rows.parquet")
    assert draft.reward.kind == "exact_match" and "one of" not in draft.fields["prompt"]


def test_a_prompt_has_room_for_the_longest_of_all_rows(tmp_path: Path) -> None:
    rows = questions(3_000)
    for row in rows[1_201:3_000:40]:
        row["question"] = "long " * 3_000
    draft = drafted(tmp_path, rows)
    assert draft.search is not None and 5_000 < draft.search["engine"]["max_prompt_length"] < 5_500
    assert not any("max_prompt_length" in doubt for doubt in draft.spec.doubts)


@pytest.mark.parametrize(
    ("n", "place", "max_bytes", "counted"),
    [
        (3_000, 1_501, 2**28, "3000 prompts"),
        (40, 7, 2**28, "40 prompts"),
        (3_000, 0, 0, "400 sampled prompts"),
    ],
)
def test_one_very_long_row_does_not_size_the_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int, place: int, max_bytes: int, counted: str
) -> None:
    rows = questions(n)
    rows[place]["question"] = "long " * 60_000
    monkeypatch.setattr("llmzero_ray.tasks.drafting.draft._MAX_BYTES", max_bytes)
    draft = drafted(tmp_path, rows)
    assert draft.search is not None and draft.search["engine"]["max_prompt_length"] == 256
    [doubt] = [doubt for doubt in draft.spec.doubts if "max_prompt_length" in doubt]
    assert f"; 1 of {counted} is longer, up to about 100000: a GPU" in doubt


def test_prompts_beyond_the_largest_limit_are_a_doubt(tmp_path: Path) -> None:
    draft = drafted(tmp_path, questions(40, question=lambda i: f"{i} " + "long " * 30_000))
    assert draft.search is not None and draft.search["engine"]["max_prompt_length"] == 32_768
    assert any("40 of 40 prompts are longer" in doubt for doubt in draft.spec.doubts)


def test_a_cap_that_the_user_chose_decides_what_is_said_of_long_responses(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", questions(40, answer=lambda i: str(i)))
    said = {}
    for cap in (None, 24):
        draft = draft_task(
            inspect_data(tmp_path), SENTENCE, UserChoices(), ExpertDraftingAgents(), response_cap=cap
        )
        assert draft.ranking is not None and draft.search is not None
        said[cap] = "responses of more than 1024 tokens" in draft.ranking.explanation
    assert said == {None: True, 24: False}
    assert draft.search["root"]["overrides"]["resp"] == 24


def test_files_are_shared_out_by_their_names_and_the_licence_is_taken_over(tmp_path: Path) -> None:
    for name in ("train-00.jsonl", "validation.jsonl", "test/data.jsonl"):
        write_rows(tmp_path / name, questions(20))
    (tmp_path / "README.md").write_text("---\nlicense: cc-by-4.0\n---\nSome questions.")
    fields = draft_task(inspect_data(tmp_path), SENTENCE, UserChoices(), ExpertDraftingAgents()).fields
    assert fields["files"] == [str(tmp_path / "train-00.jsonl")]
    assert fields["val_files"] == [str(tmp_path / "validation.jsonl")]
    assert fields["test_files"] == [str(tmp_path / "test/data.jsonl")]
    assert fields["licence"] == "cc-by-4.0"


def long_answer(i: int) -> str:
    return f"Well, {i} is a number that " + "goes on and on " * 20


def open_fields(draft: Draft) -> dict[str, str]:
    return {question.field: question.flag for question in draft.open}


@pytest.mark.parametrize(
    ("rows", "asked"),
    [
        (questions(40, long_answer), {"reward": "--reward"}),
        (questions(40, lambda i: f"{long_answer(i)}\n#### {i}"), {"reward": "--reward"}),
        ([{"left": f"a {i}", "middle": f"b {i}", "right": f"c {i}"} for i in range(40)],
         {"prompt": "--question-field", "answer": "--answer-field", "reward": "--reward"}),
        ([{"text": f"a text {i}", "id": i} for i in range(40)],
         {"answer": "--answer-field", "reward": "--reward"}),
        (mcq(texts, lambda i: i % 4 + 1), {"answer_form": "--answer-form"}),
        (mcq(texts, lambda i: i % 3 + 1), {"answer_form": "--answer-form"}),
        (mcq(lambda i: [str(j) for j in range(4)], lambda i: i % 4), {}),
        (mcq(lambda i: {"label": list("abc"), "text": ["x", "y", "z"]}, lambda i: "ABC"[i % 3]),
         {"choices": "--options-field"}),
        (mcq(lambda i: "one or two", lambda i: "AB"[i % 2]), {"choices": "--options-field"}),
        (mcq(lambda i: json.dumps(texts(i)), lambda i: LETTERS[i % 4]), {}),
        (mcq(lambda i: ["3", "2", "1", "0"], lambda i: i % 4), {"answer_form": "--answer-form"}),
    ],
)  # fmt: skip
def test_what_rules_cannot_tell_is_asked_with_the_flag_that_answers_it(
    rows: Rows, asked: dict[str, str], tmp_path: Path
) -> None:
    draft = drafted(tmp_path, rows)
    assert open_fields(draft) == asked and draft.works == (not asked)
    assert draft.trial is None or not asked


def test_numbers_that_may_count_from_1_are_asked_for(tmp_path: Path) -> None:
    rows = mcq(lambda i: [*texts(i), "none of these"], lambda i: i % 4 + 1)
    [question] = drafted(tmp_path, rows).open
    assert question.text.endswith("If it holds numbers from 1, write them from 0 first.")
    draft = drafted(tmp_path, rows, answer_form="index")
    assert draft.works and draft.fields["answer_form"] == "index"


def test_answers_of_the_user_close_the_questions(tmp_path: Path) -> None:
    rows = [{"left": f"a {i}", "middle": f"b {i}", "right": f"c {i}"} for i in range(40)]
    draft = drafted(tmp_path, rows, question="left", answer="right", name="x.csv")
    assert draft.works and (draft.reward.kind, draft.fields["answer"]) == ("exact_match", "right")
    draft = drafted(tmp_path, rows, question="left", answer="right", reward="regex=(c .*)", name="x.csv")
    assert draft.works and draft.reward.options == {"pattern": "(c .*)"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"question": "nowhere"}, "no column 'nowhere'"),
        ({"answer": "nowhere"}, "no column 'nowhere'"),
        ({"options": ("nowhere",)}, "no column 'nowhere'"),
        ({"table": 4}, "--table 4"),
        ({"reward": "magic"}, "--reward magic: must be one of"),
        ({"reward": "mcq"}, "--reward mcq needs the options"),
    ],
)
def test_a_choice_that_does_not_exist_is_refused(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        drafted(tmp_path, questions(), **given)


def test_tables_of_similar_size_are_asked_for(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", questions(20))
    write_rows(tmp_path / "b.jsonl", [{"problem": f"p {i}", "solution": str(i)} for i in range(18)])
    seen = inspect_data(tmp_path)
    assert open_fields(draft_task(seen, SENTENCE, UserChoices(), ExpertDraftingAgents())) == {
        "files": "--table"
    }
    second = draft_task(seen, SENTENCE, UserChoices(table=2), ExpertDraftingAgents())
    assert second.works and second.fields["answer"] == "solution"


def test_files_and_tables_that_are_left_out_are_doubts(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("question,answer\ncaf\u00e9,1\n".encode("latin-1"))
    for name in "abcdef":
        (tmp_path / f"{name}.xlsx").write_text("x")
    write_rows(tmp_path / "other.csv", [{"question": "q", "label": "1"}])
    doubts = drafted(tmp_path, questions(40)).spec.doubts
    unread, unused = doubts
    assert unread.startswith("not read: latin.csv is not UTF-8 text") and unread.endswith("; and 2 more")
    assert "; a.xlsx is of no format that is read;" in unread
    assert unused == (
        "not used, because their columns differ: other.csv (1 row with the columns question, label)"
    )
    assert drafted(tmp_path, questions(40), table=1).spec.doubts == (unread,)


def test_options_whose_right_one_is_always_first_are_not_used(tmp_path: Path) -> None:
    rows = [
        {"question": f"q {i}", "answer": f"right {i}", "choice_1": f"right {i}", "choice_2": f"wrong {i}"}
        for i in range(40)
    ]
    draft = drafted(tmp_path, rows)
    assert draft.works and draft.reward.kind == "exact_match" and draft.spec.choices == ()
    assert "always stands at the same place" in draft.spec.doubts[0]
    assert drafted(tmp_path / "last", mcq(texts, lambda i: 3)).spec.choices == ()


def test_open_questions_stand_as_comments_where_their_fields_belong(tmp_path: Path) -> None:
    rows = [{"left": f"a {i}", "mid\ndle: x": f"b {i}", "right": f"c {i}"} for i in range(40)]
    write_draft(drafted(tmp_path / "in", rows), tmp_path / "out", {})
    text = (tmp_path / "out" / "task.yaml").read_text()
    marked = [line for line in text.splitlines() if line.startswith("# OPEN:")]
    assert [line.split()[2] for line in marked] == ["prompt:", "answer:", "reward:"]
    assert "(--answer-field)" in marked[1] and "mid dle: x" in marked[1]
    with pytest.raises(ConfigError, match="exactly one of prompt, dataset and reasoning_gym"):
        load_task_file(tmp_path / "out" / "task.yaml")


@pytest.mark.parametrize("answer", [lambda i: str(i).encode(), lambda i: None])
def test_a_column_that_holds_no_text_is_named_with_the_reason(
    answer: Callable[[int], Any], tmp_path: Path
) -> None:
    draft = drafted(tmp_path, questions(40, answer), name="rows.parquet")
    asked = next(question.text for question in draft.open if question.field == "answer")
    assert asked.endswith("? Empty or binary in every row that was looked at: answer.")
    with pytest.raises(ConfigError, match="the column 'answer' is empty or binary in every row"):
        drafted(tmp_path, questions(40, answer), name="rows.parquet", answer="answer")


def test_a_list_of_rows_in_an_object_is_to_be_taken_out(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps({"data": questions()}))
    draft = draft_task(inspect_data(tmp_path), SENTENCE, UserChoices(), ExpertDraftingAgents())
    asked = next(question.text for question in draft.open if question.field == "prompt")
    assert asked.endswith("one row: if data holds the rows, write that list alone into the file.")


def test_a_row_of_the_sample_has_no_name_of_a_file(tmp_path: Path) -> None:
    rows = questions(40, lambda i: "" if i % 2 else "City")
    [finding] = drafted(tmp_path, rows, name="rows.parquet", reward="exact_match").findings
    assert "20 of 40 rows cannot be used: 20 no gold answer. sampled row 2: answer is empty" in finding


def test_rows_that_cannot_be_used_are_a_finding(tmp_path: Path) -> None:
    repeated = [
        {"question": "the same", "answer": "City"} if i % 2 else row for i, row in enumerate(questions())
    ]
    draft = drafted(tmp_path, repeated)
    assert draft.works  # repeated prompts are left out by prepare, which says so
    draft = drafted(
        tmp_path,
        mcq(lambda i: ["x", "x"] if i % 3 == 0 else texts(i), lambda i: "AB"[i % 2]),
        answer_form="letter",
    )
    assert "14 of 40 rows cannot be used: 14 duplicate options" in draft.findings[0]


# --- files --------------------------------------------------------------------------------------------------


def test_a_draft_is_written_again_but_never_over_edits(tmp_path: Path) -> None:
    draft, out = drafted(tmp_path / "in", questions()), tmp_path / "out"
    assert set(write_draft(draft, out, {"n": 1})) == {
        "task.yaml",
        "search.yaml",
        "description.md",
        "draft.json",
    }
    assert write_draft(draft, out, {"n": 2}) == ["draft.json"]
    (out / "task.yaml").write_text("mine")
    (out / "search.yaml").unlink()
    with pytest.raises(StorageError, match=r"holds other versions of task\.yaml"):
        write_draft(draft, out, {"n": 2})
    assert (out / "task.yaml").read_text() == "mine" and not (out / "search.yaml").exists()
    assert set(write_draft(draft, out, {"n": 2}, force=True)) == {"task.yaml", "search.yaml"}
    assert sorted(path.name for path in out.iterdir()) == [
        "description.md",
        "draft.json",
        "search.yaml",
        "task.yaml",
    ]
