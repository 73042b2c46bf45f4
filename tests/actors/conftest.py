"""A small prepared task, and searches with the scripted engine on it and the shared head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from actors import app
from actors.names import name_on_cluster
from llmzero_ray.config import SearchConfig, parse_config
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.prepared import PreparedTask, load_task
from llmzero_ray.storage import SearchStorage
from llmzero_ray.tasks.prepare import prepare
from tests.builders import with_blocks
from tests.searches import scripted_search
from tests.waiting import wait_until


@pytest.fixture(scope="session")
def task_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("task") / "echo"
    prepare(dir=directory, family="echo", n_train=64, n_val=32, n_test=64, seed=1, make_model=False)
    return directory


class Search:
    """One search with the scripted engine, as the command line runs it, on the head of the tests."""

    def __init__(self, config: SearchConfig, task: PreparedTask) -> None:
        self.config, self.task = config, task
        self.storage = SearchStorage(config.storage, config.name)
        self.follower = Follower(self.storage)
        self.running: app.Running | None = None

    @property
    def root(self) -> Path:
        return self.storage.paths.root

    @property
    def on_cluster(self) -> str:
        """Its name on the cluster."""
        return name_on_cluster(self.root)

    @property
    def core(self) -> Any:
        """State as of now."""
        self.follower.poll()
        return self.follower.core

    def start(self) -> Search:
        self.storage.check()
        self.storage.adopt_config(self.config)
        self.running = app.start_on(self.config, self.task, private_head=False)
        return self

    def wait(self) -> Any:
        """Until it has ended or was interrupted; the state then."""
        assert self.running is not None
        running = self.running
        self.until(lambda: app.has_joined(running))
        return self.core

    def until(self, happened: Callable[[], bool]) -> None:
        wait_until(happened, lambda: f"{self.core.stage}, {self.log()}")

    def until_step(self, node: int, step: int) -> None:
        """Until that step of a running phase is on the disk."""

        def reached() -> bool:
            if node not in self.core.runs:
                return False
            point, _ = self.follower.newest(node)
            return point is not None and point.step >= step

        self.until(reached)

    def events(self, kind: type) -> list[Any]:
        self.follower.poll()
        return [event for event in self.follower.events if isinstance(event, kind)]

    def log(self) -> str:
        paths = self.storage.paths.logs.glob("*.log")
        return "\n".join(path.read_text() for path in paths)


@pytest.fixture
def make_search(head: str, task_dir: Path, tmp_path: Path) -> Iterator[Callable[..., Search]]:
    """Searches of 3 runs of 10 steps by default; their actors and placement groups are removed afterwards."""
    made: list[Search] = []

    def make(script: dict[str, Any] | None = None, **blocks: Any) -> Search:
        name = f"s{len(made)}-{tmp_path.name[-12:].lower().strip('_-')}"
        ours = {
            "name": name,
            "budget": {"runs": 3},
            "final": {"test": False, "default_recipe": False},
        }
        content = scripted_search(tmp_path, task_dir, script, **with_blocks(ours, blocks))
        search = Search(parse_config(content), load_task(task_dir))
        made.append(search)
        return search

    yield make
    for search in made:
        app.clean_up(search.root)


def pids_of(actor: str) -> list[int]:
    """Processes of an actor class on this head, by Ray's own table: the title of a process is at times the
    name of its current call."""
    alive = ray._private.state.actors(actor_state_name="ALIVE").values()
    return [found["Pid"] for found in alive if found["ActorClassName"] == actor]


def left_over(search: Search) -> list[str]:
    """Actors and placement groups of a search that are still there."""
    actors = [entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)]
    groups = [
        group["name"] for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"
    ]
    return [name for name in (*actors, *groups) if search.on_cluster in name]
