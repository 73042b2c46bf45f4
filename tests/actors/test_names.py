"""Searches of one name in two storages on one cluster: none ends or uses what belongs to the other. Ray is a
list of names here."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import ray

from actors import app
from actors.monitor import SearchMonitor
from actors.names import coordinator_name, group_name, name_on_cluster, runner_name, stopper_name
from actors.runner_pool import RunnerPool
from llmzero_ray.cli import stop as stop_command
from llmzero_ray.config import parse_config
from llmzero_ray.launch import actors
from llmzero_ray.prepared import load_task
from llmzero_ray.records import Event
from llmzero_ray.storage import SearchStorage
from tests.builders import Driver, make_config
from tests.searches import scripted_search


class Cluster:
    """Names on a cluster that outlives its commands."""

    def __init__(self, *roots: Path) -> None:
        self.actors = {name for root in roots for name in actors_of(root)}
        self.groups = {group_name(name_on_cluster(root), 0, 0) for root in roots}

    def end_actor(self, name: str, only: Any = None) -> bool:
        found = name in self.actors
        self.actors.discard(name)
        return found

    def remove_groups(self, slots: str, slot: int | None = None) -> None:
        self.groups -= {group_name(slots, 0, 0)}


def actors_of(root: Path) -> set[str]:
    return {coordinator_name(root), stopper_name(root), runner_name(name_on_cluster(root), 0)}


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "a" / "demo", tmp_path / "b" / "demo"


@pytest.fixture
def cluster(roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster(*roots)
    monkeypatch.setattr(app, "end_actor", found.end_actor)
    monkeypatch.setattr(app, "remove_groups", found.remove_groups)
    listed = lambda all_namespaces: [{"name": name} for name in sorted(found.actors)]  # noqa: E731
    monkeypatch.setattr(ray.util, "list_named_actors", listed)
    return found


def test_a_search_is_recognized_by_its_name_and_found_by_each_path(
    roots: tuple[Path, Path], cluster: Cluster, tmp_path: Path
) -> None:
    """A path to a copy leads to the copy, although its search.yaml names the other storage."""
    mine, other = roots
    assert name_on_cluster(mine).startswith("demo-")
    SearchStorage(mine.parent, "demo").adopt_config(make_config(storage=str(mine.parent)))
    shutil.copytree(mine, other)
    (tmp_path / "latest").symlink_to(mine)
    (tmp_path / "link").symlink_to(mine.parent)
    for path in (tmp_path / "latest", tmp_path / "link" / "demo", other / ".." / ".." / "a" / "demo"):
        cluster.actors |= actors_of(mine)
        assert set(app.clean_up(path)) == actors_of(mine)
    assert cluster.actors == actors_of(other)
    assert set(app.clean_up(other)) == actors_of(other)


def test_a_moved_search_is_found_by_each_path(
    roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = roots
    SearchStorage(old.parent, "demo").adopt_config(make_config(storage=str(old.parent)))
    old.parent.rename(new.parent)
    (new.parent / "link").symlink_to(new.parent)
    (new.parent / "latest").symlink_to("demo")
    monkeypatch.chdir(new.parent)
    spellings = ["demo", "./demo/", "link/demo", "latest", "demo/../demo", str(new), "link/link/demo/../demo"]
    for spelling in spellings:
        assert SearchStorage.at(spelling).recorded_root() == new, spelling
        by_parts = SearchStorage(Path(spelling).parent, Path(spelling).name)
        assert actors_of(by_parts.recorded_root()) == actors_of(new), spelling


def test_machines_that_see_the_storage_differently_agree_on_the_names(tmp_path: Path) -> None:
    """A link on one machine may be a mount point on another."""
    shared = tmp_path / "shared"
    (tmp_path / "nfs1").mkdir()
    shared.symlink_to("nfs1")
    storage = SearchStorage(shared, "demo")
    storage.adopt_config(make_config(storage=str(shared)))
    by_link = actors_of(storage.recorded_root())
    shared.unlink()
    (tmp_path / "nfs1").rename(shared)
    assert actors_of(storage.recorded_root()) == by_link


def test_stop_ends_no_actor_of_a_search_of_that_name_elsewhere(
    roots: tuple[Path, Path], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if its directory is a copy, whose search.yaml names the other storage."""
    mine, other = roots
    monkeypatch.setattr(actors.head, "join_if_there", lambda: True)
    stop_command._remove_actors(mine)
    assert (cluster.actors, cluster.groups) == (actors_of(other), {group_name(name_on_cluster(other), 0, 0)})


def test_a_start_ends_an_old_coordinator_of_its_own_directory_only(
    roots: tuple[Path, Path], cluster: Cluster, task_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = roots

    def remote(made: type) -> None:
        raise RuntimeError("reached")

    monkeypatch.setattr(app.ray, "remote", remote)
    link = mine.parent.with_name("link")
    link.symlink_to(mine.parent)
    SearchStorage(mine.parent, "demo").adopt_config(make_config(storage=str(mine.parent)))
    content = scripted_search(mine.parent, task_dir, None, name="demo", storage=str(link))
    with pytest.raises(RuntimeError, match="reached"):
        app.start_on(parse_config(content), load_task(task_dir), private_head=False)
    assert cluster.actors == (actors_of(mine) | actors_of(other)) - {coordinator_name(mine)}


def test_metrics_of_a_search_are_its_own(roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    labels: list[str] = []

    class Gauge:
        def __init__(self, *_: Any, **__: Any) -> None:
            """Nothing is exported."""

        def set_default_tags(self, tags: dict[str, str]) -> None:
            labels.append(tags["search"])

    async def post(_: Event) -> None:
        """Nothing is posted."""

    monkeypatch.setattr("ray.util.metrics.Gauge", Gauge)
    for root in roots:
        SearchMonitor(Driver().core, post, root, (), {})
    assert list(dict.fromkeys(labels)) == [name_on_cluster(root) for root in roots]


def test_slots_of_a_search_are_its_own_and_held_ones_are_called_as_their_holder_says(
    roots: tuple[Path, Path],
) -> None:
    pools = [RunnerPool("demo", str(root.parent), make_config, fixed_capacity=False) for root in roots]
    assert [pool._slots for pool in pools] == [name_on_cluster(root) for root in roots]
    holder = RunnerPool("lane-0", "/tmp", make_config, fixed_capacity=False, holder=True)
    user = RunnerPool("demo", "/tmp", make_config, fixed_capacity=False, held_slots="lane-0")
    assert (holder._slots, user._slots) == ("lane-0", "lane-0")
