"""ChemCoTBench without molecules: the answer field, counts, yes/no, letters, names, what is missing."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest

from llmzero_ray.prepared.chem_subtasks import ORACLES, SUBTASKS, missing_requirements, subtask_named
from llmzero_ray.tasks.rewards import molecules
from llmzero_ray.tasks.rewards.chemcot import compute_score
from llmzero_ray.tasks.rewards.json_field import answer_field
from llmzero_ray.tasks.rewards.molecules import SMARTS, group_named


def truth(subtask: str, gt: str = "", **others: str) -> str:
    empty = {"src": "", "added_group": "", "removed_group": "", "prop": ""}
    return json.dumps({"subtask": subtask, "gt": gt, **empty, **others})


def acc(subtask: str, value: Any, gt: str, key: str = "output") -> float:
    return float(compute_score("x", json.dumps({key: value}), truth(subtask, gt))["acc"])


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"output": "CC"}', "CC"),
        ('```json\n{"output": "CC"}\n```', "CC"),
        ('{"output": "CC",}', "CC"),
        ('{"output": ["CC", "O",],}', "CC.O"),
        ('{"OUTPUT": "CC"}', "CC"),
        ('{"output": " CC "}', "CC"),
        ('{"output": 3}', "3"),
        ('{"output": "C"} or {"output": "CC"}', "CC"),
        ('{"output": "CC"} {"other": "C"}', "CC"),
        ('{"output": "CC"} {"output": C}', "CC"),
        ('{"a": {"output": "C"}, "output": "CC"}', "CC"),
        ('{"molecule": "C", "output": "CC"}', "CC"),
        ('{ see {"output": "CC"}', "CC"),
        ('} {"output": "CC"} {', "CC"),
        ('{"output": "CC"', "CC"),
        ('"output": "C", "output": "CC"', "CC"),
        ('"output": "CC", "output": C', "CC"),
        ('"output" : ["CC", "O"]', "CC.O"),
        ("<answer>CC</answer>", "CC"),
        ('{"other": "C"} <answer>CC</answer>', "CC"),
        ('{"output": "CC"} <answer>C</answer>', "CC"),
        ('{"output": null}', ""),
        ('{"output": true}', ""),
        ('{"output": {"SMILES": "CC"}}', ""),
        ("The output is CC.", None),
        ("output: CC", None),
        (r"\boxed{CC}", None),
        ("", None),
    ],
)
def test_the_last_object_with_the_key_wins_then_the_key_alone_then_the_tag(
    text: str, field: str | None
) -> None:
    assert answer_field(text, ("output", "molecule")) == field


@pytest.mark.parametrize(
    ("value", "right"),
    [
        ("3", 1),
        (3, 1),
        (3.0, 1),
        ("3.0", 1),
        ("3.", 1),
        (" 3 ", 1),
        ("+3", 1),
        ("3.5", 0),
        (4, 0),
        ("three", 0),
        ("3 rings", 0),
        (True, 0),
        (None, 0),
        ([], 0),
        ("9" * 5000, 0),
    ],
)
@pytest.mark.parametrize("subtask", ["fg_count", "ring_count"])
def test_counts_must_be_the_same_integer(subtask: str, value: Any, right: int) -> None:
    assert acc(subtask, value, "3", "count") == right
    assert acc(subtask, value, "3") == right


def test_a_true_does_not_count_as_one() -> None:
    assert acc("fg_count", True, "1", "count") == 0


@pytest.mark.parametrize(
    ("expected", "gold", "right"),
    [
        ("Yes", "Yes", 1),
        ("yes", "Yes", 1),
        ("NO", "No", 1),
        ("Yes", "No", 0),
        ("No", "Yes", 0),
        ("Yes, it is", "Yes", 0),
        ("", "", 0),
        ("maybe", "maybe", 0),
        (True, "Yes", 0),
    ],
)
@pytest.mark.parametrize("subtask", ["ring_system_scaffold", "equivalence"])
def test_yes_and_no_are_compared_with_the_gold(subtask: str, expected: Any, gold: str, right: int) -> None:
    assert acc(subtask, expected, gold) == right


@pytest.mark.parametrize(
    ("expected", "right"),
    [
        ("G", 1),
        ("g", 1),
        ("Option G", 1),
        ("option g.", 1),
        ("(G)", 1),
        ("G. SN2", 1),
        ("A", 0),
        ("K", 0),
        ("G or A", 0),
        ("", 0),
        ("Good", 0),
    ],
)
def test_a_mechanism_is_chosen_by_its_letter(expected: str, right: int) -> None:
    assert acc("mechsel", expected, "G", "choice") == right


def test_answers_in_prose_never_count() -> None:
    assert compute_score("x", "There are 3 rings.", truth("ring_count", "3")) == {
        "score": 0.0,
        "acc": 0.0,
        "fmt_ok": 0.0,
        "pred": "",
    }
    assert compute_score("x", "Yes", truth("equivalence", "Yes"))["acc"] == 0


def test_thoughts_never_count() -> None:
    response = '<think>{"count": 3}</think>{"count": 4}'
    assert compute_score("x", response, truth("ring_count", "3"))["acc"] == 0
    assert compute_score("x", '<think>{"count": 3}', truth("ring_count", "3"))["acc"] == 0


def test_the_data_source_names_the_subtask_where_the_truth_does_not() -> None:
    gold = json.dumps({"gt": "3"})
    assert compute_score("chemcot_und_ring_count", '{"count": 3}', gold)["acc"] == 1
    assert compute_score("chemcot_und_unheard", '{"count": 3}', gold)["acc"] == 0


@pytest.mark.parametrize("gold", [None, "", "[]", "{", "3", '{"subtask": "ring_count"}', "[" * 9000, b"{}"])
def test_a_ground_truth_that_cannot_be_read_pays_nothing(gold: Any) -> None:
    assert compute_score("x", '{"count": 3}', gold)["acc"] == 0


@pytest.mark.parametrize("subtask", SUBTASKS, ids=lambda subtask: subtask.name)
def test_every_subtask_is_found_by_its_name_and_its_data_source(subtask: Any) -> None:
    assert subtask_named(subtask.name) is subtask
    assert subtask_named(subtask.name.lower()) is subtask
    assert subtask_named(subtask.data_source) is subtask
    assert subtask.data_source.startswith(f"chemcot_{subtask.category}_")
    assert "/" not in subtask.data_source


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("mol_opt_logp", "logp"),
        ("chemcot_opt_mol_opt_qed", "qed"),
        ("del", "delete"),
        ("mech-select", None),
        ("Byproduct", "fs_by_product"),
        ("", None),
        ("fs", None),
        ("x" * 1000, None),
    ],
)
def test_other_spellings_in_use_are_understood(spelling: str, name: str | None) -> None:
    found = subtask_named(spelling)
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("spelling", "group"),
    [
        ("benzene ring", "benzene_ring"),
        ("benzene", "benzene_ring"),
        ("Halo.", "halo"),
        (" thiol ", "thiol"),
        ("", None),
        ("alkyl", None),
    ],
)
def test_groups_are_found_as_the_data_spells_them(spelling: str, group: str | None) -> None:
    assert group_named(spelling) == group
    assert all(group_named(name) == name for name in SMARTS)


def test_subtasks_without_molecules_need_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert missing_requirements(["fg_count", "chemcot_und_equivalence", "mechsel", "mechsel"]) == []


def test_subtasks_of_molecules_are_refused_without_rdkit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    [problem] = missing_requirements(["add", "chemcot_rxn_retro", "fg_count"])
    assert "add, retro" in problem and "RDKit" in problem and "install" in problem


def test_without_rdkit_molecules_pay_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(molecules, "_rdkit", lambda: None)
    for subtask in SUBTASKS:
        if subtask.needs_rdkit:
            gold = truth(subtask.name, "CCO", src="CC", added_group="hydroxyl", removed_group="halo")
            result = compute_score("x", json.dumps({subtask.keys[0]: "CCO"}), gold)
            assert (result["acc"], result["fmt_ok"]) == (0.0, 1.0)


def test_unknown_subtasks_and_oracles_are_named() -> None:
    oracle, unknown = missing_requirements(list(ORACLES)), missing_requirements(["unheard"])
    assert "drd, gsk, jnk need a trained oracle" in oracle[0]
    assert "unheard" in unknown[0] and "fg_count" in unknown[0]
