"""Rows with the columns, types and oddities of the published data sets; their content is made up."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Rows = list[dict[str, Any]]
_MOLECULES = ["CCO", "CC(=O)O", "c1ccccc1O", "CCN", "CCCl", "CC(C)O", "OCCO", "CCS", "c1ccccc1N", "CCBr"]


def papersearchqa(n: int, seed: int = 0, prefix: str = "gene") -> Rows:
    """Two questions per paper; several wordings of each answer."""
    rng = Random(f"paper {seed}")
    return [
        {
            "question_original": f"What is {prefix} {index} called?",
            "question": f"Which protein does {prefix} {index} encode?",
            "answer": f"Protein-{rng.randrange(10**6)}",
            "is_paraphrased": index % 3 == 0,
            "cat_num": index % 10,
            "cat": f"category {index % 10}",
            "pmid": str(10_000_000 + seed * 10**6 + index // 2),
            "paper_title": f"On {prefix} {index}",
            "golden_answers": [f"Protein-{index}", f"P{index}"],
        }
        for index in range(n)
    ]


def wildsci(n: int, seed: int = 0) -> Rows:
    """Three questions per paper, nine disciplines of unequal size, every tenth row with votes that differ."""
    rng = Random(f"wild {seed}")
    names = ["Biology", "Chemistry", "Physics", "Medicine", "Engineering", "Materials Science"]
    names += ["Earth Science", "Computer Science", "Social Sciences"]
    rows = []
    for index in range(n):
        discipline = rng.choices(names, weights=range(9, 0, -1))[0]
        rows.append(
            {
                "paper_id": f"s41467-{seed}-{index // 3}",
                "discipline": discipline,
                "nc_domain": "domain",
                "nc_subdomain": "subdomain",
                "question": f"Which effect number {seed}.{index} was seen?",
                "options": {letter: f"effect {index} {letter.lower()}" for letter in "ABCDEFGHIJ"},
                "answer": rng.choice("ABCDEFGHIJ"),
                "rationale": "the answer is given away here",
                "voting_type": "not_aligned" if index % 10 == 0 else rng.choice(_ALIGNED),
                "voting_answers": None if index % 7 == 0 else ["A"] * 8,
            }
        )
    return rows


_ALIGNED = ("all_aligned", "majority_aligned")
_SSMR = (
    ("TimeSignature", "Beat"),
    ("BarLinePlacement", "Beat"),
    ("ChordKeyRoot", "Chord-c"),
    ("ChordsCompletion", "Chord-e"),
    ("IntervalNumber", "Interval"),
    ("ScaleIdentification", "Scale"),
)


def ssmr(n: int, seed: int = 0) -> Rows:
    """Music in ABC with the two characters backslash and n for a line break, four subtasks."""
    rows = []
    for index in range(n):
        class_name, category = _SSMR[index % len(_SSMR)]
        rows.append(
            {
                "class_name": class_name,
                "question": f"Question {seed}.{index} about the excerpt?",
                "abc_context": f"X:{index}\\nL:1/8\\nK:C\\n|{'CDEF' * (index % 3 + 1)}|",
                "correct_answer": f"{index % 7 + 2}/4",
                "incorrect_answer1": f"{index % 7 + 12}/8",
                "incorrect_answer2": f"{index % 7 + 22}/8",
                "incorrect_answer3": f"{index % 7 + 32}/8",
                "category": category,
                "difficulty": "easy",
            }
        )
    return rows


def chemcot_bench(subtask: str, n: int, seed: int = 0) -> Rows:
    """Rows of one file of the benchmark: `gt` is text, `meta` is JSON text."""
    rng = Random(f"chem {subtask} {seed}")
    rows = []
    for index in range(n):
        molecule = _MOLECULES[index % 10] + "C" * (index // 10)
        task, gold, meta, answer_key = _chem(subtask, index, molecule)
        query = (
            f"You are a chemical assistant. Task {subtask} number {index}. Your response must be directly "
            f'parsable JSON format: {{ "{answer_key}": "...", }} {_where(subtask)}: {molecule}.'
        )
        rows.append(
            {
                "id": str(uuid.UUID(int=rng.getrandbits(128))),
                "query": query,
                "gt": gold,
                "task": task,
                "subtask": subtask,
                "meta": json.dumps(meta),
            }
        )
    return rows


def chemcot_cot(subtask: str, n: int, seed: int = 1) -> Rows:
    """Rows of the training set: no `gt`; the gold stands in `meta`, or only in a fenced `struct_cot`."""
    rows = []
    for index, row in enumerate(chemcot_bench(subtask, n, seed)):
        gold, meta = row.pop("gt"), json.loads(row["meta"])
        key = {"fg_count": "count", "Murcko_scaffold": "Output Scaffold"}.get(subtask, "output")
        fenced = f"```json\n{json.dumps({'steps': ['a', 'b'], key: gold})}\n```"
        row |= {
            "query": row["query"].replace("number", "training number"),
            "meta": json.dumps(meta if index % 2 else meta | {"gt": gold}),
            "struct_cot": fenced if index % 2 else json.dumps({key: gold}),
            "raw_cot": "Let me think.",
        }
        rows.append(row)
    return rows


def _where(subtask: str) -> str:
    optimised = ("drd", "gsk", "jnk", "logp", "qed", "solubility")
    return "Source Molecule" if subtask in optimised else "Input Molecule"


def _chem(subtask: str, index: int, molecule: str) -> tuple[str, Any, dict[str, Any], str]:
    """Task, gold, meta and answer key."""
    if subtask in ("fg_count", "ring_count"):
        return "mol_und", str(index % 3), {"molecule": molecule}, "count"
    if subtask in ("ring_system_scaffold", "equivalence"):
        return "mol_und", ("Yes", "No")[index % 2], {}, "output"
    if subtask == "Murcko_scaffold":
        return "mol_und", "c1ccccc1", {}, "Output Scaffold"
    if subtask == "add":
        return (
            "mol_edit",
            "",
            {"molecule": molecule, "added_group": "hydroxyl", "reference": molecule},
            "output",
        )
    if subtask == "delete":
        return "mol_edit", "", {"removed_group": "halo."}, "output"
    if subtask in ("drd", "logp", "qed"):
        return "mol_opt", "", {"src_iupac": "name", "type": subtask}, "Final Target Molecule"
    if subtask == "fs":
        by_product = [] if index % 5 == 0 else "CC" + "O" * (index % 2)
        gold = json.dumps({"Major Product": molecule, "Byproduct(s)": by_product})
        meta = {
            "rxn_cls": 1,
            "reactants": [molecule],
            "reagents": [],
            "rxn_smiles": f"{molecule}>>{molecule}",
        }
        return "reaction", gold, meta, 'Major Product": "...", "Byproduct(s)'
    if subtask == "retro":
        return "reaction", "", {"reactants": [molecule, "CC"]}, "Reactants"
    return "reaction", "ABCDEFGHIJ"[index % 10], {}, "choice"


def write_json(path: Path, rows: Rows) -> Path:
    return _write(path, lambda: path.write_text(json.dumps(rows, indent=1)))


def write_jsonl(path: Path, rows: Sequence[Any]) -> Path:
    return _write(path, lambda: path.write_text("".join(json.dumps(row) + "\n" for row in rows)))


def write_parquet(path: Path, rows: Rows, row_group_size: int = 64) -> Path:
    table = pa.Table.from_pylist(rows)
    return _write(path, lambda: pq.write_table(table, path, row_group_size=row_group_size))


def _write(path: Path, write: Callable[[], Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write()
    return path
