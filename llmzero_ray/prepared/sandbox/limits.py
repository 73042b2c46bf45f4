"""Resource limits of a sandboxed reward or script."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class SandboxLimits:
    """Limits of one sandboxed process. The defaults suit rewards that take milliseconds."""

    cpu_s: int = 2
    """Processor seconds for one row."""
    all_rows_cpu_s: int = 3_600
    """Processor seconds of one process. A new one takes over before they are used up."""
    wall_s: float = 30.0
    """Seconds for one row; long enough for a row that computes on a busy machine."""
    start_cpu_s: int = 60
    """Processor seconds until the reward is imported."""
    start_wall_s: float = 120.0
    """Seconds until the reward is imported."""
    memory: int = 4096 * _MIB
    """Bytes of address space of each process, and of memory of all together (checked while a row takes
    long)."""
    processes: int = 4
    """Processes and threads at a time, its own included."""
    file_size: int = 16 * _MIB
    """Bytes of the largest file."""
    scratch: int = 64 * _MIB
    """Bytes of all files together."""
    open_files: int = 64
    result_size: int = 256 * 1024
    """Maximum bytes of one result. Printed output is discarded."""
    losses: int = 8
    """Processes that may be lost before the remaining rows are given up."""
