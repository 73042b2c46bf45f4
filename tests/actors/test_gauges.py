"""What Ray's metrics endpoint and state API say of a search, read as Prometheus and people read them."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from actors.gauges import ACTIONS, STATUSES, Gauges
from actors.names import NAMESPACE, actor_options, stopper_name
from actors.stopper import StopperActor, start_stopper
from llmzero_ray.coordinator import CoordinatorCore
from llmzero_ray.records import Event
from llmzero_ray.records import events as ev
from llmzero_ray.storage import SearchPaths, SearchStorage
from tests.builders import ROOT, Driver, make_config
from tests.test_dashboard import exported
from tests.waiting import PATIENCE_S, wait_for_ray_nodes, wait_until

pytestmark = pytest.mark.slow

_LINE = re.compile(r"^ray_llmzero_(?P<name>\w+)\{(?P<labels>[^}]*)\} (?P<value>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_OURS = ("search", "status", "action", "use", "node")
NEWEST = {1: {"step": 10.0}, 2: {"step": 12.0, "reward": 0.4, "kl": 0.002, "val_score": 0.55}}
"""What runners said of a phase that has ended, and of one that trains."""
Series = dict[tuple[str, ...], float]
"""(name, search, our other label if there is one) -> value."""


@pytest.fixture(scope="module")
def head() -> Iterator[str]:
    """A private head that exports often; the address of its state API. This process exports nothing."""
    wait_for_ray_nodes()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_enable_open_telemetry", "1")
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 4,
                "include_dashboard": True,
                "dashboard_port": 0,
                "_system_config": {"metrics_report_interval_ms": 300},
            },
        )
    try:
        ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
        yield f"http://{cluster.head_node.webui_url}"
    finally:
        ray.shutdown()
        cluster.shutdown()


class Exporter:
    """A process that shows what a search looks like after some events, as its coordinator does."""

    def __init__(self, search: str) -> None:
        self._gauges = Gauges(search)

    def show(
        self, events: list[Event], busy: float, idle: float, newest: Mapping[int, Mapping[str, float]]
    ) -> str:
        core = CoordinatorCore(SearchPaths(root=ROOT))
        for event in events:
            core.apply(event)
        for _ in range(2):
            self._gauges.observe(core, busy_gpu_hours=busy, idle_gpu_hours=idle, newest=newest)
        worker: str = ray.get_runtime_context().get_worker_id()
        return worker


def scraped(worker: str) -> Series:
    """Our series of one process, as the node's endpoint serves them."""
    node = ray.nodes()[0]
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    text = urllib.request.urlopen(url, timeout=PATIENCE_S).read().decode()
    found: Series = {}
    for line in _LINE.finditer(text):
        labels = dict(_LABEL.findall(line["labels"]))
        if labels["WorkerId"] == worker:
            key = (line["name"], *(labels[name] for name in _OURS if name in labels))
            assert key not in found, f"two series differ in a label that is not ours: {line[0]}"
            found[key] = float(line["value"])
    return found


def scraped_when(worker: str, complete: Callable[[Series], bool]) -> Series:
    """The series once they are as awaited."""
    wait_until(lambda: complete(scraped(worker)), lambda: scraped(worker), every_s=0.2)
    return scraped(worker)


def searched() -> Driver:
    """The root failed, its repair completed, a third phase trains; two calls of an agent."""
    driver = Driver()
    driver.ready()
    driver.start(0)
    driver.fail(0)
    driver.propose(1)
    driver.train(1, score=0.5)
    driver.propose(2)
    driver.start(2)
    for i, agent in enumerate(("proposer", "error_analyzer")):
        driver.post(
            ev.AgentCalled(
                node=1, agent=agent, call="c", outcome="ok", model="m", prompt="p", dollars=0.25, sequence=i
            )
        )
    return driver


def test_the_endpoint_serves_the_state_under_few_labels_and_follows_it(head: str) -> None:
    driver = searched()
    exporter = ray.remote(Exporter).options(**actor_options("exporter-demo")).remote("demo")
    worker = ray.get(exporter.show.remote(driver.journal, 1.5, 0.25, NEWEST))
    n_series = len(STATUSES) + len(ACTIONS) + 2 + 3
    found = scraped_when(worker, lambda series: len(series) == n_series + len(NEWEST[2]))
    phases = {"pending": 0, "running": 1, "completed": 1, "early_stopped": 0, "failed": 1, "cancelled": 0}
    actions = {"root": 1, "evolve": 1, "debug": 1, "scratch": 0, "clone": 0, "stop": 0}
    assert found == {
        **{("phases", "demo", status): n for status, n in phases.items()},
        **{("decisions", "demo", action): n for action, n in actions.items()},
        ("best_val_score", "demo"): 0.5,
        ("gpu_hours", "demo", "busy"): 1.5,
        ("gpu_hours", "demo", "idle"): 0.25,
        ("agent_calls", "demo"): 2,
        ("agent_dollars", "demo"): 0.5,
        **{(f"phase_{name}", "demo", "2"): value for name, value in NEWEST[2].items()},
    }
    assert {name for name, *_ in found} == set(exported())

    driver.finish(2, score=0.7)
    ray.get(exporter.show.remote(driver.journal, 2.0, 0.5, NEWEST))
    later = scraped_when(
        worker, lambda series: series["gpu_hours", "demo", "busy"] == 2.0 and len(series) == n_series
    )
    assert later["phases", "demo", "running"] == 0
    assert later["phases", "demo", "completed"] == 2
    assert later["best_val_score", "demo"] == 0.7
    assert len(later) == n_series

    ray.kill(exporter)
    again = ray.remote(Exporter).remote("demo")
    restarted = ray.get(again.show.remote(driver.journal, 2.0, 0.5, {}))
    assert scraped_when(restarted, lambda series: len(series) == n_series) == later
    ray.kill(again)


def test_a_search_without_a_score_exports_none(head: str) -> None:
    driver = Driver()
    driver.ready()
    exporter = ray.remote(Exporter).remote("young")
    worker = ray.get(exporter.show.remote(driver.journal, 0.0, 0.0, {}))
    found = scraped_when(worker, lambda series: len(series) == len(STATUSES) + len(ACTIONS) + 4)
    assert found["phases", "young", "pending"] == 1
    assert ("best_val_score", "young") not in found
    ray.kill(exporter)


def test_the_stopper_names_its_search_in_the_state_api(head: str, tmp_path: Path) -> None:
    from ray.util.state import list_actors

    config = make_config(storage=str(tmp_path))
    paths = SearchStorage(str(tmp_path), config.name).paths
    paths.logs.mkdir(parents=True)
    stopper = start_stopper(config, str(tmp_path), 100, {})
    ray.get(stopper.set_incumbent.remote((), 0.0))  # it is there
    (listed,) = list_actors(address=head, filters=[("name", "=", stopper_name(paths.root))], detail=True)
    assert listed.repr_name == "StopperActor(search=demo)"
    assert listed.class_name == StopperActor.__name__
    ray.kill(stopper)
