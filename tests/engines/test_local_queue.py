"""The queue in memory answers what the package's own queue does, and moves everything there when it is asked
to: both are given the same calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from llmzero_ray.engines.verl.cpu.local_queue import ByValueWorkerGroup, LocalQueue

torch = pytest.importorskip("torch")
package = pytest.importorskip("transfer_queue")
tensordict = pytest.importorskip("tensordict")

KEYS = ["a_0_0", "a_1_0", "b_0_0"]
CALLS = {name: getattr(package, name) for name in ("kv_batch_put", "kv_batch_get", "kv_list", "kv_clear")}


@pytest.fixture
def theirs(head_address: str) -> Iterator[Any]:
    """The package's queue, started on the head of these tests."""
    import ray
    from omegaconf import OmegaConf

    ray.init(address=head_address, namespace="local-queue", log_to_driver=False)
    package.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    yield package
    package.close()
    ray.shutdown()


@pytest.fixture
def ours() -> LocalQueue:
    return LocalQueue(lambda: None)


def columns(lengths: tuple[int, ...] = (3, 1, 2), start: int = 0) -> Any:
    """Of three samples: of varying length, of one number, of objects."""
    ragged = [torch.arange(start, start + n, dtype=torch.int64) for n in lengths]
    return tensordict.TensorDict(
        {
            "responses": torch.nested.as_nested_tensor(ragged, layout=torch.jagged),
            "score": torch.tensor([0.5, 1.0, 0.25])[: len(lengths)],
            "extra_fields": tensordict.NonTensorStack(*[{"n": [n]} for n in lengths]),
        },
        batch_size=len(lengths),
    )


def plain(data: Any) -> dict[str, list[Any]]:
    """Column -> the value of each sample, with dtypes."""
    found: dict[str, list[Any]] = {}
    for name in sorted(data.keys()):
        column = data.get(name)
        if isinstance(column, torch.Tensor):
            found[name] = [str(column.dtype), column.layout, [row.tolist() for row in column.unbind()]]
        else:
            found[name] = list(column.tolist())
    return found


def answers(queue: Any) -> list[Any]:
    """What a queue says to a trainer's calls, in plain values."""
    said: list[Any] = []

    def meta(found: Any) -> None:
        said.append(
            (found.keys, found.tags, found.partition_id, sorted(found.fields or ()), found.extra_info)
        )

    prompts = [{"is_prompt": True, "status": "pending", "global_steps": 3}] * 2
    meta(queue.kv_batch_put(keys=["a", "b"], partition_id="train", tags=prompts))
    tags = [{"status": "success", "seq_len": n} for n in (5, 6, 7)]
    meta(queue.kv_batch_put(keys=KEYS, partition_id="train", tags=tags, fields=columns()))
    meta(queue.kv_batch_put(keys=["b", "a"], partition_id="train", tags=[{"status": "finished"}] * 2))
    said.append(queue.kv_list())
    said.append(queue.kv_list("train"))
    queue.kv_clear(keys=["a", "b", "never there"], partition_id="train")
    said.append(queue.kv_list())
    later = tensordict.TensorDict({"advantages": torch.ones(3, 2)}, batch_size=3)
    meta(queue.kv_batch_put(keys=KEYS[::-1], partition_id="train", fields=later))
    meta(
        queue.kv_batch_put(keys=KEYS, partition_id="train", fields=columns((1, 1, 1), 9).select("responses"))
    )
    for keys, fields in (
        (KEYS, None),
        (KEYS[::-1], ["responses", "values", "extra_fields"]),
        (KEYS[1], "responses"),
        (KEYS[:2], ["score", "advantages"]),
    ):
        said.append(plain(queue.kv_batch_get(keys=keys, partition_id="train", select_fields=fields)))
    queue.kv_batch_put(keys=["c_0_0"], partition_id="train", fields=columns((4,)))
    for refused in (
        lambda: queue.kv_batch_get(keys=["nobody"], partition_id="train"),
        lambda: queue.kv_batch_get(keys=KEYS, partition_id="nowhere"),
        lambda: queue.kv_batch_get(keys=["c_0_0", *KEYS], partition_id="train", select_fields="advantages"),
        lambda: queue.kv_batch_put(keys=KEYS, partition_id="train"),
        lambda: queue.kv_batch_put(keys=KEYS, partition_id="train", tags=[{}]),
        lambda: queue.kv_batch_put(keys=KEYS[:2], partition_id="train", fields=columns()),
    ):
        try:
            said.append(str(refused()))
        except ValueError:
            said.append("refused")
    queue.kv_clear(keys="c_0_0", partition_id="train")
    queue.kv_clear(keys=KEYS, partition_id="train")
    said.append(queue.kv_list()["train"])
    return said


