"""System calls that no reward needs, as a seccomp program for bubblewrap.

It denies new namespaces (in which memory could be filled outside of all limits), memory outside an address
space, the memory and files of other processes (such as bubblewrap), sockets to the host of a virtual machine,
the kernel's more dangerous services, and reading the process priority, by which a reward could tell a Ray
worker from a command.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
from dataclasses import dataclass

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ALLOW, _FAIL = 0x8000_0000, 0x7FFF_0000, 0x0005_0000
_NUMBER, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in the kernel's struct seccomp_data."""
_NEW_NAMESPACES = 0x7E02_0000
"""Flags of clone that make a namespace."""
_OTHER_TABLE = 0x4000_0000
"""First number of the x32 calls, which duplicate the others."""
_SOCKETS = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6."""
_COMMON = {
    "io_uring_setup": 425, "open_tree": 428, "fsopen": 430, "pidfd_getfd": 438, "process_madvise": 440,
    "memfd_secret": 447,
}  # fmt: skip
"""Calls that have the same number on every architecture."""


@dataclass(frozen=True, kw_only=True)
class _Machine:
    audit: int
    """The kernel's AUDIT_ARCH number."""
    clone: int
    socket: int
    refused: dict[str, int]


_CLONE3 = 435
_MACHINES = {
    "x86_64": _Machine(
        audit=0xC000_003E,
        clone=56,
        socket=41,
        refused={
            "shmget": 29, "semget": 64, "msgget": 68, "ptrace": 101, "getpriority": 140,
            "mount": 165, "mq_open": 240, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272,
            "move_pages": 279, "perf_event_open": 298, "open_by_handle_at": 304, "setns": 308,
            "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "sched_getattr": 315,
            "memfd_create": 319, "bpf": 321, "userfaultfd": 323,
        },
    ),
    "aarch64": _Machine(
        audit=0xC000_00B7,
        clone=220,
        socket=198,
        refused={
            "mount": 40, "unshare": 97, "ptrace": 117, "getpriority": 141, "mq_open": 180, "msgget": 186,
            "semget": 190, "shmget": 194, "add_key": 217, "request_key": 218, "keyctl": 219,
            "move_pages": 239, "perf_event_open": 241, "open_by_handle_at": 265, "setns": 268,
            "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "sched_getattr": 275,
            "memfd_create": 279, "bpf": 280, "userfaultfd": 282,
        },
    ),
}  # fmt: skip


def open_filter() -> int | None:
    """A file descriptor to read the program from, which the caller closes. None on an architecture whose call
    numbers are not listed here."""
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        return None
    reading, writing = os.pipe()
    try:
        os.write(writing, _program(machine))  # far smaller than a pipe's buffer
    finally:
        os.close(writing)
    return reading


def _program(machine: _Machine) -> bytes:
    refuse = _FAIL | errno.EPERM
    steps = [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, machine.audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _OTHER_TABLE),
        (_RETURN, 0, 0, refuse),
    ]
    for number in (*machine.refused.values(), *_COMMON.values()):
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, refuse)]
    # clone3 hides its flags in memory; when it returns ENOSYS, the C library uses clone.
    steps += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _FAIL | errno.ENOSYS)]
    # Sockets of Unix and the internet lead nowhere from here; others reach a virtual machine's host.
    kinds = [(_EQUAL, 0, 1, kind) for kind in _SOCKETS]
    steps += [(_EQUAL, 0, 2 + 2 * len(kinds), machine.socket), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    steps += [step for kind in kinds for step in (kind, (_RETURN, 0, 0, _ALLOW))]
    steps += [(_RETURN, 0, 0, _FAIL | errno.EAFNOSUPPORT)]
    steps += [(_EQUAL, 0, 3, machine.clone), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    steps += [(_ANY_BIT, 0, 1, _NEW_NAMESPACES), (_RETURN, 0, 0, refuse), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
