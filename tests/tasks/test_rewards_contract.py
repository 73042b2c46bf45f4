"""What every reward promises VeRL: the same keys, bounded values, no exception, no output, bounded work."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.chem_subtasks import SUBTASKS
from llmzero_ray.tasks import shipped_rewards as registry
from llmzero_ray.tasks.rewards import math_client
from llmzero_ray.utils.plugins import points

KEYS = ["score", "acc", "fmt_ok", "pred"]
TASKS = ("chemcot", "papersearchqa", "ssmr", "wildsci")
MODULES = [*(f"llmzero_ray.tasks.rewards.{task}" for task in TASKS), *registry.KINDS.values()]
HAS_RDKIT = importlib.util.find_spec("rdkit") is not None


@pytest.fixture(autouse=True, scope="module")
def _no_process_left() -> Iterator[None]:
    yield
    math_client.close()


def check(result: Any) -> None:
    assert list(result) == KEYS
    assert [type(value) for value in result.values()] == [float, float, float, str]
    assert result["acc"] in (0.0, 1.0)
    assert result["fmt_ok"] in (0.0, 1.0)
    assert 0.0 <= result["score"] <= 1.0
    assert len(result["pred"]) <= 128


ANYTHING = st.none() | st.text() | st.binary() | st.integers() | st.floats() | st.lists(st.text())
INFO = st.none() | st.dictionaries(st.sampled_from(["index", "reward_options"]), ANYTHING)
PIECES = st.sampled_from(
    [
        "\\boxed{",
        "}",
        "{",
        "<answer>",
        "</answer>",
        "<think>",
        "</think>",
        "answer is ",
        '"output": ',
        '"',
        "[",
        "]",
        "A",
        "B. x",
        "C",
        "\\",
        "$",
        "\n",
        ",",
        "CCO",
        "c1ccccc1",
        "3",
        "Yes",
        ".",
        ":",
        "{}",
        "null",
        "\ud800",
        "\x00",
    ]
)
RESPONSES = st.lists(PIECES, max_size=20).map("".join) | st.text()
TRUTHS = st.sampled_from(
    ["A", "3", '{"target": ["A", "CCO"]}', '{"target": 3}', "{", ""]
    + [
        json.dumps({"subtask": task.name, "gt": "CCO", "src": "CCN", "added_group": "halo"})
        for task in SUBTASKS
    ]
)
OPTIONS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("format_bonus", "letters", "ignore_case", "short_answer"), ANYTHING)
)


@pytest.mark.parametrize("module", [name for name in MODULES if "math" not in name])
@given(
    source=ANYTHING,
    response=ANYTHING | RESPONSES,
    truth=ANYTHING | TRUTHS,
    info=ANYTHING | INFO,
    options=OPTIONS,
)
def test_whatever_comes_in_the_same_keys_come_out(
    module: str, source: Any, response: Any, truth: Any, info: Any, options: dict[str, Any]
) -> None:
    reward = importlib.import_module(module).compute_score
    check(reward(data_source=source, solution_str=response, ground_truth=truth, extra_info=info, **options))


@given(RESPONSES, TRUTHS, st.text(max_size=20))
def test_any_pattern_gives_the_same_keys(response: str, truth: str, pattern: str) -> None:
    check(
        importlib.import_module(registry.KINDS["regex"]).compute_score(
            "x", response, truth, {}, pattern=pattern
        )
    )


@given(ANYTHING, ANYTHING | st.sampled_from(["1", "{", '{"target": []}']), INFO)
def test_unusual_input_never_reaches_the_mathematics(response: Any, truth: Any, info: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llmzero_ray.tasks.rewards.math_answer.compare", lambda gold, answer: (False, None))
        check(importlib.import_module(registry.KINDS["math"]).compute_score("x", response, truth, info))


@given(st.text(alphabet="CNOcn1234567890()[]=#@+-.%:*>HBrl\\/", max_size=60))
def test_any_smiles_gives_the_same_keys(smiles: str) -> None:
    if not HAS_RDKIT:
        pytest.skip("RDKit is not installed")
    reward = importlib.import_module("llmzero_ray.tasks.rewards.chemcot").compute_score
    for task in SUBTASKS:
        truth = {"subtask": task.name, "gt": smiles, "src": "Cc1ccccc1", "added_group": "halo"}
        check(reward("x", json.dumps({task.keys[0]: smiles}), json.dumps(truth)))


@cache
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


@pytest.mark.parametrize("what", hostile_responses())
@pytest.mark.parametrize("module", MODULES)
def test_hostile_responses_are_survived_and_pay_nothing(module: str, what: str) -> None:
    response, reward = hostile_responses()[what], importlib.import_module(module).compute_score
    options = json.dumps({"pattern": r"(?:(a|aa)+)+b"})
    truths = ["Z"]
    if module.endswith("chemcot"):
        truths = [json.dumps({"subtask": task.name, "gt": "N#N", "src": "CC"}) for task in SUBTASKS]
    for truth in truths:
        result = reward("x", response, truth, {"reward_options": options})
        check(result)
        assert result["acc"] == 0


@pytest.mark.parametrize("module", MODULES)
def test_it_loads_by_its_path_in_a_bare_process_and_prints_nothing(module: str) -> None:
    path = importlib.util.find_spec(module).origin  # type: ignore[union-attr]
    code = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('custom_module', sys.argv[1])\n"
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)\n"
        "module.compute_score(data_source='x', solution_str='A', ground_truth='A', extra_info={})\n"
        "heavy = ('torch', 'numpy', 'pyarrow', 'ray', 'verl', 'rdkit', 'sympy')\n"
        "assert not [name for name in sys.modules if name.startswith(heavy)]"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("module", [name for name in MODULES if "math" not in name])
def test_threads_get_the_same_results_as_one(module: str) -> None:
    reward = importlib.import_module(module).compute_score
    answers = ["\\boxed{A}", "<answer>A</answer>", '{"output": "CCO"}', "A", "", "\\boxed{B}"] * 20
    truth = json.dumps({"subtask": "retro", "gt": "CCO"}) if module.endswith("chemcot") else "A"
    alone = [reward("x", answer, truth, {}, pattern="A") for answer in answers]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda answer: reward("x", answer, truth, {}, pattern="A"), answers))
    assert together == alone


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("chemcot_und_fg_count", "chemcot"),
        ("papersearchqa", "papersearchqa"),
        ("ssmr_beat", "ssmr"),
        ("wildsci_physics", "wildsci"),
        ("chain_sum", "marked_answer"),
    ],
)
def test_the_data_source_finds_its_reward(source: str, module: str) -> None:
    assert registry.reward_module(source).endswith(f".{module}")


def test_every_shipped_family_has_its_reward() -> None:
    from llmzero_ray.tasks.families import REWARD_MODULE

    assert {registry.reward_module(name) for name in points("llmzero_ray.families")} == {REWARD_MODULE}


def test_an_unknown_data_source_is_refused_with_what_there_is() -> None:
    with pytest.raises(TaskError, match=r"unheard.*wildsci_\*.*exact_match"):
        registry.reward_module("unheard")


def test_verl_makes_a_metric_of_the_numbers_and_leaves_the_prediction_out() -> None:
    metrics = pytest.importorskip("verl.trainer.ppo.metric_utils")
    reward = importlib.import_module("llmzero_ray.tasks.rewards.wildsci").compute_score
    rows = [
        reward("wildsci_physics", answer, "A") for answer in ("\\boxed{A}", "\\boxed{B}", "", "\\boxed{A}")
    ]
    infos = {key: [row[key] for row in rows] for key in KEYS}
    found = metrics.process_validation_metrics(["wildsci_physics"] * 4, list("abcd"), infos)
    assert {name: dict(values) for name, values in found["wildsci_physics"].items()} == {
        "score": {"mean@1": 0.5},
        "acc": {"mean@1": 0.5},
        "fmt_ok": {"mean@1": 0.75},
    }
