"""Score answers of a JSONL file with a reward, for finding out why a reward does what it does.

One JSON result per good line on standard output, in order; one message per bad line on standard error. The
code of a file runs in a sandbox. Imports no Ray. Not here: the rewards (llmzero_ray/tasks/rewards), trying
them before a search (llmzero_ray/tasks/reward_check.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from llmzero_ray.errors import LlmzeroError, TaskError
from llmzero_ray.tasks.rewards.catalogue import KINDS, reward_module, unmet
from llmzero_ray.tasks.rewards.loading import RewardFunction, load_file, load_module, load_task_reward

_TEXTS = ("data_source", "solution_str", "ground_truth")


def main(argv: Sequence[str] | None = None) -> int:
    """Score a file; exit code 0 when every line was scored, else 2."""
    parser = argparse.ArgumentParser(prog="llmzero score", description="Score the rows of a JSONL file.")
    told = "file of rows {data_source, solution_str, ground_truth, extra_info}; - reads standard input"
    parser.add_argument("--jsonl", required=True, metavar="F", help=told)
    source = parser.add_mutually_exclusive_group()
    told = f"{', '.join(KINDS)}, or FILE.py[:function] (default: by data_source)"
    source.add_argument("--reward", metavar="R", help=told)
    source.add_argument("--task", metavar="DIR", help="use the reward of a prepared task")
    told = "passed to the reward, such as letters=ABCDE"
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help=told)
    told = "run the code of FILE.py even if this machine has no sandbox for it"
    parser.add_argument("--allow-unsandboxed", action="store_true", help=told)
    arguments = parser.parse_args(argv)
    try:
        return score(arguments)
    except LlmzeroError as error:
        print(f"llmzero: {error}", file=sys.stderr)  # noqa: T201 - the command line speaks to a person
        return error.exit_code


def score(arguments: argparse.Namespace) -> int:
    """Score the rows of `arguments.jsonl`; exit code 0 when all were good, 2 otherwise.

    Raises:
        TaskError: the file cannot be read or holds no row, or the reward cannot be used.
    """
    choose, options = _chooser(arguments), dict(_option(text) for text in arguments.option)
    n_rows = n_bad = 0
    with _opened(arguments.jsonl) as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            n_rows += 1
            try:
                text = _score_line(line, choose, options)
            except TaskError as error:
                n_bad += 1
                print(f"llmzero: {arguments.jsonl}, line {number}: {error}", file=sys.stderr)  # noqa: T201
            else:
                print(text)  # noqa: T201
    if n_rows == 0:
        raise TaskError(f"{arguments.jsonl} holds no rows; write one JSON object a line")
    if n_bad:
        raise TaskError(f"{arguments.jsonl}: {n_bad} of {n_rows} rows could not be scored; see above")
    return 0


def _chooser(arguments: argparse.Namespace) -> Callable[[str], RewardFunction]:
    """Reward by data_source."""
    if arguments.task is not None:
        fixed = load_task_reward(Path(arguments.task))
    elif arguments.reward is None:
        return _shipped
    elif arguments.reward in KINDS:
        fixed = load_module(KINDS[arguments.reward])
    else:
        allowed = arguments.allow_unsandboxed
        fixed = load_file(
            arguments.reward, allow_unsandboxed=allowed, how_to_allow="give --allow-unsandboxed"
        )
    return lambda _source: fixed


def _shipped(data_source: str) -> RewardFunction:
    problems = unmet([data_source])
    if problems:
        raise TaskError("; ".join(problems))
    return load_module(reward_module(data_source))


def _score_line(line: bytes, choose: Callable[[str], RewardFunction], options: Mapping[str, Any]) -> str:
    row = _row(line)
    reward = choose(row["data_source"])
    try:
        # A reward that prints must not break the stream of results.
        with contextlib.redirect_stdout(sys.stderr):
            result = reward(**row, **options)
    except Exception as error:  # a user's reward may raise anything
        if isinstance(error, TaskError):
            raise
        raise TaskError(f"the reward raises {type(error).__name__}: {error}; correct the reward") from error
    try:
        return json.dumps(result, default=float)
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskError(f"the reward returns {result!r:.200}, which is not JSON: {error}") from error


def _row(line: bytes) -> dict[str, Any]:
    try:
        held = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise TaskError(f"not JSON: {error}; write one JSON object a line") from error
    if not isinstance(held, dict):
        raise TaskError(f"a JSON {type(held).__name__}; a row is an object with {', '.join(_TEXTS)}")
    for name in _TEXTS:
        if not isinstance(held.get(name), str):
            given = f"is {held[name]!r:.80}" if name in held else "is missing"
            raise TaskError(f"{name} {given}; it must be text (composite ground truths as a JSON string)")
    extra = held.get("extra_info")
    if extra is not None and not isinstance(extra, dict):
        raise TaskError(f"extra_info is {extra!r:.80}; it must be an object, or absent")
    return {**{name: held[name] for name in _TEXTS}, "extra_info": extra or {}}


@contextlib.contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        with Path(name).open("rb") as stream:
            yield stream
    except OSError as error:
        raise TaskError(f"{name} cannot be read: {error.strerror or error}; give a JSONL file") from error


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier() or key in (*_TEXTS, "extra_info"):
        raise TaskError(f"--option {text!r} is not KEY=VALUE with the name of an option of the reward")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
