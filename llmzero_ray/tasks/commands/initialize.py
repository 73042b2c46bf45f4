"""First part of `search FOLDER SENTENCE`: draft the task with the user, get confirmation, prepare it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from llmzero_ray.agents.backend import MODEL_BACKENDS
from llmzero_ray.config import SearchConfig, presets, resolve_config
from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.errors import ConfigError, LlmzeroError
from llmzero_ray.hyperparameters import VERL_SPACE, format_value, short
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.journal import trust
from llmzero_ray.launch.preflight import check_backends, refuse_job_directory
from llmzero_ray.launch.start_checks import StartChecks
from llmzero_ray.records.events import AgentCalled
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.presence import owner
from llmzero_ray.tasks.commands.drafting import ask, ask_user, check_sentence, print_text, user_choices
from llmzero_ray.tasks.commands.prepare import prepare_source_task
from llmzero_ray.tasks.task_yaml import TaskFile, load_task_file

if TYPE_CHECKING:
    from llmzero_ray.tasks.drafting.base import DataProfile
    from llmzero_ray.tasks.drafting.initialization import Initialization


def config_of_folder(
    settings: list[str],
    console: Console,
    *,
    folder: str,
    sentence: str,
    base: str | None,
    repairs: int,
    yes: bool,
    **choices: Any,
) -> SearchConfig:
    """The configuration of `llmzero search FOLDER SENTENCE`, after preparing its task.

    Idempotent: finished steps (draft, confirmation, preparation) are not repeated. Fields of the search.yaml
    `base` override drafted ones; `yes` confirms without a question; `choices` are those of `user_choices`.

    Raises:
        ConfigError: wrong options, unanswered questions, or another search of this name.
        TaskError: no data, or a task that cannot be prepared.
        LlmzeroError: the user does not confirm, or a model, a key or the storage is missing.
    """
    from llmzero_ray.tasks.drafting.initialization import check_begun, initializing
    from llmzero_ray.tasks.drafting.inspect_data import inspect_data

    check_sentence(sentence)
    place, own = Path(folder), {} if base is None else read_yaml(presets.path_of(base))
    config = _provisional(own, place, settings)
    trust(config.journal_address)
    storage = SearchStorage(config.storage, config.name)
    follower = Follower(storage)
    follower.poll()
    check_begun(follower.core, storage.paths.root, place, sentence)
    if follower.core.started is not None or owner(storage.paths.root) is not None:
        return _drafted_config(storage, settings)
    profile: DataProfile | None = None
    checks = StartChecks(storage.paths)
    if follower.core.drafted is None:  # before anything is written, and before anything is paid for
        profile = inspect_data(place)
        unknown = sum(call.dollars for call in checks.not_journalled(follower.events))
        _check(config, follower.core.dollars + unknown, checks.book)
    with storage.kept_if_used():
        storage.check()
        with initializing(storage, config, place, sentence) as initialization:
            initialization.decide(user_choices(**choices))
            initialization.record_checks(checks.not_journalled(follower.events))
            if initialization.needs_draft:
                _draft(initialization, profile or inspect_data(place), own, max(0, repairs), console)
            final = _drafted_config(storage, settings)
            task = load_task_file(storage.paths.initialization / "task.yaml")
            root_hyperparameters(final, task.n_train)
            if not initialization.is_confirmed:
                _confirm(initialization, final, task, console, yes=yes)
            prepare_source_task(str(storage.paths.initialization / "task.yaml"), [], console)
    return final


def _provisional(base: Mapping[str, Any], folder: Path, settings: list[str]) -> SearchConfig:
    """Configuration as far as known before anything is drafted."""
    from llmzero_ray.tasks.drafting.expert_agents import task_name

    data = {**base, "name": task_name(folder), "task": {}}
    return resolve_config(data, settings, VERL_SPACE.names, source="search.yaml")


def _drafted_config(storage: SearchStorage, settings: list[str]) -> SearchConfig:
    return resolve_config(read_yaml(storage.paths.initialization / "search.yaml"), settings, VERL_SPACE.names)


def _check(config: SearchConfig, spent: float, book: Callable[[AgentCalled], None]) -> None:
    """Check everything that does not depend on the draft. `book` is that of `check_agents`."""
    if config.model.path is None and config.engine.backend == "verl":
        raise ConfigError(
            "no base model is named; give it with --set model.path=/directory/of/the/model, or in the file "
            "of --base."
        )
    refuse_job_directory(config)
    check_backends(config, spent, book)


def _draft(
    initialization: Initialization,
    profile: DataProfile,
    base: Mapping[str, Any],
    repairs: int,
    console: Console,
) -> None:
    """Draft until the user has answered all open questions.

    Raises:
        ConfigError: a question stays open, or the draft does not work.
    """
    from llmzero_ray.tasks.drafting.base import UserChoices

    while True:
        drafted = initialization.draft(
            profile, base, repairs=repairs, on_progress=lambda doing: print_text(console, f"draft: {doing}")
        )
        answers = ask_user(console, drafted.open)
        if not answers:
            break
        initialization.decide(UserChoices(**answers))
    recorded = initialization.core.drafted
    if recorded is not None and recorded.problems:
        listed, place = "\n".join(recorded.problems), initialization.paths.initialization
        raise ConfigError(
            f"the task cannot be trained yet:\n{listed}\nThe draft is in {place}. Answer with the options "
            "named above, or edit it; then run the same command."
        )


def _confirm(
    initialization: Initialization, config: SearchConfig, task: TaskFile, console: Console, *, yes: bool
) -> None:
    """Show the findings and the planned training, and ask the user to confirm.

    Raises:
        LlmzeroError: the user declines, or there is no terminal.
    """
    for line in _summary(initialization, config, task):
        print_text(console, line)
    if yes:
        return initialization.confirm("yes")
    place = initialization.paths.initialization
    paid = f" What was asked ({initialization.bill}) is not asked again." if initialization.bill else ""
    if not sys.stdin.isatty():
        raise ConfigError(
            f"there is no terminal at which to confirm this. Look at the files in {place}, edit them, then "
            f"run the same command with --yes.{paid}"
        )
    if ask(console, "Train this? [y/N] ").lower() in ("y", "yes"):
        return initialization.confirm("terminal")
    raise LlmzeroError(
        f"not confirmed, and nothing was started. The draft stays in {place}: edit it, then run the same "
        f"command.{paid}"
    )


def _summary(initialization: Initialization, config: SearchConfig, task: TaskFile) -> Iterator[str]:
    drafted, budget = initialization.core.drafted, config.budget
    yield f"search {config.name}, from {initialization.folder}:"
    if drafted is not None:
        yield from (f"  {line}" for line in drafted.found)
    if initialization.edited:
        yield f"  edited since: {', '.join(initialization.edited)}"
    sizes = f"{task.n_train} train, {task.n_val} val, {task.n_test} test"
    reward = "none" if task.reward is None else task.reward.kind
    yield f"  task {task.name}: at most {sizes}; reward {reward}"
    overrides = config.root.overrides.items()
    root = ", ".join(f"{short(key)} {format_value(key, value)}" for key, value in overrides)
    yield f"  the first phase: {config.phase.n_steps} steps, {root}"
    limits = {
        "runs": budget.runs,
        "GPU hours": budget.gpu_hours,
        "hours": budget.wall_clock_hours,
        "dollars": budget.dollars,
    }
    most = ", ".join(f"{limit:g} {unit}" for unit, limit in limits.items() if limit is not None)
    yield f"  model {config.model.path or 'of the engine'}; at most {most}"
    model = f"{config.agents.backend}, {config.agents.model}"
    agents = model if config.agents.backend in MODEL_BACKENDS else config.agents.backend
    yield f"  agents: {agents}" + (f"; so far {initialization.bill}" if initialization.bill else "")
    yield f"  files: {initialization.paths.initialization}"
