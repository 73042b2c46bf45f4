"""RDKit functions of the chemistry rewards: validity, identity, similarity and functional groups of
molecules.

Length and atoms of a molecule are capped, so that each call takes milliseconds. RDKit's own log is switched
off in the process. Without RDKit installed, nothing is a molecule.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any, TypeAlias

Molecule: TypeAlias = Any
"""An RDKit molecule."""

MAX_SMILES = 500
MAX_ATOMS = 200
"""Heavy atoms of all fragments together."""
_RADIUS, _BITS = 2, 2048
# logS in log10 mol/l: Delaney's ESOL model, coefficients fitted again on RDKit's descriptors.
_ESOL_INTERCEPT, _ESOL_LOGP, _ESOL_WEIGHT = 0.26121066, -0.74167395, -0.00661388
_ESOL_ROTORS, _ESOL_AROMATIC = 0.00345155, -0.42624840

# The functional groups that ChemCoTBench adds and removes. They overlap on purpose: a carboxyl group also
# counts as a hydroxyl group, and a thioether counts pairs of a sulfur and a saturated carbon.
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


@lru_cache(maxsize=1)
def _rdkit() -> Any:
    """The parts of RDKit in use, its log silenced; None when it is not installed."""
    try:
        import_module("rdkit.RDLogger").DisableLog("rdApp.*")
        fingerprints = import_module("rdkit.Chem.rdFingerprintGenerator")
        return SimpleNamespace(
            chem=import_module("rdkit.Chem"),
            data=import_module("rdkit.DataStructs"),
            qed=import_module("rdkit.Chem.QED"),
            crippen=import_module("rdkit.Chem.Crippen"),
            descriptors=import_module("rdkit.Chem.Descriptors"),
            morgan=fingerprints.GetMorganGenerator(radius=_RADIUS, fpSize=_BITS),
        )
    except ImportError:
        return None


def read_molecule(smiles: str) -> Molecule | None:
    """The molecule of a SMILES without its atom maps. None if it is invalid, empty, or beyond the caps."""
    rd = _rdkit()
    text = smiles.strip()
    if rd is None or not text or len(text) > MAX_SMILES or not text.isascii() or not text.isprintable():
        return None
    # RDKit would read a name after a space, and drawing instructions after `|`.
    if " " in text or "|" in text:
        return None
    try:
        molecule = rd.chem.MolFromSmiles(text)
        if molecule is None or not 0 < molecule.GetNumAtoms() <= MAX_ATOMS:
            return None
        if ":" in text:
            for atom in molecule.GetAtoms():
                atom.SetAtomMapNum(0)
            # Parse again: hydrogens with a map number were kept.
            molecule = rd.chem.MolFromSmiles(rd.chem.MolToSmiles(molecule))
    except Exception:  # noqa: BLE001  RDKit raises C++ exceptions of many kinds
        return None
    return molecule


def canonical(molecule: Molecule) -> str:
    """Canonical SMILES without stereochemistry and isotopes, fragments in a fixed order; empty on failure."""
    chem = _rdkit().chem
    try:
        flat = chem.MolFromSmiles(chem.MolToSmiles(molecule, isomericSmiles=False))
        return "" if flat is None else str(chem.MolToSmiles(flat, isomericSmiles=False))
    except Exception:  # noqa: BLE001  RDKit raises C++ exceptions of many kinds
        return ""


def is_same(first: Molecule, second: Molecule) -> bool:
    """Whether two molecules have the same canonical SMILES or the same InChI."""
    one, other = canonical(first), canonical(second)
    if one != "" and one == other:
        return True
    # InChI identifies tautomers; their atoms are always the same.
    if first.GetNumHeavyAtoms() != second.GetNumHeavyAtoms():
        return False
    inchi = _inchi(first)
    return inchi != "" and inchi == _inchi(second)


def _inchi(molecule: Molecule) -> str:
    try:
        return str(_rdkit().chem.MolToInchi(molecule) or "")
    except Exception:  # noqa: BLE001  RDKit raises C++ exceptions of many kinds
        return ""


def n_fragments(molecule: Molecule) -> int:
    """Number of parts without a bond between them."""
    return len(_rdkit().chem.GetMolFrags(molecule))


def similarity(first: Molecule, second: Molecule) -> float:
    """Tanimoto similarity in [0, 1] of Morgan fingerprints, radius 2, 2048 bits."""
    rd = _rdkit()
    one, other = (rd.morgan.GetFingerprint(molecule) for molecule in (first, second))
    return float(rd.data.TanimotoSimilarity(one, other))


def group_named(name: str) -> str | None:
    """Key of `SMARTS` for a name as the data spells it (`benzene ring`, `Halo.`); None for an unknown one."""
    plain = "_".join(name[:64].strip().rstrip(".").lower().replace("-", " ").replace("_", " ").split())
    plain = _ALIASES.get(plain, plain)
    return plain if plain in SMARTS else None


def n_groups(molecule: Molecule, group: str) -> int:
    """Number of occurrences of a functional group of `SMARTS`."""
    own = len(molecule.GetSubstructMatches(_pattern(group)))
    return own - n_groups(molecule, LESS[group]) if group in LESS else own


@lru_cache(maxsize=64)
def _pattern(group: str) -> Any:
    return _rdkit().chem.MolFromSmarts(SMARTS[group])


def property_of(molecule: Molecule, prop: str) -> float | None:
    """`qed`, `logp` (Crippen's, not penalized) or `solubility` (ESOL, log10 mol/l); None for any other."""
    rd = _rdkit()
    try:
        if prop == "qed":
            return float(rd.qed.qed(molecule))
        if prop == "logp":
            return float(rd.crippen.MolLogP(molecule))
        return _solubility(molecule) if prop == "solubility" else None
    except Exception:  # noqa: BLE001  RDKit raises C++ exceptions of many kinds
        return None


def _solubility(molecule: Molecule) -> float:
    rd = _rdkit()
    aromatic = sum(atom.GetIsAromatic() for atom in molecule.GetAtoms()) / molecule.GetNumAtoms()
    return float(
        _ESOL_INTERCEPT
        + _ESOL_LOGP * rd.crippen.MolLogP(molecule)
        + _ESOL_WEIGHT * rd.descriptors.MolWt(molecule)
        + _ESOL_ROTORS * rd.descriptors.NumRotatableBonds(molecule)
        + _ESOL_AROMATIC * aromatic
    )
