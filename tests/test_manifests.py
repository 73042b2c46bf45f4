"""A checkpoint is good when its manifest is there and every file matches it; else the reason is one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from llmzero_ray.errors import StorageError
from llmzero_ray.storage.manifests import problem_of, read_manifest, write_manifest


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "step_000010"
    (directory / "worker").mkdir(parents=True)
    (directory / "adapter_config.json").write_text("{}")
    (directory / "worker" / "weights.bin").write_bytes(bytes(range(256)))
    write_manifest(directory, {"node": 3, "step": 10})
    return directory


def test_a_complete_checkpoint_has_no_problem_and_keeps_its_facts(checkpoint: Path) -> None:
    assert problem_of(checkpoint) is None
    manifest = read_manifest(checkpoint)
    assert manifest is not None and (manifest["node"], manifest["step"]) == (3, 10)
    assert list(manifest["sha256"]) == ["adapter_config.json", "worker/weights.bin"]


def test_a_file_that_was_added_later_harms_nothing(checkpoint: Path) -> None:
    (checkpoint / "README.md").write_text("of mine")
    assert problem_of(checkpoint) is None


def test_what_a_killed_process_left_of_a_manifest_is_no_part_of_the_next_one(checkpoint: Path) -> None:
    left = checkpoint / ".manifest.json.0123abcd.tmp"
    left.write_text("{")
    write_manifest(checkpoint, {"node": 3, "step": 10})
    left.unlink()  # swept away
    assert problem_of(checkpoint) is None


def flip_a_bit(directory: Path) -> None:
    path = directory / "worker" / "weights.bin"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


def other_format(directory: Path) -> None:
    path = directory / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 9}))


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (flip_a_bit, "worker/weights.bin is not what was saved"),
        (
            lambda d: (d / "worker" / "weights.bin").unlink(),
            "worker/weights.bin cannot be read (No such file",
        ),
        (lambda d: (d / "manifest.json").unlink(), "has no manifest.json: it was never completed"),
        (lambda d: (d / "manifest.json").write_text('{"format": 1, "sha'), "manifest.json cannot be read"),
        (lambda d: (d / "manifest.json").write_text("[]"), "manifest.json cannot be read"),
        (lambda d: (d / "manifest.json").write_text('{"format": 1, "sha256": {}}'), "names no files"),
        (other_format, "has format 9; this version reads 1"),
    ],
)
def test_a_damaged_checkpoint_is_reported_in_one_line(
    checkpoint: Path, harm: Callable[[Path], object], expected: str
) -> None:
    harm(checkpoint)
    problem = problem_of(checkpoint)
    assert problem is not None and expected in problem and "\n" not in problem


def test_a_missing_checkpoint_is_reported(tmp_path: Path) -> None:
    assert problem_of(tmp_path / "gone") == "the directory does not exist"
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StorageError, match=r"file/manifest\.json: cannot be written"):
        write_manifest(tmp_path / "file", {})
