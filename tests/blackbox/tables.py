"""What the tables in data/ hold, observed once more.

The same functions made the records and make what is compared with them.

`python -m tests.blackbox.tables NAME` writes a record, which is not to be written again to please a change.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.blackbox import commands, inputs, public_api

CONFIGS = public_api.CHECKOUT / "jobs" / "configs"
PAPER = public_api.CHECKOUT / "jobs" / "examples" / "paper"
COMPOSED = ("local", "qwen3_4b")
"""Presets of which VeRL's whole configuration is kept; of the others what is handed to VeRL."""
RECORDED_RUNS = (
    "finished",
    "failed",
    "two_slots",
    "paused",
    "killed",
    "steered",
    "model",
    "compacted",
    "demo",
)
HISTORY = [
    {"id": 0, "kind": "root", "on": None, "status": "completed", "score": 0.5},
    {"id": 1, "kind": "evolve", "on": 0, "status": "failed", "score": 0.6},
    {"id": 2, "kind": "debug", "on": 1, "status": "completed", "score": 0.7},
    {"id": 3, "kind": "evolve", "on": 2, "status": "early_stopped", "score": 0.65},
    {"id": 4, "kind": "evolve", "on": 0, "status": "completed", "score": None},
    {"id": 5, "kind": "evolve", "on": 2, "status": "running", "score": None},
]
EXPLANATIONS: dict[str, tuple[str, ...]] = {
    **{name: ("--closed-loop", str(PAPER / f"{name}.json")) for name in ("chemcot", "papersearchqa")},
    **{name: ("--closed-loop", str(PAPER / f"{name}.json")) for name in ("ssmr", "wildsci")},
    "ssmr-budget": ("--closed-loop", str(PAPER / "ssmr.json"), "--budget", "10"),
    "wildsci-rules": ("--closed-loop", str(PAPER / "wildsci.json"), "--set", "C=0.5", "--set", "rho_min=0"),
    "history": ("--history", "h.json"),
    "history-budget": ("--history", "h.json", "--budget", "6"),
    "history-rules": ("--history", "h.json", "--set", "C=0", "--set", "max_evolve_children=4"),
}
REPORT_WORDS = ("strategy.yaml", "best", "report.md")


# --- observed -----------------------------------------------------------------------------------------------


def wrong_inputs(directory: Path) -> list[dict[str, Any]]:
    """Every entry of the table with what its command says now."""
    return [observed(case, directory / case["name"]) for case in cases()]


def observed(case: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """An entry of the table of wrong inputs with what its command says now."""
    directory.mkdir()
    inputs.make_directory(case, directory)
    words, env = case["command"], case.get("env")
    if case.get("process"):
        result = commands.run_process([public_api.COMMAND_MODULE, *words], directory, env)
    else:
        result = commands.run(words, directory, env)
    return {**case, "exit": result.exit, "out": result.out, "err": result.err}


def cases() -> list[dict[str, Any]]:
    """The entries of the table of wrong inputs, as recorded."""
    return list(yaml.safe_load((inputs.DATA / "wrong_inputs.yaml").read_text()))


def explanation(name: str, directory: Path) -> dict[str, Any]:
    """What `llmzero explain` says of a history."""
    (directory / "h.json").write_text(json.dumps(HISTORY))
    result = commands.run(["explain", *EXPLANATIONS[name]], directory)
    return {"exit": result.exit, "out": result.out, "err": result.err}


def search_texts(name: str, storage: Path) -> dict[str, str]:
    """What the commands that look at a search say of a recorded one."""
    root = inputs.copy_of(name, storage)
    words = {
        "status": ["status", str(root)],
        "log": ["status", name, "--storage", str(storage), "--offline", "--log"],
        "explain": ["explain", str(root)],
    }
    found = {}
    for key, command in words.items():
        result = commands.run(command, storage)
        found[key] = f"{result.out}{result.err}[{result.exit}]\n"
    return found


def preset(name: str) -> dict[str, Any]:
    """What the root of a shipped preset becomes, key by key."""
    found = public_api.preset(CONFIGS / f"{name}.yaml")
    composed = found.pop("composed")
    here = f"{public_api.CHECKOUT}/"  # a model that lies in the checkout has an absolute path
    found = json.loads(json.dumps(found).replace(here, ""))
    if name in COMPOSED:
        from omegaconf import OmegaConf

        found["composed"] = flat(OmegaConf.to_container(composed))
    return found


def flat(data: Any, prefix: str = "") -> dict[str, Any]:
    """Nested data as dotted keys; empty blocks stay."""
    if not isinstance(data, Mapping) or not data:
        return {prefix: data}
    found: dict[str, Any] = {}
    for key, value in data.items():
        found |= flat(value, f"{prefix}.{key}" if prefix else str(key))
    return found


def rewards(directory: Path) -> list[dict[str, Any]]:
    """The table of rewards with what `llmzero score` makes of each row now."""
    return [scored(group, directory) for group in reward_groups()]


def reward_groups() -> list[dict[str, Any]]:
    """The table of rewards, as recorded."""
    return list(json.loads((inputs.DATA / "rewards.json").read_text()))


def scored(group: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """One group of the table of rewards with what `llmzero score` makes of each row now."""
    path = directory / "rows.jsonl"
    texts = ("data_source", "solution_str", "ground_truth")
    path.write_text("".join(json.dumps({k: row[k] for k in texts}) + "\n" for row in group["rows"]))
    words = ["score", "--jsonl", str(path)]
    words += [] if group["reward"] is None else ["--reward", group["reward"]]
    for key, value in group["options"].items():
        words += ["--option", f"{key}={json.dumps(value)}"]
    command = commands.run(words, directory)
    results = [json.loads(line) for line in command.out.splitlines()]
    assert (command.exit, len(results)) == (0, len(group["rows"])), command.err
    rows = [{**row, "result": result} for row, result in zip(group["rows"], results, strict=True)]
    return {**group, "rows": rows}


# --- recorded -----------------------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    """Texts of several lines stand as blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
_Dumper.ignore_aliases = lambda *_: True  # type: ignore[method-assign]


def _write_wrong_inputs(directory: Path) -> None:
    text = yaml.dump(wrong_inputs(directory), Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    (inputs.DATA / "wrong_inputs.yaml").write_text(text)


def _write_explanations(directory: Path) -> None:
    _write_json("explanations.json", {name: explanation(name, directory) for name in EXPLANATIONS})


def _write_presets(_: Path) -> None:
    _write_json("presets.json", {path.stem: preset(path.stem) for path in sorted(CONFIGS.glob("*.yaml"))})


def _write_rewards(directory: Path) -> None:
    _write_json("rewards.json", rewards(directory))


def _write_searches(directory: Path) -> None:
    for name in sys.argv[2:] or RECORDED_RUNS:
        storage = directory / name
        storage.mkdir()
        for key, text in search_texts(name, storage).items():
            (inputs.DATA / "searches" / f"{name}.{key}.txt").write_text(text)
        _write_json(f"searches/{name}.replay.json", public_api.replayed(inputs.RUNS / name))


def _write_json(name: str, data: Any) -> None:
    path = inputs.DATA / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")


WRITERS: dict[str, Callable[[Path], None]] = {
    "wrong_inputs": _write_wrong_inputs,
    "explanations": _write_explanations,
    "presets": _write_presets,
    "rewards": _write_rewards,
    "searches": _write_searches,
}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        WRITERS[sys.argv[1]](Path(made))
