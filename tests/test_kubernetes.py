"""deploy/k8s holds what KubeRay accepts, and agrees with cluster.yaml on everything that both say.

The schema is that of the custom resource definitions of KubeRay 1.5.1 (ray.io/v1), the oldest version with
token authentication.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

ROOT = Path(__file__).parent.parent
K8S = ROOT / "deploy" / "k8s"
Manifest = dict[str, Any]

SCHEMA: Manifest = json.loads((ROOT / "tests" / "data" / "kuberay_1.5.1_rayjob.json").read_text())


def closed(schema: Any) -> Any:
    """The schema, with unknown fields refused, as by an API server that is asked to be strict."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    keeps_unknown = "x-kubernetes-preserve-unknown-fields" in schema or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and "type" in schema and not keeps_unknown:
        found["additionalProperties"] = False
    return found


JOB = Draft202012Validator(closed(SCHEMA))
CLUSTER = Draft202012Validator(closed({**SCHEMA["properties"]["rayClusterSpec"], "$defs": SCHEMA["$defs"]}))
(TEMPLATE, *_) = (
    one["properties"]["template"]
    for one in SCHEMA["$defs"].values()
    if "rayStartParams" in one.get("properties", {})
)
POD = Draft202012Validator(closed({**TEMPLATE, "$defs": SCHEMA["$defs"]}))
SPECS = {"RayCluster": CLUSTER, "RayJob": JOB}


def check(manifest: Manifest) -> None:
    """Refuse a field that the kind does not have and a value of another type, with their place. Of a
    Deployment, those of its pod."""
    if manifest["kind"] == "Deployment":
        POD.validate(manifest["spec"]["template"])
        return
    assert manifest["apiVersion"] == "ray.io/v1"
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,45}[a-z0-9])?", manifest["metadata"]["name"])
    found = best_match(SPECS[manifest["kind"]].iter_errors(manifest["spec"]))
    if found is not None:
        raise ValueError(f"spec{found.json_path[1:]}: {found.message}")


def load(name: str) -> Manifest:
    manifest: Manifest = yaml.safe_load((K8S / name).read_text())
    return manifest


@pytest.fixture
def cluster() -> Manifest:
    return load("raycluster.yaml")


@pytest.fixture
def job() -> Manifest:
    return load("rayjob.yaml")


@pytest.fixture
def aws() -> Manifest:
    config: Manifest = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    return config


def pods(manifest: Manifest) -> list[Manifest]:
    spec = manifest["spec"].get("rayClusterSpec", manifest["spec"])
    return [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


@pytest.mark.parametrize("path", sorted(K8S.glob("ray*.yaml")), ids=lambda path: path.name)
def test_kuberay_knows_every_field(path: Path) -> None:
    check(load(path.name))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda spec: spec.update(authOption=spec.pop("authOptions")), "'authOption' was unexpected"),
        (
            lambda spec: spec["authOptions"].update(mode="tokens"),
            "spec.authOptions.mode: 'tokens' is not one of ['disabled', 'token']",
        ),
        (
            lambda spec: spec["headGroupSpec"]["rayStartParams"].update({"num-cpus": 0}),
            "0 is not of type 'string'",
        ),
        (
            lambda spec: spec["workerGroupSpecs"][0].update(replicas="4"),
            "spec.workerGroupSpecs[0].replicas: '4' is not of type 'integer'",
        ),
        (lambda spec: spec.update(workerGroupSpecs={}), "spec.workerGroupSpecs: {} is not of type 'array'"),
    ],
    ids=["misspelt key", "unknown mode", "a number for text", "text for a number", "no list"],
)
def test_a_spoilt_file_is_refused(
    cluster: Manifest, spoil: Callable[[Manifest], object], message: str
) -> None:
    spoilt = copy.deepcopy(cluster)
    spoil(spoilt["spec"])
    with pytest.raises(ValueError, match=re.escape(message)):
        check(spoilt)


