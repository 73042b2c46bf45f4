"""ChemCoTBench and its chain-of-thought set: tasks of understanding, editing, optimisation and reactions of
molecules.

Both layouts are read: `<task>/<subtask>.json` with a gold answer per row, and the training set, whose gold
answer is in `meta` or in the structured reasoning. Rows whose gold answer or source is not a molecule are
dropped, as are properties that need an oracle. Source: Li et al. 2025, arXiv 2505.21318; OpenMol/ChemCoTBench
and ChemCoTDataset on the Hugging Face hub.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.chem_subtasks import (
    ORACLES,
    SUBTASKS,
    Subtask,
    missing_requirements,
    subtask_named,
)
from llmzero_ray.prepared.manifest import RewardEntry
from llmzero_ray.tasks.rewards.chemcot import agents_of
from llmzero_ray.tasks.rewards.json_field import answer_field, as_text
from llmzero_ray.tasks.rewards.molecules import group_named, read_molecule
from llmzero_ray.tasks.sources.base import DatasetAdapter, Record, Rejection, TaskExample, empty, text_of
from llmzero_ray.utils.text import json_or_none

_INPUT = re.compile(r"(?:Input|Source) Molecule:\s*([^\s,]+)")
_MAJOR, _BY = "fs_major_product", "fs_by_product"
_NO_MOLECULE = "RDKit reads no molecule in it; correct it or remove the row"
_WITHOUT_GOLD = ("edit", "property")
"""Rules that judge an answer by the molecule it starts from."""


class ChemCoT(DatasetAdapter):
    """`subtasks` are the names to keep. If None, all subtasks that can be rewarded without an oracle are
    kept."""

    name = "chemcot"
    licence = "MIT"
    ability = "chemistry"
    required = ("id", "query", "task", "subtask", "meta")
    optional = ("gt", "struct_cot", "raw_cot", "cot_result")
    reward = RewardEntry(module="llmzero_ray.tasks.rewards.chemcot")

    def __init__(self, subtasks: Sequence[str] | None = None) -> None:
        chosen = [subtask.name for subtask in SUBTASKS if subtask.prop not in ORACLES]
        if subtasks is not None:
            if unknown := [name for name in subtasks if subtask_named(name) is None]:
                known = ", ".join(subtask.name for subtask in SUBTASKS)
                raise TaskError(f"chemcot: no subtask is called {unknown[0]!r}; known: {known}")
            chosen = [found.name for name in subtasks if (found := subtask_named(name)) is not None]
        self._subtasks = frozenset(chosen)

    def options(self) -> dict[str, Any]:
        """The subtasks that are kept."""
        return {"subtasks": ",".join(sorted(self._subtasks))}

    def check(self) -> None:
        """Check that the subtasks can be rewarded on this machine."""
        if problems := missing_requirements(sorted(self._subtasks)):
            bare = ", ".join(subtask.name for subtask in SUBTASKS if not subtask.needs_rdkit)
            raise TaskError(
                f"chemcot: {'; '.join(problems)}. The option subtasks chooses; these need nothing: {bare}"
            )

    def adapt(self, record: Record, file: str) -> TaskExample | Rejection:
        """Question in the wording of its data set."""
        query, meta = text_of(record, "query"), _object(record.get("meta"))
        if not query:
            return empty("query", "empty question")
        subtask = _subtask(record, meta, file)
        if subtask is None:
            return Rejection(
                reason="unknown subtask",
                detail=f"subtask {text_of(record, 'subtask')!r} is not known; known: "
                f"{', '.join(known.name for known in SUBTASKS)}",
            )
        if subtask.name not in self._subtasks:
            reason = "no oracle" if subtask.prop in ORACLES else "subtask not chosen"
            return Rejection(reason=reason, detail=f"subtask {subtask.name} is left out")
        truth = {
            "subtask": subtask.name,
            "gt": _gold(record, meta, subtask),
            "src": _source(query, meta),
            "added_group": _group(meta, "added_group"),
            "removed_group": _group(meta, "removed_group"),
            "prop": subtask.prop,
        }
        if problem := _problem(truth, subtask):
            return problem
        row_id = text_of(record, "id")
        return TaskExample(
            data_source=subtask.data_source,
            prompt=query,
            ground_truth=json.dumps(truth, ensure_ascii=False),
            label="" if subtask.rule in _WITHOUT_GOLD else truth["gt"],
            stable_id=row_id,
            group=truth["src"] or as_text(meta.get("rxn_smiles")) or as_text(meta.get("reactants")),
            extra={"subtask": subtask.name, "category": subtask.category, "row_id": row_id},
        )

    def gold_response(self, data_source: str, ground_truth: str) -> str | None:
        """Gold answer under the subtask's key. None for optimisation, which has no single answer."""
        subtask, gold = subtask_named(data_source), json.loads(ground_truth)["gt"]
        return json.dumps({subtask.keys[0]: gold}) if subtask is not None and gold else None


