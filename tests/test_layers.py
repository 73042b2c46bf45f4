"""Who may import whom. The rooms and their order are those of docs/layout.md.

Reads the sources only (and imports the core in a fresh interpreter to see what it drags in).
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Lowest first; a room is a module or package, and the longest name that fits decides. A room may import
# its own layer and those below it. `search.rules` and `stopping.settings` hold the settings that
# config.py reads from YAML, so that no field is declared twice: they lie below it.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("llmzero_ray.errors", "llmzero_ray.utils.text", "llmzero_ray.version"),
    ("llmzero_ray.config.yaml_text", "llmzero_ray.config.presets"),
    ("llmzero_ray.records", "llmzero_ray.records.events", "llmzero_ray.records.commands"),
    (
        "llmzero_ray.config.search_rules",
        "llmzero_ray.config.schedule",
        "llmzero_ray.config.stopping",
        "llmzero_ray.config.strategy_file",
    ),
    (
        "llmzero_ray.config",
        "llmzero_ray.config.changes",
        "llmzero_ray.hyperparameters",
    ),
    (
        "llmzero_ray.adapter_size",
        "llmzero_ray.agents",
        "llmzero_ray.utils.api_key",
        "llmzero_ray.engines.capacity",
        "llmzero_ray.hyperparameters.compute",
        "llmzero_ray.utils.files",
        "llmzero_ray.engines",
        "llmzero_ray.engines.base",
        "llmzero_ray.engines.card_faults",
        "llmzero_ray.utils.failpoints",
        "llmzero_ray.journal",
        "llmzero_ray.utils.logs",
        "llmzero_ray.storage.manifests",
        "llmzero_ray.memory",
        "llmzero_ray.storage.metric_files",
        "llmzero_ray.records.metrics",
        "llmzero_ray.utils.plugins",
        "llmzero_ray.storage.presence",
        "llmzero_ray.utils.private_files",
        "llmzero_ray.search",
        "llmzero_ray.records.significance",
        "llmzero_ray.stopping",
        "llmzero_ray.storage",
    ),
    ("llmzero_ray.coordinator",),
    (
        "llmzero_ray.agents.backend",
        "llmzero_ray.agents.strategy",
        "llmzero_ray.tasks.drafting",
        "llmzero_ray.agents.llm",
        "llmzero_ray.agents.optuna_proposer",
        "llmzero_ray.agents.prompt_eval",
        "llmzero_ray.engines.registry",
        "llmzero_ray.engines.verl",
        "llmzero_ray.coordinator.decision_text",
        "llmzero_ray.estimate",
        "llmzero_ray.report.finalize",
        "llmzero_ray.coordinator.follow",
        "llmzero_ray.utils.hub",
        "llmzero_ray.launch.hub_model",
        "llmzero_ray.storage.locate",
        "llmzero_ray.plots",
        "llmzero_ray.report",
        "llmzero_ray.launch.server_sizes",
        "llmzero_ray.stage_times",
        "llmzero_ray.report.tables",
        "llmzero_ray.tasks",
        "llmzero_ray.testing",
        "llmzero_ray.tracking",
    ),
    ("actors",),
    ("llmzero_ray.launch.actors",),
    (
        "llmzero_ray.strategy.export",
        "llmzero_ray.launch.start",
        "llmzero_ray.strategy.merge",
        "llmzero_ray.launch.nodes",
        "llmzero_ray.launch.preflight",
        "llmzero_ray.strategy.push",
        "llmzero_ray.launch.start_checks",
        "llmzero_ray.strategy.retrain",
        "llmzero_ray.tune",
        "llmzero_ray.verl_script",
    ),
    ("llmzero_ray.api",),
    ("llmzero_ray", "llmzero_ray.cli"),
    ("jobs",),
)
CORE_TOP = LAYERS.index(("llmzero_ray.coordinator",))

# Modules whose only purpose is one third-party library may import it when they are imported themselves.
OWN_MODULES: dict[str, frozenset[str]] = {
    "actors.app": frozenset({"ray"}),
    "llmzero_ray.agents.llm": frozenset({"anthropic", "httpx2", "jinja2", "matplotlib"}),
    "llmzero_ray.engines.verl": frozenset(
        {"hydra", "omegaconf", "peft", "psutil", "ray", "safetensors", "tensordict", "torch", "torchdata"}
        | {"transfer_queue", "transformers", "verl", "vllm"}
    ),
    "llmzero_ray.plots": frozenset({"matplotlib"}),
    "llmzero_ray.tasks.sft.trainer": frozenset({"torch", "transformers"}),
    "llmzero_ray.tasks.sft.worker": frozenset({"torch", "transformers"}),
    "llmzero_ray.testing": frozenset({"pytest"}),
    "llmzero_ray.tune": frozenset({"ray"}),
}
HEAVY = ("anthropic", "matplotlib", "peft", "ray", "torch", "transformers", "verl", "vllm")
IMPORT_NAMES = {"pyyaml": {"yaml"}, "pydantic": {"pydantic", "pydantic_core"}}


@dataclass(frozen=True, kw_only=True)
class Import:
    """One imported module: where, what, and how it is written."""

    module: str
    line: int
    target: str
    at_import: bool
    """Executed when the importer is imported: neither inside a function nor for type checkers only."""
    relative: bool

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


@cache
def sources() -> dict[str, Path]:
    """Every first-party module, by the name it has in a checkout."""
    found = {}
    for package in ("llmzero_ray", "actors", "jobs"):
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, path: Path) -> Iterator[Import]:
    """All imports of a file, those under `if TYPE_CHECKING` and inside functions too."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    pending: list[tuple[ast.AST, bool]] = [(ast.parse(path.read_text()), True)]
    while pending:
        node, at_import = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            relative = isinstance(node, ast.ImportFrom) and node.level > 0
            for target in named_modules(node, package):
                yield Import(
                    module=module, line=node.lineno, target=target, at_import=at_import, relative=relative
                )
        lazy = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_type_checking(node)
        pending += [(child, at_import and not lazy) for child in ast.iter_child_nodes(node)]


