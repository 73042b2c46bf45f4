"""Wrong inputs: a directory for each, made from what its entry in data/wrong_inputs.yaml says.

An entry has `name`, `command`, `exit`, `out` and `err`, and what differs from a good directory:

    files    path -> text of a file
    edit     path -> top-level keys of a YAML or JSON file that get other values (null: taken away)
    copy     path -> file that replaces it
    remove   files that are missing
    runs     recorded searches that lie in runs/
    as_file  name under which the configuration of the first of them lies beside it
    env      variables of the environment
    process  given in a process of its own: what it says depends on who else logs

    usage       words that a message of the option parser must hold; its text is the parser's own
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.blackbox import journals, public_api

DATA = Path(__file__).parent / "data"
RUNS = Path(__file__).parent / "runs"


def copy_of(name: str, storage: Path) -> Path:
    """A recorded search (or its task) in another place, every path in it being right there."""
    target = storage / name
    shutil.copytree(RUNS / name, target)
    place = storage if name == "task" else storage.parent
    for path in target.rglob("*"):
        if path.is_file() and path.suffix in journals.TEXTS:
            journals.rewrite(path, {journals.RECORDED: str(place)})
    return target


def make_directory(case: Mapping[str, Any], directory: Path) -> Path:
    """A directory in which the command of a case is given."""
    shutil.copy(DATA / "search.yaml", directory / "search.yaml")
    copy_of("task", directory)
    (directory / "model").mkdir()
    for name in case.get("runs", ()):
        copy_of(name, directory / "runs")
    if "as_file" in case:
        known = public_api.load_stored(directory / "runs" / case["runs"][0] / "search.yaml")
        (directory / case["as_file"]).write_text(known.to_yaml())
    for name, text in case.get("files", {}).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    for name, changes in case.get("edit", {}).items():
        _edit(directory / name, changes)
    for name, source in case.get("copy", {}).items():
        shutil.copy(directory / source, directory / name)
    for name in case.get("remove", ()):
        (directory / name).unlink()
    return directory


def _edit(path: Path, changes: Mapping[str, Any]) -> None:
    before = yaml.safe_load(path.read_text())
    after = {key: value for key, value in {**before, **changes}.items() if value is not None}
    path.write_text(json.dumps(after) if path.suffix == ".json" else yaml.safe_dump(after))
