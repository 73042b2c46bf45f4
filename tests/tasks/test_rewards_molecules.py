"""ChemCoTBench's molecules, judged with RDKit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmzero_ray.prepared.chem_subtasks import ORACLES, missing_requirements
from llmzero_ray.tasks.rewards import molecules
from llmzero_ray.tasks.rewards.chemcot import MIN_SIMILARITY, compute_score
from llmzero_ray.tasks.rewards.molecules import SMARTS

pytest.importorskip("rdkit")


def score(subtask: str, answer: Any, *, key: str = "output", **truth: str) -> dict[str, Any]:
    gold = json.dumps({"subtask": subtask, "gt": "", "src": "", **truth})
    return compute_score("x", json.dumps({key: answer}), gold)


def acc(subtask: str, answer: Any, **others: str) -> float:
    return float(score(subtask, answer, **others)["acc"])


def test_nothing_is_missing_with_rdkit() -> None:
    assert missing_requirements(["add", "logp", "chemcot_rxn_rcr"]) == []


@pytest.mark.parametrize(
    ("smiles", "reads"),
    [
        ("CCO", True),
        (" CCO ", True),
        ("C" * 200, True),
        ("C" * 201, False),
        ("[CH4]" * 101, False),
        ("", False),
        (" ", False),
        ("C1CC", False),
        ("c1cccc1", False),
        ("ethanol", False),
        ("C(", False),
        ("CCO ethanol", False),
        ("CCO|$a$|", False),
        ("C\x00", False),
        ("Cé", False),
        ("CC>O>C", False),
        ("[CH3:1][OH:2]", True),
        ("N(=O)(=O)C", True),
        ("C(C)(C)(C)(C)C", False),
    ],
)
def test_a_molecule_is_a_valid_smiles_within_the_caps(smiles: str, reads: bool) -> None:
    assert (molecules.read_molecule(smiles) is not None) is reads


@pytest.mark.parametrize(
    ("group", "smiles", "n"),
    [
        ("benzene_ring", "c1ccccc1C", 1),
        ("hydroxyl", "CO", 1),
        ("hydroxyl", "CC(=O)O", 1),
        ("aldehyde", "CC=O", 1),
        ("ketone", "CC(C)=O", 1),
        ("carboxyl", "CC(=O)O", 1),
        ("ester", "CC(=O)OC", 1),
        ("anhydride", "CC(=O)OC(C)=O", 1),
        ("amine", "CN", 1),
        ("amine", "CC(N)=O", 0),
        ("amide", "CC(N)=O", 1),
        ("nitro", "C[N+](=O)[O-]", 1),
        ("nitro", "CN(=O)=O", 1),
        ("halo", "FC(Cl)Br", 3),
        ("thiol", "CS", 1),
        ("thioether", "CSC", 2),
        ("disulfide", "CSSC", 1),
        ("sulfoxide", "CS(C)=O", 1),
        ("sulfone", "CS(C)(=O)=O", 1),
        ("sulfide", "CSC", 1),
        ("sulfide", "CSSC", 1),
        ("nitrile", "CC#N", 1),
        ("borane", "CB(C)C", 1),
    ],
)
def test_groups_are_counted(group: str, smiles: str, n: int) -> None:
    molecule = molecules.read_molecule(smiles)
    assert molecules.n_groups(molecule, group) == n


def test_every_group_has_a_pattern_and_none_is_found_in_ethane() -> None:
    ethane = molecules.read_molecule("CC")
    assert [group for group in SMARTS if molecules.n_groups(ethane, group) != 0] == []


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("c1ccccc1", 1),
        ("C1=CC=CC=C1", 1),
        ("Cc1ccccc1", 0),  # the molecule itself is not its scaffold
        ("", 0),
        ("benzene", 0),
    ],
)
def test_a_scaffold_must_be_the_gold_scaffold_itself(answer: str, right: int) -> None:
    assert acc("Murcko_scaffold", answer, key="Output Scaffold", gt="c1ccccc1") == right


def test_a_gold_scaffold_that_is_empty_or_broken_is_never_matched() -> None:
    assert acc("Murcko_scaffold", "C1CC", gt="C1CC") == 0
    assert acc("Murcko_scaffold", " ", gt="") == 0


TOLUENE = "Cc1ccccc1"


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("Cc1ccc(C=O)cc1", 1),
        ("O=Cc1ccc(C)cc1", 1),
        ("Cc1cc(C=O)cc(C=O)c1", 0),  # two of them
        ("CC=O", 0),  # the group alone
        ("CCCCCCC=O", 0),  # far from the source
        ("Cc1ccccc1.CC=O", 0),  # beside the source
        (TOLUENE, 0),
        ("c1ccccc1C", 0),
        ("Cc1ccc(C=O)cc", 0),
        ("", 0),
    ],
)
def test_a_group_is_added_to_the_source_and_not_beside_it(answer: str, right: int) -> None:
    assert acc("add", answer, src=TOLUENE, added_group="aldehyde") == right


def test_a_removed_group_is_gone_and_the_rest_stays() -> None:
    source = "Cc1ccc(C=O)cc1"
    assert acc("delete", TOLUENE, src=source, removed_group="aldehyde.") == 1
    assert acc("delete", source, src=source, removed_group="aldehyde") == 0
    assert acc("delete", "C", src=source, removed_group="aldehyde") == 0


def test_a_substitution_changes_both_groups_by_one() -> None:
    change = {"src": "Oc1ccccc1", "added_group": "halo", "removed_group": "hydroxyl"}
    assert acc("sub", "Clc1ccccc1", **change) == 1
    assert acc("sub", "Oc1ccccc1Cl", **change) == 0
    assert acc("sub", "c1ccccc1", **change) == 0
    assert acc("sub", "Clc1ccccc1Cl", **change) == 0


@pytest.mark.parametrize("source", ["", "C1CC", "not a molecule", "C" * 600])
def test_an_invalid_source_pays_nothing(source: str) -> None:
    assert acc("add", "Cc1ccc(C=O)cc1", src=source, added_group="aldehyde") == 0
    assert acc("qed", "Cc1ccc(C=O)cc1", src=source) == 0


@pytest.mark.parametrize(
    ("added", "removed"), [("", ""), ("alkyl", "hydroxyl"), ("halo", ""), ("halo", "halo")]
)
def test_an_unknown_or_missing_group_pays_nothing(added: str, removed: str) -> None:
    truth = {"src": "Oc1ccccc1", "added_group": added, "removed_group": removed}
    assert acc("sub", "Clc1ccccc1", **truth) == 0


@pytest.mark.parametrize(
    ("prop", "source", "better", "worse"),
    [
        ("logp", "CCc1ccccc1", "CCCCc1ccccc1", "OCCc1ccccc1"),
        ("solubility", "CCc1ccccc1", "OCCc1ccccc1", "CCCCc1ccccc1"),
        ("qed", "CCc1ccccc1", "OCCc1ccccc1", "CCCCCCCCCCc1ccccc1"),
    ],
)
def test_a_property_must_rise(prop: str, source: str, better: str, worse: str) -> None:
    truth = {"src": source, "key": "Final Target Molecule"}
    assert acc(prop, better, **truth) == 1
    assert acc(prop, worse, **truth) == 0
    assert acc(prop, source, **truth) == 0
    assert acc(prop, f"{source}.{better}", **truth) == 0
    assert acc(f"mol_opt_{prop}", better, **truth) == 1


def test_a_better_molecule_that_has_nothing_to_do_with_the_source_pays_nothing() -> None:
    far, source = "CCCCCCCCCCCC", "Oc1ccccc1"
    pair = [molecules.read_molecule(smiles) for smiles in (source, far)]
    assert molecules.similarity(*pair) < MIN_SIMILARITY
    assert acc("logp", far, src=source) == 0


def test_esol_of_benzene_is_what_its_formula_gives() -> None:
    # logP 1.687, 78.11 g/mol, no rotor, all atoms aromatic: 0.261 - 0.742 * 1.687 - 0.0066 * 78.11 - 0.426.
    benzene = molecules.read_molecule("c1ccccc1")
    assert molecules.property_of(benzene, "solubility") == pytest.approx(-1.933, abs=0.002)


@pytest.mark.parametrize("prop", ORACLES)
def test_a_property_without_its_oracle_never_pays(prop: str) -> None:
    assert acc(prop, "OCCc1ccccc1", src="CCc1ccccc1") == 0


@pytest.mark.parametrize(
    ("subtask", "key"),
    [
        ("fs_major_product", "Major Product"),
        ("fs_by_product", "Byproduct(s)"),
        ("fs_by_product", "By Product"),
        ("retro", "Reactants"),
        ("nepp", "pred_smi"),
        ("rcr", "SMILES"),
    ],
)
@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("CC(=O)O.OCC", "CCO.CC(O)=O", 1),
        (["CCO", "CC(=O)O"], "CCO.CC(O)=O", 1),
        ("[CH3:1][CH2:2][OH:3].CC(=O)O", "CCO.CC(O)=O", 1),
        ("[CH3:1][C:2]([H:3])=O", "CC=O", 1),
        ("C[C@H](O)F", "C[CH](O)F", 1),
        ("F/C=C/F", "F/C=C\\F", 1),
        ("[13CH4]", "C", 1),
        ("Oc1ccccn1", "O=c1cccc[nH]1", 1),
        ("CCO", "CCO.CC(O)=O", 0),
        ("CCO", "CCN", 0),
        ("CO", "CCO", 0),
        ("C1CC", "C1CC", 0),
        ("CCO", "", 0),
        ([], "", 0),
        ("CCO", "[]", 0),
    ],
)
def test_products_and_reactants_must_be_the_same_molecules(
    subtask: str, key: str, answer: Any, gold: str, right: int
) -> None:
    assert acc(subtask, answer, key=key, gt=gold) == right


def test_both_products_may_stand_in_one_object_and_one_gold() -> None:
    gold = json.dumps({"Major Product": "CCO", "Byproduct(s)": ["Cl", "O"]})
    response = json.dumps({"Major Product": "OCC", "Byproduct(s)": "O.Cl"})
    for subtask in ("fs_major_product", "fs_by_product"):
        truth = json.dumps({"subtask": subtask, "gt": gold})
        assert compute_score("x", response, truth)["acc"] == 1
    empty = json.dumps({"subtask": "fs_by_product", "gt": json.dumps({"Byproduct(s)": []})})
    assert compute_score("x", json.dumps({"Byproduct(s)": []}), empty)["acc"] == 0


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("CC>O.[Pd]>CCC", "[Pd].O", 1),
        ("[Pd].O", "CC>O.[Pd]>CCC", 1),
        ("CC>O>CCC", "[Pd].O", 0),
        ("CC>>CCC", "O", 0),
        ("O>O", "O", 0),
    ],
)
def test_conditions_are_the_middle_of_a_reaction(answer: str, gold: str, right: int) -> None:
    assert acc("rcr", answer, key="SMILES", gt=gold) == right


def test_the_prediction_is_canonical_so_that_equal_answers_vote_together() -> None:
    one, other = (score("retro", smiles, gt="C")["pred"] for smiles in ("OCC.O", "O.CCO"))
    assert one == other == "CCO.O"
    assert score("retro", "no molecule", gt="C")["pred"] == "no molecule"


def test_rdkit_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    for smiles in ("C1CC", "c1cccc1", "C(C)(C)(C)(C)C", "[Fe]", "F/C=C/F", "C[C@H](O)F"):
        acc("retro", smiles, gt="C[N+](=O)[O-]")
        acc("qed", smiles, src="CC")
    assert capfd.readouterr() == ("", "")