def test_rays_autoscaler_finds_a_head_without_and_workers_with_gpus(cluster: Manifest) -> None:
    named = {**cluster, "metadata": {**cluster["metadata"], "namespace": "default"}}
    kinds = _derive_autoscaling_config_from_ray_cr(named)["available_node_types"]
    resources = {name: kind["resources"] for name, kind in kinds.items()}
    head, workers = (
        next(v for k, v in resources.items() if ("head" in k) is is_head) for is_head in (True, False)
    )
    assert (head["CPU"], head.get("GPU", 0)) == (0, 0)
    assert (workers["CPU"], workers["GPU"]) == (90, 8)
    assert {kind["max_workers"] for kind in kinds.values()} == {0, 4}


def test_a_jobs_own_cluster_is_the_shared_one(cluster: Manifest, job: Manifest) -> None:
    assert job["spec"]["rayClusterSpec"] == cluster["spec"]


def test_every_pod_takes_the_image_and_the_shared_directory_of_cluster_yaml(
    cluster: Manifest, job: Manifest, aws: Manifest
) -> None:
    (mount,) = re.findall(r"-v (/shared)\S*", " ".join(aws["docker"]["run_options"]))
    for pod in (*pods(cluster), *pods(job)):
        (container,) = pod["containers"]
        assert container["image"] == aws["docker"]["image"]
        places = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        assert (places["shared"], places["shm"]) == (mount, "/dev/shm")
        assert set(places) == {volume["name"] for volume in pod["volumes"]}
        (shm,) = (volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "shm")
        needed = 64 if "nvidia.com/gpu" in container["resources"]["limits"] else 4
        assert shm["medium"] == "Memory" and int(shm["sizeLimit"].removesuffix("Gi")) >= needed
    assert job["spec"]["entrypoint"].split()[-1].startswith(f"{mount}/")


def test_the_page_reads_the_shared_volume_of_the_cluster_and_is_reached_by_port_forward_alone(
    cluster: Manifest,
) -> None:
    page = load("page.yaml")
    assert page["spec"]["selector"]["matchLabels"] == page["spec"]["template"]["metadata"]["labels"]
    pod, head = page["spec"]["template"]["spec"], pods(cluster)[0]
    (container,), (volume,) = pod["containers"], pod["volumes"]
    assert container["image"] == head["containers"][0]["image"].replace("/llmzero:", "/llmzero-page:")
    claims = [one["persistentVolumeClaim"]["claimName"] for one in head["volumes"] if one["name"] == "shared"]
    assert claims == [volume["persistentVolumeClaim"]["claimName"]]
    (mount,) = container["volumeMounts"]
    assert mount["readOnly"] is True
    program, *words = container["command"]
    assert (program, words[0]) == ("llmzero", "ui")
    assert Path(words[1]).is_relative_to(mount["mountPath"])
    assert not {"--host", "--allow-steering"} & set(words)
    assert "ports" not in container


def test_rays_version_is_the_one_of_the_image(cluster: Manifest) -> None:
    pins = (ROOT / "deploy" / "constraints.txt").read_text()
    assert f"\nray=={cluster['spec']['rayVersion']}\n" in pins


def test_every_pod_permits_the_sandbox_as_cluster_yaml_does(
    cluster: Manifest, job: Manifest, aws: Manifest
) -> None:
    options = aws["docker"]["run_options"]
    assert {"--cap-add=SYS_ADMIN", "--security-opt apparmor=unconfined"} <= set(options)
    for pod in (*pods(cluster), *pods(job)):
        context = pod["containers"][0]["securityContext"]
        assert (context["runAsUser"], context["capabilities"]["add"]) == (0, ["SYS_ADMIN"])
        assert context["appArmorProfile"] == context["seccompProfile"] == {"type": "Unconfined"}


def test_the_key_is_a_file_of_the_head_alone(cluster: Manifest, job: Manifest) -> None:
    for manifest in (cluster, job):
        head, *workers = pods(manifest)
        (container,) = head["containers"]
        variables = {each["name"]: each["value"] for each in container["env"]}
        assert "ANTHROPIC_API_KEY" not in variables
        (place,) = (m["mountPath"] for m in container["volumeMounts"] if m["name"] == "api-key")
        assert Path(variables["ANTHROPIC_API_KEY_FILE"]).parent == Path(place)
        (secret,) = (volume["secret"] for volume in head["volumes"] if volume["name"] == "api-key")
        assert secret == {"secretName": "llmzero-api-key", "optional": True, "defaultMode": 0o400}
        assert all("ANTHROPIC" not in str(pod) and "secret" not in str(pod) for pod in workers)
