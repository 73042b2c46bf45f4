"""Slots on several machines: distinct ones, lost ones, and too few of them."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray.cluster_utils import Cluster

from actors import placement
from actors.names import NAMESPACE, group_name
from actors.placement import Placement
from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import CapacityError
from llmzero_ray.launch.nodes import nodes_up
from llmzero_ray.launch.preflight import check_machines, check_slots
from llmzero_ray.prepared import load_task
from llmzero_ray.records import events as ev
from tests.searches import CHECKOUT, scripted_search
from tests.waiting import PATIENCE_S, wait_for_ray_nodes, wait_until

from .conftest import Search, left_over

MakeSearch = Callable[..., Search]


@pytest.fixture(scope="module")
def head() -> Iterator[Any]:
    """A head without GPUs and two machines with two each."""
    wait_for_ray_nodes()
    temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    (Path(temporary) / "ray").mkdir()
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_TMPDIR", temporary)
    fast = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 3,
    }
    head = {"num_cpus": 4, "_system_config": fast, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=8, num_gpus=2)
    cluster.add_node(num_cpus=8, num_gpus=2)
    ray.init(cluster.address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    patch.undo()
    shutil.rmtree(temporary, ignore_errors=True)


def reserved(config: SearchConfig) -> tuple[str, ...]:
    """The groups of the one slot, once they are created."""
    groups = asyncio.run(Placement(config.name).reserve(config, 0))
    assert groups is not None
    return groups


def machines_of(groups: tuple[str, ...]) -> list[set[str]]:
    """For each group the nodes its bundles are on."""
    table = ray.util.placement_group_table()
    return [set(table[group]["bundles_to_node_id"].values()) for group in groups]


@pytest.mark.slow
def test_the_groups_of_one_slot_lie_on_distinct_machines(make_search: MakeSearch) -> None:
    config = make_search(slots={"nodes": 2, "gpus_per_node": 1, "cpus_per_gpu": 2, "timeout_s": 600.0}).config
    groups = reserved(config)
    first, second = machines_of(groups)
    assert (len(first), len(second), len(first | second)) == (1, 1, 2)
    assert reserved(config) == groups
    placement.remove_groups(config.name)


@pytest.mark.slow
def test_groups_that_share_a_machine_after_a_loss_are_parted(make_search: MakeSearch) -> None:
    config = make_search(slots={"nodes": 2, "gpus_per_node": 1, "cpus_per_gpu": 2, "timeout_s": 600.0}).config
    groups = reserved(config)
    _, second = machines_of(groups)
    ray.util.remove_placement_group(placement.group_of(groups[0]))
    # Ray itself knows nothing of a second group, so it may put the first one beside it.
    together = {"ray.io/node-id": next(iter(second))}
    name = group_name(config.name, 0, 0)
    misplaced = ray.util.placement_group(
        [{"GPU": 1, "CPU": 2}], name=name, lifetime="detached", bundle_label_selector=[together]
    )
    assert misplaced.wait(PATIENCE_S)
    again = machines_of(reserved(config))
    assert again[0] != again[1]
    placement.remove_groups(config.name)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["at the start", "for a slot that is added or lost its machines"])
def test_all_machines_of_a_slot_are_asked_for_at_once(make_search: MakeSearch, head: Any, when: str) -> None:
    """Asked for one after the other, an autoscaler would boot them one after the other."""
    config = make_search(slots={"nodes": 4, "gpus_per_node": 2, "cpus_per_gpu": 2, "timeout_s": 600.0}).config
    names = [group_name(config.name, 0, machine) for machine in range(4)]
    hardware = Placement(config.name)

    def asked_for() -> dict[str, str]:
        table = [group for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"]
        return {group["name"]: group["state"] for group in table if group["name"] in names}

    async def reserve_with_late_machines() -> tuple[dict[str, str], Any]:
        start = hardware.reserve_all(config) if when == "at the start" else hardware.reserve(config, 0)
        reserving = asyncio.create_task(start)
        while len(found := asked_for()) < 4 or list(found.values()).count("CREATED") < 2:
            assert not reserving.done()
            await asyncio.sleep(0.05)
        late.extend(head.add_node(num_cpus=8, num_gpus=2) for _ in range(2))
        await reserving
        return found, await hardware.reserve(config, 0)

    late: list[Any] = []
    try:
        found, groups = asyncio.run(asyncio.wait_for(reserve_with_late_machines(), PATIENCE_S))
        assert sorted(found.values()) == ["CREATED", "CREATED", "PENDING", "PENDING"]
        assert len(set().union(*machines_of(groups))) == 4
    finally:
        placement.remove_groups(config.name)
        for node in late:
            head.remove_node(node)
        wait_until(lambda: sum(node["Alive"] for node in ray.nodes()) == 3)  # the head and two machines


@pytest.mark.slow
def test_more_machines_than_there_are_is_refused_and_gives_everything_back(make_search: MakeSearch) -> None:
    search = make_search(slots={"nodes": 3, "gpus_per_node": 1, "timeout_s": 5.0})
    with pytest.raises(CapacityError, match=r"within 5 s.*1 slot\(s\) of 3 machine\(s\)"):
        asyncio.run(Placement(search.on_cluster).reserve_all(search.config))
    assert left_over(search) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "slots",
    [
        {"gpus_per_node": 4},
        {"nodes": 3},
        {"count": 3, "gpus_per_node": 2},
        {"gpus_per_node": 2, "cpus_per_gpu": 5},
    ],
)
def test_slots_that_no_machine_can_ever_hold_are_refused_by_name(
    make_search: MakeSearch, head: Any, slots: dict[str, int]
) -> None:
    config = make_search(slots={"gpus_per_node": 1, "cpus_per_gpu": 2, "timeout_s": 600.0, **slots}).config
    with pytest.raises(CapacityError, match=r"even with nothing else on them.*The largest is .* with 2 GPUs"):
        check_slots(config)


@pytest.mark.slow
def test_slots_that_fit_once_others_have_gone_are_waited_for(make_search: MakeSearch, head: Any) -> None:
    config = make_search(slots={"count": 2, "gpus_per_node": 2, "cpus_per_gpu": 2}).config
    taken = ray.util.placement_group([{"GPU": 2}], strategy="STRICT_PACK")
    assert taken.wait(PATIENCE_S)
    check_slots(config)
    ray.util.remove_placement_group(taken)
    failed = next(node["NodeID"] for node in ray.nodes() if node["Alive"] and "GPU" in node["Resources"])
    with pytest.raises(CapacityError, match=r"2 slot\(s\) of 1 machine\(s\)"):
        check_slots(config, {failed})


@pytest.mark.slow
def test_where_machines_are_added_on_demand_any_slot_is_waited_for(
    make_search: MakeSearch, head: Any
) -> None:
    config = make_search(slots={"gpus_per_node": 8}).config
    # As `ray up` and KubeRay name the group of the machines that they start.
    grown = head.add_node(num_cpus=1, labels={"ray.io/node-group": "workers"})
    try:
        check_slots(config)
    finally:
        head.remove_node(grown)
        wait_until(lambda: sum(node["Alive"] for node in ray.nodes()) == 3)
    with pytest.raises(CapacityError, match="none is added on demand"):
        check_slots(config)


@pytest.mark.slow
def test_a_command_on_a_cluster_that_is_too_small_ends_at_once_and_reserves_nothing(
    make_search: MakeSearch, head: Any, tmp_path: Path, task_dir: Path
) -> None:
    content = scripted_search(
        tmp_path, task_dir, name="too-large", slots={"gpus_per_node": 4, "timeout_s": 600.0}
    )
    (tmp_path / "search.yaml").write_text(yaml.safe_dump(content))
    done = subprocess.run(
        [sys.executable, "-m", "jobs.search", str(tmp_path / "search.yaml")],
        cwd=CHECKOUT,
        env={**os.environ, "RAY_ADDRESS": head.address},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == CapacityError.exit_code, done.stdout + done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "The largest is" in said and "Nothing is reserved" in said
    table = ray.util.placement_group_table().values()
    assert [group for group in table if "too-large" in group["name"]] == []


@pytest.mark.slow
def test_machines_that_cannot_train_are_refused_together_before_anything_is_reserved(
    make_search: MakeSearch, head: Any, task_dir: Path
) -> None:
    """Neither has the vLLM of GPUs here, and the task is where no machine sees it."""
    search = make_search(engine={"backend": "verl", "platform": "gpu"}, slots={"gpus_per_node": 2})
    task = load_task(task_dir)
    labels = [node.label for node in nodes_up() if node.gpus]
    Path(search.config.storage, search.config.name).mkdir(parents=True, exist_ok=True)
    with pytest.raises(CapacityError, match=r"2 of 2 machine\(s\) with GPUs cannot train") as refused:
        check_machines(search.config, task)
    said = str(refused.value)
    assert all(f"{label}: vllm 0.27" in said for label in labels) and "needs 0.24" in said
    unseen = dataclasses.replace(task, directory="/only/here")
    with pytest.raises(CapacityError, match="does not see /only/here; storage, task and model must"):
        check_machines(search.config, unseen)
    assert left_over(search) == []


@pytest.mark.slow
def test_the_machine_of_a_failed_card_is_used_no_more(make_search: MakeSearch) -> None:
    config = make_search(slots={"gpus_per_node": 2, "cpus_per_gpu": 2, "timeout_s": 600.0}).config
    nothing = asyncio.run(Placement(config.name).avoidable_machine_of(config, 0))
    (there,) = machines_of(reserved(config))
    node = asyncio.run(Placement(config.name).avoidable_machine_of(config, 0))
    assert node is not None
    assert (nothing, {node}) == (None, there)
    # As a coordinator that takes over: the journal's nodes are known, and the group is still there.
    hardware = Placement(config.name, avoided=lambda: {node})
    groups = asyncio.run(hardware.reserve(config, 0))
    assert groups is not None
    (elsewhere,) = machines_of(groups)
    assert elsewhere.isdisjoint(there)
    # There is no third machine: the slot keeps the one it has.
    assert asyncio.run(hardware.avoidable_machine_of(config, 0)) is None
    assert machines_of(reserved(config)) == [elsewhere]
    placement.remove_groups(config.name)


@pytest.mark.slow
def test_too_few_machines_without_those_of_failed_cards_names_them_and_the_cure(
    make_search: MakeSearch,
) -> None:
    search = make_search(slots={"count": 2, "gpus_per_node": 2, "cpus_per_gpu": 2, "timeout_s": 3.0})
    failed = next(node["NodeID"] for node in ray.nodes() if node["Alive"] and "GPU" in node["Resources"])
    hardware = Placement(search.on_cluster, avoided=lambda: {failed})
    with pytest.raises(CapacityError, match=f"because a card failed there: {failed}. .*another id"):
        asyncio.run(hardware.reserve_all(search.config))
    assert left_over(search) == []


@pytest.mark.slow
def test_cpus_that_verl_needs_beside_the_slots_are_counted(make_search: MakeSearch) -> None:
    engine = {"backend": "verl", "platform": "gpu"}
    search = make_search(engine=engine, slots={"count": 2, "gpus_per_node": 2, "timeout_s": 8.0})
    with pytest.raises(CapacityError, match="only 8 CPUs are free next to them and VeRL needs 12"):
        asyncio.run(Placement(search.on_cluster).reserve_all(search.config))
    assert left_over(search) == []


@pytest.mark.slow
def test_a_lost_machine_costs_its_phase_one_repeat_on_the_machine_that_replaces_it(
    make_search: MakeSearch, head: Any
) -> None:
    search = make_search(
        {"hold": [0]},
        budget={"runs": 2},
        phase={"n_steps": 40},
        slots={"gpus_per_node": 2, "cpus_per_gpu": 2},
    ).start()
    search.until_step(0, 3)
    (group,) = [g for g in ray.util.placement_group_table().values() if search.on_cluster in g["name"]]
    (node_id,) = set(group["bundles_to_node_id"].values())
    (node,) = [node for node in head.worker_nodes if node.node_id == node_id]
    others = [entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)]
    assert f"runner-{search.on_cluster}-slot0" in others
    head.remove_node(node, allow_graceful=False)
    core = search.wait()
    head.add_node(num_cpus=8, num_gpus=2)
    assert core.finished is not None, core.interrupted
    assert (core.runs[0].attempt, core.runs[0].losses) == (1, 1)
    assert len(search.events(ev.RunnerLost)) == 1
