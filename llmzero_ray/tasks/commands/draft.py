"""The command `draft`: a task drafted from a folder and a sentence, for the user to edit."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmzero_ray.cli import options
from llmzero_ray.cli.output import TerminalConsole
from llmzero_ray.config.changes import read_settings
from llmzero_ray.errors import ConfigError
from llmzero_ray.tasks.commands.drafting import ask_user, check_sentence, print_text, user_choices

if TYPE_CHECKING:
    from llmzero_ray.tasks.drafting.draft import Draft
    from llmzero_ray.tasks.drafting.session import DraftingSession

INCOMPLETE = 2


def draft(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="holds the data: JSON, JSON Lines, CSV, TSV, Parquet")
    ],
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="what the model must learn")],
    *,
    out: Annotated[str, typer.Option(metavar="DIR", help="receives the files of the draft")],
    options_field: options.OptionsField,
    settings: Annotated[
        list[str],
        options.settings_option("set a field of agents, such as agents.base_url=http://localhost:8000"),
    ],
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="who drafts: expert (rules, offline) or claude")
    ] = "expert",
    model: Annotated[
        str | None, typer.Option(metavar="ID", help="language model (default: that of agents.model)")
    ] = None,
    max_dollars: Annotated[float, typer.Option(metavar="DOLLARS", help="most that calls may cost")] = 1.0,
    repairs: options.Repairs = options.REPAIRS,
    force: Annotated[bool, typer.Option("--force", help="replace files of DIR that differ")] = False,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="of the task")] = None,
    table: options.TableNumber = None,
    question_field: options.QuestionField = None,
    answer_field: options.AnswerField = None,
    answer_form: options.AnswerForm = None,
    reward: options.Reward = None,
) -> int:
    """Draft a task, ask open questions on a terminal, write the files, and print the next steps.

    The exit code is 0 if the task works as written, 2 if a question is open or something does not work yet.

    Raises:
        LlmzeroError: nothing could be drafted or written.
    """
    from llmzero_ray.tasks.drafting.draft import draft_task
    from llmzero_ray.tasks.drafting.draft_files import write_draft
    from llmzero_ray.tasks.drafting.inspect_data import inspect_data
    from llmzero_ray.tasks.drafting.response_checks import NAME
    from llmzero_ray.tasks.drafting.session import agents_config, open_session

    if name is not None and not NAME.fullmatch(name):
        raise ConfigError(f"--name {name}: must be 1 to 63 of a-z, 0-9, _ and -")
    if Path(out).exists() and not Path(out).is_dir():
        raise ConfigError(f"--out {out} is a file; name a directory, which receives the files of the draft.")
    user = user_choices(
        name=name,
        table=table,
        question=question_field,
        answer=answer_field,
        options=options_field,
        answer_form=answer_form,
        reward=reward,
    )
    check_sentence(sentence)
    console = TerminalConsole()
    agents = agents_config(backend, model, read_settings(settings))
    profile = inspect_data(Path(folder))
    session = open_session(agents, max_dollars)
    while True:
        drafted = draft_task(
            profile,
            sentence,
            user,
            session.agents,
            repairs=max(0, repairs),
            on_progress=lambda doing: print_text(console, f"draft: {doing}"),
        )
        answers = ask_user(console, drafted.open)
        if not answers:
            break
        user = dataclasses.replace(user, **answers)
    written = write_draft(drafted, Path(out), session.record(sentence), secret=session.secret, force=force)
    for line in _outcome_lines(drafted, session, Path(out), written):
        print_text(console, line)
    return 0 if drafted.works else INCOMPLETE


def _outcome_lines(drafted: Draft, session: DraftingSession, out: Path, written: list[str]) -> Iterator[str]:
    yield from drafted.spec.evidence
    yield from drafted.reward.evidence
    yield from (f"doubt: {line}" for line in drafted.spec.doubts)
    yield from (f"note: {line}" for line in session.notes)
    yield from (f"note: {line}" for line in (drafted.trial.warnings if drafted.trial else ()))
    if session.ledger is not None:
        yield f"calls: {len(session.ledger.entries)}, {session.ledger.dollars:.4f} dollars"
    yield f"written to {out}: {', '.join(written) or 'nothing new'}"
    for question in drafted.open:
        how = f"Answer with {question.flag} (and --force), or in task.yaml."
        yield " ".join(filter(None, ("open:", question.text, question.listed_choices, how)))
    for finding in drafted.findings:
        yield f"does not work yet: {finding}"
    yield f"look at {out / 'description.md'} and {out / 'task.yaml'}, edit them, then run:"
    yield f"  llmzero prepare {shlex.quote(str(out / 'task.yaml'))}"
