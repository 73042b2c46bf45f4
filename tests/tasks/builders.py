"""Task directories as a person would put them together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from llmzero_ray.prepared.families import Problem, WarmStart

WEIGHTS = "\x02\0\0\0\0\0\0\0{}"
"""A safetensors file without tensors, as text."""
REWARD = {"module": "llmzero_ray.tasks.rewards.marked_answer"}


def row(index: int, content: str, answer: str = "1", **changes: Any) -> dict[str, Any]:
    """One VeRL row."""
    return {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": content}],
        "ability": "sums",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"index": index, "split": "any"},
        **changes,
    }


def rows(split: str, n: int = 3) -> list[dict[str, Any]]:
    return [row(index, f"question {index} of {split}", str(index)) for index in range(n)]


def write_task(directory: Path, *, reward: Any = REWARD, **changes: Any) -> Path:
    """Three splits and the shortest manifest; `train`, `val` or `test` replace rows (or a table), the rest
    goes into the manifest."""
    directory.mkdir(parents=True, exist_ok=True)
    for split in ("train", "val", "test"):
        content = changes.pop(split, None)
        write_rows(directory / f"{split}.parquet", rows(split) if content is None else content)
    splits = {split: {"file": f"{split}.parquet"} for split in ("train", "val", "test")}
    manifest = {"splits": splits, "reward": reward, **changes}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    return directory


def write_rows(path: Path, content: Sequence[dict[str, Any]] | pa.Table) -> None:
    pq.write_table(content if isinstance(content, pa.Table) else pa.Table.from_pylist(content), path)


def write_reward(directory: Path, body: str) -> dict[str, str]:
    """A user's own reward file; the manifest entry that names it."""
    directory.mkdir(parents=True, exist_ok=True)
    head = "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kw):\n    "
    (directory / "my_reward.py").write_text(head + body.replace("\n", "\n    ") + "\n")
    return {"path": "my_reward.py", "gold_response": "{answer}", "allow_unsandboxed": True}


def write_model(directory: Path, *without: str) -> Path:
    """A model directory as far as names and JSON go."""
    directory.mkdir(parents=True)
    files = {
        "config.json": '{"model_type": "qwen3"}',
        "model.safetensors": WEIGHTS,
        "tokenizer.json": "{}",
        "tokenizer_config.json": '{"chat_template": "{{ messages }}", "eos_token": "</s>"}',
    }
    for name, content in files.items():
        if name not in without:
            (directory / name).write_text(content)
    return directory


class Numbers:
    """A family whose problem number n is `n modulo size`; remembers the seeds it was asked for."""

    name = "numbers"
    version = 1
    licence = "Apache-2.0"
    warm_start = WarmStart(n_demonstrations=4, n_steps=1, batch_size=1, lr=1e-3, warmup_steps=1)

    def __init__(self, size: int) -> None:
        self.size = size
        self.seeds: list[int] = []

    def problems(self, seed: int) -> Iterator[Problem]:
        self.seeds.append(seed)
        while True:
            yield Problem(prompt=f"n {seed % self.size}", answer=str(seed % self.size))
            seed += 1

    def demonstration(self, problem: Problem, rng: Random) -> str:
        return f"#{problem.answer}"
