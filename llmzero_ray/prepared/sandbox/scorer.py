"""Scores rows with an untrusted reward in a separate process.

The rest of the project uses `Sandbox`. A row that hangs, kills its process or breaks its pipe gets no score;
the process is killed and the next rows get a new one.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.sandbox.isolation import CHILD_FILE, Isolation, launch, require_isolation
from llmzero_ray.prepared.sandbox.limits import SandboxLimits
from llmzero_ray.prepared.sandbox.pipe import LinePipe, NoLineError
from llmzero_ray.prepared.sandbox.process_tree import ProcessTree
from llmzero_ray.utils.files import file_digest
from llmzero_ray.utils.text import json_or_none

ALLOW = "write allow_unsandboxed: true into `reward` of task.yaml or of manifest.json"
"""Advice to a user who has no sandbox, for code that they trust."""
_BATCH = 64
_END_S = 10.0
_SHOWN = 300
Row = Mapping[str, Any]
"""`data_source`, `solution_str`, `ground_truth`, `extra_info`: the arguments of `compute_score`, as JSON."""


@dataclass(frozen=True)
class ForeignValue:
    """Stands for a value that is neither number, text nor None."""

    name: str

    def __repr__(self) -> str:
        return f"a {self.name}"


@dataclass(frozen=True, kw_only=True)
class CallOutcome:
    """Outcome of one row."""

    result: Any
    """The dict that the reward returned with numbers as float, `ForeignValue` for anything else, or None if
    there is a `problem`."""
    problem: str = ""
    """`raises KeyError: 'x'`, `gave no result in 30 s`, ... Empty if there is a result."""
    lost: bool = False
    """The process did not survive the row, or the row was not tried because too many were lost."""
    tried: bool = True
    """False: too many processes were lost before it came to this row."""
    cpu_ms: float = 0.0
    """Processor time in milliseconds, if the sandbox measures it. The time of processes that the reward
    started is spread over the rows of a batch."""


class Sandbox:
    """One reward function of one file, ready to score. Use it as a context manager, or close it.

    With `module`, `path` is the top of that module instead: a package's directory, or the module's file. Use
    it only from the thread that created it, because the process ends with that thread (service.py is for
    other threads). `hash_seed` is the process's PYTHONHASHSEED. Only file content with `sha256` is run, or
    without it the current content. With `measure`, outcomes have their processor times.

    Raises:
        TaskError: no sandbox is available and running without one was not allowed, the file is missing, has
            another SHA-256, cannot be imported within the limits, or has no such plain function.
    """

    def __init__(
        self,
        path: str | Path,
        name: str = "compute_score",
        *,
        limits: SandboxLimits | None = None,
        hash_seed: int = 0,
        module: str | None = None,
        sha256: str | None = None,
        measure: bool = False,
        allow_unsandboxed: bool = False,
        how_to_allow: str = ALLOW,
    ) -> None:
        self._path, self._name, self._seed = Path(path).absolute(), name, hash_seed
        self._module, self._vetted, self._measure = module, sha256 is not None, measure
        self._called = module or str(self._path)
        self._limits = limits or SandboxLimits()
        if not (self._path.is_file() or (module and self._path.is_dir())):
            raise TaskError(f"reward {path} cannot be imported: FileNotFoundError: no such file")
        self.isolation: Isolation = require_isolation(
            self._called, allow_unsandboxed=allow_unsandboxed, how_to_allow=how_to_allow
        )
        # Always set for a file, so that a reward gets the same set-up in training as in validation.
        self._sha256 = sha256 if sha256 or module else self._digest()
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: BinaryIO | None = None
        self._lost, self._last_loss = 0, ""
        # Numbers are never reused: a second answer to one row must not pass for an answer to the next.
        self._numbers = itertools.count()
        self._pipe = self._started()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def score(self, rows: Iterable[Row]) -> list[CallOutcome]:
        """One outcome per row, in order. Never raises because of the reward's behaviour on a row.

        Raises:
            TaskError: the reward could be imported before but no longer can.
        """
        waiting = list(rows)
        outcomes: list[CallOutcome] = []
        while len(outcomes) < len(waiting):
            if self._lost >= self._limits.losses:
                given_up = (
                    f"was not tried: {self._lost} rows before it ended or hung the reward's process; "
                    f"the last one {self._last_loss}"
                )
                outcomes += [CallOutcome(result=None, problem=given_up, lost=True, tried=False)] * (
                    len(waiting) - len(outcomes)
                )
                break
            outcomes += self._batch(waiting[len(outcomes) : len(outcomes) + _BATCH])
        return outcomes

    def forget_losses(self) -> None:
        """Count lost processes from zero again."""
        self._lost = 0

    def close(self) -> None:
        """End the process and all that it started. May be called twice."""
        process, self._process = self._process, None
        if process is not None:
            _kill_group(process)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _digest(self) -> str:
        try:
            return file_digest(self._path)
        except OSError as error:
            raise TaskError(f"reward {self._path} cannot be read: {error.strerror or error}") from error

    def _batch(self, rows: Sequence[Row]) -> list[CallOutcome]:
        """Outcomes of the first rows: all, or up to the one that killed the process.

        A row is sent after the previous one is answered, because a full pipe would distinguish training from
        validation. Processor time between two answers counts for the later one.
        """
        if self._process is not None:
            used_s, limit_s = self._tree.own_s(), self._limits.all_rows_cpu_s
            if used_s > limit_s / 2 and limit_s - used_s < len(rows) * self._limits.cpu_s:
                self.close()
        if self._process is None:
            self._pipe = self._started()
        clock = self._tree if self._measure else None
        used, others = (clock.own_s(), clock.others_s()) if clock else (0.0, 0.0)
        outcomes: list[CallOutcome] = []
        for row, number in zip(rows, self._numbers, strict=False):
            self._pipe.send(json.dumps([number, row]).encode() + b"\n")
            outcomes.append(self._answer(number))
            if outcomes[-1].lost:
                return outcomes
            if clock:
                before, used = used, clock.own_s()
                outcomes[-1] = replace(outcomes[-1], cpu_ms=(used - before) * 1000)
        share = (clock.others_s() - others) * 1000 / len(outcomes) if clock else 0.0
        return [replace(outcome, cpu_ms=outcome.cpu_ms + share) for outcome in outcomes]

    def _answer(self, number: int) -> CallOutcome:
        """The outcome of a row that was sent; a lost one ends the process."""
        try:
            return _outcome(self._pipe.line(self._limits.wall_s, self._check), number)
        except NoLineError as error:
            self._lost += 1
            problem = self._last_loss = str(error) or self._how_it_ended()
            self.close()
            return CallOutcome(result=None, problem=problem, lost=True)

    def _started(self) -> LinePipe:
        how = launch(self.isolation, self._path, self._limits, self._seed)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        try:
            self._process = subprocess.Popen(
                how.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
                start_new_session=True,
                pass_fds=how.inherited,
            )
        except OSError as error:
            self.close()
            raise TaskError(f"reward {self._called} cannot be tried: {error}") from error
        finally:
            for descriptor in how.inherited:
                os.close(descriptor)
        pipe = LinePipe(self._process, self._limits.result_size)
        setup = {
            "path": how.reward,
            "module": self._module,
            "name": self._name,
            "sha256": self._sha256,
            "uid": how.uid,
            "limits": asdict(self._limits),
        }
        pipe.send(json.dumps(setup).encode() + b"\n")
        try:
            self._check_ready(json_or_none(pipe.line(self._limits.start_wall_s)))
        except NoLineError as error:
            why = str(error) or self._how_it_ended()
            self.close()
            raise TaskError(f"reward {self._called} cannot be imported: it {why}") from error
        except TaskError:
            self.close()
            raise
        self._tree = ProcessTree(self._process.pid, CHILD_FILE)
        return pipe

    def _check_ready(self, reply: Any) -> None:
        if not isinstance(reply, dict):
            raise NoLineError("wrote something else than results to its pipe")
        if "missing" in reply:
            held = ", ".join(str(name)[:_SHOWN] for name in list(reply["missing"])) or "none"
            raise TaskError(f"reward {self._called} has no function {self._name!r}; it has: {held}")
        if "asynchronous" in reply:
            raise TaskError(
                f"reward {self._called}:{self._name} is asynchronous; the sandbox runs plain functions "
                "alone. A module that must call a service needs in_place: true in manifest.json"
            )
        if "changed" in reply and not self._vetted:
            raise TaskError(f"reward {self._called} has changed while it was in use; start again")
        if "changed" in reply and self._sha256 is not None:
            raise TaskError(changed(self._path, str(reply["changed"]), self._sha256))
        if reply.get("ready") is not True:
            line, why = reply.get("line"), str(reply.get("error"))[:_SHOWN]
            place = f", line {line}, does not compile and" if isinstance(line, int) else ""
            raise TaskError(f"reward {self._called}{place} cannot be imported: {why}")

    def _check(self) -> None:
        """Check a process that takes long: the memory of it and its descendants together (each also has a
        limit of address space), and whether it has ended and left its pipe to another process.

        Raises:
            NoLineError: there will be no line.
        """
        assert self._process is not None
        if _ends_within(self._process, 0):
            raise NoLineError("")
        limit = self._limits.memory
        if self._tree.memory() > limit:
            raise NoLineError(f"used more than {limit / 2**30:.3g} GiB of memory")

    def _how_it_ended(self) -> str:
        """Description of how a process ended that closed its pipe."""
        assert self._process is not None and self._errors is not None
        if not _ends_within(self._process, _END_S):
            return "closed its pipe"
        _kill_group(self._process)  # before its pid can be reused
        code = self._process.wait()
        number = -code if code < 0 else code - 128
        if number == signal.SIGXCPU:
            return f"used more than {self._limits.cpu_s} s of processor time"
        if code > 128 or code < 0:
            with suppress(ValueError):
                return f"was ended by {signal.Signals(number).name}"
        self._errors.seek(0)
        last = self._errors.read(_SHOWN * 10).decode(errors="replace").strip().splitlines()[-1:]
        reply = f": {last[0][:_SHOWN]}" if last else ""
        return f"ended its process with exit code {code}{reply}"


def changed(reward: Path, found: str, expected: str) -> str:
    """Message for a reward file that has changed. `found` and `expected` are SHA-256."""
    return (
        f"{reward} has changed since the task was made and the reward was tried: its sha256 is "
        f"{found[:12]}..., it was {expected[:12]}...; scores would not be comparable: restore it, or make "
        "the task again in another directory"
    )


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process's own group; a process namespace dies with it. A process that was waited for is left
    alone, because its pid may have been reused."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _ends_within(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Whether the process ends within the time. It is not reaped."""
    deadline = time.monotonic() + timeout_s
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _outcome(line: bytes, number: int) -> CallOutcome:
    """The outcome in a line.

    Raises:
        NoLineError: it is not an answer to row `number`.
    """
    found = json_or_none(line)
    try:
        echoed, reply = found
        if echoed != number or not isinstance(reply, dict):
            raise ValueError(echoed)
        if "raised" in reply:
            return CallOutcome(result=None, problem=f"raises {reply['raised']}"[:_SHOWN])
        if "result" in reply:
            result = {key: _value(value) for key, value in reply["result"].items()}
            return CallOutcome(result=result)
        return CallOutcome(result=ForeignValue(str(reply["other"])[:_SHOWN]))
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise NoLineError("wrote something else than results to its pipe") from error


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return ForeignValue(str(value["class"])[:_SHOWN])
    return ForeignValue("list") if isinstance(value, list) else value
