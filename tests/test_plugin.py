"""Names that packages register: what ships is found like a stranger's; what cannot work is one sentence."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast, get_args

import pytest
import yaml

from llmzero_ray.agents.backend import make_agents
from llmzero_ray.cli import catalogue
from llmzero_ray.cli.doctor.checks import CHECKS, Context
from llmzero_ray.cli.doctor.command import rows_of_check
from llmzero_ray.cli.doctor.scratch import Scratch
from llmzero_ray.cli.main import main
from llmzero_ray.cli.subcommand import Subcommand
from llmzero_ray.config import SearchConfig, StopperSettings, TrackingConfig, parse_config
from llmzero_ray.engines.registry import make_engine
from llmzero_ray.errors import ConfigError, TaskError
from llmzero_ray.prepared.families import family_named
from llmzero_ray.search import SearchRules, make_search, shipped_method, shipped_methods
from llmzero_ray.stopping.rules import make_rules
from llmzero_ray.storage.trackers import make_trackers
from llmzero_ray.tasks.task_yaml import RewardKind
from llmzero_ray.utils import plugins as plugin


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Registers (group, name, value) as an installed package does."""
    made: list[importlib.metadata.EntryPoint] = []

    def found(**wanted: str) -> Any:
        return importlib.metadata.EntryPoints(made).select(**wanted)

    monkeypatch.setattr("llmzero_ray.utils.plugins.entry_points", found)
    catalogue.subcommands.cache_clear()
    yield lambda group, name, value: made.append(importlib.metadata.EntryPoint(name, value, group))
    catalogue.subcommands.cache_clear()


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Installs a package of one module, `of_a_stranger`, with one entry point, as pip does."""

    def install(code: str, group: str, value: str, name: str = "mine") -> None:
        info = tmp_path / "site" / "of_a_stranger-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: of-a-stranger\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
        (tmp_path / "site" / "of_a_stranger.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path / "site")

    catalogue.subcommands.cache_clear()
    yield install
    catalogue.subcommands.cache_clear()
    sys.modules.pop("of_a_stranger", None)


def table(monkeypatch: pytest.MonkeyPatch, **commands: Subcommand) -> str:
    """An importable table of commands; its value as an entry point names it."""
    module = types.ModuleType("table_of_a_stranger")
    module.COMMANDS = commands  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "table_of_a_stranger", module)
    return "table_of_a_stranger:COMMANDS"


def greet(name: str = "you") -> int:
    """Greet somebody."""
    print(f"hello {name}")
    return 0


GREET = Subcommand(__name__, "greet", "greet somebody", ("llmzero greet",), after="doctor")


def test_every_entry_point_that_ships_can_be_loaded() -> None:
    shipped = [point for group in plugin.GROUPS.values() for point in plugin.own_points(group).values()]
    assert len(shipped) >= len(shipped_methods()) - 1
    for point in shipped:
        assert callable(plugin.load(point.value, point.name))


def test_a_factory_that_a_user_names_is_not_imported_to_learn_whether_it_ships() -> None:
    assert shipped_method("no_such_package:factory") is None
    assert shipped_method("llmzero") is not None


@pytest.mark.parametrize(
    ("group", "name"),
    [(group, name) for group, names in plugin.BUILT_IN.items() for name in names]
    + [
        ("llmzero_ray.methods", "random"),
        ("llmzero_ray.tasks", "of_file"),
        ("llmzero_ray.pages", "report"),
    ],
)
def test_a_package_may_not_take_a_name_that_there_is(register: Any, group: str, name: str) -> None:
    plugin.check_names()
    register(group, name, "of_a_stranger.parts:make")
    with pytest.raises(
        ConfigError,
        match=rf"of_a_stranger\.parts:make registers '{name}' .* {group}, and .*"
        "llmzero-ray has that name, too. Uninstall one of them, or register another name",
    ):
        plugin.check_names()


def test_names_that_mean_something_without_an_entry_point_are_all_listed() -> None:
    assert plugin.BUILT_IN["llmzero_ray.stop_rules"] == tuple(make_rules(StopperSettings()))
    assert plugin.BUILT_IN["llmzero_ray.rewards"] == get_args(RewardKind)


def test_two_packages_may_not_register_one_name(register: Any) -> None:
    register("llmzero_ray.engines", "fast", "one.package:make")
    register("llmzero_ray.engines", "fast", "another.package:make")
    with pytest.raises(ConfigError, match=r"another\.package:make registers 'fast'.*Uninstall one of them"):
        plugin.load_factory("fast", field="engine.backend")


def test_a_method_whose_module_is_broken_is_one_sentence_with_its_cure(
    register: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken_method.py").write_text("raise RuntimeError('half installed')\n")
    monkeypatch.syspath_prepend(tmp_path)
    register("llmzero_ray.methods", "broken", "broken_method:Method")
    with pytest.raises(
        ConfigError,
        match=r"search\.method is 'broken', which cannot be loaded: RuntimeError: half installed\. "
        "Install or repair its package, or correct the name",
    ):
        make_search("broken", SearchRules(), 3)


@pytest.mark.parametrize("field", ["agents.proposer", "search.method", "task.family", "reward"])
@pytest.mark.parametrize(
    ("code", "value", "message"),
    [
        ("raise SystemExit(7)", "of_a_stranger:make", r"cannot be loaded: SystemExit: 7\. Install or repair"),
        ("", "of_a_stranger:make", "cannot be loaded: module 'of_a_stranger' has no attribute 'make'"),
        ("", "of_a_stranger", r"stands for 'of_a_stranger'; must be package\.module:name\. Repair its"),
        ("make = 3", "of_a_stranger:make", "is a int; must be callable"),
    ],
)
def test_what_a_package_registers_and_cannot_be_loaded_is_one_sentence(
    stranger: Any, field: str, code: str, value: str, message: str
) -> None:
    stranger(code, plugin.GROUPS[field], value)
    with pytest.raises(ConfigError, match=rf"^{field} is 'mine', which {message}"):
        plugin.load_factory("mine", field=field)


def config_with(field: str, name: str = "mine", **more: Any) -> SearchConfig:
    """A configuration whose field is that name."""
    block, key = field.split(".")
    value = [name] if field in ("stopper.rules", "tracking.backends") else name
    return parse_config({"name": "x", block: {key: value}, **more})


MADE: dict[str, Callable[[], Any]] = {
    "search.method": lambda: make_search("mine", SearchRules(), 3),
    "task.family": lambda: family_named("mine"),
    "stopper.rules": lambda: make_rules(StopperSettings(rules=["mine"])),
    "agents.backend": lambda: make_agents(config_with("agents.backend"), 32),
    "agents.proposer": lambda: make_agents(config_with("agents.proposer"), 32),
    "engine.backend": lambda: make_engine(config_with("engine.backend"), *[cast(Any, None)] * 3),
    "tracking.backends": lambda: make_trackers(cast(Any, None), TrackingConfig(backends=("mine",)), None),
}
"""Field -> what the factory of its value `mine` makes."""


@pytest.mark.parametrize("name", ["mine", "nosuch"])
@pytest.mark.parametrize("field", MADE)
def test_the_checks_before_training_load_every_name(
    stranger: Any, field: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger("import nothing_here", plugin.GROUPS[field], "of_a_stranger:make")
    config = config_with(field, name, storage=str(tmp_path))
    text = tmp_path / "search.yaml"
    text.write_text(yaml.safe_dump(config.to_json()))
    assert main(["search", str(text), "--dry-run", "--seconds-per-step", "1"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"llmzero: {field} is {name!r}") and err.count("\n") == 1
    (check,) = [one for one in CHECKS if one.name == "configuration"]
    (row,) = rows_of_check(check, Context(config=config, step=False, scratch=Scratch(config)))
    assert (row.status, f"llmzero: {row.found}\n") == ("FAIL", err)


@pytest.mark.parametrize("field", MADE)
@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "raise RuntimeError('no file\\nhere')",
            r"which cannot be made: RuntimeError: no file here\. Repair",
        ),
        ("raise SystemExit(3)", r"which cannot be made: SystemExit: 3\. Repair its package, or take another"),
        ("return object()", r"whose factory gives a value of type object without .*; must have .*\. Repair"),
    ],
)
def test_a_factory_that_raises_or_gives_something_else_is_one_sentence(
    stranger: Any, field: str, code: str, message: str
) -> None:
    stranger(f"def make(*_): {code}", plugin.GROUPS[field], "of_a_stranger:make")
    with pytest.raises(ConfigError, match=rf"^{field} is 'mine', {message}") as error:
        MADE[field]()
    assert "\n" not in str(error.value)


def test_an_error_of_ours_that_a_factory_raises_is_said_as_it_stands(stranger: Any) -> None:
    code = "from llmzero_ray.errors import TaskError\ndef make(): raise TaskError('no dictionary here')"
    stranger(code, "llmzero_ray.families", "of_a_stranger:make")
    with pytest.raises(TaskError, match=r"^no dictionary here$"):
        family_named("mine")


def test_score_tries_a_reward_that_a_package_registers(
    stranger: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "def half(solution_str, **_): return {'score': 0.5, 'acc': float(solution_str == 'Rome')}"
    stranger(code, "llmzero_ray.rewards", "of_a_stranger:half", name="city")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"data_source": "x", "solution_str": "Rome", "ground_truth": "Rome"}))
    command = ["score", "--jsonl", str(rows), "--allow-unsandboxed", "--reward"]
    assert main([*command, "city"]) == 0
    assert json.loads(capsys.readouterr().out) == {"score": 0.5, "acc": 1.0}
    assert main([*command, "citi"]) == 2
    assert "(exact_match, mcq, math, regex, city)" in (said := capsys.readouterr().err)
    assert "Did you mean 'city'?" in said


# --- commands -----------------------------------------------------------------------------------------------


def test_a_command_of_a_package_stands_in_help_where_it_says_and_runs(
    register: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    register("llmzero_ray.commands", "mine", table(monkeypatch, greet=GREET))
    names = list(catalogue.subcommands())
    assert names[names.index("doctor") + 1] == "greet"
    assert names[names.index("draft") + 1] == "score"  # of an extension, as `draft` is
    assert main(["greet", "--name", "Ann"]) == 0
    assert capsys.readouterr().out == "hello Ann\n"


def test_a_table_that_cannot_be_loaded_is_said_and_leaves_the_other_commands_alone(
    register: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    register("llmzero_ray.commands", "lost", "no_such_package:COMMANDS")
    assert main(["--help"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "llmzero: 'lost' is an entry point of llmzero_ray.commands, which cannot be loaded"
    )
    assert (
        said.count("\n") == 1 and "No module named 'no_such_package'. Install or repair its package" in said
    )
    assert main(["list", "--storage", str(tmp_path)]) == 0


def test_a_package_that_exits_when_it_is_imported_ends_no_command_without_a_word(
    stranger: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger("raise SystemExit(5)", "llmzero_ray.commands", "of_a_stranger:COMMANDS")
    assert main(["--help"]) == 2
    assert "'mine' is an entry point of llmzero_ray.commands, which cannot be loaded: SystemExit: 5" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("code", ["COMMANDS = [1]", "COMMANDS = {'greet': 1}"])
def test_a_table_that_is_none_is_said(stranger: Any, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    stranger(code, "llmzero_ray.commands", "of_a_stranger:COMMANDS")
    assert main(["--help"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "of_a_stranger:COMMANDS, an entry point of llmzero_ray.commands" in said
    assert "must be a table, name -> Subcommand. Repair or uninstall its package." in said


def test_a_command_that_there_is_already_is_refused(
    register: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    register("llmzero_ray.commands", "mine", table(monkeypatch, search=GREET))
    assert main(["--help"]) == 2
    assert "adds a command 'search', which there is already" in capsys.readouterr().err