@pytest.mark.slow
def test_it_answers_as_the_package_does_and_moves_there(theirs: Any, ours: LocalQueue) -> None:
    assert answers(ours) == answers(theirs)

    ours.install()
    assert ours.is_installed and package.kv_list == ours.kv_list
    package.kv_batch_put(keys=["a"], partition_id="train", tags=[{"is_prompt": True, "status": "pending"}])
    package.kv_batch_put(keys=KEYS, partition_id="val", tags=[{"n": i} for i in range(3)], fields=columns())
    tags, values = package.kv_list(), plain(package.kv_batch_get(keys=KEYS, partition_id="val"))
    ours.migrate_to_package()
    assert not ours.is_installed and {name: getattr(package, name) for name in CALLS} == CALLS
    assert {name: found for name, found in package.kv_list().items() if found} == tags
    assert plain(package.kv_batch_get(keys=KEYS, partition_id="val")) == values
    ours.migrate_to_package()  # once more: nothing to do
    package.kv_clear(keys=["a"], partition_id="train")
    package.kv_clear(keys=KEYS, partition_id="val")


def test_what_was_read_can_be_written_into(ours: LocalQueue) -> None:
    """VeRL changes what it reads in place; the package's queue gives copies."""
    ours.kv_batch_put(keys=KEYS, partition_id="train", tags=[{"n": 1}] * 3, fields=columns())
    before = plain(ours.kv_batch_get(keys=KEYS, partition_id="train"))
    read = ours.kv_batch_get(keys=KEYS, partition_id="train")
    read["responses"].values().zero_()
    read["score"].zero_()
    read.get("extra_fields").tolist()[0]["n"].append(99)
    ours.kv_list()["train"][KEYS[0]]["n"] = 5
    assert plain(ours.kv_batch_get(keys=KEYS, partition_id="train")) == before
    assert ours.kv_list("train")["train"][KEYS[0]] == {"n": 1}


def test_threads_put_and_list_at_once(ours: LocalQueue) -> None:
    """Rollouts are put by a thread of their own while the trainer looks for them."""
    n, failures = 300, []

    def put(name: str) -> None:
        try:
            for i in range(n):
                ours.kv_batch_put(keys=[f"{name}{i}"], partition_id="train", tags=[{"i": i}])
        except Exception as error:  # noqa: BLE001  shown by the test
            failures.append(error)

    threads = [threading.Thread(target=put, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        ours.kv_list()
    assert failures == [] and len(ours.kv_list()["train"]) == 3 * n


class Workers:
    """Stands for VeRL's worker group: keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def compute_log_prob(self, data: Any) -> Any:
        self.asked.append(data)
        found = tensordict.TensorDict({"log_probs": torch.zeros(len(data), 2)}, batch_size=len(data))
        found["metrics"] = tensordict.NonTensorData({"mfu": 1}, batch_size=found.batch_size)
        return found

    def update_actor(self, data: Any) -> Any:
        self.asked.append(data)
        return "updated"

    def load_adapter(self) -> str:
        return "loaded"


@pytest.fixture
def taken(ours: LocalQueue) -> Iterator[LocalQueue]:
    ours.install()
    yield ours
    for name, function in CALLS.items():
        setattr(package, name, function)


def test_a_rank_is_given_columns_while_the_queue_is_here(taken: LocalQueue) -> None:
    workers = Workers()
    ranks = ByValueWorkerGroup(workers, taken)
    batch = package.kv_batch_put(keys=KEYS, partition_id="train", tags=[{"n": 1}] * 3, fields=columns())
    batch.extra_info["temperature"] = 0.7
    batch.fields = ["responses", "values"]
    found = ranks.compute_log_prob(batch)
    assert sorted(workers.asked[0].keys()) == ["responses", "temperature"]
    assert workers.asked[0]["temperature"] == 0.7
    assert found.keys == KEYS and found.tags == batch.tags and found.extra_info == {"metrics": {"mfu": 1}}
    assert "log_probs" in found.fields and "metrics" not in found.fields
    assert ranks.update_actor(found) == "updated" and "log_probs" in set(workers.asked[1].keys())
    assert ranks.load_adapter() == "loaded"


def test_a_rank_is_given_keys_once_the_queue_is_the_packages() -> None:
    """Every value would pass through the trainer's process where several read it."""
    workers = Workers()
    ranks = ByValueWorkerGroup(workers, SimpleNamespace(is_installed=False))  # type: ignore[arg-type]
    batch = package.KVBatchMeta(keys=KEYS, tags=[{}] * 3, partition_id="train")
    assert ranks.update_actor(batch) == "updated" and ranks.compute_log_prob(batch) is not None
    assert workers.asked == [batch, batch]
