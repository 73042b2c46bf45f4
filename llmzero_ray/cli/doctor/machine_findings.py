"""Findings from the probes of all machines, one row each. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from llmzero_ray.cli.doctor.rows import CheckFinding, Status, first_few
from llmzero_ray.engines.verl.internals import driver_problem
from llmzero_ray.launch.nodes import HERE, Node, NoResult
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.prepared.sandbox import CURE, Isolation
from llmzero_ray.utils.text import GIB

T = TypeVar("T")

CLOCK_WARN_S, CLOCK_FAIL_S = 1.0, 30.0
_TMP_WARN, _TMP_FAIL = 5 * GIB, GIB // 2
_SHM_WARN, _SHM_FAIL = 2 * GIB, GIB // 8
"""A container's /dev/shm has 64 MiB by default; NCCL, vLLM and Ray need more."""
_USED_WARN_MIB = 1024.0


def versions(nodes: Sequence[Node], probed: Mapping[str, Any | NoResult]) -> CheckFinding:
    """Finding: every package has one version, which the engine accepts on machines with GPUs, and no
    processor is slow for the overrides."""
    answers, failed = _split(probed)
    packages = dict.fromkeys(name for answer in answers.values() for name in answer["versions"])
    split = []
    for package in packages:
        there: dict[str, list[str]] = {}
        for label, answer in answers.items():
            there.setdefault(answer["versions"].get(package, "missing"), []).append(label)
        if len(there) > 1:
            each = [f"{version} on {first_few(on, separator=', ')}" for version, on in there.items()]
            split.append(f"{package}: {', '.join(each)}")
    with_gpus = {node.label for node in nodes if node.gpus > 0}
    refused = dict.fromkeys(
        answer["refused"] for label, answer in answers.items() if label in with_gpus and answer["refused"]
    )
    problems = [*failed, *split, *refused]
    if problems:
        todo = "install the same versions everywhere, in the same image or from the same lock file"
        return CheckFinding("FAIL", first_few(problems), todo)
    if slow := [f"{label}: {answer['slow']}" for label, answer in answers.items() if answer["slow"]]:
        return CheckFinding("warn", first_few(slow))
    (first, *_) = answers.values()
    listed = ", ".join(f"{package} {version}" for package, version in first["versions"].items())
    return CheckFinding("ok", f"{_all(answers)}: {listed}")


def free_space(nodes: Sequence[Node], probed: Mapping[str, Any | NoResult]) -> CheckFinding:
    """Finding: /tmp and /dev/shm have free space. A machine without GPUs never fails for /dev/shm."""
    answers, failed = _split(probed)
    with_gpus = {node.label for node in nodes if node.gpus > 0}
    full: list[str] = list(failed)
    short: list[str] = []
    for label, answer in answers.items():
        for path, warn, fail in (("/tmp", _TMP_WARN, _TMP_FAIL), ("/dev/shm", _SHM_WARN, _SHM_FAIL)):
            free, total = answer["free space"].get(path, (None, 0))
            if free is None:
                continue
            left = f"{label}: {free / GIB:.1f} of {total / GIB:.1f} GiB free in {path}"
            if free < fail and (path == "/tmp" or label in with_gpus):
                full.append(left)
            elif free < warn:
                short.append(left)
    status: Status = "FAIL" if full else "warn" if short else "ok"
    found = first_few([*full, *short])
    if not found:
        free_in = [f"{path} {_least(answers, path):.0f} GiB" for path in ("/tmp", "/dev/shm")]
        found = f"{_all(answers)}: at least {', '.join(free_in)} free"
    todo = "free space; for /dev/shm start containers with --ipc=host or --shm-size" if full or short else ""
    return CheckFinding(status, found, todo)


def gpus(answers: Mapping[str, Any | NoResult]) -> CheckFinding:
    """Finding: the GPUs of every machine that has some compute, reach each other and are free."""
    given, problems = _split(answers)
    busy = []
    for label, answer in given.items():
        driver, cuda = answer["driver"], answer["cuda"]
        if driver is not None and (problem := driver_problem(driver, str(cuda))):
            problems.append(f"{label}: {problem}")
            continue
        problems += [f"{label}: {problem}" for problem in answer["problems"]]
        used = [mib for mib in answer["used_mib"] if mib > _USED_WARN_MIB]
        if used:
            busy.append(f"{label}: {len(used)} GPU(s) with up to {max(used) / 1024:.1f} GiB in use")
    if problems:
        todo = "update the driver, install flash-attn (docs/install.md), or leave the machine out"
        if any("CUDA IPC" in problem for problem in problems):
            todo = "run it in a container or sandbox that permits CUDA IPC (not gVisor), with --ipc=host"
        return CheckFinding("FAIL", first_few(problems), todo)
    if busy:
        return CheckFinding("warn", first_few(busy), "end what runs there: nvidia-smi names the processes")
    drivers = ", ".join(dict.fromkeys(str(answer["driver"]) for answer in given.values()))
    checks = ", ".join(next(iter(given.values()))["checks"])
    return CheckFinding("ok", f"{_all(given)}: {checks}; driver {drivers}")


