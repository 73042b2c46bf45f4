"""Runs a bash script in the sandbox to find out which commands it would start, without starting them.

Bash and text tools are real; every other program is a stand-in that records its arguments (recorder.sh). The
output of such programs and the existing files are unknown, so a `World` defines what the script sees.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.sandbox.isolation import CURE, SHELL_TOOLS, Launch, find_isolation, launch_shell
from llmzero_ray.prepared.sandbox.limits import SandboxLimits
from llmzero_ray.prepared.sandbox.pipe import LinePipe, NoLineError

LIMITS = SandboxLimits(
    cpu_s=10,
    wall_s=6.0,
    memory=1024 * 2**20,
    processes=64,
    scratch=16 * 2**20,
    open_files=256,
    file_size=4 * 2**20,
)
_START_S = 60.0
_STUBS = ("python", "python3", "torchrun", "accelerate", "uv", "bash", "sh", "env", "sleep")
"""Names that programs such as xargs look for."""
_ROOTS = re.compile(r"(?<![\w.])/([A-Za-z_][\w.-]*)")
_INPUTS = re.compile(r"""\bdone\s*<\s*["']?([\w./~-]+)""")
"""Files that a loop reads."""
_NOT_ROOMS = frozenset(
    {"bin", "dev", "etc", "lib", "lib32", "lib64", "proc", "sandbox", "sbin", "sys", "tmp", "usr"}
)
_MOST_ROOMS, _MOST_FILES, _MOST_BYTES, _MOST_ANSWER = 24, 400, 256 * 1024, 8 * 2**20
_MOST_TOGETHER = 4 * 2**20
"""Maximum bytes of all files next to a script."""

Prints = Literal["", "text", "number", "large", "fails", "says"]


@dataclass(frozen=True, kw_only=True)
class World:
    """The machine that a script would run on, as it is shown to the script."""

    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    typed: str = ""
    """Line that is typed wherever the script reads one. If empty, the input has ended."""
    prints: Prints = ""
    """Output of programs: nothing, a placeholder text, 1, 4194304, `says`; or they fail."""
    says: str = ""
    files_there: bool = False
    """Whether files that the script looks for are there."""
    goes_on: bool = False
    """Whether `exit` and `set -e` are without effect."""


@dataclass(frozen=True, kw_only=True)
class ScriptRun:
    """Actions of a script in one world."""

    starts: tuple[tuple[str, ...], ...]
    """Words of the commands that train, in their order."""
    programs: Mapping[str, str]
    """Placeholder text of a program's output -> the program, such as `nvidia-smi -L`."""
    reads_programs: bool
    """Whether the script reads the output of one of them."""
    files: tuple[str, ...]
    """Files that it looked for and that were not there."""
    sources: tuple[str, ...]
    """Files that it would have read as a part of itself and that were not there."""
    said: str
    """Bash's message about the script's syntax, if no command trains."""


@dataclass(frozen=True, kw_only=True)
class ShellScript:
    """A script to run, with the small files next to it."""

    path: Path
    """Path as given. It is also the script's `$0`."""
    text: str
    files: Mapping[str, str]


def load_script(path: Path, text: str) -> ShellScript:
    """A script with this text, and the files next to it or below."""
    files, folder, left = dict[str, str](), path.resolve().parent, _MOST_TOGETHER
    for place in _beside(folder):
        hidden = place.name.startswith(".") and place.name not in text
        try:
            if not hidden and place.is_file() and place.stat().st_size <= min(left, _MOST_BYTES):
                held = place.read_bytes()
                left -= len(held)
                if b"\0" not in held:
                    files[str(place)] = held.decode("utf-8", "surrogateescape").replace("\r\n", "\n")
        except OSError:
            continue
    files[str(path.resolve())] = text
    return ShellScript(path=path, text=text, files=files)


