"""Tables in the shapes of public data sets: a column is read as what it holds, asked for, or named as not
used, and nothing is ever written in Python's notation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from llmzero_ray.errors import ConfigError
from llmzero_ray.tasks.drafting.base import UserChoices
from llmzero_ray.tasks.drafting.draft import Draft, draft_task
from llmzero_ray.tasks.drafting.draft_files import write_draft
from llmzero_ray.tasks.drafting.expert_agents import ExpertDraftingAgents
from llmzero_ray.tasks.drafting.inspect_data import inspect_data
from llmzero_ray.tasks.sources.prepare import prepare_source
from llmzero_ray.tasks.task_yaml import load_task_file
from tests.agents.drafting.folders import write_rows
from tests.agents.drafting.public_shapes import ASKED, LETTERS, TOLD, Shape, turns

PYTHONS = ("True", "False", "None", "{'", "['", "nan")
"""Beginnings of values in Python's notation."""


def drafted(folder: Path, shape: Shape, name: str = "rows.parquet", n: int = 40, **given: Any) -> Draft:
    write_rows(folder / name, [shape(k) for k in range(n)])
    return draft_task(inspect_data(folder), "Answer questions", UserChoices(**given), ExpertDraftingAgents())


def prepared_rows(draft: Draft, place: Path) -> list[dict[str, Any]]:
    """The training rows of the task that `prepare` makes of a draft."""
    write_draft(draft, place / "draft", {})
    task = load_task_file(place / "draft" / "task.yaml", {"dir": str(place / "task")})
    rows: list[dict[str, Any]] = pq.read_table(prepare_source(task).task.train).to_pylist()
    return rows


def truths(rows: list[dict[str, Any]]) -> list[str]:
    return [row["reward_model"]["ground_truth"] for row in rows]


@pytest.mark.parametrize("name", TOLD)
def test_a_shape_that_tells_its_columns_is_read_as_it_is_meant(name: str, tmp_path: Path) -> None:
    shape, template, answer, kind, unused = TOLD[name]
    draft = drafted(tmp_path / "in", shape)
    assert (draft.reward.kind, draft.spec.answer, draft.open, draft.findings) == (kind, answer, (), ())
    assert str(draft.spec.template) == template
    named = [doubt.partition(";")[0] for doubt in draft.spec.doubts]
    assert named == ([f"not used: {unused}"] if unused else [])
    rows = prepared_rows(draft, tmp_path)
    shown = [row["prompt"][-1]["content"] for row in rows]
    assert not [text for text in (*truths(rows), *shown) if text.startswith(PYTHONS)]
    assert not [text for text in shown if "': " in text or "\n\n\n" in text or text.startswith("\n")]


@pytest.mark.parametrize("name", ASKED)
def test_a_shape_that_does_not_tell_is_asked_about(name: str, tmp_path: Path) -> None:
    shape, field, words = ASKED[name]
    questions = drafted(tmp_path, shape).open
    asked = {question.field: f"{question.text} {question.listed_choices}" for question in questions}
    assert words in asked[field]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".json"])
def test_the_field_of_an_object_is_the_answer(suffix: str, tmp_path: Path) -> None:
    shape = ASKED["TriviaQA"][0]
    draft = drafted(tmp_path / "in", shape, f"rows{suffix}", answer="answer.aliases", reward="exact_match")
    assert draft.works
    assert sorted(truths(prepared_rows(draft, tmp_path)))[0] == '{"target": ["T 0"]}'


@pytest.mark.parametrize("name", ["ARC", "ARC with digits", "options as a list of objects"])
def test_the_label_of_an_option_is_its_place_among_the_labels(name: str, tmp_path: Path) -> None:
    draft = drafted(tmp_path / "in", ASKED[name][0], options=("choices.text",))
    assert draft.works and draft.reward.kind == "mcq"
    for row in prepared_rows(draft, tmp_path):
        asked, _, shown = row["prompt"][-1]["content"].partition("\n")
        place = int(asked.removeprefix("Q ")) % 4
        assert row["reward_model"]["ground_truth"] == LETTERS[place]
        assert shown.splitlines()[place].startswith(f"{LETTERS[place]}. option")


def test_options_within_the_question_are_not_forgotten(tmp_path: Path) -> None:
    [asked] = drafted(tmp_path, ASKED["OpenBookQA"][0], question="question.stem").open
    assert (asked.flag, asked.choices) == (
        "--options-field",
        ("question.choices.text", "question.choices.label"),
    )


