"""Slips of people: slips.yaml holds each with what its answer must contain, in one sentence for a person."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.blackbox import commands, inputs

SLIPS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "slips.yaml").read_text())
OF_PYTHON = re.compile(
    r"Traceback|Input should|Value error|pydantic|hydra|NoneType|\b(tuple|dict|str|int|None)\b"
)
"""Words of libraries and of Python, which no answer has."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("slips")
    inputs.make_directory({"runs": ["demo"], "edit": {"search.yaml": {"name": "mine"}}}, place)
    for name in ("finished", "killed"):
        inputs.copy_of(name, place / "other")
    text = (place / "search.yaml").read_text()
    (place / "search.json").write_text(json.dumps(yaml.safe_load(text)))
    (place / "bom.yaml").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    project = place / "demo"  # of the same name as a search
    project.mkdir()
    for name in ("search.yaml", "thesis.tex"):
        (project / name).write_text(text)
    (place / "best").mkdir()  # as in a search's directory
    (place / "task.toml").write_text('name = "mine"\n')
    return place


def files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*"))


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip["slip"])
def test_a_slip_is_understood_or_answered_with_what_to_type(slip: dict[str, Any], directory: Path) -> None:
    before = files(directory)
    said = commands.run(shlex.split(slip["slip"]), directory)
    text = said.out + said.err
    assert said.exit == slip.get("exit", 2), text
    assert [part for part in slip["says"] if part.lower() not in text.lower()] == [], text
    assert OF_PYTHON.search(text) is None, text
    assert files(directory) == before
