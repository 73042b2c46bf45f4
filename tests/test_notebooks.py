"""The notebooks of docs/examples run from their first cell to their last, on a recorded search."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "examples").glob("*.ipynb"))


def run(cell: str, names: dict[str, Any]) -> Any:
    """The value of the cell's last line, as a notebook shows it."""
    *before, last = ast.parse(cell).body
    if not isinstance(last, ast.Expr):
        exec(cell, names)
        return None
    exec(compile(ast.Module(before, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_a_page_and_tables(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").symlink_to(ROOT / "tests" / "blackbox" / "runs")
    monkeypatch.chdir(tmp_path)
    cells = json.loads(path.read_text())["cells"]
    names: dict[str, Any] = {}
    shown = [run("".join(one["source"]), names) for one in cells if one["cell_type"] == "code"]
    pages = [one for one in shown if hasattr(one, "nodes")]
    tables = [one for one in shown if hasattr(one, "columns")]
    assert pages
    assert all(one._repr_html_().startswith("<iframe srcdoc=") for one in pages)
    assert len(tables) >= 3
    assert all(len(one) for one in tables)
    assert not any(one.get("outputs") for one in cells)
