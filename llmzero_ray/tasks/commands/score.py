"""The command `score`: score the responses of a JSONL file with a reward, to debug the reward.

One JSON result per good line on standard output, in order; one message per bad line on standard error. The
code of a file runs in a sandbox. Imports no Ray. Not here: the rewards (llmzero_ray/tasks/rewards), trying
them before a search (llmzero_ray/prepared/reward_validation).
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from llmzero_ray.errors import ConfigError, TaskError
from llmzero_ray.prepared.reward import RewardFunction, load_file, load_module, load_task_reward
from llmzero_ray.prepared.shipped_rewards import KINDS, reward_module, unmet
from llmzero_ray.utils.text import clean

_TEXTS = ("data_source", "solution_str", "ground_truth")


def score(
    *,
    jsonl: Annotated[
        str,
        typer.Option(
            metavar="F",
            help="file of rows {data_source, solution_str, ground_truth, extra_info}; - reads standard input",
        ),
    ],
    option: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUE",
            help="passed to the reward, such as letters=ABCDE",
            default_factory=list,
            show_default=False,
        ),
    ],
    reward: Annotated[
        str | None,
        typer.Option(
            metavar="R", help=f"{', '.join(KINDS)}, or FILE.py[:function] (default: by data_source)"
        ),
    ] = None,
    task: Annotated[str | None, typer.Option(metavar="DIR", help="use the reward of a prepared task")] = None,
    allow_unsandboxed: Annotated[
        bool,
        typer.Option(
            "--allow-unsandboxed", help="run the code of FILE.py even if this machine has no sandbox for it"
        ),
    ] = False,
) -> int:
    """Score the rows of a JSONL file. Exits with 0 if all rows were valid.

    Raises:
        TaskError: the file cannot be read or holds no row, a row cannot be scored, or the reward cannot be
            used.
    """
    if reward is not None and task is not None:
        raise ConfigError("score: --reward and --task name two rewards; give one of them.")
    choose = _chooser(reward, task, allow_unsandboxed=allow_unsandboxed)
    reward_options = dict(_option(text) for text in option)
    # A task's reward and one of the user's own are given the truth as it stands; one named by kind gets text.
    own = task is not None or (reward is not None and reward not in KINDS)
    n_rows = n_bad = 0
    with _opened(jsonl) as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            n_rows += 1
            try:
                text = _score_line(_row(line, any_truth=own), choose, reward_options)
            except TaskError as error:
                n_bad += 1
                typer.echo(clean(f"llmzero: {jsonl}, line {number}: {error}"), err=True)
            else:
                typer.echo(text)
    if n_rows == 0:
        raise TaskError(f"{jsonl} holds no rows; write one JSON object a line")
    if n_bad:
        raise TaskError(f"{jsonl}: {n_bad} of {n_rows} rows could not be scored; see above")
    return 0


def _chooser(
    reward: str | None, task: str | None, *, allow_unsandboxed: bool
) -> Callable[[str], RewardFunction]:
    """Reward by data_source."""
    if task is not None:
        fixed = load_task_reward(Path(task))
    elif reward is None:
        return _shipped
    elif reward in KINDS:
        fixed = load_module(KINDS[reward])
    else:
        fixed = load_file(
            reward, allow_unsandboxed=allow_unsandboxed, how_to_allow="give --allow-unsandboxed"
        )
    return lambda _source: fixed


def _shipped(data_source: str) -> RewardFunction:
    problems = unmet([data_source])
    if problems:
        raise TaskError("; ".join(problems))
    return load_module(reward_module(data_source))


def _score_line(
    row: Mapping[str, Any], choose: Callable[[str], RewardFunction], options: Mapping[str, Any]
) -> str:
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


def _row(line: bytes, *, any_truth: bool) -> dict[str, Any]:
    try:
        held = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise TaskError(f"not JSON: {error}; write one JSON object a line") from error
    if not isinstance(held, dict):
        raise TaskError(f"a JSON {type(held).__name__}; a row is an object with {', '.join(_TEXTS)}")
    for name in _TEXTS:
        is_truth = any_truth and name == "ground_truth" and held.get(name) is not None
        if not isinstance(held.get(name), str) and not is_truth:
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
