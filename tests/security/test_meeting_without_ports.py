"""Ranks of torch's process groups meet without a port: torch's own store listens on every address and takes
keys and values from anybody."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist

from llmzero_ray.engines.verl.environment import on_loopback
from llmzero_ray.engines.verl.internals import SOCKET_DIR_ENV
from llmzero_ray.engines.verl.patches import meet_without_ports
from llmzero_ray.utils.ports import free_port

from .processes import addresses_of_listeners

pytestmark = [pytest.mark.slow]

Begin: TypeAlias = Callable[[int, int, int], None]
"""Starts a process group: rank, number of ranks, and the port at which they would meet."""
multiprocessing.set_forkserver_preload([__name__])


def as_verl(rank: int, n_ranks: int, port: int) -> None:
    """VeRL's workers: rank and port are in the environment."""
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group(backend="cpu:gloo", rank=rank, world_size=n_ranks, init_method=None)


def as_vllm(rank: int, n_ranks: int, port: int) -> None:
    """vLLM's: children of one process, which names an address."""
    url = f"tcp://127.0.0.1:{port}"
    dist.init_process_group(backend="gloo", init_method=url, world_size=n_ranks, rank=rank)


def join(begin: Begin, rank: int, n_ranks: int, port: int, directory: str, answer: Any) -> None:
    """In a process of its own: what the group computes, and where this rank listens."""
    os.environ |= {SOCKET_DIR_ENV: directory, **on_loopback({})}
    if directory != "as torch does":
        meet_without_ports()
    begin(rank, n_ranks, port)
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    dist.new_group(list(range(n_ranks)), backend="gloo")
    answer.send((total.item(), addresses_of_listeners(os.getpid())))
    dist.barrier()
    dist.destroy_process_group()


def group_of(begin: Begin, n_ranks: int, directory: str) -> list[tuple[float, set[str]]]:
    """What each rank of a group found."""
    context = multiprocessing.get_context("forkserver")
    ranks, answers = [], []
    port = free_port()
    for rank in range(n_ranks):
        mine, theirs = context.Pipe(duplex=False)
        ranks.append(context.Process(target=join, args=(begin, rank, n_ranks, port, directory, theirs)))
        ranks[-1].start()
        theirs.close()
        answers.append(mine)
    found = [answer.recv() for answer in answers]
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0] * n_ranks
    return found


@pytest.mark.parametrize("begin", [as_verl, as_vllm])
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_ranks_of_one_machine_meet_and_listen_on_loopback_alone(
    tmp_path: Path, begin: Begin, n_ranks: int
) -> None:
    total = n_ranks * (n_ranks + 1) / 2
    assert group_of(begin, n_ranks, str(tmp_path)) == [(total, {"127.0.0.1"})] * n_ranks


def test_a_single_rank_needs_no_directory() -> None:
    assert group_of(as_verl, 1, "") == [(1.0, {"127.0.0.1"})]


def test_torchs_own_store_would_be_noticed() -> None:
    ((_, addresses),) = group_of(as_vllm, 1, "as torch does")
    assert addresses - {"127.0.0.1"}


@pytest.mark.parametrize("given", [{"store": dist.HashStore()}, {}], ids=["store", "more machines"])
def test_other_calls_are_torchs_own(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(dist, "init_process_group", lambda **named: calls.append(named))
    monkeypatch.delenv(SOCKET_DIR_ENV, raising=False)
    meet_without_ports()
    named = {"backend": "gloo", "rank": 0, "world_size": 2, "init_method": "tcp://10.0.0.1:5", **given}
    dist.init_process_group(**named)
    assert calls == [named]


def test_patching_twice_changes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "init_process_group", dist.init_process_group)
    meet_without_ports()
    patched = dist.init_process_group
    meet_without_ports()
    assert dist.init_process_group is patched
