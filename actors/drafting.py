"""`llmzero draft FOLDER "..." --out DIR`: a task drafted from a folder and a sentence, for a person to edit.

Not here: options (draft_options.py), drafting (llmzero_ray/agents/drafting), making the task (preparing.py).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from llmzero_ray.config_changes import read_settings
from llmzero_ray.errors import ConfigError

from .draft_options import given_of, parser

if TYPE_CHECKING:
    from llmzero_ray.agents.drafting.draft import Draft
    from llmzero_ray.agents.drafting.session import Session
    from llmzero_ray.agents.drafting.values import OpenQuestion

INCOMPLETE = 2
_FIELDS = {
    "--question-field": "question",
    "--answer-field": "answer",
    "--options-field": "options",
    "--answer-form": "answer_form",
    "--reward": "reward",
    "--table": "table",
}


def main(argv: Sequence[str]) -> int:
    """Draft, ask for what is open where somebody can answer, write, say what comes next.

    Returns 0 when the task works as it was written, 2 when something is open or does not work yet.

    Raises:
        LlmzeroError: nothing could be drafted or written.
    """
    arguments = parser().parse_args(argv)
    from llmzero_ray.agents.drafting.draft import draft_task, write_draft
    from llmzero_ray.agents.drafting.perceive import perceive
    from llmzero_ray.agents.drafting.session import agents_config, open_session

    console, given = Console(), given_of(arguments)
    if not arguments.sentence.strip():
        raise ConfigError("the sentence is empty; say in a few words what the model must learn")
    agents = agents_config(arguments.backend, arguments.model, read_settings(arguments.set))
    perception = perceive(Path(arguments.folder))
    session = open_session(agents, arguments.max_dollars)
    while True:
        drafted = draft_task(
            perception,
            arguments.sentence,
            given,
            session.drafters,
            repairs=max(0, arguments.repairs),
            tell=lambda doing: _say(console, f"draft: {doing}"),
        )
        answers = _asked(console, drafted.open) if drafted.open and sys.stdin.isatty() else {}
        if not answers:
            break
        given = dataclasses.replace(given, **answers)
    out = Path(arguments.out)
    record = session.record(arguments.sentence)
    written = write_draft(drafted, out, record, secret=session.secret, force=arguments.force)
    for line in _told(drafted, session, out, written):
        _say(console, line)
    return 0 if drafted.works else INCOMPLETE


def _asked(console: Console, questions: tuple[OpenQuestion, ...]) -> dict[str, Any]:
    """What a person at the terminal answers; an empty line leaves a question open."""
    answers: dict[str, Any] = {}
    for question in questions:
        _say(console, f"{question.asks} {_choices(question)}")
        while answer := console.input("> ").strip():
            if question.field != "reward" and question.choices and answer not in question.choices:
                _say(console, f"{answer} is none of them. {_choices(question)}")
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


def _told(drafted: Draft, session: Session, out: Path, written: list[str]) -> Iterator[str]:
    yield from drafted.reading.evidence
    yield from drafted.plan.evidence
    yield from (f"doubt: {line}" for line in drafted.reading.doubts)
    yield from (f"note: {line}" for line in session.notes)
    yield from (f"note: {line}" for line in (drafted.trial.warnings if drafted.trial else ()))
    if session.ledger is not None:
        yield f"calls: {len(session.ledger.entries)}, {session.ledger.dollars:.4f} dollars"
    yield f"written to {out}: {', '.join(written) or 'nothing new'}"
    for question in drafted.open:
        how = f"Answer with {question.flag} (and --force), or in task.yaml."
        yield " ".join(filter(None, ("open:", question.asks, _choices(question), how)))
    for finding in drafted.findings:
        yield f"does not work yet: {finding}"
    yield f"look at {out / 'description.md'} and {out / 'task.yaml'}, edit them, then run:"
    yield f"  llmzero prepare {out / 'task.yaml'}"


def _say(console: Console, line: str) -> None:
    shown = "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in line)
    console.print(Text(shown), soft_wrap=True)
