"""The Grafana dashboard and the PodMonitor in deploy/ name what a search exports and what KubeRay opens."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.gauges import Gauges

DEPLOY = Path(__file__).parent.parent / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "llmzero.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
_SERIES = re.compile(r'max by \(([\w, ]+)\) \(ray_llmzero_(\w+)\{search=~"\$search"\}\)')


def exported() -> dict[str, tuple[str, ...]]:
    """Name of each gauge of a search, without its prefix -> its labels."""
    found: dict[str, tuple[str, ...]] = {}

    class Recorded:
        def __init__(self, name: str, _: str, tag_keys: tuple[str, ...]) -> None:
            found[name.removeprefix("llmzero_")] = tag_keys

        def set_default_tags(self, _: dict[str, str]) -> None:
            """Nothing is exported."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray.util.metrics.Gauge", Recorded)
        Gauges("demo")
    return found


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_asks_for_series_and_labels_that_a_search_exports(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        found = _SERIES.fullmatch(target["expr"])
        assert found is not None, target["expr"]
        by, name = found[1].split(", "), found[2]
        assert sorted(by) == sorted(exported()[name])
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) == set(by)


def test_every_series_of_a_search_has_a_panel() -> None:
    shown = set(re.findall(r"ray_llmzero_(\w+)", json.dumps(PANELS)))
    assert shown == set(exported())


def test_the_dashboards_variables_are_those_that_it_uses() -> None:
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(?!__)(\w+)", json.dumps(DASHBOARD)))
    assert used == set(variables)
    (name, label) = re.fullmatch(
        r"label_values\(ray_llmzero_(\w+), (\w+)\)", variables["search"]["query"]
    ).groups()
    assert label in exported()[name]


def test_panels_have_places_of_their_own() -> None:
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in PANELS)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken)) and max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_the_pod_monitor_reads_the_port_that_kuberay_opens_on_every_ray_pod() -> None:
    monitor = yaml.safe_load((DEPLOY / "k8s" / "podmonitor.yaml").read_text())
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor")
    spec = monitor["spec"]
    assert set(spec) == {"selector", "podTargetLabels", "podMetricsEndpoints"}
    (chosen,) = spec["selector"]["matchExpressions"]
    assert chosen == {"key": "ray.io/node-type", "operator": "In", "values": ["head", "worker"]}
    (endpoint,) = spec["podMetricsEndpoints"]
    assert endpoint["port"] == "metrics"
    cluster = yaml.safe_load((DEPLOY / "k8s" / "raycluster.yaml").read_text())["spec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        # KubeRay adds the port where the container names none, unless Ray is told another one.
        assert "metrics-export-port" not in group["rayStartParams"]
        named = {port["name"] for port in group["template"]["spec"]["containers"][0].get("ports", ())}
        assert "metrics" not in named
