"""The command `draft`: a task drafted from a folder and a sentence, for the user to edit.

Not here: drafting (llmzero_ray/agents/drafting), making the task (prepare.py).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from llmzero_ray.cli import options
from llmzero_ray.cli.output import print_line, printable
from llmzero_ray.config_changes import read_settings
from llmzero_ray.errors import ConfigError

if TYPE_CHECKING:
    from llmzero_ray.agents.drafting.base import OpenQuestion
    from llmzero_ray.agents.drafting.draft import Draft
    from llmzero_ray.agents.drafting.session import DraftingSession

INCOMPLETE = 2
_FIELDS = {
    "--question-field": "question",
    "--answer-field": "answer",
    "--options-field": "options",
    "--answer-form": "answer_form",
    "--reward": "reward",
    "--table": "table",
}
"""Option that answers an open question -> field of the draft."""


def draft(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="holds the data: JSON, JSON Lines, CSV, TSV, Parquet")
    ],
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="what the model must learn")],
    *,
    out: Annotated[str, typer.Option(metavar="DIR", help="receives the files of the draft")],
    options_field: Annotated[
        list[str],
        typer.Option(
            metavar="COLUMN",
            help="holds the options, or one of them: give it again for each",
            default_factory=list,
            show_default=False,
        ),
    ],
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
    repairs: Annotated[int, typer.Option(metavar="N", help="how often a reward is mended")] = 2,
    force: Annotated[bool, typer.Option("--force", help="replace files of DIR that differ")] = False,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="of the task")] = None,
    table: Annotated[
        int | None, typer.Option(metavar="N", help="which files, where their columns differ")
    ] = None,
    question_field: Annotated[str | None, typer.Option(metavar="COLUMN", help="holds the question")] = None,
    answer_field: Annotated[str | None, typer.Option(metavar="COLUMN", help="holds the right answer")] = None,
    answer_form: Annotated[
        Literal["letter", "text", "index"] | None, typer.Option(help="with options: what it holds")
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(metavar="R", help="exact_match, mcq, math, regex=PATTERN, FILE.py:function"),
    ] = None,
) -> int:
    """Draft, ask for what is open where somebody can answer, write, say what comes next.

    Returns 0 when the task works as it was written, 2 when something is open or does not work yet.

    Raises:
        LlmzeroError: nothing could be drafted or written.
    """
    from llmzero_ray.agents.drafting.base import UserChoices
    from llmzero_ray.agents.drafting.draft import draft_task
    from llmzero_ray.agents.drafting.draft_files import write_draft
    from llmzero_ray.agents.drafting.inspect_data import inspect_data
    from llmzero_ray.agents.drafting.response_checks import NAME
    from llmzero_ray.agents.drafting.session import agents_config, open_session

    if name is not None and not NAME.fullmatch(name):
        raise ConfigError(f"--name {name}: must be 1 to 63 of a-z, 0-9, _ and -")
    user = UserChoices(
        name=name,
        table=table,
        question=question_field,
        answer=answer_field,
        options=tuple(options_field),
        answer_form=answer_form,
        reward=str(Path(reward).absolute()) if reward is not None and ".py:" in reward else reward,
    )
    if not sentence.strip():
        raise ConfigError("the sentence is empty; say in a few words what the model must learn")
    console = Console()
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
            on_progress=lambda doing: _print(console, f"draft: {doing}"),
        )
        answers = _ask_user(console, drafted.open) if drafted.open and sys.stdin.isatty() else {}
        if not answers:
            break
        user = dataclasses.replace(user, **answers)
    written = write_draft(drafted, Path(out), session.record(sentence), secret=session.secret, force=force)
    for line in _outcome_lines(drafted, session, Path(out), written):
        _print(console, line)
    return 0 if drafted.works else INCOMPLETE


def _ask_user(console: Console, questions: tuple[OpenQuestion, ...]) -> dict[str, Any]:
    """Answers of the user at the terminal; an empty line leaves a question open."""
    answers: dict[str, Any] = {}
    for question in questions:
        _print(console, f"{question.text} {_choices(question)}")
        while answer := console.input("> ").strip():
            if question.field != "reward" and question.choices and answer not in question.choices:
                _print(console, f"{answer} is none of them. {_choices(question)}")
                continue
            answers[_FIELDS[question.flag]] = _read(question.flag, answer)
            break
    return answers


def _read(flag: str, answer: str) -> Any:
    if flag == "--options-field":
        return tuple(name.strip() for name in answer.split(","))
    return int(answer) if flag == "--table" else answer


def _choices(question: OpenQuestion) -> str:
    return f"One of: {', '.join(question.choices)}." if question.choices else ""


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
        yield " ".join(filter(None, ("open:", question.text, _choices(question), how)))
    for finding in drafted.findings:
        yield f"does not work yet: {finding}"
    yield f"look at {out / 'description.md'} and {out / 'task.yaml'}, edit them, then run:"
    yield f"  llmzero prepare {out / 'task.yaml'}"


def _print(console: Console, line: str) -> None:
    print_line(console, printable(line, keep="\n"))