def sandbox(task: PreparedTask, answers: Mapping[str, Isolation | NoResult]) -> CheckFinding:
    """Finding: every machine that scores answers can confine the task's reward, if required."""
    given, failed = _split(answers)
    without = {label: answer for label, answer in given.items() if not answer.full}
    if not task.confines_reward:
        have = f"{len(given) - len(without)} of {_all(answers)} have a sandbox"
        return CheckFinding("ok", f"the task's reward needs none; {have}")
    if not failed and not without:
        return CheckFinding("ok", f"{_all(given)}: bubblewrap works, and the reward runs in it")
    lacking = first_few(
        [*failed, *(f"{label} has no sandbox: {answer.why}" for label, answer in without.items())]
    )
    could = ", ".join(dict.fromkeys(door for answer in without.values() for door in answer.open_doors))
    if could:
        lacking += f". There the reward could {could}"
    if task.reward_unsandboxed and not failed:
        return CheckFinding("warn", f"allowed by reward.allow_unsandboxed, {lacking}", f"to have one, {CURE}")
    todo = (
        f"{CURE}; a container needs what cluster.yaml and deploy/k8s permit (CAP_SYS_ADMIN, no AppArmor or "
        "seccomp profile). Where a site forbids it, reward.allow_unsandboxed runs code that you trust without"
    )
    return CheckFinding("FAIL", lacking, todo)


def clocks(offsets: Mapping[str, tuple[float, float] | NoResult]) -> CheckFinding:
    """Finding: the machines' clocks agree. The journal's times and the age of heartbeats depend on them."""
    answers, failed = _split(offsets)
    ahead = {label: offset for label, (offset, _) in answers.items()}
    if not ahead:
        return CheckFinding("FAIL", first_few(failed))
    first, last = min(ahead, key=ahead.__getitem__), max(ahead, key=ahead.__getitem__)
    skew, error = ahead[last] - ahead[first], answers[last][1] + answers[first][1]
    status: Status = "FAIL" if skew > CLOCK_FAIL_S or failed else "warn" if skew > CLOCK_WARN_S else "ok"
    found = f"{_all(answers)}: {skew:.3f} s apart (± {error:.3f} s)"
    if status != "ok" and skew > CLOCK_WARN_S:
        found += f"; {last} is ahead of {first}"
    todo = "" if status == "ok" else "let the machines keep their time by NTP (chrony)"
    return CheckFinding(status, first_few([*failed, found]), todo)


def sockets(*, private_head: bool, has_token: bool) -> CheckFinding:
    """Finding: nobody on the network can run code through Ray. SECURITY.md lists all sockets."""
    if private_head:
        return CheckFinding("ok", "on loopback, or files in directories of mode 0700")
    if has_token:
        return CheckFinding("ok", "Ray on every address, with its token; SECURITY.md says what has none")
    todo = "set RAY_AUTH_MODE=token where Ray is started and here; see cluster.yaml"
    return CheckFinding("warn", "Ray on every address without a token: anybody may run code", todo)


def same_files(todo: str, digests: Mapping[str, Mapping[str, str | None] | NoResult]) -> CheckFinding:
    """Finding: every machine sees the same files under the same paths. The first machine is the reference."""
    answers, problems = _split(digests)
    right = next(iter(answers.values()), {})
    for path, digest in right.items():
        if digest is None:
            problems.append(f"{next(iter(answers))} does not see {path}")
    for label, answer in list(answers.items())[1:]:
        for path, digest in answer.items():
            if digest is None:
                problems.append(f"{label} does not see {path}")
            elif right[path] is not None and digest != right[path]:
                problems.append(f"{label} sees another content of {path} than {next(iter(answers))}")
    if problems:
        return CheckFinding("FAIL", first_few(problems), todo)
    return CheckFinding("ok", f"{_all(answers)} see the same as {HERE}")


def storage(
    place: str,
    written: Mapping[str, float | NoResult],
    seen: Mapping[str, Collection[str] | NoResult],
    free: str,
) -> CheckFinding:
    """Finding: every machine can write to the storage, and sees the files of all others.

    `written` is label -> seconds of a synced write. `seen` is label -> labels of the machines whose files
    that machine read correctly.
    """
    answers, problems = _split(seen)
    writers, failed = _split(written)
    problems = list(dict.fromkeys([*failed, *problems]))
    for label, others in answers.items():
        missing = [writer for writer in writers if writer not in others]
        if missing:
            sees = (
                first_few([f"{writer}'s" for writer in writers if writer in others], separator=", ") or "none"
            )
            lacks = first_few([f"{writer}'s" for writer in missing], separator=", ")
            problems.append(f"{label} sees {sees} of the files written there, not {lacks}")
    if problems:
        todo = "set `storage` to a directory that every machine mounts under the same path"
        found = f"{place}: {first_few(problems)}"
        return CheckFinding("FAIL", found, todo)
    slowest = max(writers.values())
    found = (
        f"{place}: {_all(answers)} write and see everything; slowest fsync {slowest * 1000:.0f} ms; {free}"
    )
    return CheckFinding("ok", found)


def _split(answers: Mapping[str, T | NoResult]) -> tuple[dict[str, T], list[str]]:
    """Results, and a line for each machine without a result."""
    given = {label: answer for label, answer in answers.items() if not isinstance(answer, NoResult)}
    return given, [f"{label}: {a.reason}" for label, a in answers.items() if isinstance(a, NoResult)]


def _least(answers: Mapping[str, Any], path: str) -> float:
    return min(
        (a["free space"][path][0] / GIB for a in answers.values() if path in a["free space"]), default=0.0
    )


def _all(answers: Collection[str]) -> str:
    return f"{len(answers) - (HERE in answers)} machine(s)"
