"""Files of all formats give the same rows; what is broken is named and counted, what is good is kept."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.directory import Progress, no_progress
from llmzero_ray.prepared.manifest import read_manifest
from llmzero_ray.tasks.drafting.sampling import sample_rows
from llmzero_ray.tasks.sources.prepare import prepare_source
from llmzero_ray.tasks.sources.readers import SourceFile, Unreadable, find_files, only_split_of, read_rows
from llmzero_ray.tasks.sources.summary import Summary
from llmzero_ray.tasks.task_yaml import parse_task_file
from tests.tasks import synthetic
from tests.tasks.synthetic import write_json, write_jsonl, write_parquet
from tests.tasks.test_prepare import left_beside

ROWS = [{"q": f"question {n}, please?", "a": str(n % 5)} for n in range(30)]


def parquet_bytes(table: pa.Table) -> bytes:
    stream = pa.BufferOutputStream()
    pq.write_table(table, stream)
    return stream.getvalue().to_pybytes()


TWICE = parquet_bytes(pa.table([["x"], ["1"], ["2"]], names=["q", "q", "a"]))


def source(path: Path) -> SourceFile:
    return SourceFile(path=str(path), name=path.name)


def read(path: Path, **options: Any) -> list[Any]:
    return list(read_rows(source(path), **options))


def write_csv(path: Path, rows: list[dict[str, Any]], delimiter: str = ",") -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_any(path: Path) -> Path:
    writers = {".json": write_json, ".jsonl": write_jsonl, ".parquet": write_parquet, ".csv": write_csv}
    if path.suffix == ".tsv":
        return write_csv(path, ROWS, "\t")
    return writers[path.suffix](path, ROWS)


def prepared(tmp_path: Path, *files: Path, progress: Progress = no_progress, **changes: Any) -> Summary:
    data = {"name": "mine", "prompt": "{q}", "answer": "a", "reward": "exact_match", "n_train": 10}
    data |= {"files": [str(file) for file in files], "dir": str(tmp_path / "task"), "n_val": 5, "n_test": 5}
    return prepare_source(parse_task_file({**data, **changes}), progress=progress)


def refusal(tmp_path: Path, *files: Path, **changes: Any) -> str:
    with pytest.raises(TaskError) as caught:
        prepared(tmp_path, *files, **changes)
    assert left_beside(tmp_path / "task") == sorted(file.name for file in files if file.exists())
    return str(caught.value)


# --- formats ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".parquet", ".csv", ".tsv"])
def test_every_format_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    path = write_any(tmp_path / f"rows{suffix}")
    assert read(path) == list(enumerate(ROWS, start=1))


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".parquet", ".csv"])
def test_every_format_gives_the_same_task(tmp_path: Path, suffix: str) -> None:
    one = prepared(tmp_path / "one", write_any(tmp_path / f"rows{suffix}")).task
    other = prepared(tmp_path / "other", write_jsonl(tmp_path / "reference.jsonl", ROWS)).task
    for split in ("train", "val", "test"):
        assert Path(getattr(one, split)).read_bytes() == Path(getattr(other, split)).read_bytes()


def test_rows_may_be_spread_over_files_of_many_formats_in_any_order(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    write_jsonl(raw / "b" / "1.jsonl", ROWS[20:])
    write_parquet(raw / "a.parquet", ROWS[5:20][::-1])
    write_json(raw / "z.json", ROWS[:5])
    spread = prepared(tmp_path / "spread", raw)
    whole = prepared(tmp_path / "whole", write_jsonl(tmp_path / "whole.jsonl", ROWS))
    for split in ("train", "val", "test"):
        assert Path(getattr(spread.task, split)).read_bytes() == Path(getattr(whole.task, split)).read_bytes()


def test_an_array_longer_than_the_buffer_is_read_item_by_item(tmp_path: Path) -> None:
    rows = [{"q": "x" * 700_000, "n": n} for n in range(5)]
    assert [row["n"] for _, row in read(write_json(tmp_path / "big.json", rows))] == [0, 1, 2, 3, 4]


def test_json_lines_may_be_called_json_and_hold_blank_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(b'\xef\xbb\xbf{"q": 1}\n\n{"q": 2}\n')
    assert read(path) == [(1, {"q": 1}), (3, {"q": 2})]


def test_a_json_file_may_be_one_indented_object(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    row = {"q": "x", "more": {"a": [1, 2]}}
    path.write_text(f"\n{json.dumps(row, indent=2)}\n")
    assert read(path) == [(1, row)]
    for end in (b"", b" " * 10_000 + b"\xff"):
        path.write_bytes(b'{"q": "cut\n{"q": 2}\n{"q": 3}\n' + end)
        (first, broken), *others = read(path)[:3]
        assert first == 1 and "write one object a line" in broken.detail
        assert others == [(2, {"q": 2}), (3, {"q": 3})]


def test_the_shares_of_a_file_are_all_of_it_and_do_not_overlap(tmp_path: Path) -> None:
    rows = [{"n": n} for n in range(5000)]
    for path in (write_jsonl(tmp_path / "a.jsonl", rows), write_parquet(tmp_path / "a.parquet", rows, 1000)):
        shares = [read(path, part=(part, 3)) for part in range(3)]
        assert all(shares)
        assert sorted(row["n"] for share in shares for _, row in share) == list(range(5000))


def test_hidden_files_and_other_formats_in_a_directory_are_passed_over(tmp_path: Path) -> None:
    write_jsonl(tmp_path / ".cache" / "x.jsonl", ROWS)
    write_jsonl(tmp_path / "sub" / "rows.jsonl", ROWS)
    (tmp_path / "README.md").write_text("about")
    assert [file.name for file in find_files([tmp_path], lambda _name: True)] == ["sub/rows.jsonl"]


def test_a_task_that_was_prepared_below_its_data_is_no_data(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", ROWS)
    given = {"files": [str(tmp_path)], "dir": str(tmp_path / "data" / "mine")}
    first, second = prepared(tmp_path, **given), prepared(tmp_path, **given)
    assert (first.made, second.made) == (True, False)
    assert [file.name for file in find_files([tmp_path], lambda _name: True)] == ["rows.jsonl"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], r"has no file that can be read \(it holds nothing\); endings known: .parquet"),
        (["rows.xlsx"], r"has no file that can be read \(it holds rows.xlsx\)"),
        (["rows.jsonl"], r"has no file of this data set \(it holds rows.jsonl\)"),
    ],
)
def test_a_place_without_data_is_refused(tmp_path: Path, names: list[str], message: str) -> None:
    for name in names:
        (tmp_path / name).write_text("x")
    with pytest.raises(TaskError, match=message):
        find_files([tmp_path], lambda _name: False)
    with pytest.raises(TaskError, match="does not exist; give a file"):
        find_files([tmp_path / "no"], lambda _name: True)


def test_floats_of_32_bits_keep_their_text(tmp_path: Path) -> None:
    kinds = {
        "a": pa.float32(),
        "b": pa.list_(pa.float32()),
        "c": pa.struct([("d", pa.float32()), ("e", pa.float64())]),
        "f": pa.float64(),
        "g": pa.large_list(pa.float32()),
        "h": pa.map_(pa.string(), pa.float32()),
    }
    rows = [
        {
            "a": 54.1,
            "b": [0.1, None],
            "c": {"d": 1e20, "e": 0.1 + 0.2},
            "f": 0.1,
            "g": [54.1],
            "h": [("x", 0.1)],
        },
        {"a": 134217728.0, "b": None, "c": None, "f": None, "g": None, "h": None},
    ]
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(kinds)), tmp_path / "rows.parquet")
    assert read(tmp_path / "rows.parquet") == list(enumerate(rows, start=1))


# --- what is broken -----------------------------------------------------------------------------------------


def test_a_broken_line_is_left_out_and_named(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:6], '{"q": "cut off', "[1, 2]", *lines[6:]]) + "\n")
    summary = prepared(tmp_path, path)
    assert (summary.rows_read, summary.dropped["unreadable row"]) == (32, 2)
    first, second = summary.examples["unreadable row"]
    assert first.startswith("rows.jsonl, row 7: is not JSON: ")
    assert second == "rows.jsonl, row 8: holds list, not an object with columns"


@pytest.mark.parametrize("column", ["q", "a"])
def test_a_binary_column_is_no_text(tmp_path: Path, column: str) -> None:
    rows = [{**row, column: row[column].encode()} for row in ROWS]
    message = refusal(tmp_path, write_parquet(tmp_path / "rows.parquet", rows))
    assert f"rows.parquet, row 1: {column} holds bytes, not text; convert it to text" in message


def test_a_row_whose_answer_is_no_finite_number_is_left_out_and_named(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    path.write_text(
        path.read_text() + '{"q": "x", "a": 1e999}\n{"q": "y", "a": -Infinity}\n{"q": "z", "a": NaN}'
    )
    summary = prepared(tmp_path, path)
    assert summary.dropped["no gold answer"] == 3
    assert summary.examples["no gold answer"][0].startswith("rows.jsonl, row 31: a is empty")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ('{"q": "x", "a": 1, "a": 2}', "has the key 'a' twice in one object; rename one of them"),
        ('{"q": {"k": 1, "k": 1}}', "has the key 'k' twice in one object; rename one of them"),
        (f'{{"q": "x", "a": -{"1" * 5000}}}', "holds an integer of more than 4300 digits; write it as text"),
    ],
)
def test_a_json_row_that_python_would_misread_is_left_out_and_named(
    tmp_path: Path, row: str, why: str
) -> None:
    for name, content in (
        ("x.jsonl", f'{{"q": 1}}\n{row}\n{{"q": 2}}'),
        ("x.json", f'[{{"q": 1}}, {row}, {{"q": 2}}]'),
    ):
        (tmp_path / name).write_text(content)
        assert read(tmp_path / name) == [(1, {"q": 1}), (2, Unreadable(detail=why)), (3, {"q": 2})]


def test_a_csv_row_with_other_cells_than_the_header_is_left_out(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", ROWS)
    path.write_text(path.read_text() + "one, two, three\n")
    assert read(path)[-1] == (
        31, Unreadable(detail="has 3 cells, the header has 2; quote cells that hold commas"),
    )  # fmt: skip


@pytest.mark.parametrize(("delimiter", "named"), [(";", "semicolons"), ("\t", "tabs")])
def test_a_csv_file_may_be_delimited_as_spreadsheets_do(tmp_path: Path, delimiter: str, named: str) -> None:
    path = write_csv(tmp_path / "rows.csv", ROWS, delimiter)
    path.write_text("\ufeff" + path.read_text() + delimiter.join(["one", "two", "three"]) + "\n")
    assert [row for _, row in read(path)[:-1]] == [{k: str(v) for k, v in row.items()} for row in ROWS]
    assert read(path)[-1][1] == Unreadable(
        detail=f"has 3 cells, the header has 2; quote cells that hold {named}"
    )


def test_rows_of_another_schema_are_left_out_with_both_schemas_named(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [*ROWS, {"question": "x", "a": "1"}])
    summary = prepared(tmp_path, path)
    assert summary.dropped["missing columns"] == 1
    [example] = summary.examples["missing columns"]
    assert example.startswith(
        "rows.jsonl, row 31: lacks q; columns expected: q, a; found: question, a. Rename"
    )


def test_a_renamed_column_of_a_known_data_set_is_named_with_what_was_found(tmp_path: Path) -> None:
    rows = [{("response" if key == "answer" else key): value for key, value in row.items()}
            for row in synthetic.papersearchqa(9)]  # fmt: skip
    data = {"dataset": "papersearchqa", "dir": str(tmp_path / "task")}
    for path in (write_jsonl(tmp_path / "rows.jsonl", rows), write_parquet(tmp_path / "rows.parquet", rows)):
        with pytest.raises(TaskError) as caught:
            prepare_source(parse_task_file({**data, "files": str(path)}))
        assert (
            f"{path.name}, row 1: lacks answer; columns expected: question, answer, golden_answers, pmid"
            in str(caught.value)
        )
        assert "found: question_original, question, response," in str(caught.value)


def test_an_unexpected_column_is_a_warning(tmp_path: Path) -> None:
    rows = [{**row, "mood": "good"} for row in synthetic.papersearchqa(9)]
    path = write_parquet(tmp_path / "rows.parquet", rows)
    data = {"dataset": "papersearchqa", "files": str(path), "dir": str(tmp_path / "task")}
    summary = prepare_source(parse_task_file(data))
    assert (
        "columns that are not known and not used: mood; columns expected: question"
        in summary.notes[path.name]
    )
    assert summary.notes[path.name] in summary.warnings


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b"", "x.jsonl is an empty file"),
        ("x.parquet", b"not parquet at all", "x.parquet: is not readable as Parquet"),
        ("x.json", b'[{"q": "x", "a": "1"}, {"q": ', "x.json: is broken from row 2 on"),
        ("x.csv", b'q,a\n"1,2\n3,4\n', "x.csv: is broken from row 1 on (unexpected end of data)"),
        ("x.csv", b"q,q\n1,2\n", "x.csv: has the column 'q' twice"),
        ("x.parquet", TWICE, "x.parquet: has the column 'q' twice"),
        ("x.jsonl", b'{"q": "\xff"}\n', "x.jsonl, row 1: is not JSON"),
    ],
)
def test_a_bad_file_beside_good_ones_is_a_warning_and_alone_an_error(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    bad, good = tmp_path / name, write_jsonl(tmp_path / "good.jsonl", ROWS)
    bad.write_bytes(content)
    summary = prepared(tmp_path, bad, good)
    output = [*summary.notes.values(), *(place for places in summary.examples.values() for place in places)]
    assert any(message in text for text in output)
    assert summary.rows_read == len(ROWS) + (name in ("x.json", "x.jsonl") and content != b"")
    if name != "x.json":
        (tmp_path / "alone").mkdir()
        alone = tmp_path / "alone" / name
        alone.write_bytes(content)
        assert message in refusal(tmp_path / "alone", alone)


def test_a_row_with_a_date_beyond_python_s_is_left_out_and_named(tmp_path: Path) -> None:
    days = pa.array([0, 2**31 - 1, 1], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"q": ["a", "b", "c"], "a": days}), tmp_path / "rows.parquet")
    rows = [row for _, row in read(tmp_path / "rows.parquet")]
    assert [row["q"] for row in (rows[0], rows[2])] == ["a", "c"]
    assert rows[1].detail.startswith("holds a date or a time beyond Python's (")
    sample = sample_rows(tmp_path / "rows.parquet")
    assert len(sample.rows) == 2 and sample.unreadable[0].startswith("row 2 holds a date")


def test_a_parquet_file_cut_short_is_named(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "rows.parquet", ROWS)
    path.write_bytes(path.read_bytes()[:-20])
    assert "rows.parquet: is not readable as Parquet" in refusal(tmp_path, path)


def test_too_few_rows_for_three_splits_are_refused_with_the_counts(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [*ROWS[:2], ROWS[0]])
    message = refusal(tmp_path, path)
    assert (
        "mine: 3 rows leave none for val, test (test 0, val 0, train 2; dropped: 1 duplicate prompt)"
        in message
    )


def test_splits_smaller_than_asked_are_made_and_pointed_out(tmp_path: Path) -> None:
    summary = prepared(tmp_path, write_jsonl(tmp_path / "rows.jsonl", ROWS), n_test=50)
    assert summary.task.n_test == 10
    assert "test has 10 rows, 50 were asked for; give more data, or lower n_test" in summary.warnings


def test_repeated_questions_are_dropped_and_disagreeing_ones_counted_apart(tmp_path: Path) -> None:
    rows = [*ROWS, ROWS[0], {"q": " question  1, please?", "a": "other"}]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    dropped = prepared(tmp_path, path, n_confirm=0).dropped
    assert dropped == {"duplicate prompt": 1, "duplicate prompt with another answer": 1, "not needed": 10}


def test_files_for_validation_and_test_feed_those_splits_alone(tmp_path: Path) -> None:
    train = write_jsonl(tmp_path / "train.jsonl", ROWS[:20])
    val, test = (
        write_jsonl(tmp_path / f"{name}.jsonl", [{"q": f"{name} {n}", "a": "1"} for n in range(7)])
        for name in ("val", "test")
    )
    summary = prepared(tmp_path, train, val_files=str(val), test_files=str(test))
    for split in ("val", "test"):
        table = pq.ParquetFile(getattr(summary.task, split)).read().to_pylist()
        assert all(row["prompt"][0]["content"].startswith(f"{split} ") for row in table)
    assert (summary.task.n_train, summary.task.n_val, summary.task.n_test) == (10, 5, 5)


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    files = [tmp_path / folder / "main" / "train.jsonl" for folder in ("algebra", "geometry")]
    for path, rows in zip(files, (ROWS[:15], ROWS[15:]), strict=True):
        path.parent.mkdir(parents=True)
        write_jsonl(path, rows)
    alone = write_jsonl(tmp_path / "alone.jsonl", [{"q": "alone", "a": "1"}])
    for _ in range(2):  # the second call finds the task of the first
        summary = prepared(tmp_path, *files, alone)
        assert summary.rows_read == 31
    source = read_manifest(Path(summary.task.directory)).source
    names = ["algebra/main/train.jsonl", "alone.jsonl", "geometry/main/train.jsonl"]
    assert source is not None and [file.file for file in source.files] == names


@pytest.mark.parametrize("rows", [ROWS[:3], [*ROWS[1:], {"q": "another question", "a": "1"}]])
def test_a_file_that_changes_while_it_is_prepared_is_noticed(tmp_path: Path, rows: list[Any]) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)

    def meddle(doing: str, _share: float) -> None:
        if doing == "choosing rows":
            write_jsonl(path, rows)

    message = refusal(tmp_path, path, progress=meddle)
    assert "rows.jsonl was changed while it was being prepared; prepare again" in message


def test_each_file_is_read_once_and_what_was_read_is_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_files: list[str] = []

    def counted(file: SourceFile, *arguments: Any) -> Any:
        read_files.append(file.name)
        return read_rows(file, *arguments)

    monkeypatch.setattr("llmzero_ray.tasks.sources.scan.read_rows", counted)
    one, other = (
        write_jsonl(tmp_path / "a.jsonl", ROWS[:20]),
        write_parquet(tmp_path / "b.parquet", ROWS[20:]),
    )
    prepared(tmp_path, one, other)
    assert read_files == ["a.jsonl", "b.parquet"]
    assert left_beside(tmp_path / "task") == ["a.jsonl", "b.parquet", "task"]


def test_a_row_that_is_no_text_is_left_out_and_named(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [*ROWS, {"q": "half a character: \ud83d", "a": "1"}])
    [example] = prepared(tmp_path, path).examples["unreadable row"]
    assert example.startswith("rows.jsonl, row 31: holds what is not text (")


# --- lengths ------------------------------------------------------------------------------------------------


@pytest.fixture
def tokenizer_dir(tmp_path: Path) -> Path:
    """The tiny model's tokenizer: one token per character and four around them."""
    pytest.importorskip("transformers")
    from llmzero_ray.tasks.tiny_model import make_tokenizer

    directory = tmp_path / "tokenizer"
    make_tokenizer().save_pretrained(directory)
    return directory


