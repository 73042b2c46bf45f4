"""Fails unless this node has the versions that the project was written against.

Those of VeRL's image stand here, the others in constraints.txt. Needs the standard library alone: it runs in
the image and on every node, before Ray starts.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

IMAGE = {"vllm": "0.24.0", "torch": "2.11.0", "flash-attn": "2", "liger-kernel": "0.8"}
"""What VeRL's image brings: exact versions, or the beginning of one."""


def wanted(constraints: str) -> dict[str, str]:
    """Package -> version, of the image and of the lines `package==version`."""
    lines = (line.split("#")[0].strip() for line in constraints.splitlines())
    return IMAGE | dict(line.split("==") for line in lines if line)


def problems(constraints: str) -> list[str]:
    """What is missing here or of another version, one line each."""
    found = []
    for package, needed in wanted(constraints).items():
        try:
            here = version(package).split("+")[0]
        except PackageNotFoundError:
            here = "missing"
        if here != needed and not here.startswith(needed + "."):
            found.append(f"{package} is {here}, needed is {needed}")
    return found


if __name__ == "__main__":
    sys.exit("\n".join(problems(Path(__file__).with_name("constraints.txt").read_text("utf-8"))) or None)
