"""From the published layouts of the four data sets to prepared tasks, on made-up rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared import load_task
from llmzero_ray.prepared.manifest import read_manifest
from llmzero_ray.tasks.rewards.molecules import read_molecule
from llmzero_ray.tasks.rewards.papersearchqa import compute_score
from llmzero_ray.tasks.sources.base import DatasetAdapter, Rejection, TaskExample
from llmzero_ray.tasks.sources.chemcot import ChemCoT
from llmzero_ray.tasks.sources.papersearchqa import PaperSearchQA
from llmzero_ray.tasks.sources.prepare import prepare_source
from llmzero_ray.tasks.sources.ssmr import SSMR
from llmzero_ray.tasks.sources.summary import Summary
from llmzero_ray.tasks.sources.wildsci import WildSci
from llmzero_ray.tasks.task_yaml import parse_task_file
from tests.tasks import synthetic

PLAIN = ["fg_count", "ring_count", "ring_system_scaffold", "equivalence", "mechsel"]
has_rdkit = read_molecule("CCO") is not None
needs_rdkit = pytest.mark.skipif(not has_rdkit, reason="RDKit is not installed")


def prepared(tmp_path: Path, dataset: str, **settings: Any) -> Summary:
    data = {"dataset": dataset, "files": str(tmp_path / "raw"), "dir": str(tmp_path / "task"), **settings}
    return prepare_source(parse_task_file(data))


def rows_of(path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
    return rows


def adapted(adapter: DatasetAdapter, row: dict[str, Any], file: str = "rows.json") -> TaskExample:
    item = adapter.adapt(row, file)
    assert isinstance(item, TaskExample), item
    return item


def refused(adapter: DatasetAdapter, row: dict[str, Any], file: str = "rows.json") -> Rejection:
    rejection = adapter.adapt(row, file)
    assert isinstance(rejection, Rejection), rejection
    return rejection


# --- papersearchqa ------------------------------------------------------------------------------------------


def write_papers(tmp_path: Path) -> None:
    for split, n, seed in (("train", 90, 0), ("test", 40, 1)):
        rows = synthetic.papersearchqa(n, seed, prefix=split)
        synthetic.write_parquet(tmp_path / "raw" / f"{split}-00000-of-00001.parquet", rows)


def test_papersearchqa_takes_test_rows_from_its_own_test_split(tmp_path: Path) -> None:
    write_papers(tmp_path)
    summary = prepared(tmp_path, "papersearchqa", n_train=50, n_val=10, n_test=20)
    task = summary.task
    assert (task.n_train, task.n_val, task.n_test) == (50, 10, 20)
    texts = {
        split: [row["prompt"][0]["content"] for row in rows_of(getattr(task, split))] for split in SPLIT_FILES
    }
    assert all("does test" in text for text in texts["test"])
    assert all("does train" in text for text in texts["train"] + texts["val"])
    assert summary.counts["papersearchqa"].confirm == 30  # all that its training file has left
    assert summary.dropped == {"not needed": 20}
    assert (summary.rows_read, summary.warnings) == (130, ())


SPLIT_FILES = ("train", "val", "test")


def test_papersearchqa_rows_are_verls_and_their_gold_answers_score_1(tmp_path: Path) -> None:
    write_papers(tmp_path)
    summary = prepared(tmp_path, "papersearchqa", n_train=50, n_val=10, n_test=20)
    row = rows_of(summary.task.val)[3]
    assert (row["data_source"], row["ability"]) == ("papersearchqa", "biomedical_qa")
    assert row["extra_info"].keys() == {"index", "split", "cat", "pmid", "is_paraphrased"}
    assert (row["extra_info"]["index"], row["extra_info"]["split"]) == (3, "val")
    assert isinstance(row["extra_info"]["is_paraphrased"], bool)
    assert len(json.loads(row["reward_model"]["ground_truth"])["target"]) == 3
    trial = summary.trial
    assert trial is not None
    assert (trial.n_rows, trial.gold, trial.empty, trial.garbage, len(trial.samples)) == (
        30,
        1.0,
        0.0,
        0.0,
        5,
    )


def test_papers_never_cross_splits(tmp_path: Path) -> None:
    write_papers(tmp_path)
    task = prepared(tmp_path, "papersearchqa", n_train=50, n_val=10, n_test=20).task
    papers = [{row["extra_info"]["pmid"] for row in rows_of(getattr(task, split))} for split in SPLIT_FILES]
    assert not papers[0] & papers[1] and not papers[0] & papers[2] and not papers[1] & papers[2]


@pytest.mark.parametrize(
    "golden",
    [["a", ["b", {"x": "c"}]], '["a", "b", "c"]', ["a", None, "b", "c"]],
    ids=["nested", "text", "null"],
)
def test_accepted_wordings_are_flattened_behind_the_answer(golden: Any) -> None:
    row = {**synthetic.papersearchqa(1)[0], "answer": "first", "golden_answers": golden}
    item = adapted(PaperSearchQA(), row)
    assert json.loads(item.ground_truth) == {"target": ["first", "a", "b", "c"]}
    assert compute_score("papersearchqa", "<answer>C</answer>", item.ground_truth)["acc"] == 1.0


def test_the_direct_prompt_asks_for_no_reasoning() -> None:
    row = synthetic.papersearchqa(1)[0]
    assert "step by step" in adapted(PaperSearchQA(), row).prompt
    assert "step by step" not in adapted(PaperSearchQA("direct"), row).prompt
    with pytest.raises(TaskError, match=r"prompt is 'x'; must be one of cot, direct"):
        PaperSearchQA("x")


def test_a_question_without_any_answer_is_refused() -> None:
    row = {**synthetic.papersearchqa(1)[0], "answer": None, "golden_answers": []}
    assert refused(PaperSearchQA(), row).reason == "no gold answer"


# --- ssmr ---------------------------------------------------------------------------------------------------


def test_ssmr_published_as_a_test_set_alone_gives_all_three_splits(tmp_path: Path) -> None:
    synthetic.write_parquet(tmp_path / "raw" / "Test_textual.parquet", synthetic.ssmr(240))
    synthetic.write_parquet(tmp_path / "raw" / "Test_visual.parquet", synthetic.ssmr(5, seed=9))
    summary = prepared(tmp_path, "ssmr", n_train=40, n_val=20, n_test=40)
    assert {source: n.test for source, n in summary.counts.items()} == {
        "ssmr_beat": 10, "ssmr_chord": 10, "ssmr_interval": 10, "ssmr_scale": 10,
    }  # fmt: skip
    assert (summary.task.n_train, summary.task.n_val, summary.task.n_test) == (40, 20, 40)
    assert summary.rows_read == 240


def test_a_training_file_leaves_the_published_test_set_to_the_test_split(tmp_path: Path) -> None:
    synthetic.write_parquet(tmp_path / "raw" / "Test_textual.parquet", synthetic.ssmr(60))
    synthetic.write_jsonl(tmp_path / "raw" / "Train_textual.jsonl", synthetic.ssmr(90, seed=1))
    task = prepared(tmp_path, "ssmr", n_train=50, n_val=12, n_test=24).task
    shown = {
        split: [row["prompt"][0]["content"] for row in rows_of(getattr(task, split))] for split in SPLIT_FILES
    }
    assert all("Question 0." in text for text in shown["test"])
    assert all("Question 1." in text for text in shown["train"] + shown["val"])


def test_options_are_shuffled_by_content_and_the_letter_follows() -> None:
    items = [adapted(SSMR(), row) for row in synthetic.ssmr(40)]
    again = [adapted(SSMR(), row) for row in synthetic.ssmr(40)]
    assert items == again
    assert {item.ground_truth for item in items} == set("ABCD")
    for item, row in zip(items, synthetic.ssmr(40), strict=True):
        assert f"\n{item.ground_truth}. {row['correct_answer']}" in item.prompt


def test_abc_notation_gets_real_line_breaks() -> None:
    item = adapted(SSMR(), synthetic.ssmr(1)[0])
    assert "\\n" not in item.prompt
    assert "X:0\nL:1/8\nK:C\n|CDEF|\nA. " in item.prompt


def test_equal_options_are_refused_with_both_named() -> None:
    row = {**synthetic.ssmr(1)[0], "incorrect_answer2": " 2/4 "}
    rejection = refused(SSMR(), row)
    assert rejection.reason == "duplicate options"
    assert "correct_answer and incorrect_answer2 are both '2/4'" in rejection.detail


def test_the_same_question_with_other_distractors_stays_in_one_split() -> None:
    row = synthetic.ssmr(1)[0]
    other = {**row, "incorrect_answer1": "99/4"}
    assert (
        adapted(SSMR(), row).group
        == adapted(SSMR(), other).group
        != adapted(SSMR(), synthetic.ssmr(2)[1]).group
    )


def test_a_new_class_is_placed_by_its_category_or_refused() -> None:
    row = {**synthetic.ssmr(1)[0], "class_name": "New", "category": "Rhythm"}
    assert adapted(SSMR(), row).data_source == "ssmr_beat"
    assert adapted(SSMR(), {**row, "category": "Chord-c"}).data_source == "ssmr_chord"
    assert refused(SSMR(), {**row, "category": "Form"}).reason == "unknown subtask"


# --- wildsci ------------------------------------------------------------------------------------------------


def test_wildsci_shares_its_splits_by_discipline_and_keeps_aligned_rows(tmp_path: Path) -> None:
    synthetic.write_jsonl(tmp_path / "raw" / "wildsci.jsonl", synthetic.wildsci(600))
    summary = prepared(tmp_path, "wildsci", n_train=200, n_val=50, n_test=50)
    assert len(summary.counts) == 9
    assert summary.counts["wildsci_biology"].test > summary.counts["wildsci_social_sciences"].test
    assert summary.dropped["votes not aligned"] == 60
    kept = sum(n.train + n.val + n.test + n.confirm for n in summary.counts.values())
    assert kept + sum(summary.dropped.values()) == summary.rows_read == 600
    rows = [row for split in SPLIT_FILES for row in rows_of(getattr(summary.task, split))]
    assert not any("given away" in row["prompt"][0]["content"] for row in rows)
    papers = [
        {row["extra_info"]["paper_id"] for row in rows_of(getattr(summary.task, split))}
        for split in SPLIT_FILES
    ]
    assert not papers[0] & papers[1] and not papers[0] & papers[2] and not papers[1] & papers[2]


def test_all_votes_may_be_asked_for() -> None:
    row = synthetic.wildsci(1)[0]
    assert refused(WildSci(), row).reason == "votes not aligned"
    assert adapted(WildSci("all"), row).ground_truth == row["answer"]


def wild(**changes: Any) -> dict[str, Any]:
    return {**synthetic.wildsci(2)[1], **changes}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"answer": "K"}, "gold not among the options"),
        ({"answer": None}, "gold not among the options"),
        ({"options": {"A": "x", "B": "x"}, "answer": "A"}, "duplicate options"),
        ({"options": {"A": "x"}, "answer": "A"}, "too few options"),
        ({"options": {"A": "x", "B": " "}, "answer": "A"}, "empty option"),
        ({"options": "no object"}, "options unreadable"),
        ({"options": {"A": "x", "Z": "y"}}, "options unreadable"),
        ({"question": " "}, "empty question"),
        ({"discipline": None}, "empty discipline"),
    ],
)
def test_a_wildsci_row_that_cannot_be_asked_is_refused(change: dict[str, Any], reason: str) -> None:
    assert refused(WildSci(), wild(**change)).reason == reason


def test_options_that_a_common_schema_left_empty_are_not_shown() -> None:
    options = {"A": "yes", "B": "no", "C": None, "J": None}
    item = adapted(WildSci(), wild(options=options, answer="b"))
    assert "A. yes\nB. no\n\nReason step by step" in item.prompt
    assert item.ground_truth == "B"


def test_disciplines_become_names_that_metrics_can_carry() -> None:
    assert (
        adapted(WildSci(), wild(discipline="Earth & Space/Science ")).data_source
        == "wildsci_earth_space_science"
    )


# --- chemcot ------------------------------------------------------------------------------------------------


def write_chem(tmp_path: Path, *subtasks: str, n: int = 30) -> None:
    for subtask in subtasks:
        rows = synthetic.chemcot_bench(subtask, n)
        synthetic.write_json(tmp_path / "raw" / "chemcotbench" / rows[0]["task"] / f"{subtask}.json", rows)


def test_chemcot_reads_benchmark_and_training_set_together(tmp_path: Path) -> None:
    write_chem(tmp_path, *PLAIN, "drd")
    cot = synthetic.chemcot_cot("fg_count", 60)
    synthetic.write_json(tmp_path / "raw" / "chemcotbench-cot" / "mol_und" / "fg_count.json", cot)
    summary = prepared(tmp_path, "chemcot", n_train=60, n_val=30, n_test=30, options={"subtasks": PLAIN})
    assert set(summary.counts) == {
        "chemcot_und_fg_count", "chemcot_und_ring_count", "chemcot_und_ring_system_scaffold",
        "chemcot_und_equivalence", "chemcot_rxn_mechsel",
    }  # fmt: skip
    assert {n.test for n in summary.counts.values()} == {6}
    assert summary.dropped["no oracle"] == 30
    assert summary.trial is not None
    assert (summary.trial.gold, summary.trial.empty, summary.trial.garbage) == (1.0, 0.0, 0.0)
    assert 0.3 < summary.majority_baselines["chemcot_und_equivalence"] <= 1.0


def test_a_chemcot_row_keeps_its_query_and_says_what_its_reward_needs() -> None:
    row = synthetic.chemcot_bench("fg_count", 1)[0]
    item = adapted(ChemCoT(PLAIN), row)
    assert item.prompt == row["query"]
    assert json.loads(item.ground_truth) == {
        "subtask": "fg_count", "gt": "0", "src": "CCO", "added_group": "", "removed_group": "", "prop": "",
    }  # fmt: skip
    assert dict(item.extra) == {"subtask": "fg_count", "category": "und", "row_id": row["id"]}
    assert item.group == "CCO"


def test_gold_is_found_in_meta_or_in_the_fenced_reasoning() -> None:
    from_meta, from_reasoning = synthetic.chemcot_cot("fg_count", 2)
    assert json.loads(adapted(ChemCoT(PLAIN), from_meta).ground_truth)["gt"] == "0"
    assert json.loads(adapted(ChemCoT(PLAIN), from_reasoning).ground_truth)["gt"] == "1"
    broken = {**from_reasoning, "struct_cot": "```json {steps: oops"}
    assert refused(ChemCoT(PLAIN), broken).reason == "no gold answer"


def test_a_subtask_is_known_by_its_column_or_else_by_its_file() -> None:
    row = {**synthetic.chemcot_bench("ring_count", 1)[0], "subtask": "4-membered"}
    assert adapted(ChemCoT(PLAIN), row, "mol_und/ring_count.json").data_source == "chemcot_und_ring_count"
    assert refused(ChemCoT(PLAIN), row, "mol_und/rows.json").reason == "unknown subtask"


def test_unknown_subtasks_in_the_options_are_refused() -> None:
    with pytest.raises(TaskError, match=r"no subtask is called 'cooking'; known: fg_count, "):
        ChemCoT(["cooking"])


@pytest.mark.skipif(find_spec("rdkit") is not None, reason="RDKit is installed")
def test_without_rdkit_subtasks_that_need_it_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    write_chem(tmp_path, "Murcko_scaffold")
    with pytest.raises(TaskError, match=r"need RDKit.*these need nothing: fg_count, ring_count, "):
        prepared(tmp_path, "chemcot")
    assert not (tmp_path / "task").exists()


@needs_rdkit
def test_chemistry_rows_become_a_task_whose_gold_answers_score_1(tmp_path: Path) -> None:
    write_chem(tmp_path, "Murcko_scaffold", "add", "delete", "logp", "fs", "retro", "mechsel", n=60)
    summary = prepared(tmp_path, "chemcot", n_train=90, n_val=30, n_test=30)
    assert {"chemcot_rxn_fs_by_product", "chemcot_rxn_fs_major_product", "chemcot_rxn_retro"} <= set(
        summary.counts
    )
    rows = [row for split in SPLIT_FILES for row in rows_of(getattr(summary.task, split))]
    golds = [row for row in rows if json.loads(row["reward_model"]["ground_truth"])["gt"]]
    assert len(golds) > 50
    assert summary.trial is not None
    assert (summary.trial.empty, summary.trial.garbage) == (0.0, 0.0)


@needs_rdkit
@pytest.mark.parametrize(
    ("subtask", "change", "reason"),
    [
        ("Murcko_scaffold", {"gt": "CC(("}, "gold is no molecule"),
        ("Murcko_scaffold", {"gt": ""}, "no gold answer"),
        ("add", {"meta": {"molecule": "CCO", "added_group": "unobtainium"}}, "unknown functional group"),
        ("logp", {"query": "Improve it. Source Molecule: xyz."}, "source is no molecule"),
    ],
)
def test_a_chemistry_row_that_cannot_be_rewarded_is_refused(
    subtask: str, change: dict[str, Any], reason: str
) -> None:
    row = {**synthetic.chemcot_bench(subtask, 1)[0], **change}
    assert refused(ChemCoT(), row).reason == reason


@needs_rdkit
def test_the_sentence_dot_behind_a_source_molecule_does_not_belong_to_it() -> None:
    row = synthetic.chemcot_bench("logp", 1)[0]
    assert row["query"].endswith("Source Molecule: CCO.")
    assert json.loads(adapted(ChemCoT(), row).ground_truth)["src"] == "CCO"


@needs_rdkit
def test_a_forward_synthesis_row_without_by_product_asks_for_the_major_product() -> None:
    rows = synthetic.chemcot_bench("fs", 2)
    sources = [adapted(ChemCoT(), row, "reaction/fs.json").data_source for row in rows]
    assert sources == ["chemcot_rxn_fs_major_product", "chemcot_rxn_fs_by_product"]


# --- all four -----------------------------------------------------------------------------------------------

MAKERS: dict[str, Callable[[Path], Any]] = {
    "papersearchqa": write_papers,
    "ssmr": lambda path: synthetic.write_parquet(path / "raw" / "Test_textual.parquet", synthetic.ssmr(60)),
    "wildsci": lambda path: synthetic.write_jsonl(path / "raw" / "wildsci.jsonl", synthetic.wildsci(200)),
    "chemcot": lambda path: write_chem(path, *PLAIN),
}


@pytest.mark.parametrize("dataset", MAKERS)
def test_the_three_files_share_one_schema_and_the_manifest_tells_their_origin(
    tmp_path: Path, dataset: str
) -> None:
    MAKERS[dataset](tmp_path)
    options = {"subtasks": PLAIN} if dataset == "chemcot" else {}
    task = prepared(tmp_path, dataset, n_train=20, n_val=10, n_test=10, options=options).task
    schemas = {pq.read_schema(getattr(task, split)) for split in SPLIT_FILES}
    assert len(schemas) == 1
    assert pa.types.is_string(schemas.pop().field("reward_model").type.field("ground_truth").type)
    manifest = read_manifest(Path(task.directory))
    assert manifest.source is not None
    assert manifest.licence in ("MIT", "CC-BY-4.0")
    assert all(len(file.sha256) == 64 and file.rows > 0 for file in manifest.source.files)
    assert set(manifest.source.majority_baselines) <= set(task.data_sources)
    assert manifest.source.max_prompt_chars == max(
        len(row["prompt"][0]["content"]) for split in SPLIT_FILES for row in rows_of(getattr(task, split))
    )
    assert load_task(task.directory) == task
