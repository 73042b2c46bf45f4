"""The commands `search` and `resume`: check everything that can be checked first, then start, then follow.

Not here: making the task (prepare.py), status and end of searches (status.py, stop.py), Ray (actors/app.py,
imported when needed).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from llmzero_ray import _actors
from llmzero_ray.cli import options
from llmzero_ray.cli.drafting import user_choices
from llmzero_ray.cli.initialize import FolderSearch, initialize
from llmzero_ray.cli.locate import find
from llmzero_ray.cli.output import TerminalConsole, print_line, print_lines
from llmzero_ray.cli.preflight import check_backends, check_verl_keys, refuse_job_directory
from llmzero_ray.cli.prepare import prepare_family
from llmzero_ray.cli.start_checks import StartChecks
from llmzero_ray.cli.terminal import LOOK_S, end_check, watch
from llmzero_ray.cli.view import outcome_lines
from llmzero_ray.config import SearchConfig, load_config
from llmzero_ray.config_changes import differing_keys, read_settings, with_changes
from llmzero_ray.coordinator import extension_problem, not_started, root_hyperparameters
from llmzero_ray.errors import ConfigError, CoordinatorGoneError, SearchBusyError
from llmzero_ray.events import AgentCalled
from llmzero_ray.follow import Follower
from llmzero_ray.presence import SearchLock, is_extension_requested, owner, request
from llmzero_ray.storage import SearchStorage
from llmzero_ray.tasks import PreparedTask
from llmzero_ray.tasks.confirmation import check_spare_rows
from llmzero_ray.tasks.prepared import check_same_task

_SETTLE_S = 60.0
"""How long another command may take to prepare the same directory."""


def search(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="search.yaml; or, before a SENTENCE, a folder of data")
    ],
    sentence: Annotated[
        str | None, typer.Argument(metavar="[SENTENCE]", help="what the model must learn from the folder")
    ] = None,
    *,
    settings: options.Settings,
    options_field: options.OptionsField,
    resume: Annotated[
        bool, typer.Option("--resume", help="CONFIG may be a search's directory or name")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="estimate hours, dollars, disk; start nothing")
    ] = False,
    seconds_per_step: Annotated[
        float | None, typer.Option(metavar="S", help="--dry-run: measured elsewhere")
    ] = None,
    like: Annotated[
        str | None, typer.Option(metavar="SEARCH", help="--dry-run: take the seconds of another search")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="FOLDER: train what was found, unasked")] = False,
    base: Annotated[
        str | None, typer.Option(metavar="CONFIG", help="FOLDER: a search.yaml for all that is not drafted")
    ] = None,
    repairs: options.Repairs = 2,
    table: options.TableNumber = None,
    question_field: options.QuestionField = None,
    answer_field: options.AnswerField = None,
    answer_form: options.AnswerForm = None,
    reward: options.Reward = None,
) -> int:
    """Start, attach or resume, by name; follow to the end.

    With a folder of data and a sentence, agents first draft its task and configuration.
    """
    if sentence is not None:
        if resume or dry_run:
            raise ConfigError(
                "--resume and --dry-run take a search.yaml or a search, no folder with a sentence. Leave the "
                "option out: a search from a folder goes on where it was, by itself."
            )
        choices = user_choices(
            table=table,
            question=question_field,
            answer=answer_field,
            options=options_field,
            answer_form=answer_form,
            reward=reward,
        )
        given = FolderSearch(
            folder=Path(config),
            sentence=sentence,
            choices=choices,
            base=base,
            repairs=max(0, repairs),
            yes=yes,
        )
        return _search(initialize(given, settings, TerminalConsole()), settings, from_folder=True)
    if Path(config).is_dir() and not resume:
        raise ConfigError(
            f"{config} is a folder. Say beside it what the model must learn (`llmzero search FOLDER "
            "SENTENCE`), or go on with the search that it holds: `llmzero resume`."
        )
    loaded = _known(config, "runs", settings) if resume else load_config(config, settings)
    if dry_run:
        from llmzero_ray.cli.dry_run import show_estimate

        return show_estimate(loaded, seconds_per_step=seconds_per_step, like=like)
    return _search(loaded, settings)


def resume(search: options.Search, *, settings: options.Settings, storage: options.Storage = "runs") -> int:
    """Go on with a search from its directory alone, on whatever cluster there is now."""
    return _search(_known(search, storage, settings), settings)


def _known(search: str, storage: str, settings: list[str]) -> SearchConfig:
    """The configuration of a search that exists, where it is now.

    Raises:
        ConfigError: there is none, or a setting cannot be changed any more.
    """
    place = find(search, storage)
    config = place.config()
    if config is None:
        raise ConfigError(f"{place.paths.root}: there is no search here. Start one with `llmzero search`.")
    follower = Follower(place)
    follower.poll()
    if follower.core.started is None and follower.core.initialization is not None:
        raise ConfigError(not_started(follower.core, place.paths.root))
    config = with_changes(config, read_settings(settings))
    return config.model_copy(update={"storage": str(place.paths.root.parent)})


def _search(config: SearchConfig, settings: list[str], *, from_folder: bool = False) -> int:
    """Follow the search's coordinator, or become the command that starts one.

    Between the check for a coordinator and the start of one, another process may start one: Ray that restarts
    it, or another command. That coordinator is then followed.
    """
    refuse_job_directory(config)
    console, storage = TerminalConsole(), SearchStorage(config.storage, config.name)
    deadline = time.monotonic() + _SETTLE_S
    with storage.kept_if_used():
        storage.check()
        while True:
            try:
                return _follow_or_start(config, settings, console, storage, from_folder=from_folder)
            except SearchBusyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(LOOK_S)


def _follow_or_start(
    config: SearchConfig,
    settings: list[str],
    console: Console,
    storage: SearchStorage,
    *,
    from_folder: bool,
) -> int:
    follower, root = Follower(storage), storage.paths.root
    follower.poll()
    if follower.core.initialization is not None and not (follower.has_trained or from_folder):
        raise ConfigError(not_started(follower.core, root))
    someone = owner(root)
    changes = storage.check_same(config) if someone is not None or follower.has_trained else {}
    if follower.finished is not None and not _is_extended(follower, config, settings, console):
        print_lines(console, outcome_lines(follower))
        return 0
    if follower.finished is not None and someone is not None:
        raise SearchBusyError(f"{root}: {someone} is about to end. Run the same command again.")
    if someone is not None and changes:
        listed = " ".join(f"{key}={value}" for key, value in changes.items())
        raise ConfigError(
            f"{config.name} is at work with other settings; change them with `llmzero set {root} {listed}`."
        )
    if someone is not None:
        print_line(console, f"{config.name}: {someone} is at work on it; following")
        try:
            return watch(follower, console, ended=end_check(follower), private_head=False)
        except CoordinatorGoneError:
            print_line(console, f"{config.name}: {someone} has gone; going on with the search")
    root_hyperparameters(config, None)
    checks = StartChecks(storage.paths)
    unknown = sum(call.dollars for call in checks.not_journalled(follower.events))
    check_backends(config, follower.core.dollars + unknown, checks.book)
    task = prepare_family(config, console)
    check_verl_keys(config, task)
    if config.confirm.k and not follower.storage.paths.confirm_rows.exists():
        check_spare_rows(task)
    _settle(config, task, follower)
    if changes:
        request(root, "set", changes=changes)  # the first thing that its coordinator takes
    fresh = Follower(storage)
    fresh.poll()
    return _run(config, task, Follower(storage), console, checks.not_journalled(fresh.events))


def _is_extended(follower: Follower, config: SearchConfig, settings: list[str], console: Console) -> bool:
    """Whether a search that has finished goes on: settings that raise a limit were given, or wait for it.

    Raises:
        ConfigError: a `--set` changes something that does not extend it.
    """
    known, finished = follower.storage.config(), follower.finished
    assert finished is not None
    changed = {} if known is None else differing_keys(known, config)
    if not changed:
        return is_extension_requested(follower.storage.paths.root)  # a command before this one was killed
    changes = {key: new for key, (_, new) in changed.items()}
    problem = extension_problem(follower.core, changes)
    given = [setting.partition("=")[0].strip() for setting in settings]
    if problem and any(key == name or key.startswith(f"{name}.") for key in changes for name in given):
        raise ConfigError(
            f"{config.name} has finished ({finished.reason}): {problem} Leave --set out to see its outcome."
        )
    if problem:
        listed = ", ".join(f"{key}={new}" for key, new in changes.items())
        print_line(console, f"{config.name} has finished with other settings; not used: {listed}")
    return problem is None


def _settle(config: SearchConfig, task: PreparedTask, follower: Follower) -> None:
    """Prepare the directory for a coordinator, unless one has locked it meanwhile."""
    storage = follower.storage
    lock = SearchLock(storage.paths.root)
    lock.acquire(private_head=True, role="command", wait_s=_SETTLE_S)
    try:
        follower.poll()
        if follower.has_trained and follower.core.started is not None:
            check_same_task(follower.core.started.task, task)
        else:
            storage.start_over()
        storage.adopt_config(config)
    finally:
        lock.release()


def _run(
    config: SearchConfig,
    task: PreparedTask,
    follower: Follower,
    console: Console,
    checks: Sequence[AgentCalled],
) -> int:
    from llmzero_ray.cli.interrupts import raise_on_termination

    with _actors.head.disconnecting():
        running = _actors.app.start(config, task, checks)
        raise_on_termination(console)
        private, left = running.private_head, None

        def ended() -> bool:
            """The coordinator has ended, and on a shared cluster no other one has replaced it."""
            nonlocal left
            if left is None and _actors.app.has_joined(running):
                left = end_check(follower)
            return left is not None and (private or left())

        return watch(follower, console, ended=ended, private_head=private)