@pytest.mark.parametrize(
    ("name", "given", "fields"),
    [
        ("TriviaQA", {"answer": "answer"}, "answer.aliases, answer.value"),
        ("SQuAD, a list of objects", {"answer": "answers"}, "answers.text, answers.start"),
        ("OpenBookQA", {"question": "question"}, "question.stem, question.choices"),
    ],
)
def test_a_column_of_objects_is_refused_with_its_fields(
    name: str, given: dict[str, Any], fields: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="holds objects, which are not text; name a field of it") as caught:
        drafted(tmp_path, ASKED[name][0], **given)
    assert fields in str(caught.value)


def test_the_user_names_a_chat_and_its_turns_are_meant(tmp_path: Path) -> None:
    given: dict[str, Any] = {"question": "messages", "answer": "messages", "reward": "exact_match"}
    draft = drafted(tmp_path / "in", TOLD["OpenAI"][0], **given)
    assert draft.works and draft.spec.answer == "messages.assistant"
    [row, *_] = [row for row in prepared_rows(draft, tmp_path) if row["reward_model"]["ground_truth"] == "7"]
    assert row["prompt"][-1]["content"].startswith("Hi.\n\nAdd 7.\n\nReason")


def test_a_chat_of_several_questions_is_not_read_as_its_last_one(tmp_path: Path) -> None:
    def chat(k: int) -> dict[str, Any]:
        said = (("user", f"a {k}"), ("assistant", "b"), ("user", "c"), ("assistant", f"{k}"))
        return {"messages": turns(*said)}

    [finding] = drafted(tmp_path, chat).findings
    assert "messages has the turns user, assistant, user, assistant; one question and one answer" in finding


def test_a_list_that_the_user_accepts_is_one_answer_in_json(tmp_path: Path) -> None:
    draft = drafted(tmp_path / "in", ASKED["knights and knaves"][0], reward="exact_match")
    assert draft.works and "as JSON such as [true, true]," in draft.reward.instruction
    assert set(truths(prepared_rows(draft, tmp_path))) == {"[true, true]", "[true, false]"}


def test_truth_values_are_written_as_the_prompt_lists_them(tmp_path: Path) -> None:
    draft = drafted(tmp_path / "in", TOLD["BoolQ"][0])
    assert "The answer is one of: false, true." in draft.reward.instruction
    assert set(truths(prepared_rows(draft, tmp_path))) == {"true", "false"}


def test_rows_that_are_left_out_are_counted_in_the_draft(tmp_path: Path) -> None:
    def some_objects(k: int) -> dict[str, Any]:
        unusable = {0: {"value": k}, 10: {"value": k}, 1: None}
        return {"question": f"Q {k}", "answer": unusable.get(k % 20, f"a {k}")}

    draft = drafted(tmp_path, some_objects, "rows.jsonl")
    assert draft.trial is not None and draft.findings == ()
    assert draft.trial.warnings == (
        "6 of 40 sampled rows are left out: 2 no gold answer, 4 the answer is an object",
    )


def test_rows_that_are_few_questions_under_a_number_are_a_doubt(tmp_path: Path) -> None:
    def numbered(k: int) -> dict[str, Any]:
        return {"question": f"{k}. What comes after {'abcdef'[k % 6]}?", "answer": "bcdefg"[k % 6]}

    [doubt] = drafted(tmp_path, numbered, n=400).spec.doubts
    assert doubt.startswith("near-duplicates: 400 sampled rows are 6 different questions;")


def test_a_chat_in_a_text_is_a_doubt(tmp_path: Path) -> None:
    def chat(k: int) -> dict[str, Any]:
        return {"prompt": json.dumps(turns(("user", f"Add {k} and 1."))), "answer": k + 1}

    [doubt] = drafted(tmp_path, chat).spec.doubts
    assert doubt == "prompt holds lists or objects, which the prompt shows as they stand"


def test_options_that_are_objects_are_left_out_with_the_name_of_their_texts(tmp_path: Path) -> None:
    shape = ASKED["options as a list of objects"][0]
    draft = drafted(tmp_path, shape, options=("choices",), answer_form="letter", reward="mcq")
    [finding] = draft.findings
    assert "choices holds objects or lists; name what holds the texts, such as choices.text" in finding


@pytest.mark.slow
def test_numbers_that_are_the_question_are_no_doubt(tmp_path: Path) -> None:
    def sums(k: int) -> dict[str, Any]:
        return {"question": f"What is {k} + {k * 7 % 13}?", "answer": k + k * 7 % 13}

    assert drafted(tmp_path, sums, n=400).spec.doubts == ()