def _beside(folder: Path) -> list[Path]:
    found, level = list[Path](), [folder]
    while level and len(found) < _MOST_FILES:
        held = [each for one in level for each in _entries(one)]
        found += [each for each in held if not each.is_dir()]
        level = [each for each in held if each.is_dir() and not each.is_symlink() and each.name[:1] != "."][
            :20
        ]
    return found[:_MOST_FILES]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def run_shell(script: ShellScript, world: World) -> ScriptRun:
    """Run the script in this world and return what it did.

    Raises:
        TaskError: there is no sandbox here, or bash does not start in it.
    """
    found = find_isolation()
    if not found.full:
        raise TaskError(
            f"a script is read by running it in a sandbox, and there is none here: {found.why}. To have one, "
            f"{CURE}."
        )
    home, cwd = os.path.expanduser("~"), os.getcwd()
    asked = {
        "script": str(script.path),
        "arguments": world.arguments,
        "cwd": cwd,
        "typed": f"{world.typed}\n" * 64 if world.typed else "",
        "files": dict(script.files),
        "link": (os.path.abspath(script.path), str(script.path.resolve())),
        "bash": "/usr/bin/bash",
        "programs": _STUBS,
        "environment": {
            "HOME": home,
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            **world.variables,
            "LLMZERO_PRINTS": world.prints,
            "LLMZERO_SAYS": world.says,
            "LLMZERO_FILES": "there" if world.files_there else "",
            "LLMZERO_GO_ON": "yes" if world.goes_on else "",
            "LLMZERO_INPUTS": "\n".join(dict.fromkeys(_INPUTS.findall(script.text))),
            "LLMZERO_TOOLS": " ".join(SHELL_TOOLS),
        },
        "limits": asdict(LIMITS),
    }
    folders, last = _rooms(script, home, cwd), ""
    for proc in (True, False):  # a container may forbid a /proc of its own; `<(...)` fails without
        how = launch_shell(found, LIMITS, folders=folders, proc=proc)
        try:
            return _seen(json.loads(_answer(how, asked | {"uid": how.uid})))
        except NoLineError as error:
            last = str(error)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise TaskError("the script wrote into what is reported about it") from error
    raise TaskError(f"bash does not run in the sandbox here: {last or 'it ended without an answer'}")


def _answer(how: Launch, asked: Mapping[str, Any]) -> bytes:
    """Output line of shell/child.py.

    Raises:
        NoLineError: it wrote none; the message has the known reason.
    """
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                how.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                start_new_session=True,
                pass_fds=how.inherited,
            )
        except OSError as error:
            raise NoLineError(str(error)) from error
        finally:
            for descriptor in how.inherited:
                os.close(descriptor)
        with process:
            pipe = LinePipe(process, _MOST_ANSWER)
            pipe.send(json.dumps(asked).encode() + b"\n")
            try:
                return pipe.line(_START_S)
            except NoLineError as error:
                errors.seek(0)
                said = errors.read(_MOST_BYTES).decode("utf-8", "replace").strip().splitlines()
                raise NoLineError(str(error) or "".join(said[-1:])[:200]) from error
            finally:
                process.kill()  # its namespace of processes ends with it


def _rooms(script: ShellScript, home: str, cwd: str) -> list[str]:
    """Folders that the script may write in: those at the root that it names, its own, and the current one."""
    roots = {f"/{name}" for name in _ROOTS.findall(script.text) if name not in _NOT_ROOMS}
    own = [home, cwd, str(script.path.resolve().parent), os.path.dirname(os.path.abspath(script.path))]
    roots = set(sorted(roots)[:_MOST_ROOMS]) | {
        f"/{Path(each).parts[1]}" for each in own if len(Path(each).parts) > 1
    }
    return [
        *sorted(roots - {f"/{name}" for name in _NOT_ROOMS}),
        *sorted({each for each in own if each.count("/") > 1}),
    ]


def _seen(answer: Mapping[str, Any]) -> ScriptRun:
    found: dict[str, list[list[str]]] = {}
    for kind, *fields in answer["records"]:
        found.setdefault(kind, []).append(fields)
    if "old" in found:
        raise TaskError(f"bash is {found['old'][0][0]} here; must be 5.0 or later. Install a newer one")
    return ScriptRun(
        starts=tuple(map(tuple, found.get("start", []))),
        programs={token: label for label, token, _ in found.get("program", [])},
        reads_programs=any(read for _, _, read in found.get("program", [])),
        files=tuple(dict.fromkeys(name for (name,) in found.get("file", []))),
        sources=tuple(dict.fromkeys(name for (name,) in found.get("source", []))),
        said=str(answer["said"]),
    )
