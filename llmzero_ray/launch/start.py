"""Start a search, or find it running or ended: the common part of `llmzero search` and `llmzero_ray.run`.

Everything that can be checked is checked before anything starts.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TypeAlias

from llmzero_ray.config import SearchConfig
from llmzero_ray.config.changes import differing_keys, settings_text
from llmzero_ray.coordinator import (
    extension_problem,
    measures_alone,
    not_started,
)
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.errors import ConfigError, CoordinatorGoneError, LlmzeroError, SearchBusyError
from llmzero_ray.estimate import Estimate, with_recorded_sizes, with_server_sizes
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.journal import trust
from llmzero_ray.launch import actors
from llmzero_ray.launch.hub_model import with_model_here
from llmzero_ray.launch.preflight import (
    check_backends,
    check_engine_here,
    check_machines,
    check_memory,
    check_plan,
    check_platform,
    check_slots,
    check_verl_keys,
    refuse_job_directory,
    strategy_note,
)
from llmzero_ray.launch.start_checks import StartChecks
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.prepared.confirmation import check_spare_rows
from llmzero_ray.prepared.task import check_same_task
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.presence import SearchLock, being_started, is_extension_requested, owner, request
from llmzero_ray.utils.threads import in_thread

Say: TypeAlias = Callable[[str], None]
"""Callback that shows the user one line."""
LOOK_S = 0.5
"""Seconds between two polls of a search."""
SETTLE_S = 60.0
"""Seconds that another command may take to prepare the same directory."""
_ANSWER_S = 5.0
"""Seconds that Ray gets to answer before the search's directory is checked instead. If its head is gone, Ray
waits for a minute and then ends the process."""
_BACK_S = 60.0
"""Seconds that Ray may take to restart a coordinator whose process died."""


@dataclass(frozen=True, kw_only=True)
class LaunchedSearch:
    """Result of `launch`: a search that had ended, that another process runs, or that was started here."""

    follower: Follower
    running: actors.app.Running | None = None
    """Coordinator that was started here, or None."""
    private_head: bool = False
    """Whether the search ends with this process."""
    found: str = ""
    """Process that already runs the search. Empty if none does."""
    disconnect: Callable[[], None] = lambda: None
    """Leaves the cluster if the start joined or started it. This ends a private head."""
    _asked: list[Future[bool]] = field(default_factory=list)
    """The pending call into Ray, if there is one."""

    @property
    def ends_with_command(self) -> bool:
        """Whether the search cannot continue without this process, because it runs on a private head or on
        slots that another process holds only until this one ends."""
        return self.private_head or actors.runner_pool.HELD_SLOTS_ENV in os.environ

    @property
    def had_ended(self) -> bool:
        """Whether the search had ended, so that there is nothing to follow."""
        return self.running is None and not self.found

    def end_check(self) -> Callable[[], bool]:
        """Callback to poll: whether the search has ended, and no other coordinator has replaced this one."""
        running = self.running
        if running is None:
            return end_check(self.follower)
        left: Callable[[], bool] | None = None
        is_over = _over_check(self.follower)

        def ended() -> bool:
            nonlocal left
            if left is None:
                if not self._asked:
                    self._asked.append(in_thread(lambda: actors.app.has_joined(running)))
                try:
                    joined = self._asked[0].result(timeout=_ANSWER_S)
                    self._asked.clear()
                except TimeoutError:
                    joined = False
                if joined or is_over():
                    left = end_check(self.follower)
            return left is not None and (self.private_head or left())

        return ended

    def leave(self) -> None:
        """Leave the cluster. Waits for a pending call into Ray first: if Ray is used while it shuts down, it
        ends this process or starts another head."""
        wait(self._asked, timeout=_BACK_S)
        self.disconnect()


def launch(
    config: SearchConfig,
    given: Sequence[str],
    make_task: Callable[[SearchConfig, Say], PreparedTask],
    say: Say,
    *,
    from_folder: bool = False,
) -> LaunchedSearch:
    """Start the coordinator of a search, unless the search has ended or another process runs it.

    `given` are the keys of `config` that override its file; changes of them must be allowed. If another
    process starts a coordinator at the same time, that one is used. `make_task` is called with the
    configuration and a callback for progress lines.

    Raises:
        ConfigError: the configuration cannot be trained, or differs from the one the search began with.
        TaskError: there is no task, or another one than the search began with.
        CapacityError: a cluster is named and does not answer, its machines could never hold the slots or
            cannot train the search, or Ray does not start.
        EngineVersionError: the engine cannot start on this machine.
        StorageError: the directory cannot be used.
        HubError: the model is on the Hugging Face Hub and cannot be downloaded.
    """
    refuse_job_directory(config)
    trust(config.journal_address)
    storage = SearchStorage(config.storage, config.name)
    deadline = time.monotonic() + SETTLE_S
    with storage.kept_if_used():
        storage.check()
        with being_started(storage.paths.root, say) as tell:
            config = with_model_here(config, storage.config(), tell)
            while True:
                try:
                    return _find_or_start(config, given, make_task, tell, storage, from_folder=from_folder)
                except SearchBusyError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(LOOK_S)


def _find_or_start(
    config: SearchConfig,
    given: Sequence[str],
    make_task: Callable[[SearchConfig, Say], PreparedTask],
    say: Say,
    storage: SearchStorage,
    *,
    from_folder: bool,
) -> LaunchedSearch:
    follower, root = Follower(storage), storage.paths.root
    follower.poll()
    if follower.core.initialization is not None and not (follower.has_trained or from_folder):
        raise ConfigError(not_started(follower.core, root))
    someone = owner(root)
    if someone is not None or follower.has_trained:
        config = with_recorded_sizes(config, storage.config())
    changes = storage.check_same(config) if someone is not None or follower.has_trained else {}
    if follower.finished is not None and follower.core.final.dropped and not changes:
        changes = {"final.test": config.final.test}  # unchanged, so that only cancelled evaluations are made
    if follower.finished is not None and not _is_extended(follower, config, given, say):
        return LaunchedSearch(follower=follower)
    if follower.finished is not None and someone is not None:
        raise SearchBusyError(f"{root}: {someone} is about to end. Run the same command again.")
    if someone is not None and changes:
        command = f"llmzero set {shlex.quote(str(root))} {settings_text(changes)}"
        raise ConfigError(f"{config.name} is running with other settings; change them with `{command}`.")
    if someone is not None:
        return LaunchedSearch(follower=follower, found=str(someone))
    if not follower.has_trained:  # otherwise it keeps the root with which it began
        root_hyperparameters(config, None)
        check_plan(config)
    checks = StartChecks(storage.paths)
    unknown = sum(call.dollars for call in checks.not_journalled(follower.events))
    for oddity in check_backends(config, follower.core.dollars + unknown, checks.book):
        say(f"note: {oddity}")
    task = make_task(config, say)
    if not follower.has_trained:  # otherwise it keeps the sizes with which it began
        config = with_server_sizes(Estimate(config, task), say)
    check_verl_keys(config, task)
    if not follower.has_trained:
        check_memory(config, task)
        check_platform(config)
    if config.confirm.k and not follower.storage.paths.confirm_rows.exists():
        check_spare_rows(task)
    check_engine_here(config)
    _settle(config, task, follower)
    if changes:
        request(root, "set", changes=changes)  # its coordinator takes this first
    fresh = Follower(storage)
    fresh.poll()
    if (note := strategy_note(config)) is not None:
        say(f"note: {note}")
    say(actors.head.start_text())
    with contextlib.ExitStack() as stack:
        stack.enter_context(actors.head.disconnecting())
        private_head = actors.head.connect(config)
        if not private_head:
            check_slots(config, follower.core.avoided_nodes)
            check_machines(config, task)
        running = actors.app.start_on(
            config, task, private_head=private_head, checks=checks.not_journalled(fresh.events)
        )
        disconnect = stack.pop_all().close
    return LaunchedSearch(
        follower=Follower(storage),
        running=running,
        private_head=running.private_head,
        disconnect=disconnect,
    )


def _over_check(follower: Follower) -> Callable[[], bool]:
    """Callback to poll: whether the started coordinator wrote its final event some seconds ago, or died and
    was not restarted. Ray may not report either, for example if its head is dead."""
    root = follower.storage.paths.root
    follower.poll()
    n_before, has_come, since = len(follower.events), False, 0.0

    def is_over() -> bool:
        nonlocal has_come, since
        someone = owner(root)
        follower.poll()
        has_come |= someone is not None
        core, n_own = follower.core, len(follower.events) - n_before
        last_word = n_own > 0 and (core.finished is not None or core.interrupted is not None)
        if not (last_word or (has_come and someone is None)):
            since = 0.0
            return False
        since = since or time.monotonic()
        passed = time.monotonic() - since
        return passed > _BACK_S or (passed > _ANSWER_S and (last_word or not actors.head.is_alive()))

    return is_over


def _is_extended(follower: Follower, config: SearchConfig, given: Sequence[str], say: Say) -> bool:
    """Whether a finished search continues, because its final evaluation was cancelled, or because settings
    that extend it were given or are pending.

    Raises:
        ConfigError: a key in `given` changes something that does not extend it.
    """
    known, finished = follower.storage.config(), follower.finished
    assert finished is not None
    changed = {} if known is None else differing_keys(known, config)
    if not changed:
        pending = is_extension_requested(follower.storage.paths.root)  # left by a command that was killed
        return pending or follower.core.final.dropped
    changes = {key: new for key, (_, new) in changed.items()}
    problem = extension_problem(follower.core, changes)
    named = any(key == name or key.startswith(f"{name}.") for key in changes for name in given)
    if problem is None and measures_alone(changes) and not named:
        problem = "what it is compared with is measured again where a setting says so."
    if problem and named:
        raise ConfigError(
            f"{config.name} has finished ({finished.reason}): {problem} Leave the settings out to see its "
            "outcome."
        )
    if problem:
        listed = ", ".join(f"{key}={new}" for key, new in changes.items())
        say(f"{config.name} has finished with other settings; not used: {listed}")
    return problem is None


def _settle(config: SearchConfig, task: PreparedTask, follower: Follower) -> None:
    """Prepare the directory for a coordinator, unless one has locked it meanwhile."""
    storage = follower.storage
    lock = SearchLock(storage.paths.root)
    lock.acquire(private_head=True, role="command", wait_s=SETTLE_S)
    try:
        follower.poll()
        if follower.has_trained and follower.core.started is not None:
            check_same_task(follower.core.started.task, task)
        else:
            for text in follower.core.hints:  # its coordinator journals them again
                request(storage.paths.root, "hint", text=text)
            storage.start_over()
        storage.adopt_config(config)
    finally:
        lock.release()


def end_check(follower: Follower) -> Callable[[], bool]:
    """Callback to poll: whether a search that another process runs has ended or has no live coordinator.

    After a kill, Ray gets `_BACK_S` seconds to restart the coordinator, unless its head was private.
    """
    root = follower.storage.paths.root
    private, since = False, time.monotonic()

    def ended() -> bool:
        nonlocal private, since
        someone = owner(root)
        follower.poll()
        if someone is not None:
            private, since = someone.private_head, time.monotonic()
            return follower.finished is not None
        left = follower.finished is not None or follower.core.interrupted is not None
        return left or private or time.monotonic() - since > _BACK_S

    return ended


def raise_if_broken(follower: Follower) -> None:
    """Raise an error if a search that no process runs has neither finished nor been paused.

    Raises:
        CoordinatorGoneError: its coordinator died without a final event.
        LlmzeroError: it could not continue; the message says why.
    """
    core = follower.core
    if core.finished is not None:
        return
    if core.interrupted is None:
        raise CoordinatorGoneError(
            f"the coordinator of {follower.storage.name!r} ended without a message; see "
            f"{follower.storage.paths.logs / 'coordinator.log'}. The same command resumes the search."
        )
    reason, exit_code = core.interrupted
    if exit_code == 0:
        return
    error = LlmzeroError(
        f"{reason}\nNothing is lost: the same command resumes the search once this is fixed."
    )
    error.exit_code = exit_code
    raise error
