"""ChemCoTBench's subtasks: category, JSON keys of the answer, and what each reward needs.

Standard library only.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

Category: TypeAlias = Literal["und", "edit", "opt", "rxn"]
Rule: TypeAlias = Literal["count", "yes_no", "letter", "scaffold", "edit", "property", "same_molecule"]

PREFIX = "chemcot_"
"""Prefix of every `data_source`: `chemcot_<category>_<subtask>`."""
ORACLES = ("drd", "gsk", "jnk")
"""Properties whose predictor is a trained model that does not ship."""


@dataclass(frozen=True, kw_only=True)
class Subtask:
    """One of the subtasks."""

    name: str
    category: Category
    rule: Rule
    keys: tuple[str, ...]
    """JSON keys of the answer. The first existing one counts."""
    prop: str = ""
    """Property to raise."""

    @property
    def data_source(self) -> str:
        """`data_source` of the rows."""
        return f"{PREFIX}{self.category}_{self.name}"

    @property
    def needs_rdkit(self) -> bool:
        """Whether its answers are molecules."""
        return self.rule in ("scaffold", "edit", "property", "same_molecule")


_OUTPUT = "output"
_EDITED = (_OUTPUT, "Final Target Molecule", "molecule")
_OPTIMISED = ("Final Target Molecule", _OUTPUT)
_YES_NO: Any = {"category": "und", "rule": "yes_no", "keys": (_OUTPUT,)}
_COUNT: Any = {"category": "und", "rule": "count", "keys": ("count", _OUTPUT)}
_EDIT: Any = {"category": "edit", "rule": "edit", "keys": _EDITED}
_MADE: Any = {"category": "rxn", "rule": "same_molecule"}

SUBTASKS = (
    Subtask(name="fg_count", **_COUNT),
    Subtask(name="ring_count", **_COUNT),
    Subtask(name="ring_system_scaffold", **_YES_NO),
    Subtask(name="equivalence", **_YES_NO),
    Subtask(name="Murcko_scaffold", category="und", rule="scaffold", keys=("Output Scaffold", _OUTPUT)),
    Subtask(name="add", **_EDIT),
    Subtask(name="delete", **_EDIT),
    Subtask(name="sub", **_EDIT),
    *(
        Subtask(name=prop, category="opt", rule="property", keys=_OPTIMISED, prop=prop)
        for prop in (*ORACLES, "logp", "qed", "solubility")
    ),
    Subtask(name="fs_major_product", keys=("Major Product", _OUTPUT), **_MADE),
    Subtask(name="fs_by_product", keys=("Byproduct(s)", "By Product", _OUTPUT), **_MADE),
    Subtask(name="rcr", keys=("SMILES", _OUTPUT), **_MADE),
    Subtask(name="retro", keys=("Reactants", _OUTPUT), **_MADE),
    Subtask(name="nepp", keys=("pred_smi", _OUTPUT), **_MADE),
    Subtask(name="mechsel", category="rxn", rule="letter", keys=("choice", _OUTPUT)),
)
"""All subtasks, in the order of reports."""

_ALIASES = {"del": "delete", "substitute": "sub", "mech_sel": "mechsel", "byproduct": "fs_by_product"} | {
    "by_product": "fs_by_product",
    "major_product": "fs_major_product",
}


@lru_cache(maxsize=1024)
def subtask_named(name: str) -> Subtask | None:
    """The subtask with this name or data_source, in any spelling in use. None if it is unknown."""
    plain = re.sub(r"[^a-z0-9]+", "_", name[:64].lower()).strip("_")
    plain = re.sub(r"^chemcot_(?:und|edit|opt|rxn)_", "", plain)
    plain = re.sub(r"^(?:mol_opt|opt)_", "", plain)
    plain = _ALIASES.get(plain, plain)
    return next((subtask for subtask in SUBTASKS if subtask.name.lower() == plain), None)


def missing_requirements(subtasks: Iterable[str]) -> list[str]:
    """Obstacles to scoring these subtasks (names or data_sources) here, one sentence each.

    An empty list means that all of them can be scored. A reward without its requirements pays nothing, so
    such a task must be rejected before training.
    """
    named = {name: subtask_named(name) for name in dict.fromkeys(subtasks)}
    found = []
    unknown = sorted(name for name, subtask in named.items() if subtask is None)
    if unknown:
        known = ", ".join(subtask.name for subtask in SUBTASKS)
        found.append(f"no reward for the chemistry subtasks {', '.join(unknown)}; known: {known}")
    held = [subtask for subtask in named.values() if subtask is not None]
    bare = sorted(subtask.name for subtask in held if subtask.prop in ORACLES)
    if bare:
        found.append(
            f"the subtasks {', '.join(bare)} need a trained oracle, and none ships; leave them out, or write "
            "a reward of your own for them"
        )
    chemical = sorted(subtask.name for subtask in held if subtask.needs_rdkit)
    if chemical and importlib.util.find_spec("rdkit") is None:
        found.append(
            f"the subtasks {', '.join(chemical)} need RDKit, which is not installed; install "
            "llmzero-ray[chem] on every node, or leave them out"
        )
    return found
