"""Python run as a user without rights, whoever runs the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_UID = "4243"
_SHOW = """
set -e
held=$(mktemp -d) && mount -t tmpfs tmpfs "$held"
n=0
for place in $PLACES; do
    n=$((n + 1)) && mkdir "$held/$n" && mount --bind "$place" "$held/$n"
done
for top in $SHUT; do mount -t tmpfs -o mode=755 tmpfs "$top"; done
n=0
for place in $PLACES; do
    n=$((n + 1)) && mkdir -p "$place" && mount --bind "$held/$n" "$place"
done
exec setpriv --reuid "$ID" --regid "$ID" --clear-groups --inh-caps=-all "$@"
"""
"""In a mount namespace of its own: what Python is made of is shown on top of folders that are shut to others,
and the command is run as another user."""


def as_ordinary_user(*command: str) -> list[str]:
    """The command line that runs a command as a user without rights: root's changes to an unused user, others
    keep theirs."""
    if os.geteuid() != 0:
        return list(command)
    places = {str(Path(each).resolve()) for each in (sys.base_prefix, sys.prefix, str(_ROOT))}
    shut = {str(top) for place in places if (top := _shut(Path(place))) is not None}
    shown = sorted(place for place in places if any(Path(place).is_relative_to(top) for top in shut))
    variables = (f"PLACES={' '.join(shown)}", f"SHUT={' '.join(sorted(shut))}", f"ID={_UID}")
    inside = ("sh", "-c", _SHOW, "sh", *command)
    return ["unshare", "--mount", "--propagation", "private", "env", *variables, *inside]


@lru_cache(maxsize=1)
def why_no_ordinary_user() -> str:
    """Why no process can be run as a user without rights here, or none in a sandbox; empty when it can."""
    if os.geteuid() == 0 and not (shutil.which("unshare") and shutil.which("setpriv")):
        return "unshare or setpriv is not installed"
    code = "from llmzero_ray.prepared.sandbox import find_isolation; print(find_isolation().why)"
    done = subprocess.run(
        as_ordinary_user(sys.executable, "-B", "-c", code), capture_output=True, text=True, cwd=_ROOT
    )
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip()[-200:]


def _shut(place: Path) -> Path | None:
    """The first folder on the way to a place that others may not enter."""
    return next((top for top in reversed([place, *place.parents]) if not top.stat().st_mode & 0o001), None)
