"""One run of one tracker, in a separate process: VeRL's `Tracking` and the libraries behind it keep their run
in global state, may hang without a network, and may end their process.

    python -m llmzero_ray.tracking.backend_process

The first line of the standard input is `RunOpening` as JSON, and each further line a point, [step, values].
The end of the input finishes the run. A point is noted in the state file before it is given to the tracker,
and a process that reopens the run continues after it. A kill can therefore lose this point and those that
wait to be given again, but never duplicates one. A point that the tracker rejects is given to it again before
the next one. Consecutive points that it rejects, for example because it cannot be reached, are removed from
the state file again.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import logging
import os
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO
from urllib.parse import urlsplit
from urllib.request import url2pathname

OPTUNA = "optuna"
"""Backend with one trial per node instead of runs."""
MAX_FAILURES = 3
"""Consecutive points that the tracker rejects before the run is closed, to be reopened later with them."""
FAILED = 3
"""Exit code if the tracker does not accept points."""
INCOMPLETE = 4
"""Exit code if the run is finished but points were lost."""


@dataclass(frozen=True, kw_only=True)
class RunOpening:
    """Parameters with which a run is opened."""

    backend: str
    project: str
    group: str
    name: str
    config: Mapping[str, Any]
    state: str
    """State file of the run. A backend that writes files puts them into `outputs`."""
    outputs: str
    variables: Mapping[str, str]
    """Environment variables for this process only: the tracker's keys."""
    forks: str | None = None
    """State file of the run whose weights this one continues, from global step `forks_at` on."""
    forks_at: int = 0


class _Warnings(logging.Handler):
    """Counts the warnings with which VeRL's module reports points that MLflow did not accept."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count it if it is about points, and print it."""
        self.lost += "log_metrics failed" in str(record.msg)
        print(record.getMessage(), file=sys.stderr, flush=True)  # noqa: T201


def main(lines: TextIO) -> int:
    """Exit code of the process: 0 if every point was given to the tracker."""
    opening = RunOpening(**json.loads(lines.readline()))
    os.environ.update(opening.variables)
    path = Path(opening.state)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the process that had the run open may still be finishing
        return _feed(opening, path, lines)


def last_step(state: Path) -> int:
    """Last step of a run that was given to its tracker, or -1."""
    return int(_state(state).get("step", -1))


def _feed(opening: RunOpening, path: Path, lines: TextIO) -> int:
    state = {"id": uuid.uuid4().hex, "opened": 0, "step": -1, **_state(path)}
    _prepare(opening, state)
    state["opened"] += 1
    _write(path, state)
    warnings = _Warnings()
    with _opened_alone(opening.backend):
        tracking = OptunaStudy(opening) if opening.backend == OPTUNA else _open(opening, warnings)
    if opening.backend not in tracking.logger:  # VeRL continues without MLflow if it cannot be reached
        return FAILED
    _after_opening(opening, state, tracking)
    _write(path, state)
    refused: dict[int, Mapping[str, float]] = {}  # the consecutive points rejected last
    taken, lost = state["step"], 0
    for line in lines:
        step, values = json.loads(line)
        if step <= state["step"]:
            continue
        for earlier in sorted(refused):
            if not _log(tracking, warnings, earlier, refused[earlier]):
                break
            taken = earlier
            del refused[earlier]
        state["step"] = step
        _write(path, state)
        if _log(tracking, warnings, step, values):
            lost += len(refused)  # rejected twice, and it accepts later points: it rejects these for good
            refused.clear()
            taken = step
        else:
            refused[step] = values
        if len(refused) >= MAX_FAILURES:
            break
    if refused:
        state["step"] = taken
        _write(path, state)  # they are sent again when the run is opened again
        return FAILED
    tracking.finish()
    return INCOMPLETE if lost else 0


class OptunaStudy:
    """The study that mirrors the search, with the interface of VeRL's `Tracking`."""

    def __init__(self, opening: RunOpening) -> None:
        self.logger = {OPTUNA: None}
        self._search = Path(opening.outputs).parent
        self._url = os.environ.get("OPTUNA_STORAGE") or f"sqlite:///{opening.outputs}/optuna.db"

    def log(self, values: Mapping[str, float], step: int) -> None:  # noqa: ARG002
        """Add the phases that have ended.

        Raises:
            ConfigError: the storage cannot be used.
        """
        from llmzero_ray.cli.optuna_study import mirror
        from llmzero_ray.report.facts import SearchFacts
        from llmzero_ray.storage import SearchStorage

        mirror(SearchFacts(SearchStorage.at(self._search)), self._url)

    def finish(self) -> None:
        """No-op: `log` writes at once."""


def _open(opening: RunOpening, warnings: _Warnings) -> Any:
    """VeRL's `Tracking`. If W&B cannot fork a run, the new run is opened without a fork."""
    module = _verl_tracking()
    module.logger.addHandler(warnings)
    given = (opening.project, opening.name, [opening.backend], dict(opening.config))
    try:
        return module.Tracking(*given)
    except Exception as error:
        if os.environ.pop("WANDB_FORK_FROM", None) is None:
            raise
        print(f"not forked: {type(error).__name__}: {error}", file=sys.stderr, flush=True)  # noqa: T201
        import wandb

        wandb.teardown()  # so that it reads the environment again
        os.environ["WANDB_RESUME"] = "allow"
        return module.Tracking(*given)


