"""How many rows a second each reward scores on one core, and what a hostile row costs at most.

    python -m benchmarks.reward_rate [--rows N]

Prints a table of rates (rows per second of processor time, next to the target) and one of the slowest hostile
row of each reward (seconds of processor time). Math is measured by the clock, as another process does its
work. Rewards whose library is not installed are named and left out. Chemistry rows repeat eight molecules
with tails of up to four carbons.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from llmzero_ray.prepared.chem_subtasks import SUBTASKS, Subtask
from llmzero_ray.tasks.rewards import (
    chemcot,
    exact_match,
    math_answer,
    mcq,
    papersearchqa,
    regex_match,
    ssmr,
    wildsci,
)
from llmzero_ray.tasks.rewards.math_client import close

SHORT_TARGET, CHEMISTRY_TARGET = 5_000, 300
HOSTILE_TARGET_S = 0.5
_THOUGHT = "<think>" + "The notes of the scale are compared one by one. " * 40 + "</think>\n"
_DRUGS = (
    "CC(=O)Oc1ccccc1C(=O)O",
    "CN1C=NC2=C1C(=O)N(C(=O)N2C)C",
    "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
    "CN1CCC[C@H]1c1cccnc1",
    "O=C(O)c1cn(C2CC2)c2cc(N3CCNCC3)c(F)cc2c1=O",
    "CC(C)(C)NCC(O)c1ccc(O)c(CO)c1",
    "COc1ccc2[nH]c(S(=O)Cc3ncc(C)c(OC)c3C)nc2c1",
    "CN(C)CCCN1c2ccccc2Sc2ccc(Cl)cc21",
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A reward and rows for it: (response, ground truth, extra_info)."""

    name: str
    score: Callable[..., Any]
    rows: Sequence[tuple[str, str, dict[str, Any]]]
    target: int | None
    wall: bool = False
    """Measure seconds of the clock, as the work is done in another process."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000, help="rows of a short-text reward")
    n_rows = parser.parse_args().rows
    console = Console()
    table = Table("reward", "rows/s", "target", title="Rates")
    for case in _cases(n_rows):
        table.add_row(case.name, f"{_rate(case):,.0f}", f"{case.target:,}" if case.target else "-")
    console.print(table)
    table = Table("reward", "slowest hostile row", "s", title=f"Hostile rows (target {HOSTILE_TARGET_S} s)")
    for name, what, seconds in _hostile():
        table.add_row(name, what, f"{seconds:.3f}")
    console.print(table)
    for module, name in (("rdkit", "chemistry of molecules"), ("math_verify", "math")):
        if importlib.util.find_spec(module) is None:
            console.print(f"{module} is not installed: {name} was left out", highlight=False)
    close()


def _cases(n_rows: int) -> Iterator[Case]:
    boxed = [(f"{_THOUGHT}So the answer is \\boxed{{{'ABCD'[i % 4]}}}.", "B", {}) for i in range(n_rows)]
    stated = [(f"{_THOUGHT}The answer is ({'ABCD'[i % 4]}).", "B", {}) for i in range(n_rows)]
    tagged = [
        (f"{_THOUGHT}<answer> The IL-{i % 9} </answer>", '{"target": ["IL-6", "IL 6"]}', {})
        for i in range(n_rows)
    ]
    options = {"reward_options": json.dumps({"pattern": r"IL-(\d+)", "ignore_case": True})}
    yield Case(name="SSMR-Bench, boxed", score=ssmr.compute_score, rows=boxed, target=SHORT_TARGET)
    yield Case(name="WildSci, stated", score=wildsci.compute_score, rows=stated, target=SHORT_TARGET)
    yield Case(name="mcq", score=mcq.compute_score, rows=boxed, target=SHORT_TARGET)
    yield Case(name="PaperSearchQA", score=papersearchqa.compute_score, rows=tagged, target=SHORT_TARGET)
    yield Case(name="exact_match", score=exact_match.compute_score, rows=tagged, target=SHORT_TARGET)
    if importlib.util.find_spec("regex") is not None:
        patterned = [(response, "6", options) for response, _, _ in tagged]
        yield Case(name="regex", score=regex_match.compute_score, rows=patterned, target=SHORT_TARGET)
    if importlib.util.find_spec("math_verify") is not None:
        sums = [(f"{_THOUGHT}\\boxed{{\\frac{{{i % 50}}}{{7}}}}", f"{i % 49}/7", {}) for i in range(300)]
        yield Case(
            name="math (wall clock)", score=math_answer.compute_score, rows=sums, target=None, wall=True
        )
    has_rdkit = importlib.util.find_spec("rdkit") is not None
    for subtask in SUBTASKS:
        if has_rdkit or not subtask.needs_rdkit:
            rows = [_chemical(subtask, i) for i in range(1000)]
            target = CHEMISTRY_TARGET if subtask.needs_rdkit else SHORT_TARGET
            yield Case(name=f"ChemCoT {subtask.name}", score=chemcot.compute_score, rows=rows, target=target)


def _chemical(subtask: Subtask, i: int) -> tuple[str, str, dict[str, Any]]:
    source, other = _DRUGS[i % len(_DRUGS)], _DRUGS[(i // len(_DRUGS)) % len(_DRUGS)]
    answer = {"letter": "C", "count": "2", "yes_no": "Yes"}.get(subtask.rule, source + "C" * (i % 5))
    gold = {"letter": "D", "count": "2", "yes_no": "No"}.get(subtask.rule, other)
    truth = {
        "subtask": subtask.name,
        "gt": gold,
        "src": source,
        "added_group": "halo",
        "removed_group": "amine",
    }
    return f"{_THOUGHT}```json\n{json.dumps({subtask.keys[0]: answer})}\n```", json.dumps(truth), {}


def _rate(case: Case) -> float:
    clock = time.perf_counter if case.wall else time.process_time
    for response, truth, extra in case.rows[:20]:
        case.score("x", response, truth, extra)
    began = clock()
    for response, truth, extra in case.rows:
        case.score("x", response, truth, extra)
    return len(case.rows) / (clock() - began)


def _hostile() -> Iterator[tuple[str, str, float]]:
    """Per reward the slowest of the hostile rows; (reward, row, seconds)."""
    pattern = {"reward_options": json.dumps({"pattern": r"(?:(a|aa)+)+b"})}
    rewards: list[tuple[str, Callable[..., Any], list[str], dict[str, Any]]] = [
        ("SSMR-Bench", ssmr.compute_score, ["B"], {}),
        ("PaperSearchQA", papersearchqa.compute_score, ['{"target": ["a"]}'], {}),
        ("exact_match", exact_match.compute_score, ["a"], {}),
        ("ChemCoT", chemcot.compute_score, [_chemical(subtask, 1)[1] for subtask in SUBTASKS], {}),
    ]
    if importlib.util.find_spec("regex") is not None:
        rewards.append(("regex", regex_match.compute_score, ["a"], pattern))
    if importlib.util.find_spec("math_verify") is not None:
        rewards.append(("math", math_answer.compute_score, ["1"], {}))
    for name, score, truths, extra in rewards:
        score("x", "\\boxed{2/3}", truths[0], extra)
        timed = [
            (_seconds(score, response, truth, extra), what)
            for what, response in hostile_responses().items()
            for truth in truths
        ]
        seconds, what = max(timed)
        yield name, what, seconds


def _seconds(score: Callable[..., Any], response: str, truth: str, extra: dict[str, Any]) -> float:
    clock = time.perf_counter if score is math_answer.compute_score else time.process_time
    began = clock()
    score("x", response, truth, extra)
    return clock() - began


def hostile_responses() -> dict[str, str]:
    """Responses made to keep a reward busy, by what they are."""
    keys = (
        "output",
        "count",
        "Output Scaffold",
        "Reactants",
        "pred_smi",
        "SMILES",
        "choice",
        "Major Product",
    )
    million, nested = 1_000_000, 10_000
    plain = {
        "1 MB of one letter": "a" * million,
        "1 MB of spaces": "answer is" + " " * million,
        "1 MB of answer phrases": "answer is " * (million // 10),
        "1 MB of boxes": "\\boxed{" * (million // 7),
        "1 MB of closed boxes": "\\boxed{A}" * (million // 9),
        "1 MB of backslashes": "\\" * million,
        "1 MB of answer tags": "<answer>" * (million // 8),
        "1 MB of closing tags": "</answer></think>" * (million // 17),
        "1 MB of keys": '"output": ' * (million // 10),
        "1 MB of open strings": '"output": "' * (million // 11),
        "1 MB of commas": "{" + ", " * (million // 2) + "}",
        "10k braces": "{" * nested + "}" * nested,
        "10k objects in objects": '{"output":' * nested + "1" + "}" * nested,
        "10k lists in a list": '"output":' + "[" * nested + "]" * nested,
        "10k brackets in a box": "\\boxed{" + "(" * nested + ")" * nested + "}",
        "short nested brackets in a box": "\\boxed{" + "(" * 140 + "1" + ")" * 140 + "}",
        "tower of powers": "\\boxed{9^{9^{9^{9}}}}",
        "digits": json.dumps(dict.fromkeys(keys, "9" * 50_000)),
    }
    molecules = {
        f"SMILES: {what}": json.dumps(dict.fromkeys(keys, s)) for what, s in hostile_smiles().items()
    }
    return plain | molecules


def hostile_smiles() -> dict[str, str]:
    """Texts that are hard to read, to rank or to compare as molecules."""
    ring = "".join(f"C%{10 + i}%{11 + i}" for i in range(80))
    star = "".join(f"*%({i})" for i in range(60)) * 2
    return {
        "1 MB of carbon": "C" * 1_000_000,
        "500 atoms": "C" * 500,
        "200 atoms": "C" * 200,
        "10k brackets": "C" + "(" * 10_000 + "C" + ")" * 10_000,
        "240 brackets": "C(" * 160 + "C" + ")" * 160,
        "odd aromatic ring": "c1" + "c" * 197 + "c1",
        "even aromatic ring": "c1" + "c" * 198 + "c1",
        "ladder of rings": ring,
        "star of ring closures": star,
        "fragments": ".".join(["[C@H](F)(Cl)Br"] * 33),
        "stereo centres": "[C@H]1(O)" + "[CH](O)" * 54 + "1",
        "dendrimer": "C(C(C(C)(C)C)(C(C)(C)C)C(C)(C)C)" * 8,
        "fullerene": "c12c3c4c5c1c1c6c7c2c2c8c3c3c9c4c4c%10c5c5c1c1c6c6c%11c7c2c2c7c8c3c3c8c9c4c4c9c%10c5c5"
        "c1c1c6c6c%11c2c2c7c3c3c8c4c4c9c5c1c1c6c2c3c41",
        "polyene": "C/C=C/" * 66 + "C",
        "huge isotope": "[999999999999CH999999]",
        "metal chain": "[Fe]" * 125,
        "wildcards": "*" * 200,
    }


if __name__ == "__main__":
    main()
