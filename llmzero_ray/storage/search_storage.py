"""Directory of one search: the paths of all its files, and atomic writes to them.

    <storage>/<name>/
        search.yaml · journal/ · strategy.yaml · best/ · report.md · reference/ · final/ · logs/
        initialization/ · task/ (of a search that began with a folder)
        nodes/0003/{spec.yaml, metrics.parquet, val_items.parquet, sampled.json, log.txt, agents/}
        checkpoints/0003/step_000120/ (PEFT adapter; of the second attempt step_000120.001/)

`SearchPaths` is pure and may be used anywhere; `SearchStorage` touches the disk. The directory may be moved,
alone or with its storage: `relocated` finds what moved with it. Not here: metrics (metric_files.py), events
(journal/), and the live coordinator (presence.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmzero_ray.config import SearchConfig, stored_config
from llmzero_ray.config.changes import CHANGEABLE, differing_keys, is_changeable
from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.errors import ConfigError, LlmzeroError, StorageError
from llmzero_ray.journal import check_server, is_trusted, keep_initialization, open_store
from llmzero_ray.records import (
    Checkpoint,
    PhaseFailure,
    PhaseResult,
    PhaseSpec,
    adapter_name,
    from_json,
    read_adapter_name,
    to_json,
)
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.storage import manifests
from llmzero_ray.utils.files import replace_file, storage_errors
from llmzero_ray.utils.text import size

_LOG_TAIL = 4000
"""Maximum bytes of `log_tail`."""
_BEGUN = frozenset({"journal", "lock", "heartbeat"})
"""Files that show that a search has begun."""
_BEFORE = frozenset({"starting", "logs", "requests", "doctor.json", "start_checks.jsonl", ".write_test"})
"""Files that a start may leave behind before the search begins."""
_MOVABLE = (("task", "dir"), ("model", "path"), ("agents", "recorded_from"), ("agents", "prompts"))
"""Settings that may name something inside the storage."""
MIN_FREE_BYTES = 50 * 2**20
"""Minimum free bytes at the start of a search, enough for metrics and adapters of a few phases."""


@dataclass(frozen=True, kw_only=True)
class SearchPaths:
    """Paths of all files of a search below `root`, which is <storage>/<name>."""

    root: Path

    @property
    def config(self) -> Path:
        """Resolved configuration."""
        return self.root / "search.yaml"

    @property
    def transcript(self) -> Path:
        """Conversation of the skill-based agent, one line per decision."""
        return self.root / "skill_agent.jsonl"

    @property
    def journal(self) -> Path:
        """Directory of the journal, unless `journal` names another place."""
        return self.root / "journal"

    @property
    def initialization(self) -> Path:
        """Drafts that the initialization agents made from a folder: task.yaml, search.yaml and others."""
        return self.root / "initialization"

    @property
    def task(self) -> Path:
        """Prepared task of a search that began with a folder."""
        return self.root / "task"

    @property
    def strategy(self) -> Path:
        """Best strategy, the input of `llmzero retrain`."""
        return self.root / "strategy.yaml"

    @property
    def best(self) -> Path:
        """Best strategy's adapter and its card."""
        return self.root / "best"

    @property
    def report(self) -> Path:
        """Report in Markdown."""
        return self.root / "report.md"

    @property
    def page(self) -> Path:
        """Report as one HTML file."""
        return self.root / "report.html"

    @property
    def logs(self) -> Path:
        """Logs that belong to no node: engines and actors."""
        return self.root / "logs"

    def node(self, node: int) -> Path:
        """Files of one node, or of the reference run."""
        return self.root / "reference" if node == REFERENCE else self.root / "nodes" / f"{node:04d}"

    def checkpoints(self, node: int) -> Path:
        """Directory of a node's adapters."""
        return (
            self.node(node) / "checkpoints"
            if node == REFERENCE
            else self.root / "checkpoints" / f"{node:04d}"
        )

    def rolling(self, node: int, attempt: int) -> Path:
        """Full checkpoint of an attempt at a running phase, for a retry after lost hardware."""
        return self.node(node) / "rolling" / f"attempt_{attempt:03d}"

    def adapter(self, node: int, step: int, attempt: int = 0) -> Path:
        """PEFT adapter of `node` after `step` of its own steps, saved by `attempt`. `PhaseRun.adapter` picks
        the attempt that counts."""
        return self.checkpoints(node) / adapter_name(step, attempt)

    def parts(self, node: int) -> Path:
        """Metrics of a phase while it runs, by attempt (metric_files.py)."""
        return self.node(node) / "parts"

    def spec(self, node: int) -> Path:
        """Spec of a node's phase."""
        return self.node(node) / "spec.yaml"

    def result(self, node: int, attempt: int) -> Path:
        """Outcome of a phase, written before the runner returns it, so that it survives the runner."""
        return self.node(node) / f"result-{attempt:03d}.json"

    def log(self, node: int) -> Path:
        """Log of a node's phase."""
        return self.node(node) / "log.txt"

    def agents(self, node: int) -> Path:
        """Records of the agents' requests and responses for this node."""
        return self.node(node) / "agents"

    @property
    def start_checks(self) -> Path:
        """Billed calls that checked the agents' model before the search (launch/start_checks.py)."""
        return self.root / "start_checks.jsonl"

    @property
    def confirm_rows(self) -> Path:
        """Fresh validation items of a search that confirms its winners."""
        return self.root / "confirm.parquet"

    def final(self, what: str) -> Path:
        """Per-item outcomes of a final evaluation."""
        return self.root / "final" / f"{what}.parquet"


