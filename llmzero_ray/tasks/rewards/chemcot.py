"""Reward of ChemCoTBench: 1 when the answer field of the JSON object in the response is right, else 0.

The ground truth is a JSON object of texts: `subtask`, `gt`, `src`, `added_group`, `removed_group`; the
data_source names the subtask where the object does not. Counts, yes/no and letters need no library;
molecules need RDKit, and without it pay nothing (`missing_requirements` says so before training). An edit or
an optimisation must be one valid fragment, differ from its source and stay near it: counting groups alone
would also pay for a small molecule that has nothing to do with the source. Properties that need an oracle
pay nothing.

The headline metric is the mean of three categories, understanding, editing and reaction, each the mean of its
subtasks' accuracies (aggregate.py). The published scorers differ: they count an echoed molecule as the right
scaffold, and edits by groups alone.
Source: Li et al. 2025, arXiv 2505.21318; solubility: Delaney 2004 (ESOL); QED: Bickerton et al. 2012.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from llmzero_ray.prepared.chem_subtasks import Rule, Subtask, subtask_named
from llmzero_ray.tasks.rewards import molecules
from llmzero_ray.tasks.rewards.extraction import Result, result, visible
from llmzero_ray.tasks.rewards.json_field import answer_field, as_text
from llmzero_ray.tasks.rewards.mcq import bare_letter
from llmzero_ray.utils.text import json_or_none

MIN_SIMILARITY = 0.2
"""Tanimoto similarity to the source that edits and optimisations must keep."""
MIN_GAIN = 1e-9
"""Minimum increase of a property that counts, because sums of floats differ in their last digits."""
MECHANISM_LETTERS = "ABCDEFGHIJ"
_MAX_GOLD = 100_000
_INTEGER = re.compile(r"([+-]?[0-9]{1,9})(?:\.0*)?")

Truth = Mapping[str, str]


def compute_score(
    data_source: Any,
    solution_str: Any,
    ground_truth: Any,
    extra_info: Any = None,  # noqa: ARG001
    format_bonus: Any = 0.0,
    **_others: Any,
) -> Result:
    """Score one response; `pred` is the field as it was compared (molecules canonical), or empty."""
    truth = _truth(ground_truth) if isinstance(ground_truth, str) else {}
    name = truth.get("subtask") or (data_source if isinstance(data_source, str) else "")
    subtask = subtask_named(name)
    if subtask is None:
        return result(right=False, found=False, pred="")
    field = answer_field(visible(solution_str), subtask.keys)
    right, pred = _RULES[subtask.rule](field, truth, subtask) if field else (False, "")
    return result(right=right, found=bool(field), pred=pred, format_bonus=format_bonus)


@lru_cache(maxsize=4096)
def _truth(text: str) -> Truth:
    if len(text) > _MAX_GOLD:
        return {}
    held = json_or_none(text)
    return {key: as_text(value) for key, value in held.items()} if isinstance(held, dict) else {}


def _count(field: str, truth: Truth, _subtask: Subtask) -> tuple[bool, str]:
    number, gold = _integer(field), _integer(truth.get("gt", ""))
    return number is not None and number == gold, field if number is None else str(number)


def _integer(text: str) -> int | None:
    found = _INTEGER.fullmatch(text.strip())
    return int(found.group(1)) if found else None


def _yes_no(field: str, truth: Truth, _subtask: Subtask) -> tuple[bool, str]:
    claimed, gold = field.lower(), truth.get("gt", "").strip().lower()
    return claimed in ("yes", "no") and claimed == gold, claimed


def _letter(field: str, truth: Truth, _subtask: Subtask) -> tuple[bool, str]:
    claimed, gold = (
        bare_letter(re.sub(r"^option\s+", "", text.strip(), flags=re.IGNORECASE), MECHANISM_LETTERS)
        for text in (field, truth.get("gt", ""))
    )
    return claimed is not None and claimed == gold, claimed or field


def _scaffold(field: str, truth: Truth, _subtask: Subtask) -> tuple[bool, str]:
    pred, gold = _canonical(field), _canonical(truth.get("gt", ""))
    return pred != "" and pred == gold, pred or field


def _canonical(smiles: str) -> str:
    molecule = molecules.read_molecule(smiles)
    return "" if molecule is None else molecules.canonical(molecule)


def _same_molecule(field: str, truth: Truth, subtask: Subtask) -> tuple[bool, str]:
    gold = truth.get("gt", "")
    if gold.startswith("{"):
        gold = answer_field(gold, subtask.keys) or ""
    if subtask.name == "rcr":
        field, gold = agents_of(field), agents_of(gold)
    one, other = molecules.read_molecule(field), molecules.read_molecule(gold)
    pred = "" if one is None else molecules.canonical(one)
    return one is not None and other is not None and molecules.is_same(one, other), pred or field


def agents_of(text: str) -> str:
    """The middle of a reaction `a>b>c`; any other text as it is."""
    parts = text.split(">")
    return parts[1] if len(parts) == 3 else text


def _edit(field: str, truth: Truth, subtask: Subtask) -> tuple[bool, str]:
    pair, pred = _near_pair(field, truth)
    wanted = _wanted_changes(truth, subtask)
    if pair is None or not wanted:
        return False, pred
    source, molecule = pair
    changes = {
        group: molecules.n_groups(molecule, group) - molecules.n_groups(source, group) for group in wanted
    }
    return changes == wanted, pred


def _wanted_changes(truth: Truth, subtask: Subtask) -> dict[str, int]:
    """Group -> change of its number; empty when the ground truth names no known group."""
    added, removed = (
        molecules.group_named(truth.get("added_group", "")),
        molecules.group_named(truth.get("removed_group", "")),
    )
    plus = {added: 1} if added else {}
    minus = {removed: -1} if removed else {}
    if subtask.name == "add":
        return plus
    if subtask.name == "delete":
        return minus
    return plus | minus if plus and minus and added != removed else {}


def _property(field: str, truth: Truth, subtask: Subtask) -> tuple[bool, str]:
    pair, pred = _near_pair(field, truth)
    if pair is None:
        return False, pred
    before, after = (molecules.property_of(molecule, subtask.prop) for molecule in pair)
    return before is not None and after is not None and after - before > MIN_GAIN, pred


def _near_pair(field: str, truth: Truth) -> tuple[tuple[molecules.Molecule, molecules.Molecule] | None, str]:
    """((source, answer), or None unless the answer is one fragment, another molecule, and near;
    prediction)."""
    molecule = molecules.read_molecule(field)
    pred = "" if molecule is None else molecules.canonical(molecule)
    source = molecules.read_molecule(truth.get("src", ""))
    if molecule is None or source is None or pred == "":
        return None, pred or field
    near = (
        molecules.n_fragments(molecule) == 1
        and pred != molecules.canonical(source)
        and molecules.similarity(source, molecule) >= MIN_SIMILARITY
    )
    return ((source, molecule) if near else None), pred


_RULES: Mapping[Rule, Callable[[str, Truth, Subtask], tuple[bool, str]]] = {
    "count": _count,
    "yes_no": _yes_no,
    "letter": _letter,
    "scaffold": _scaffold,
    "edit": _edit,
    "property": _property,
    "same_molecule": _same_molecule,
}