def test_the_longest_prompt_is_measured_with_the_tokenizer_and_its_chat_template(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    task = prepared(tmp_path, path, tokenizer=str(tokenizer_dir)).task
    longest = max(
        len(row["prompt"][0]["content"])
        for split in ("train", "val", "test")
        for row in pq.ParquetFile(getattr(task, split)).read().to_pylist()
    )
    # start mark, "u:", prompt, end mark, start mark, "a:"
    assert task.max_prompt_tokens == longest + 7


def test_prompts_beyond_the_limit_are_left_out_and_others_take_their_place(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    rows = [{"q": f"{n:03d} " + "x" * (100 if n % 3 == 0 else 10), "a": "1"} for n in range(90)]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    summary = prepared(tmp_path, path, tokenizer=str(tokenizer_dir), max_prompt_tokens=50, n_train=40)
    assert (summary.task.n_train, summary.task.n_val, summary.task.n_test) == (40, 5, 5)
    assert summary.task.max_prompt_tokens == 14 + 7
    assert summary.counts["mine"].confirm == 60 - 50  # none of the long ones, and the splits as without them
    assert 0 < summary.dropped["prompt too long"] <= 30
    assert "111 tokens, at most 50; raise max_prompt_tokens" in summary.examples["prompt too long"][0]


def test_the_model_s_own_limit_counts_as_well(tmp_path: Path, tokenizer_dir: Path) -> None:
    (tokenizer_dir / "config.json").write_text(json.dumps({"max_position_embeddings": 20}))
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    with pytest.raises(TaskError, match=r"leave none for train, val, test \(.*dropped: .*30 prompt too long"):
        prepared(tmp_path, path, tokenizer=str(tokenizer_dir))


def test_a_tokenizer_that_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    said = refusal(tmp_path, path, tokenizer=str(tmp_path / "no"))
    assert "is not a directory; name one that holds" in said


# --- the hub ------------------------------------------------------------------------------------------------


def hub_package(monkeypatch: pytest.MonkeyPatch, load_dataset: Any) -> None:
    package = ModuleType("datasets")
    package.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", package)


class Published:
    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def to_parquet(self, path: str) -> None:
        pq.write_table(pa.Table.from_pylist(self.rows), path)


def test_a_data_set_of_the_hub_becomes_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def load_dataset(name: str, revision: str | None) -> dict[str, Published]:
        asked.append((name, revision))
        return {
            "train": Published(synthetic.papersearchqa(40)),
            "test": Published(synthetic.papersearchqa(20, 1, "t")),
        }

    hub_package(monkeypatch, load_dataset)
    data = {
        "dataset": "papersearchqa",
        "hub": "some/set",
        "hub_revision": "abc",
        "dir": str(tmp_path / "task"),
    }
    task = parse_task_file({**data, "n_train": 20, "n_val": 5, "n_test": 10})
    summary = prepare_source(task)
    assert (summary.task.n_train, summary.task.n_val, summary.task.n_test) == (20, 5, 10)
    assert not prepare_source(task).made
    assert asked == [("some/set", "abc")]


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train", ""), ("validation_matched", "val"), ("valid", "val"), ("dev", "val"), ("test-hard", "test"),
        ("eval", "test"), ("evaluation", "test"), ("evaluated", ""),
    ],
)  # fmt: skip
def test_rows_of_a_published_split_stay_in_it(name: str, split: str) -> None:
    assert only_split_of(name) == split


def test_without_a_network_or_without_the_package_files_are_proposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = parse_task_file({"dataset": "wildsci", "hub": "some/set", "dir": str(tmp_path / "task")})

    def offline(*_arguments: Any, **_options: Any) -> None:
        raise ConnectionError("no route to host")

    hub_package(monkeypatch, offline)
    with pytest.raises(
        TaskError, match=r"some/set cannot be loaded \(ConnectionError: no route to host\). Without"
    ):
        prepare_source(task)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(TaskError, match=r"needs the package datasets, which cannot be imported"):
        prepare_source(task)
    assert left_beside(tmp_path / "task") == []
