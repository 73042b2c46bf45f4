"""Functional groups that ChemCoTBench adds and removes, as SMARTS.

They overlap on purpose: a carboxyl group also counts as a hydroxyl group, and a thioether counts pairs of a
sulfur and a saturated carbon.
"""

from __future__ import annotations

SMARTS = {
    "benzene_ring": "[cR1]1[cR1][cR1][cR1][cR1][cR1]1",
    "hydroxyl": "[OX2H]",
    "aldehyde": "[CX3H1](=O)[#6]",
    "ketone": "[#6][CX3](=O)[#6]",
    "carboxyl": "[CX3](=O)[OX2H1]",
    "ester": "[#6][CX3](=O)[OX2H0][#6]",
    "anhydride": "[CX3](=[OX1])[OX2][CX3](=[OX1])",
    "amine": "[NX3;H2,H1;!$(NC=O)]",
    "amide": "[NX3][CX3](=[OX1])[#6]",
    "nitro": "[$([NX3](=O)=O),$([NX3+](=O)[O-])][!#8]",
    "halo": "[F,Cl,Br,I]",
    "thiol": "[#16X2H]",
    "thioether": "[SX2][CX4]",
    "disulfide": "[#16X2H0][#16X2H0]",
    "sulfoxide": "[$([#16X3]=[OX1]),$([#16X3+][OX1-])]",
    "sulfone": "[$([#16X4](=[OX1])=[OX1]),$([#16X4+2]([OX1-])[OX1-])]",
    "sulfide": "[#16X2H0]",
    "nitrile": "[NX1]#[CX2]",
    "borane": "[BX3]",
}
LESS = {"sulfide": "disulfide"}
"""Group -> group whose matches are subtracted from its own."""
_ALIASES = {"benzene": "benzene_ring"}


def group_named(name: str) -> str | None:
    """Key of `SMARTS` for a name as the data spells it (`benzene ring`, `Halo.`); None for an unknown one."""
    plain = "_".join(name[:64].strip().rstrip(".").lower().replace("-", " ").replace("_", " ").split())
    plain = _ALIASES.get(plain, plain)
    return plain if plain in SMARTS else None