def _object(value: Any) -> Mapping[str, Any]:
    """JSON object, given as an object or as text. Empty for anything else."""
    value = json_or_none(value) if isinstance(value, str) else value
    return value if isinstance(value, Mapping) else {}


def _subtask(record: Record, meta: Mapping[str, Any], file: str) -> Subtask | None:
    """Subtask by the column, otherwise by the file's name. A forward-synthesis row is classified by its
    query."""
    for name in (text_of(record, "subtask"), file.rpartition("/")[2].partition(".")[0]):
        if name.lower() == "fs":
            return _forward(record, meta)
        if found := subtask_named(name):
            return found
    return None


def _forward(record: Record, meta: Mapping[str, Any]) -> Subtask | None:
    """The by-product if the query asks for it and there is one, otherwise the major product."""
    by_product = subtask_named(_BY)
    asks = any(
        key.lower() in text_of(record, "query").lower() for key in ("Byproduct", "By Product", "By-product")
    )
    if asks and by_product is not None and _gold(record, meta, by_product):
        return by_product
    return subtask_named(_MAJOR)


def _gold(record: Record, meta: Mapping[str, Any], subtask: Subtask) -> str:
    """Gold answer as text, from the first field that has one. Empty if none has."""
    for value in (record.get("gt"), meta.get("gt"), meta.get("reference")):
        if text := _unwrapped(value, subtask):
            return text
    if subtask.name == "retro" and (text := as_text(meta.get("reactants"))):
        return text
    for column in ("struct_cot", "cot_result"):
        reasoning = record.get(column)
        text = reasoning if isinstance(reasoning, str) else json.dumps(reasoning)
        if found := answer_field(text, subtask.keys):
            return found
    return ""


def _unwrapped(value: Any, subtask: Subtask) -> str:
    """Gold value as text. Of an object, or of its JSON, the value under the subtask's key is taken."""
    if isinstance(value, Mapping):
        value = json.dumps(dict(value))
    text = as_text(value)
    if text.startswith("{"):
        return answer_field(text, subtask.keys) or ""
    return text


def _source(query: str, meta: Mapping[str, Any]) -> str:
    """Molecule that the question is about, without the full stop of the sentence."""
    named = as_text(meta.get("molecule"))
    found = _INPUT.search(query)
    return named or (found.group(1).rstrip(".") if found else "")


def _group(meta: Mapping[str, Any], key: str) -> str:
    return as_text(meta.get(key)).rstrip(".")


def _problem(truth: Mapping[str, str], subtask: Subtask) -> Rejection | None:
    """Reason why the row cannot be rewarded. None if it can."""
    if subtask.rule in _WITHOUT_GOLD:
        if not _is_molecule(truth["src"]):
            return Rejection(
                reason="source is no molecule", detail=f"the source {truth['src'][:80]!r}: {_NO_MOLECULE}"
            )
        named = {
            "add": ("added_group",),
            "delete": ("removed_group",),
            "sub": ("added_group", "removed_group"),
        }
        for key in named.get(subtask.name, ()):
            if group_named(truth[key]) is None:
                return Rejection(
                    reason="unknown functional group",
                    detail=f"meta.{key} is {truth[key]!r}, which has no pattern",
                )
        return None
    if not truth["gt"]:
        return Rejection(
            reason="no gold answer",
            detail="gt, meta and the reasoning hold no answer; fill gt or remove the row",
        )
    if subtask.needs_rdkit and not _is_molecule(agents_of(truth["gt"])):
        return Rejection(
            reason="gold is no molecule", detail=f"the gold {truth['gt'][:80]!r}: {_NO_MOLECULE}"
        )
    return None


@lru_cache(maxsize=4096)
def _is_molecule(smiles: str) -> bool:
    return read_molecule(smiles) is not None
