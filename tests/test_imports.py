"""Rules of imports beside the order of the folders, which pyproject.toml holds ([tool.importlinter])."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = ("anthropic", "matplotlib", "peft", "ray", "torch", "transformers", "verl", "vllm")
CORE = ("config", "coordinator", "dynamics", "hyperparameters", "journal", "records", "search", "stopping")


@cache
def sources() -> dict[str, Path]:
    """Every module of this project, by the name it has in a checkout."""
    found = {}
    for package in ("llmzero_ray", "actors", "jobs"):
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(module: str) -> Iterator[tuple[str, bool]]:
    """Names that a module imports from, and whether the import is relative."""
    for node in ast.walk(ast.parse(sources()[module].read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            parent = module if sources()[module].name == "__init__.py" else module.rpartition(".")[0]
            yield (importlib.util.resolve_name(base, parent) if node.level else base), node.level > 0


def loaded_by(*modules: str) -> set[str]:
    """Heavy libraries that a fresh interpreter has loaded after importing `modules`."""
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print(*(name for name in {HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_the_package_loads_no_heavy_library() -> None:
    assert loaded_by("llmzero_ray") == set()


def test_importing_the_rules_of_a_search_loads_no_heavy_library() -> None:
    modules = [name for name in sources() if name.startswith("llmzero_ray.") and name.split(".")[1] in CORE]
    assert len(modules) > 50
    assert loaded_by(*sorted(modules)) == set()


def test_importing_the_command_line_and_the_jobs_loads_no_heavy_library() -> None:
    entries = [name for name in sources() if name == "llmzero_ray.cli.main" or name.startswith("jobs")]
    assert "llmzero_ray.cli.main" in entries
    assert loaded_by(*sorted(entries)) == set()


def test_the_check_sees_a_heavy_library_when_there_is_one() -> None:
    assert loaded_by("matplotlib") == {"matplotlib"}


def test_a_class_name_stands_for_one_thing_in_the_whole_project() -> None:
    places: dict[str, list[str]] = {}
    for module, path in sources().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_files_that_the_opening_of_a_module_names_exist() -> None:
    folders = ("llmzero_ray", "actors", "jobs", "benchmarks")
    paths = {f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*.py")}
    wrong = [
        f"{module}: {named}"
        for module, path in sources().items()
        for opening in [ast.get_docstring(ast.parse(path.read_text())) or ""]
        for named in re.findall(r"(?<![\w*/])[a-z_][\w/]*\.py\b", opening)
        if not any(known.endswith(f"/{named}") for known in paths)
    ]
    assert wrong == []


@pytest.mark.parametrize("module", sorted(name for name in sources() if name.startswith("actors")))
def test_actors_name_the_library_in_full_and_their_siblings_relatively(module: str) -> None:
    # Inside a wheel the folder is llmzero_ray.actors, so `import actors` finds nothing there.
    own = [
        (name, relative)
        for name, relative in imported(module)
        if name.split(".")[0] in ("actors", "llmzero_ray")
    ]
    assert [name for name, relative in own if relative != name.startswith("actors")] == []


def test_the_library_reaches_the_actors_through_one_module() -> None:
    importers = {
        module for module in sources() for name, _ in imported(module) if name.split(".")[0] == "actors"
    }
    assert {name for name in importers if not name.startswith("actors")} == {"llmzero_ray.launch.actors"}


def test_no_part_of_the_coordinator_imports_it() -> None:
    importers = {
        module
        for module in sources()
        for name, _ in imported(module)
        if module.startswith("actors.") and name == "actors.coordinator"
    }
    assert importers == {"actors.app"}  # which wraps it as an actor


def test_no_part_of_the_coordinator_is_given_it() -> None:
    wrong = [
        f"{module}:{argument.lineno} takes {argument.arg}: {ast.unparse(argument.annotation)}"
        for module, path in sources().items()
        if module.startswith("actors.")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        if argument.annotation is not None and "SearchCoordinator" in ast.unparse(argument.annotation)
    ]
    assert wrong == []
