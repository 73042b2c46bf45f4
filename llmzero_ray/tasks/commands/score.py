"""The command `score`: score the responses of a JSONL file with a reward, to debug the reward.

One JSON result per good line on standard output, in order; one message per bad line on standard error. A
reward of a file runs in a sandbox. Imports no Ray. Not here: the rewards (llmzero_ray/tasks/rewards), their
validation before a search (llmzero_ray/prepared/reward_validation).
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from llmzero_ray.errors import ConfigError, TaskError
from llmzero_ray.prepared.manifest import RewardEntry, read_manifest
from llmzero_ray.prepared.reward import LoadedReward, open_reward
from llmzero_ray.prepared.reward_validation import result_problem
from llmzero_ray.prepared.sandbox import ALLOW, ForeignValue
from llmzero_ray.tasks.shipped_rewards import KINDS, reward_module, unmet
from llmzero_ray.utils.plugins import GROUPS, points, registered
from llmzero_ray.utils.text import clean, nearest

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
            metavar="R",
            help=f"{', '.join(KINDS)}, a name that a package registers, or FILE.py[:function] "
            "(default: by data_source)",
        ),
    ] = None,
    task: Annotated[str | None, typer.Option(metavar="DIR", help="use the reward of a prepared task")] = None,
    allow_unsandboxed: Annotated[
        bool,
        typer.Option(
            "--allow-unsandboxed",
            help="run the code of FILE.py or a package even if this machine has no sandbox for it",
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
    reward_options = dict(_option(text) for text in option)
    # A task's reward and the user's own get the truth unchanged; a reward named by kind gets text.
    own = task is not None or (reward is not None and reward not in KINDS)
    n_rows = n_bad = 0
    with contextlib.ExitStack() as stack:
        entry, directory = _named(reward, task, allow_unsandboxed=allow_unsandboxed)
        how_to_allow = "give --allow-unsandboxed" if task is None else ALLOW
        choose = _chooser(
            entry, lambda one: stack.enter_context(open_reward(one, directory, how_to_allow=how_to_allow))
        )
        stream = stack.enter_context(_opened(jsonl))
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


def _named(
    reward: str | None, task: str | None, *, allow_unsandboxed: bool
) -> tuple[RewardEntry | None, Path]:
    """(reward that the options name, or None if data_source chooses it; directory of its path)."""
    if task is not None:
        return read_manifest(Path(task)).reward, Path(task)
    if reward is None or reward in KINDS:
        return None if reward is None else RewardEntry(module=KINDS[reward]), Path()
    packages = points(GROUPS["reward"])
    if reward in packages:
        point = registered(reward, field="reward")
        return RewardEntry(module=point.module, name=point.attr, allow_unsandboxed=allow_unsandboxed), Path()
    place, colon, name = reward.rpartition(":")
    path, function = (place, name) if colon and place.endswith(".py") else (reward, "compute_score")
    if not Path(path).is_file() or not path.endswith(".py"):
        known = [*KINDS, *packages]
        near = nearest(reward, known)
        hint = f" Did you mean {near!r}?" if near else ""
        raise TaskError(
            f"reward {reward} is neither a known kind ({', '.join(known)}) nor a Python file FILE.py or "
            f"FILE.py:function.{hint}"
        )
    return RewardEntry(path=path, name=function, allow_unsandboxed=allow_unsandboxed), Path()


def _chooser(
    entry: RewardEntry | None, open_it: Callable[[RewardEntry], LoadedReward]
) -> Callable[[str], LoadedReward]:
    """Function from a data_source to its reward. Each reward is opened once."""

    @lru_cache
    def opened(entry: RewardEntry) -> LoadedReward:
        found = open_it(entry)
        if found.asynchronous:
            raise TaskError(f"{found} is asynchronous; only plain functions can be tried here")
        return found

    def shipped(data_source: str) -> LoadedReward:
        if problems := unmet([data_source]):
            raise TaskError("; ".join(problems))
        return opened(RewardEntry(module=reward_module(data_source)))

    if entry is None:
        return shipped
    fixed = opened(entry)
    return lambda _source: fixed


def _score_line(
    row: Mapping[str, Any], choose: Callable[[str], LoadedReward], options: Mapping[str, Any]
) -> str:
    reward = choose(row["data_source"])
    # A reward that prints must not break the stream of results.
    with contextlib.redirect_stdout(sys.stderr):
        [outcome] = reward.score([{**row, **options}])
    if problem := outcome.problem or result_problem(outcome.result):
        raise TaskError(f"the reward {problem}; correct the reward")
    result = outcome.result
    try:
        return json.dumps(result, default=_as_json)
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskError(f"the reward returns {result!r:.200}, which is not JSON: {error}") from error


def _as_json(value: Any) -> float | str:
    """A number of another type, or the name of a value that training does not get."""
    return str(value) if isinstance(value, ForeignValue) else float(value)


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
            given = f"is {json.dumps(held[name]):.80}" if name in held else "is missing"
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
