"""The commands `search` and `resume`: start or find a search, then follow it.

Not here: the start itself (launch/start.py), status and end of searches (status.py, stop.py).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from llmzero_ray.cli import options
from llmzero_ray.cli.output import TerminalConsole, print_line, print_lines
from llmzero_ray.cli.terminal import INTERRUPTED, watch
from llmzero_ray.cli.view import outcome_lines
from llmzero_ray.config import SearchConfig, load_config, presets
from llmzero_ray.config.changes import read_settings, with_changes
from llmzero_ray.coordinator import not_started
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.errors import ConfigError, CoordinatorGoneError, LlmzeroError
from llmzero_ray.hyperparameters import VERL_SPACE
from llmzero_ray.journal import trust
from llmzero_ray.launch.start import launch
from llmzero_ray.prepared.maker import config_of_folder, task_of
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.locate import find, is_search, missing, renamed
from llmzero_ray.utils.text import one_line


def search(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="search.yaml; or, before a SENTENCE, a folder of data")
    ],
    sentence: Annotated[
        str | None, typer.Argument(metavar="SENTENCE", help="what the model must learn from the folder")
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
    repairs: options.Repairs = options.REPAIRS,
    table: options.TableNumber = None,
    question_field: options.QuestionField = None,
    answer_field: options.AnswerField = None,
    answer_form: options.AnswerForm = None,
    reward: options.Reward = None,
    ui: options.Page = False,
    port: options.PagePort = 8280,
) -> int:
    """Start, attach to or resume the search of that name, and follow it to its end.

    With a folder of data and a sentence, agents first draft its task and configuration.
    """
    estimated = {"--seconds-per-step": seconds_per_step is not None, "--like": like is not None}
    if not dry_run:
        remedy = "Add --dry-run" if sentence is None else "Estimate the search.yaml of a draft"
        _refuse(estimated, "--dry-run, which starts nothing", remedy)
    if sentence is not None:
        if Path(config).is_file():
            raise ConfigError(
                f"{config} is a file and takes no sentence, given: {one_line(sentence)!r}. Settings are "
                "KEY=VALUE, such as budget.runs=8."
            )
        if resume or dry_run:
            raise ConfigError(
                "--resume and --dry-run take a search.yaml or a search, not a folder with a sentence. Leave "
                "the option out: a search from a folder resumes by itself."
            )
        drafted = config_of_folder(
            settings,
            TerminalConsole(),
            folder=config,
            sentence=sentence,
            base=base,
            repairs=repairs,
            yes=yes,
            table=table,
            question=question_field,
            answer=answer_field,
            options=options_field,
            answer_form=answer_form,
            reward=reward,
        )
        return start_and_follow(drafted, settings, from_folder=True, page_port=port if ui else None)
    is_file = presets.path_of(config).is_file()
    if not (resume or is_file) and (is_search(Path(config)) or is_search(Path("runs", config))):
        raise ConfigError(f"{config} is a search; `llmzero resume {shlex.quote(config)}` continues it.")
    if Path(config).is_dir() and not resume:
        raise ConfigError(
            f"{config} is a folder. Add a sentence that says what the model must learn (`llmzero search "
            "FOLDER SENTENCE`), or name a search.yaml."
        )
    drafting = {
        "--yes": yes,
        "--base": base is not None,
        "--repairs": repairs != options.REPAIRS,
        "--table": table is not None,
        "--question-field": question_field is not None,
        "--answer-field": answer_field is not None,
        "--options-field": bool(options_field),
        "--answer-form": answer_form is not None,
        "--reward": reward is not None,
    }
    _refuse(drafting, "a folder with a sentence", "Write `llmzero search FOLDER SENTENCE`")
    loaded = _known(config, "runs", settings) if resume else load_config(config, settings, VERL_SPACE.names)
    if dry_run:
        from llmzero_ray.cli.dry_run import show_estimate

        return show_estimate(loaded, seconds_per_step=seconds_per_step, like=like)
    return start_and_follow(loaded, settings, page_port=port if ui else None)


def _refuse(given: Mapping[str, bool], place: str, remedy: str) -> None:
    """Reject options that would have no effect. `given` is option -> whether it was given; `place` is where
    the options belong.

    Raises:
        ConfigError: one was given.
    """
    names = [name for name, is_given in given.items() if is_given]
    if names:
        listed = " and ".join(names)
        belong = "belongs" if len(names) == 1 else "belong"
        raise ConfigError(f"{listed} {belong} to {place}. {remedy}, or leave {listed} out.")


def resume(
    search: options.Search,
    *,
    settings: options.Settings,
    storage: options.Storage = "runs",
    ui: options.Page = False,
    port: options.PagePort = 8280,
) -> int:
    """Resume a search from its directory, on the current cluster."""
    return start_and_follow(_known(search, storage, settings), settings, page_port=port if ui else None)


def _known(search: str, storage: str, settings: list[str]) -> SearchConfig:
    """Configuration of an existing search, at its current location.

    Raises:
        ConfigError: there is none, its directory has another name, or a setting can no longer be changed.
    """
    place = find(search, storage)
    config = place.config()
    if config is None:
        raise missing(place.paths.root)
    root = place.recorded_root()
    if problem := renamed(root, config.name):
        raise ConfigError(problem)
    trust(config.journal_address)
    follower = Follower(place)
    follower.poll()
    if follower.core.started is None and follower.core.initialization is not None:
        raise ConfigError(not_started(follower.core, root))
    config = with_changes(config, read_settings(settings))
    return config.model_copy(update={"storage": str(root.parent)})


def start_and_follow(
    config: SearchConfig, settings: list[str], *, from_folder: bool = False, page_port: int | None = None
) -> int:
    """Start the search or attach to it, and follow it to its end. Returns the exit code. If `page_port` is
    given, its page is served meanwhile.

    Raises:
        ConfigError: the page cannot be served; nothing was started.
    """
    console = TerminalConsole()
    with contextlib.nullcontext() if page_port is None else _page(config, page_port, console):
        return _start_and_follow(config, settings, console, from_folder=from_folder)


@contextlib.contextmanager
def _page(config: SearchConfig, port: int, console: Console) -> Iterator[None]:
    """Context in which a child process runs `llmzero ui` for the search. Its address is printed first.

    Raises:
        ConfigError: the page cannot be served.
    """
    root = SearchStorage(config.storage, config.name).paths.root
    words = ("ui", str(root), "--port", str(port), "--child-of", str(os.getpid()))
    child = subprocess.Popen(
        [sys.executable, "-m", "llmzero_ray.cli", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C is for this command, which may continue
    )
    assert child.stdout is not None
    try:
        lines = [child.stdout.readline().rstrip() for _ in range(2)]
        if not lines[1]:
            raise ConfigError(lines[0].removeprefix("llmzero: "))
        print_line(console, f"{config.name}: its page is {lines[1]}")
        # Drain the pipe: a full one would block the child.
        threading.Thread(target=deque, args=(child.stdout, 0), daemon=True).start()
        yield
    finally:
        child.terminate()
        child.wait()


def _start_and_follow(
    config: SearchConfig, settings: list[str], console: Console, *, from_folder: bool
) -> int:
    from llmzero_ray.cli.interrupts import Terminated, leave_in_time, raise_on_termination

    say = partial(print_line, console)

    if console.is_terminal:
        say(f"{config.name}: checking configuration, task, model and agents ...")
    given = [setting.partition("=")[0].strip() for setting in settings]
    while True:
        raise_on_termination(console)
        try:
            launched = launch(config, given, task_of, say, from_folder=from_folder)
        except (Terminated, SystemExit):  # SystemExit: from the handler that Ray sets at its start
            say(f"{config.name}: ended by a signal before it began; the same command starts it")
            return INTERRUPTED
        follower, someone, code = launched.follower, launched.found, 1
        if launched.had_ended:
            print_lines(console, outcome_lines(follower))
            return 0
        raise_on_termination(console)
        if someone:
            say(f"{config.name}: {someone} is working on it; following")
        try:
            code = watch(
                follower,
                console,
                ended=launched.end_check(),
                ends_with_command=launched.ends_with_command,
            )
            return code
        except CoordinatorGoneError:
            if not someone:
                raise
            say(f"{config.name}: {someone} is gone; continuing the search")
        except LlmzeroError as error:
            code = error.exit_code
            raise
        finally:
            leave_in_time(launched.leave, code)