def named_modules(node: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    """Full names of what a statement imports; `from x import y` may name the module x.y or something in x."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        start = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
        base = f"{start}.{base}".rstrip(".")
    full = [f"{base}.{alias.name}" for alias in node.names]
    return sorted({name if name in sources() else base for name in full})


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def room_of(module: str) -> str | None:
    """The longest room name that holds `module`; None for third-party modules and unplaced files."""
    names = [
        room
        for layer in LAYERS
        for room in layer
        if module == room or (room != "llmzero_ray" and module.startswith(f"{room}."))
    ]
    return max(names, key=len, default=None)


def layer_of(room: str) -> int:
    return next(height for height, rooms in enumerate(LAYERS) if room in rooms)


@cache
def all_imports() -> list[Import]:
    return [found for module, path in sources().items() for found in imports_of(module, path)]


def first_party(found: Import) -> bool:
    return found.target.partition(".")[0] in ("llmzero_ray", "actors", "jobs")


def third_party(found: Import) -> str | None:
    """Top-level name of a third-party import, else None."""
    top = found.target.partition(".")[0]
    return None if first_party(found) or top in sys.stdlib_module_names else top


def is_core(module: str) -> bool:
    room = room_of(module)
    return room is not None and layer_of(room) <= CORE_TOP


@cache
def core_dependencies() -> frozenset[str]:
    """Import names of what pyproject.toml asks for without any extra."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = [requirement.split(">")[0].split("=")[0].strip().lower() for requirement in listed]
    return frozenset().union(*(IMPORT_NAMES.get(name, {name}) for name in names))


def test_every_module_has_a_place_in_the_layers() -> None:
    assert [module for module in sources() if room_of(module) is None] == []


def test_no_module_imports_a_higher_layer_not_even_inside_a_function() -> None:
    upward = [
        str(found)
        for found in all_imports()
        if first_party(found) and layer_of(place(found.target)) > layer_of(place(found.module))
    ]
    assert upward == []


def place(module: str) -> str:
    room = room_of(module)
    assert room is not None, f"{module} has no layer"
    return room


def test_rooms_do_not_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for found in filter(first_party, all_imports()):
        here, there = place(found.module), place(found.target)
        if here != there:
            graph.setdefault(here, set()).add(there)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"rooms import each other: {' <- '.join(error.args[1])}")


def circles(graph: dict[str, set[str]]) -> list[frozenset[str]]:
    """Groups of two or more that all reach each other."""
    reached = {start: reach(graph, start) for start in graph}
    found = {
        frozenset({one} | {other for other in reached[one] if one in reached.get(other, ())})
        for one in graph
        if one in reached[one]
    }
    return sorted(found, key=sorted)


def reach(graph: dict[str, set[str]], start: str) -> set[str]:
    """Everything that can be come to from `start` in one step or more."""
    found: set[str] = set()
    todo = list(graph[start])
    while todo:
        at = todo.pop()
        if at not in found:
            found.add(at)
            todo += graph.get(at, ())
    return found


