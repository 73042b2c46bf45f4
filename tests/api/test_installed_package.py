"""A package that registers a proposer, an engine, a method and a reward, built and installed by pip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.searches import CHECKOUT, code_of_the_page, scripted_search
from tests.tasks.synthetic import write_jsonl

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "of-a-stranger"
version = "1.0"

[tool.setuptools]
packages = ["of_a_stranger"]

[project.entry-points."llmzero_ray.proposers"]
halving = "of_a_stranger.halving:make_proposer"

[project.entry-points."llmzero_ray.engines"]
noted = "of_a_stranger.parts:make_engine"

[project.entry-points."llmzero_ray.agents"]
counting = "of_a_stranger.parts:make_agents"

[project.entry-points."llmzero_ray.methods"]
plain_tree = "of_a_stranger.parts:PlainTree"

[project.entry-points."llmzero_ray.rewards"]
city = "of_a_stranger.rewards:score_city"
"""
PARTS = '''
from pathlib import Path

from llmzero_ray.agents.expert import ExpertEarlyStopper, ExpertErrorAnalyzer
from llmzero_ray.search.tree_search import TreeSearch
from of_a_stranger.halving import HalvingProposer
from tests.fakes import make_engine as make_scripted


def make_engine(config, task, slot):
    """The scripted engine; the file says that it was made here."""
    Path(config.storage, "engine.txt").write_text(f"{__name__} trains {task.name}")
    return make_scripted(config, task, slot)


class PlainTree(TreeSearch):
    """The tree search under a name of its own."""


class Agents(HalvingProposer):
    def __init__(self):
        self.analyze, self.judge = ExpertErrorAnalyzer().analyze, ExpertEarlyStopper().judge


def make_agents(config, n_val):
    return Agents()
'''
REWARD = """
def score_city(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    right = float(solution_str.strip().rstrip(".").endswith(ground_truth))
    return {"score": right, "acc": right}
"""
SCRIPT = """
import sys
import ray
import llmzero_ray
from llmzero_ray.errors import SearchBusyError
task = llmzero_ray.prepare(sys.argv[1])
first = llmzero_ray.run(sys.argv[2])
try: llmzero_ray.run(sys.argv[2], name="other")
except SearchBusyError as error: print(error)
with first: search = first.wait()
print(ray.is_initialized(), llmzero_ray.run(sys.argv[2], name="other").wait().stage)
print(task.reward_module, task.n_train, search.nodes()["rationale"].to_pylist())
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Folder into which pip has installed the package; nothing is taken from the network."""
    source, target = tmp_path / "source", tmp_path / "site"
    (source / "of_a_stranger").mkdir(parents=True)
    proposer = code_of_the_page("class HalvingProposer")
    texts = {"__init__": "", "halving": proposer, "parts": PARTS, "rewards": REWARD}
    for name, text in texts.items():
        (source / "of_a_stranger" / f"{name}.py").write_text(text)
    (source / "pyproject.toml").write_text(PROJECT)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "install", "--no-index"]
    subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--target", str(target), str(source)], check=True
    )
    return target


@pytest.mark.slow
def test_every_part_of_an_installed_package_is_used_by_its_name(installed: Path, tmp_path: Path) -> None:
    """By a script without a cluster, whose searches have a head each, one after the other."""
    rows = [{"country": f"country {n}", "city": f"City {n % 7}"} for n in range(60)]
    task = tmp_path / "task.yaml"
    task.write_text(
        yaml.safe_dump(
            {
                "name": "capitals",
                "files": str(write_jsonl(tmp_path / "rows.jsonl", rows)),
                "dir": str(tmp_path / "task"),
                "prompt": "Which city is the capital of {country}?",
                "answer": "city",
                "reward": {"kind": "city", "gold": "It is {answer}."},
                "n_train": 32,
                "n_val": 12,
                "n_test": 12,
            }
        )
    )
    config = tmp_path / "search.yaml"
    data = scripted_search(
        tmp_path,
        tmp_path / "task",
        budget={"runs": 2},
        engine={"backend": "noted"},
        agents={"proposer": "halving"},
        search={"method": "plain_tree"},
        final={"test": False, "default_recipe": False},
    )
    config.write_text(yaml.safe_dump(data))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": f"{installed}{os.pathsep}{CHECKOUT}"}
    env.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [sys.executable, str(script), str(task), str(config)],
        env=env, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    refused, after, used = done.stdout.splitlines()[-3:]
    assert refused.startswith("demo is running on a Ray head that this process started for it alone")
    assert (after, used) == ("False finished", "of_a_stranger.rewards 32 [None, 'halved']")
    assert (tmp_path / "runs/engine.txt").read_text() == "of_a_stranger.parts trains capitals"
    code = (
        "import json; from llmzero_ray.config import parse_config; "
        "from llmzero_ray.agents.backend import make_agents; "
        "found = make_agents(parse_config({'name': 'x', 'agents': {'backend': 'counting'}}), 32); "
        "print(json.dumps([type(found.proposer).__module__, type(found.error_analyzer).__name__]))"
    )
    named = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert json.loads(named.stdout) == ["of_a_stranger.parts", "Agents"]
