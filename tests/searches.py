"""search.yaml as tests of whole searches write it: short phases on the scripted engine, or on real VeRL."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from llmzero_ray.prepared import PreparedTask
from tests.builders import with_blocks

CHECKOUT = Path(__file__).resolve().parents[1]


def code_of_the_page(holding: str) -> str:
    """The one example of docs/extend.md in Python that holds this text."""
    page = (CHECKOUT / "docs" / "extend.md").read_text()
    (found,) = (one for one in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL) if holding in one)
    return str(found)


def page_data(report_html: Path) -> dict[str, Any]:
    """The data that a report.html shows."""
    embedded = report_html.read_text(encoding="utf-8").partition('id="view">')[2]
    found: dict[str, Any] = json.loads(embedded.partition("</script>")[0])
    return found


def scripted_search(
    root: Path, task_dir: Path, script: Mapping[str, Any] | None = None, /, **blocks: Any
) -> dict[str, Any]:
    """A search in `root`/runs on the engine of tests/fakes.py, which does what `script` says: 2 runs of 10
    steps."""
    base = {
        "name": "demo",
        "storage": str(root / "runs"),
        "task": {"dir": str(task_dir)},
        "model": {"path": str(root)},
        "budget": {"runs": 2},
        "phase": {"n_steps": 10, "max_steps": 40, "test_freq": 5, "save_freq": 5},
        "root": {"overrides": {"lr": 1e-3, "train_batch_size": 16, "n": 4}},
        "engine": {
            "backend": "tests.fakes:make_engine",
            "platform": "cpu",
            "max_prompt_length": 64,
            "max_response_length": 32,
            "overrides": {f"script.{key}": value for key, value in (script or {}).items()},
        },
        "eval": {"max_response_length": 32},
    }
    return with_blocks(base, blocks)


def verl_search(root: Path, task: PreparedTask, /, *, lr: float, **blocks: Any) -> dict[str, Any]:
    """A search in `root`/runs of a task whose tiny model real VeRL trains on the CPU."""
    base = {
        "name": "real",
        "storage": str(root / "runs"),
        "task": {"dir": str(task.directory)},
        "model": {"lora_rank": 8, "lora_alpha": 16},
        "budget": {"runs": 4},
        "search": {"max_evolve_children": 1},
        "phase": {"n_steps": 8, "max_steps": 40, "test_freq": 2, "save_freq": 4},
        "root": {"overrides": {"lr": lr, "batch": 8, "n": 4, "resp": 8}},
        "eval": {"max_response_length": 8},
        "stopper": {"interval_steps": 1, "min_steps": 3},
        "engine": {"platform": "cpu", "max_prompt_length": 32, "max_response_length": 16},
        "final": {"test": True, "default_recipe": False},
    }
    return with_blocks(base, blocks)


def run_search(
    content: Mapping[str, Any],
    directory: Path,
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 900,
) -> subprocess.CompletedProcess[str]:
    """`python -m jobs.search` on a file in `directory`, to its good end."""
    path = directory / "search.yaml"
    path.write_text(yaml.safe_dump(dict(content)))
    done = subprocess.run(
        [sys.executable, "-m", "jobs.search", str(path)],
        cwd=CHECKOUT,
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done
