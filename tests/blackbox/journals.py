"""Journals of recorded searches as files: moving one to another place without the project's own code.

A journal holds paths, and every body a checksum over its event. Whatever becomes of the code that writes
journals, files of this form must stay readable, so their form is written down here a second time.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RECORDED = "/recorded"
"""Where the recorded searches say that they lie."""

TEXTS = (".yaml", ".json", ".jsonl", ".md", ".txt", ".sha256", ".segment")
"""Endings of the files of a search that may hold paths."""
_EVENT = re.compile(r"\d{8,}\.e\d{3,}\.json")


def rewrite(path: Path, changes: Mapping[str, str]) -> None:
    """Replace texts in a file of a search; the checksums of a journal's file are right again afterwards."""
    before = path.read_text(encoding="utf-8")
    if path.suffix == ".segment":
        after = _segment([_replaced(line, changes) for line in before.splitlines()])
    elif _EVENT.fullmatch(path.name):
        after = _body(_replaced(before, changes))
    else:
        after = _replaced(before, changes)
    if after != before:
        path.write_text(after, encoding="utf-8")


def bodies(journal: Path) -> list[dict[str, Any]]:
    """All bodies of a journal in a directory, by place, later epochs in front of what they replace."""
    found: dict[int, dict[str, Any]] = {}
    lines = [line for path in sorted(journal.glob("*.segment")) for line in path.read_text().splitlines()[1:]]
    lines += [path.read_text() for path in sorted(journal.glob("*.json")) if _EVENT.fullmatch(path.name)]
    for body in map(json.loads, lines):
        found[body["number"]] = body
    return [found[number] for number in sorted(found)]


def _replaced(text: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


def _body(line: str) -> str:
    body = json.loads(line)
    data = json.dumps(body["event"], sort_keys=True, separators=(",", ":"))
    return json.dumps({**body, "checksum": f"{zlib.crc32(data.encode()):08x}"}) + "\n"


def _segment(lines: list[str]) -> str:
    header, rest = json.loads(lines[0]), "".join(map(_body, lines[1:]))
    return json.dumps({**header, "checksum": f"{zlib.crc32(rest.encode()):08x}"}) + "\n" + rest