class SearchStorage:
    """Reads and writes the files of one search. The constructor touches nothing."""

    def __init__(self, storage: str | os.PathLike[str], name: str) -> None:
        self.name = name
        self.paths = SearchPaths(root=Path(storage) / name)

    @classmethod
    def at(cls, directory: str | os.PathLike[str]) -> SearchStorage:
        """Storage of the search in a directory, such as `runs/demo`."""
        path = Path(directory).absolute()
        return cls(path.parent, path.name)

    # --- the start of a search ------------------------------------------------------------------------------

    def is_search(self) -> bool:
        """Whether the directory belongs to a search, or to one whose start was interrupted. A folder with a
        search.yaml and unrelated files does not."""
        root = self.paths.root
        if not self.paths.config.is_file():
            return (root / "starting").is_file()
        return self.has_begun() or {entry.name for entry in root.iterdir()} <= {*_BEFORE, "search.yaml"}

    def has_begun(self) -> bool:
        """Whether the directory has files of a search that has begun."""
        return any((self.paths.root / name).exists() for name in _BEGUN)

    def check(self) -> None:
        """Create the directory and check that it can be used.

        Raises:
            StorageError: it cannot be created or written, its disk is nearly full, or it contains something
                that is not a search.
        """
        root = self.paths.root
        with storage_errors(root):
            root.mkdir(parents=True, exist_ok=True)
            present = {entry.name for entry in root.iterdir()}
        if present and not present & {*_BEGUN, *_BEFORE, "search.yaml"}:
            held = ", ".join(sorted(present)[:5])
            raise StorageError(
                f"{root}: holds something that is not a search ({held}). Choose another `name` or `storage`."
            )
        replace_file(root / ".write_test", "writable\n")
        (root / ".write_test").unlink(missing_ok=True)
        free = shutil.disk_usage(root).free
        if free < MIN_FREE_BYTES:
            raise StorageError(
                f"{root}: only {size(free)} are free; a search needs at least "
                f"{size(MIN_FREE_BYTES)}. "
                "Free space, or set `storage` to another directory."
            )

    @contextlib.contextmanager
    def kept_if_used(self) -> Iterator[None]:
        """Context that, after an `LlmzeroError`, removes empty directories that were created in the block, so
        that a refused start leaves nothing behind."""
        root = self.paths.root
        missing = [path for path in (root, *root.parents) if not path.exists()]
        try:
            yield
        except LlmzeroError:
            for path in missing:
                with contextlib.suppress(OSError):  # something was written into it meanwhile
                    path.rmdir()
            raise

    def config(self) -> SearchConfig | None:
        """Configuration of the search, with its paths `relocated`. None if there is none yet.

        Raises:
            ConfigError: it cannot be read, or another version wrote it.
        """
        if not self.paths.config.is_file():
            return None
        return self.relocated(stored_config(read_yaml(self.paths.config), source=str(self.paths.config)))

    def recorded_root(self) -> Path:
        """Directory of the search as its search.yaml spells it: the same on all machines and by all paths.

        If that leads elsewhere, because the directory was moved or copied, it is this path without links. The
        last part stays a link if only the link has the search's name.

        Raises:
            ConfigError: search.yaml cannot be read, or another version wrote it.
        """
        root, config = self.paths.root, self.config()
        if config is None:
            return root
        recorded = Path(config.storage, config.name).absolute()
        with contextlib.suppress(OSError):
            if recorded.samefile(root):
                return recorded
        real = root.resolve()
        return root.parent.resolve() / root.name if root.name == config.name != real.name else real

    def relocated(self, config: SearchConfig) -> SearchConfig:
        """The configuration with paths inside its recorded storage replaced by where they are now, if they
        were moved together with the search. Other paths, and those that still exist, are unchanged."""
        old, new = Path(config.storage), self.paths.root.absolute().parent
        for block, key in _MOVABLE if old != new else ():
            part = getattr(config, block)
            path = Path(getattr(part, key) or "")
            moved = new / path.relative_to(old) if path.is_relative_to(old) else path
            if os.path.exists(moved) and not os.path.exists(path):  # false where it may not be read
                found = part.model_copy(update={key: str(moved)})
                config = config.model_copy(update={block: found})
        return config

    def base_model_here(self, config: SearchConfig, recorded: str, task_dir: str | None) -> str:
        """Path of the base model that a search recorded, with its task in `task_dir`: where it is now if it
        was moved together with the search. It is unchanged if it still exists, or is not found."""
        config = self.relocated(config)
        moved = Path(config.model.path or recorded)
        if config.model.path is None and task_dir is not None and moved.is_relative_to(task_dir):
            moved = Path(config.task.dir, moved.relative_to(task_dir))
        return str(moved) if os.path.exists(moved) and not os.path.exists(recorded) else recorded

    def journal_address(self) -> Path | str:
        """Location of the journal: a directory, or an address in an object store.

        Raises:
            ConfigError: the search's configuration cannot be read.
        """
        config = self.config()
        return (None if config is None else config.journal_address) or self.paths.journal

    def journal_to_read(self) -> Path | str:
        """Location from which a command reads the journal: the copy next to search.yaml if there is one,
        otherwise the journal itself. A process that runs the search always reads the journal itself.

        Raises:
            ConfigError: the configuration cannot be read, or names a server that the environment does not.
        """
        address = self.journal_address()
        if isinstance(address, Path) or is_trusted(address):
            return address
        if self.paths.journal.is_dir() and any(self.paths.journal.iterdir()):
            return self.paths.journal
        check_server(address)
        return address

    def adopt_config(self, config: SearchConfig) -> None:
        """Write the resolved configuration if there is none. Otherwise the two must agree (`check_same`).

        Raises:
            ConfigError: the search was started with another configuration; the differing keys are listed.
            StorageError: it could not be written.
        """
        if self.config() is None:
            replace_file(self.paths.config, config.to_yaml())
        self.check_same(config)

    def write_config(self, config: SearchConfig) -> None:
        """Replace the resolved configuration, after settings were changed during the search.

        Raises:
            StorageError: it could not be written.
        """
        replace_file(self.paths.config, config.to_yaml())

    def start_over(self) -> None:
        """Remove configuration and journal of a search that has not trained, so that it can start with
        another configuration. Its initialization is kept, because its agent calls were paid for. Pending
        requests are kept too."""
        address = self.journal_address()
        initialized = keep_initialization(address)
        self.paths.config.unlink(missing_ok=True)
        if initialized:
            return
        if isinstance(address, Path):
            shutil.rmtree(address, ignore_errors=True)
            return
        store = open_store(address)
        for name in (*store.names(), *(f"epochs/{name}" for name in store.names("epochs"))):
            store.remove(name)

    def check_same(self, config: SearchConfig) -> dict[str, Any]:
        """Compare with the search's configuration. Returns the changed settings: dotted key -> new value.

        Raises:
            ConfigError: settings differ that cannot be changed any more; all of them are listed.
        """
        known = self.config()
        changed = differing_keys(known, config) if known is not None else {}
        fixed = {key: values for key, values in changed.items() if not is_changeable(key)}
        if fixed:
            listed = "\n".join(f"  {key}: {old!r} -> {new!r}" for key, (old, new) in fixed.items())
            raise ConfigError(
                f"search {self.name!r} in {self.paths.root} was started with another "
                f"configuration:\n{listed}\n"
                "Undo these changes to continue it, or choose another `name`. What may be changed: "
                f"{', '.join(CHANGEABLE)}."
            )
        return {key: new for key, (_, new) in changed.items()}

    # --- nodes ----------------------------------------------------------------------------------------------

    def write_spec(self, spec: PhaseSpec) -> None:
        """Write nodes/0003/spec.yaml: the spec of the phase, for users and for the export."""
        from llmzero_ray.config.yaml_text import to_yaml

        replace_file(self.paths.spec(spec.node), to_yaml(_without_types(to_json(spec))))

    def write_agent_record(self, node: int, name: str, record: Mapping[str, Any]) -> None:
        """Write nodes/0003/agents/<name>.json: one request to an agent with its response."""
        replace_file(self.paths.agents(node) / f"{name}.json", json.dumps(to_json(record), indent=1) + "\n")

    def write_call(self, node: int, name: str, record: Mapping[str, Any], png: bytes | None) -> None:
        """Write nodes/0003/agents/<name>.call.json and .png: one call of a language model."""
        folder = self.paths.agents(node)
        if png is not None:
            replace_file(folder / f"{name}.png", png)
        replace_file(folder / f"{name}.call.json", json.dumps(to_json(record), indent=1) + "\n")

    def write_result(self, node: int, attempt: int, result: PhaseResult | PhaseFailure) -> None:
        """Write a phase's outcome, so that it survives the runner."""
        replace_file(self.paths.result(node, attempt), json.dumps(to_json(result), indent=1) + "\n")

    def result(
        self, node: int, attempt: int, *, since: int | None = None
    ) -> PhaseResult | PhaseFailure | None:
        """Outcome that the runner of this attempt wrote. None if it wrote none.

        `since` is the first attempt at this phase. With it, the outcome of an earlier attempt also counts if
        no later one has trained: the search was then interrupted before the journal had the outcome.
        """
        for one in range(attempt, (attempt if since is None else since) - 1, -1):
            with contextlib.suppress(OSError, ValueError):
                found = from_json(json.loads(self.paths.result(node, one).read_text(encoding="utf-8")))
                if isinstance(found, PhaseResult | PhaseFailure):
                    return found
            if self._has_trained(node, one):
                break
        return None

    def checkpoints(
        self,
        node: int,
        scores: Mapping[int, float] | None = None,
        attempts: Mapping[int, int] | None = None,
    ) -> tuple[Checkpoint, ...]:
        """Complete adapters of a node on disk, in order of steps, with their `scores`. `attempts` (step ->
        attempt) selects the attempt of each step; by default, it is the latest one."""
        found: dict[int, tuple[int, Path]] = {}
        for directory in self.paths.checkpoints(node).glob("step_*"):
            named = read_adapter_name(directory.name)
            if named is None or not (directory / manifests.NAME).is_file():
                continue
            step, attempt = named
            if attempts is None or attempts.get(step) == attempt:
                found[step] = max(found.get(step, (attempt, directory)), (attempt, directory))
        return tuple(
            Checkpoint(step=step, path=str(directory), val_score=(scores or {}).get(step))
            for step, (_, directory) in sorted(found.items())
        )

    # --- full checkpoints of running phases -----------------------------------------------------------------

    def restart_step(self, node: int, attempt: int) -> int:
        """Step of the full checkpoint from which `attempt`, or its retry, continues. 0 if it starts over."""
        source = self._full_checkpoint(node, attempt)
        return 0 if source is None else _step_of(source)

    def adopt_full_checkpoint(self, node: int, attempt: int) -> None:
        """Move the full checkpoint from which `attempt` continues into the attempt's own directory, so that
        no runner of an earlier attempt can replace or delete it."""
        own = self.paths.rolling(node, attempt)
        source = self._full_checkpoint(node, attempt)
        if source is not None and source.parent != own:
            own.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):  # its owner has just deleted it; the phase starts over
                os.rename(source, own / source.name)

    def drop_full_checkpoints(self, node: int, attempt: int) -> None:
        """Delete the full checkpoints of this and earlier attempts at a phase."""
        for earlier in range(attempt + 1):
            shutil.rmtree(self.paths.rolling(node, earlier), ignore_errors=True)
        with contextlib.suppress(OSError):
            self.paths.rolling(node, 0).parent.rmdir()

    def _full_checkpoint(self, node: int, attempt: int) -> Path | None:
        """Newest complete full checkpoint of `attempt`, or of an earlier one if none since has trained."""
        for earlier in range(attempt, -1, -1):
            found = _newest_full(self.paths.rolling(node, earlier))
            if found is not None:
                return found
            if self._has_trained(node, earlier):
                break
        return None

    def _has_trained(self, node: int, attempt: int) -> bool:
        points = self.paths.parts(node) / f"{attempt:03d}.jsonl"
        return points.is_file() and points.stat().st_size > 0

    def adapter_sizes(self) -> dict[tuple[int, int], int]:
        """(node, step) -> bytes on disk of its adapters, summed over attempts, including the reference."""
        found: dict[tuple[int, int], int] = {}
        for manifest in (
            *self.paths.root.glob("checkpoints/*/step_*/manifest.json"),
            *self.paths.checkpoints(REFERENCE).glob("step_*/manifest.json"),
        ):
            folder = manifest.parent
            named, owner = read_adapter_name(folder.name), folder.parent.name
            if named is not None:
                place = (int(owner) if owner.isdigit() else REFERENCE, named[0])
                with contextlib.suppress(FileNotFoundError):  # it is being deleted
                    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
                    found[place] = found.get(place, 0) + size
        return found

    def delete_adapter(self, node: int, step: int) -> None:
        """Delete an adapter as saved by any attempt. Its manifest goes first, so that a partly deleted
        adapter counts as none. Idempotent."""
        for folder in self.paths.checkpoints(node).glob(f"{adapter_name(step)}*"):
            if (read_adapter_name(folder.name) or (None,))[0] == step:
                (folder / manifests.NAME).unlink(missing_ok=True)
                shutil.rmtree(folder, ignore_errors=True)

    def sweep(self) -> None:
        """Remove half-written files of killed processes, and all full checkpoints.

        The caller must be the only writer of this directory, and no phase may have to be continued.
        """
        for path in [*self.paths.root.rglob("*")]:
            if path.name.endswith((".tmp", ".partial")) or path.name in ("rolling", ".write_test"):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def log_tail(self, node: int) -> str:
        """End of a node's log. Empty if there is no log."""
        try:
            with open(self.paths.log(node), "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL))
                return file.read().decode("utf-8", errors="replace")
        except OSError:
            return ""


def _newest_full(directory: Path) -> Path | None:
    """Complete full checkpoint with the latest step, or None."""
    complete = [manifest.parent for manifest in directory.glob(f"step_*.full/{manifests.NAME}")]
    return max(complete, key=_step_of, default=None)


def _step_of(full_checkpoint: Path) -> int:
    return int(full_checkpoint.name.removeprefix("step_").removesuffix(".full"))


def _without_types(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _without_types(value) for key, value in data.items() if key != "type"}
    return [_without_types(value) for value in data] if isinstance(data, list) else data
