"""The doctor's list of sockets, and that SECURITY.md has the same ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmzero_ray.cli.doctor.rows import Row
from llmzero_ray.cli.doctor.sockets import listeners

LAPTOP = {"private_head": True, "n_machines": 1, "has_token": True}
CLUSTER = {"private_head": False, "n_machines": 3, "has_token": True}


def by_name(**cluster: bool | int) -> dict[str, Row]:
    return {row.name.removeprefix("sockets, "): row for row in listeners(**cluster)}  # type: ignore[arg-type]


def test_nothing_on_a_private_head_needs_a_closed_network() -> None:
    found = by_name(**LAPTOP)
    assert {row.status for row in found.values()} == {"ok"}
    assert [name for name, row in found.items() if row.todo] == []


def test_a_cluster_is_told_what_needs_a_closed_network() -> None:
    found = by_name(**CLUSTER)
    assert {name for name, row in found.items() if "closed" in row.todo} == {
        "Ray's metrics",
        "torch's process groups",
    }
    assert "CURVE" in found["TransferQueue"].found


def test_a_cluster_without_rays_token_is_warned_of() -> None:
    row = by_name(**{**CLUSTER, "has_token": False})["Ray"]
    assert (row.status, "anybody may run code" in row.found) == ("warn", True)
    assert "RAY_AUTH_MODE=token" in row.todo


@pytest.mark.parametrize("cluster", [LAPTOP, CLUSTER])
def test_every_socket_of_the_doctor_stands_in_the_document(cluster: dict[str, bool | int]) -> None:
    text = (Path(__file__).parents[2] / "SECURITY.md").read_text()
    assert [name for name in by_name(**cluster) if name not in text] == []
