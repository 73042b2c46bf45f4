"""One death each, on a cluster of several machines, with commands as a user gives them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.names import name_on_cluster, runner_name
from llmzero_ray.config import SearchConfig
from llmzero_ray.records import events as ev
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import load_points
from llmzero_ray.storage.presence import owner
from llmzero_ray.tasks.prepare import prepare
from tests.waiting import PATIENCE_S

from .checks import broken
from .lab import Command, Lab, until
from .trial import scripted_config
from .witness import Witness

pytestmark = pytest.mark.slow

N_VAL = 32


@pytest.fixture(scope="module")
def task_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("task") / "echo"
    prepare(dir=directory, family="echo", n_train=64, n_val=N_VAL, n_test=64, seed=1, make_model=False)
    return directory


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


class Search:
    """One search by the command line, and who watches it."""

    def __init__(self, lab: Lab, config: SearchConfig) -> None:
        self.lab, self.config = lab, config
        self.storage = SearchStorage(config.storage, config.name)
        self.witness = Witness(self.storage)
        self.path = Path(config.storage) / f"{config.name}.yaml"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(config.to_yaml())
        self.command = self.start(self.path)

    def start(self, *words: object) -> Command:
        return self.lab.command("jobs.search", *words)

    def until_step(self, node: int, step: int) -> None:
        def reached() -> bool:
            return any(
                run.node == node and self.witness.step(node) >= step for run in self.witness.training()
            )

        assert self.witness.until(reached, within_s=PATIENCE_S), self.command.output

    def to_its_end(self, command: Command) -> None:
        assert until(lambda: not command.running, within_s=PATIENCE_S), command.output
        assert command.process.returncode == 0, command.output
        self.witness.look()
        assert until(lambda: not self.lab.left_over(self.config.name), within_s=PATIENCE_S, look_s=0.5)
        assert broken(self.witness, n_val=N_VAL) == []


def start(
    lab: Lab,
    name: str,
    tmp_path: Path,
    task_dir: Path,
    *,
    hold: list[int],
    hold_at: int,
    slots: int = 1,
    runs: int = 3,
) -> Search:
    """A search without verdicts, whose nodes in `hold` wait after that step until they are released."""
    script = {"hold": hold, "hold_at": hold_at, "hold_until": str(tmp_path / "released-{node}")}
    config = scripted_config(
        name, tmp_path / "runs", task_dir, slots=slots, runs=runs, script=script, verdicts=False
    )
    patient = config.engine.model_copy(update={"hang_min_s": None})  # a phase that is held is not a hang
    return Search(lab, config.model_copy(update={"engine": patient}))


def release(tmp_path: Path, *nodes: int) -> None:
    """Let these nodes go on."""
    for node in nodes:
        (tmp_path / f"released-{node}").touch()


def test_a_search_whose_command_is_killed_goes_on_and_is_followed_with_its_own_settings_alone(
    lab: Lab, tmp_path: Path, task_dir: Path
) -> None:
    search = start(lab, "driver", tmp_path, task_dir, hold=[0, 1], hold_at=4)
    search.until_step(0, 4)
    search.command.kill()
    release(tmp_path, 0)
    search.until_step(1, 4)
    other = search.start("--resume", search.storage.paths.root, "--set", "budget.runs=9")
    assert until(lambda: not other.running, within_s=PATIENCE_S)
    assert other.process.returncode == 2
    (output,) = [line for line in other.output.splitlines() if line.startswith("llmzero:")]
    assert "driver is running with other settings" in output
    assert "budget.runs=9" in other.output and "Traceback" not in other.output
    again = search.start("--resume", search.storage.paths.root)
    assert until(lambda: "following" in again.output, within_s=PATIENCE_S), again.output
    release(tmp_path, 1)
    search.to_its_end(again)
    assert again.output.count("is working on it; following") == 1
    assert len(search.witness.core.search.nodes) == 3
    events = search.witness.follower.events
    assert [type(event) for event in events].count(ev.CoordinatorStarted) == 1
    assert [event for event in events if isinstance(event, ev.RunnerLost)] == []


def test_a_search_whose_cluster_is_gone_is_resumed_on_another_one(
    lab: Lab, tmp_path: Path, task_dir: Path
) -> None:
    search = start(lab, "head", tmp_path, task_dir, hold=[1], hold_at=11)
    search.until_step(1, 11)
    search.command.kill()
    lab.power_off()
    assert owner(search.storage.paths.root) is None
    lab.power_on()
    search.to_its_end(search.start("--resume", search.storage.paths.root))
    (lost,) = [event for event in search.witness.follower.events if isinstance(event, ev.RunnerLost)]
    assert (lost.node, lost.restart_step >= 10) == (1, True)
    assert [run.attempt for run in search.witness.core.runs.values()] == [0, 1, 0]


def test_a_lost_machine_takes_its_own_slot_along_and_no_other_one(
    lab: Lab, tmp_path: Path, task_dir: Path
) -> None:
    search = start(lab, "machine", tmp_path, task_dir, hold=[1, 2], hold_at=4, slots=2, runs=4)
    search.until_step(1, 4)
    search.until_step(2, 4)
    slots = {run.slot: run.node for run in search.witness.training()}
    assert sorted(slots.values()) == [1, 2]
    lost_slot, kept_slot = sorted(slots)
    slots_name = name_on_cluster(search.storage.paths.root)
    lab.kill_machine(lab.actors()[runner_name(slots_name, lost_slot)].machine)
    lab.add_machine()
    release(tmp_path, 1, 2)
    search.to_its_end(search.command)
    runs = search.witness.core.runs
    assert (runs[slots[lost_slot]].attempt, runs[slots[kept_slot]].attempt) == (1, 0)
    for node in (1, 2):
        steps = [point.step for point in load_points(search.storage, node)]
        assert steps == list(range(steps[0], runs[node].spec.n_steps + 1)) and steps[0] <= 1