def test_files_do_not_import_each_other_in_a_circle_not_even_for_types() -> None:
    graph: dict[str, set[str]] = {}
    for found in filter(first_party, all_imports()):
        if found.target != found.module:
            graph.setdefault(found.module, set()).add(found.target)
    assert [sorted(circle) for circle in circles(graph)] == []


def test_the_search_for_circles_finds_one() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}}
    assert circles(graph) == [frozenset({"b", "c"})]


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


def test_the_layers_name_each_room_once_and_only_rooms_that_exist() -> None:
    rooms = [room for layer in LAYERS for room in layer]
    assert [room for room in rooms if room not in sources()] == []
    assert sorted(room for room in set(rooms) if rooms.count(room) > 1) == []


def test_actors_name_the_library_in_full_and_their_siblings_relatively() -> None:
    # Inside a wheel the folder is llmzero_ray.actors, so `import actors` finds nothing there.
    wrong = [
        str(found)
        for found in all_imports()
        if found.module.startswith("actors")
        and first_party(found)
        and found.relative != found.target.startswith("actors")
    ]
    assert wrong == []


def test_the_library_reaches_the_actors_through_one_module() -> None:
    importers = {found.module for found in all_imports() if found.target.split(".")[0] == "actors"}
    assert {name for name in importers if not name.startswith("actors")} == {"llmzero_ray.launch.actors"}


def test_the_core_imports_nothing_beyond_the_core_dependencies() -> None:
    foreign = [
        str(found)
        for found in all_imports()
        if is_core(found.module) and (library := third_party(found)) and library not in core_dependencies()
    ]
    assert foreign == []


def test_heavy_libraries_are_imported_inside_functions_or_in_their_own_module() -> None:
    eager = [
        str(found)
        for found in all_imports()
        if found.at_import
        and (library := third_party(found))
        and library not in allowed_at_import(found.module)
    ]
    assert eager == []


def allowed_at_import(module: str) -> frozenset[str]:
    own = [names for owner, names in OWN_MODULES.items() if module == owner or module.startswith(f"{owner}.")]
    return core_dependencies().union(*own)


def loaded_by(*modules: str) -> set[str]:
    """Which heavy libraries a fresh interpreter has loaded after importing `modules`."""
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


def test_importing_the_whole_core_loads_no_heavy_library() -> None:
    assert loaded_by(*sorted(filter(is_core, sources()))) == set()


def test_importing_the_command_line_and_the_jobs_loads_no_heavy_library() -> None:
    entries = [name for name in sources() if name == "llmzero_ray.cli.main" or name.startswith("jobs")]
    assert "llmzero_ray.cli.main" in entries
    assert loaded_by(*sorted(entries)) == set()


def test_the_check_sees_a_heavy_library_when_there_is_one() -> None:
    assert loaded_by("matplotlib") == {"matplotlib"}


@pytest.mark.parametrize(
    ("source", "targets"),
    [
        ("import ray", [("ray", True)]),
        ("def f():\n    import torch.nn as nn", [("torch.nn", False)]),
        ("if TYPE_CHECKING:\n    from ray import ObjectRef", [("ray", False)]),
        ("try:\n    import verl\nexcept ImportError:\n    pass", [("verl", True)]),
        ("from llmzero_ray import errors", [("llmzero_ray.errors", True)]),
        ("from llmzero_ray.errors import ConfigError", [("llmzero_ray.errors", True)]),
        ("from . import base", [("llmzero_ray.engines.base", True)]),
        ("from ..errors import ConfigError", [("llmzero_ray.errors", True)]),
    ],
)
def test_the_reader_finds_imports_wherever_they_stand(
    source: str, targets: list[tuple[str, bool]], tmp_path: Path
) -> None:
    path = tmp_path / "example.py"
    path.write_text(source)
    found = imports_of("llmzero_ray.engines.example", path)
    assert [(each.target, each.at_import) for each in found] == targets


def test_no_part_of_the_coordinator_imports_it() -> None:
    importers = {
        found.module
        for found in all_imports()
        if found.module.startswith("actors.") and found.target == "actors.coordinator"
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


def test_files_of_the_actors_do_not_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for found in all_imports():
        if found.module.startswith("actors.") and found.target.startswith("actors."):
            graph.setdefault(found.module, set()).add(found.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"files import each other: {' <- '.join(error.args[1])}")