def _log(tracking: Any, warnings: _Warnings, step: int, values: Mapping[str, float]) -> bool:
    """Log a point. Returns whether the tracker accepted it."""
    before = warnings.lost
    try:
        tracking.log(values, step)
        _flush(tracking)
    except Exception as error:  # noqa: BLE001 - libraries may raise anything
        print(f"step {step}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return False
    return warnings.lost == before


def _prepare(opening: RunOpening, state: Mapping[str, Any]) -> None:
    """Set the environment variables that VeRL and the libraries read. The user's values have precedence."""
    outputs = Path(opening.outputs)
    default = os.environ.setdefault
    run = Path(opening.state).stem.rpartition(".")[0]
    if opening.backend == "wandb":
        outputs.mkdir(parents=True, exist_ok=True)
        os.environ.update(WANDB_RUN_ID=state["id"], WANDB_RUN_GROUP=opening.group)
        if (source := _fork(opening)) and not state["opened"]:
            os.environ["WANDB_FORK_FROM"] = source
        else:
            os.environ["WANDB_RESUME"] = "allow"
        default("WANDB_DIR", str(outputs))
        default("WANDB_CONSOLE", "off")
        default("WANDB_SILENT", "true")
        os.environ.setdefault("WANDB_X_DISABLE_STATS", "true")
    elif opening.backend == "mlflow":
        default("MLFLOW_TRACKING_URI", (outputs / "mlflow").as_uri())
        if os.environ["MLFLOW_TRACKING_URI"].startswith("file:"):
            default("MLFLOW_ALLOW_FILE_STORE", "true")
        os.environ.pop("MLFLOW_RUN_ID", None)
        if "mlflow_run" in state:
            os.environ["MLFLOW_RUN_ID"] = state["mlflow_run"]
    elif opening.backend == "tensorboard":
        base = Path(os.environ.get("TENSORBOARD_DIR") or outputs / "tensorboard")
        os.environ["TENSORBOARD_DIR"] = str(base / opening.group / run)
    elif opening.backend == "file":
        again = f".{state['opened']}" if state["opened"] else ""  # VeRL empties the file that it opens
        base = Path(os.environ.get("VERL_FILE_LOGGER_ROOT") or outputs / "file")
        os.environ["VERL_FILE_LOGGER_PATH"] = str(base / opening.group / f"{run}{again}.jsonl")
        (base / opening.group).mkdir(parents=True, exist_ok=True)
    elif opening.backend == "swanlab":
        default("SWANLAB_LOG_DIR", str(outputs / "swanlab"))


def _fork(opening: RunOpening) -> str | None:
    """Run and step that a W&B run forks from. None if W&B does not have that step."""
    source = {} if opening.forks is None else _state(Path(opening.forks))
    away = os.environ.get("WANDB_MODE", "online") != "online"
    if away or source.get("step", -1) < opening.forks_at:
        return None
    return f"{source['id']}?_step={opening.forks_at}"


@contextlib.contextmanager
def _opened_alone(backend: str) -> Iterator[None]:
    """Context for one process at a time if MLflow writes files. Otherwise processes that request an
    experiment concurrently would each create one of the same name, and only the runs of one would be found.
    MLflow's servers handle this themselves."""
    store = os.environ.get("MLFLOW_TRACKING_URI", "") if backend == "mlflow" else ""
    if not store.startswith("file:"):
        yield
        return
    path = Path(url2pathname(urlsplit(store).path))
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(open(path.with_name(f"{path.name}.lock"), "w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:  # the directory belongs to another user
            print(f"no lock next to {path}: {error}", file=sys.stderr, flush=True)  # noqa: T201
        yield


def _after_opening(opening: RunOpening, state: dict[str, Any], tracking: Any) -> None:
    if opening.backend == "mlflow":
        import mlflow

        active = mlflow.active_run()
        assert active is not None
        state["mlflow_run"] = active.info.run_id
        mlflow.set_tag("search", opening.group)
    elif opening.backend == "tensorboard" and state["opened"] == 1:  # VeRL does not log it there
        text = json.dumps(opening.config, indent=2, default=str)
        tracking.logger["tensorboard"].writer.add_text("config", f"```json\n{text}\n```")


def _flush(tracking: Any) -> None:
    writer = getattr(tracking.logger.get("tensorboard"), "writer", None)
    if writer is not None:
        writer.flush()


def _verl_tracking() -> ModuleType:
    """`verl.utils.tracking` without the rest of its package, whose import loads torch and Ray and takes 20 s
    on a busy machine."""
    package = importlib.util.find_spec("verl")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("verl is not installed on the coordinator's machine")
    path = Path(package.submodule_search_locations[0]) / "utils" / "tracking.py"
    spec = importlib.util.spec_from_file_location("verl_utils_tracking", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _state(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, state: Mapping[str, Any]) -> None:
    new = path.with_suffix(".new")  # not synced: a journal on the same disk must not wait for it
    new.write_text(json.dumps(state), encoding="utf-8")
    os.replace(new, path)


if __name__ == "__main__":
    code = main(sys.stdin)
    sys.stderr.flush()
    os._exit(code) if code == FAILED else sys.exit(code)
