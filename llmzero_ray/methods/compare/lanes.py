"""Runs the searches of a comparison in several lanes. A lane runs one search at a time on slots that it
holds.

A lane stays with a task while the task has runs left, so that its engine stays warm. Every run is an ordinary
search in a child process. An interrupt pauses the running searches. If this process is killed, so are they.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from llmzero_ray.config import SearchConfig
from llmzero_ray.config.yaml_text import to_yaml
from llmzero_ray.engines.capacity import private_head_resources
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.estimate import resolve_platform
from llmzero_ray.launch import actors
from llmzero_ray.methods.compare.plan import ComparedRun
from llmzero_ray.utils.api_key import KEY_ENVS, KEY_VARIABLES, key_file
from llmzero_ray.utils.files import replace_file

_NO_FAULT = (3, 4)
"""Exit codes of failures that are not a method's fault: storage and capacity."""
_LOOK_S = 0.5
_SEARCH = (
    "import sys; from llmzero_ray.utils.parent_death import die_with_parent; "
    "die_with_parent(int(sys.argv[1])); "
    "from llmzero_ray.cli.main import main; sys.exit(main(['search', sys.argv[2]]))"
)
Ended = Callable[[ComparedRun, int], None]
"""Callback for each ended run, with the exit code of its search. Calls never overlap."""


@contextlib.contextmanager
def cluster(config: SearchConfig, lanes: int, name: str) -> Iterator[list[dict[str, str]]]:
    """Context manager that gives each lane's environment variables, by which its searches find a cluster and
    the lane's slots. It joins an existing cluster, or starts a head and ends it on exit. Slots are held until
    then.

    Raises:
        CapacityError: RAY_ADDRESS names a cluster that does not answer or does not have the slots, or Ray
            does not start.
    """
    with actors.head.disconnecting():
        private = not actors.head.join_if_there()
        if private:
            count = lanes * config.slots.count
            several = config.model_copy(update={"slots": config.slots.model_copy(update={"count": count})})
            has_gpus = resolve_platform(config.engine.platform) == "gpu"
            actors.head.start_private_head((), **private_head_resources(several, has_gpus=has_gpus))
        held = {
            slots: actors.runner_pool.RunnerPool(
                slots, config.storage, lambda: config, fixed_capacity=private, holder=True
            )
            for slots in (f"{name}-lane{lane}-{uuid.uuid4().hex[:8]}" for lane in range(lanes))
        }
        env = actors.head.environment()
        env = _with_key_file(env, config.storage) if private else env
        try:
            asyncio.run(_all(pool.reserve() for pool in held.values()))
            yield [{**env, actors.runner_pool.HELD_SLOTS_ENV: slots} for slots in held]
        finally:
            asyncio.run(_all(pool.close_all(at_once=False) for pool in held.values()))


async def _all(calls: Iterable[Awaitable[object]]) -> None:
    await asyncio.gather(*calls)


def _with_key_file(env: Mapping[str, str], storage: str) -> dict[str, str]:
    """The environment with key files instead of API keys. Only for searches on our own head."""
    files = {f"{key}_FILE": key_file(storage, private_head=True, key_env=key) for key in KEY_ENVS.values()}
    rest = {name: value for name, value in env.items() if name not in KEY_VARIABLES}
    return rest | {name: path for name, path in files.items() if path is not None}


def run_all(
    runs: Mapping[ComparedRun, SearchConfig],
    directory: Path,
    *,
    lanes: Sequence[Mapping[str, str]],
    ended: Ended,
    say: Callable[[str], None],
) -> None:
    """Run every search to its end. `lanes` has one environment per lane. If `ended` raises, no further run
    begins; the error is raised once running ones have ended.

    Raises:
        LlmzeroError: a run failed for a reason other than its method (a signal, storage, capacity), or
            `ended` raised.
        KeyboardInterrupt: the command was interrupted; running searches are paused, or killed by a second
            interrupt.
    """
    left, lock, failures = list(runs), threading.Lock(), list[BaseException]()
    at_work: dict[int, tuple[ComparedRun, subprocess.Popen[bytes]]] = {}

    def begin(lane: int, task: str | None) -> tuple[ComparedRun, subprocess.Popen[bytes]] | None:
        with lock:
            at_work.pop(lane, None)
            if failures or not left:
                return None
            own = [run for run in left if run.task == task]
            others = [run.task for run, _ in at_work.values()]
            fresh = [run for run in left if run.task not in others]
            run = (own or fresh or left)[0]
            left.remove(run)
            at_work[lane] = run, _start(runs[run], directory / f"{run.name}.yaml", lanes[lane])
            return at_work[lane]

    def work(lane: int) -> None:
        task: str | None = None
        try:
            while (begun := begin(lane, task)) is not None:
                run, child = begun
                task, code = run.task, child.wait()
                with lock:
                    _check_code(code, run, directory)
                    replace_file(directory / f"{run.name}.code", str(code))
                    ended(run, code)
        except Exception as error:  # noqa: BLE001 - raised below, in the caller's thread
            failures.append(error)

    def end(how: signal.Signals) -> None:
        with lock:
            for _, child in at_work.values():
                child.send_signal(how)

    with ThreadPoolExecutor(max_workers=len(lanes), thread_name_prefix="lane") as pool:
        working = [pool.submit(work, lane) for lane in range(len(lanes))]
        try:
            _wait_for(working)
        except KeyboardInterrupt as interrupt:
            failures.insert(0, interrupt)
            try:
                say("pausing; the same command continues this comparison")
                end(signal.SIGTERM)
                _wait_for(working)
            except KeyboardInterrupt:
                end(signal.SIGKILL)
    if failures:
        raise failures[0]


def _wait_for(working: Collection[Future[None]]) -> None:
    """Wait until all have ended. Wakes up every half second, because a signal may be delivered to a library's
    thread, which would not interrupt this wait."""
    while wait(working, timeout=_LOOK_S).not_done:
        pass


def _check_code(code: int, run: ComparedRun, directory: Path) -> None:
    """Check an ended run's exit code.

    Raises:
        LlmzeroError: the run failed for a reason other than its method (a signal, storage, capacity), so the
            comparison cannot continue now.
    """
    if code in _NO_FAULT or code < 0 or code > 128:
        raise LlmzeroError(
            f"{run.name} ended with exit code {code}, see {directory / run.name}.log. Run the same command "
            "again: it continues from there."
        )


def _start(config: SearchConfig, path: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the process of one search. SIGTERM pauses it; a Ctrl-C in the terminal does not reach it."""
    replace_file(path, to_yaml(config.to_json()))
    with path.with_suffix(".log").open("a", encoding="utf-8") as log:
        return subprocess.Popen(
            [sys.executable, "-c", _SEARCH, str(os.getpid()), str(path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(env),
            start_new_session=True,
        )
