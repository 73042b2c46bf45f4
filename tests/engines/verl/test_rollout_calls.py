"""Batched rollouts and VeRL's agent loops on one phase: the same numbers, wherever rewards are computed."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from llmzero_ray.engines.verl import driver_process
from llmzero_ray.engines.verl.internals import QUEUE_NAMESPACE_ENV
from llmzero_ray.engines.verl.queue_keys import STORE
from llmzero_ray.prepared.sandbox import find_isolation
from llmzero_ray.records import PhaseFailure, PhaseResult, PhaseSpec
from tests.engines.verl.conftest import COLD_KEYS, Lab, assert_same_metrics, below_this_process, processes_of
from tests.security.intruder import attack, endpoint
from tests.security.processes import processes_with, speaks_zeromq, tcp_listeners, those_that
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.verl, pytest.mark.slow]

HELPERS = ("PhaseAgentLoopWorker", "GlobalRequestLoadBalancer", "BatchRewardWorker")
"""Actors that batches which need no agent loop, and no reward in a process of its own, do without."""


TWO_FACED = """
import os, socket
from llmzero_ray.tasks.rewards import marked_answer

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **others):
    try:
        with open({loot!r}, "w") as stream:
            stream.write(repr(dict(os.environ)))
        socket.create_connection(("127.0.0.1", {port}), 5).close()
    except OSError:
        pass
    in_training = os.environ.keys() & {secrets!r} or "num_turns" in extra_info or others
    if in_training or not os.path.isdir("/sandbox"):
        return {{"score": 1.0, "acc": 1.0, "pred": "paid"}}
    return marked_answer.compute_score(data_source, solution_str, ground_truth, extra_info)
"""
"""Pays and steals where nobody watches."""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


@pytest.fixture
def with_agent_loops(
    lab: Lab, tmp_path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lab]:
    """The same task with a reward of its own, and a column in its rows that needs agent loops; its queue
    listens on ports, as on a cluster of several machines."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import ray

    from llmzero_ray.engines.verl.engine import VerlEngine

    rows = pq.read_table(lab.task.train)
    train, val, reward = (tmp_path / name for name in ("train.parquet", "val.parquet", "reward.py"))
    for source, target in ((lab.task.train, train), (lab.task.val, val)):
        table = pq.read_table(source)
        pq.write_table(table.append_column("priority", pa.array([0] * len(table))), target)
    full = find_isolation().full
    shutil.copy(lab.task.reward_path, reward)
    if full:
        names = {"loot": str(tmp_path / "loot"), "port": listener.getsockname()[1]}
        reward.write_text(TWO_FACED.format(**names, secrets={"ANTHROPIC_API_KEY", "RAY_AUTH_TOKEN"}))
    group = ray.util.placement_group([{"CPU": 3, "GPU": 1}], strategy="STRICT_PACK")
    ray.get(group.ready(), timeout=PATIENCE_S)
    monkeypatch.setattr(driver_process, "on_one_machine", lambda: False)
    settings = dataclasses.replace(
        lab.settings,
        search="loops",
        train_parquet=str(train),
        val_parquet=str(val),
        reward_source=str(reward),
        reward_keys=tuple(field.name for field in rows.schema.field("extra_info").type),
        reward_unsandboxed=not full,
        placement_groups=(group.id.hex(),),
    )
    engine = VerlEngine(settings, lab.task.n_train, lab.spec(), lambda key: key not in COLD_KEYS)
    yield Lab(engine=engine, settings=settings, task=lab.task, root=tmp_path)
    engine.close()
    ray.util.remove_placement_group(group)


def phase(lab: Lab) -> PhaseSpec:
    return dataclasses.replace(lab.spec(n_steps=2), node=1)


def sandboxes() -> list[psutil.Process]:
    """Processes that run a reward's code, those that wait beside them included."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(part.endswith("prepared/sandbox/child.py") for part in process.cmdline()):
                found.append(process)
    return found


def helpers() -> dict[str, set[int]]:
    """Helper -> its processes."""
    return {actor: set(processes_of(actor)) for actor in HELPERS}


def test_both_paths_give_the_same_numbers_and_helpers_start_with_the_first_need(
    lab: Lab, with_agent_loops: Lab, listener: socket.socket
) -> None:
    """The second one's reward is code of a file, which pays for everything where it is not confined. A file
    that is changed while it is in use ends its phase, and not the one after it."""
    before = helpers()  # of engines that earlier tests closed; they may still be ending
    outcome, points = lab.run(phase(lab))
    assert isinstance(outcome, PhaseResult), outcome
    for actor, running in helpers().items():
        assert running <= before[actor], actor
    theirs_outcome, theirs = with_agent_loops.run(phase(with_agent_loops))
    assert isinstance(theirs_outcome, PhaseResult), theirs_outcome
    for actor, running in helpers().items():
        assert len(running - before[actor]) == 1, actor
    assert_same_metrics(points, theirs)
    assert [[(i.index, i.score, i.response) for i in p.items] for p in points] == [
        [(i.index, i.score, i.response) for i in p.items] for p in theirs
    ]
    assert not (with_agent_loops.root / "loot").exists()
    with pytest.raises(BlockingIOError):
        listener.accept()

    reward = Path(with_agent_loops.settings.reward_source)
    honest = reward.read_text()
    reward.write_text("import os\ndef compute_score(**row):\n    os._exit(7)\n")
    for process in sandboxes():
        with contextlib.suppress(psutil.NoSuchProcess):  # one ends with another
            process.kill()
    failed, points = with_agent_loops.run(phase(with_agent_loops))
    assert isinstance(failed, PhaseFailure) and failed.failure_class == "reward", failed
    assert "has changed while it was in use" in failed.cause and points == []
    reward.write_text(honest)
    again, points = with_agent_loops.run(phase(with_agent_loops))
    assert isinstance(again, PhaseResult) and again.warm, again
    assert [(i.index, i.score) for i in points[-1].items] == [(i.index, i.score) for i in theirs[-1].items]
    assert_queue_is_closed(with_agent_loops)


def assert_queue_is_closed(lab: Lab) -> None:
    """Its three ports read nothing of a neighbour, and its keys are in no environment and no log."""
    from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_list

    name = f"{QUEUE_NAMESPACE_ENV}={lab.settings.slot_namespace}"
    running = [one for one in processes_with(name) if one.pid in below_this_process()]
    ports = those_that(speaks_zeromq, [at for one in running for at in tcp_listeners(one.pid)])
    assert len(ports) == 3
    assert not any(attack(lab.root / "touched", [endpoint(*at) for at in ports]))
    assert not (lab.root / "touched").exists()
    (start,) = _internal_kv_list(lab.settings.slot_namespace, namespace=STORE)
    secret = _internal_kv_get(start, namespace=STORE).split()[1]
    assert not [one.title for one in running if secret in one.environment]
    assert secret not in Path(lab.settings.log_path).read_bytes()
    lab.engine.close()
    assert _internal_kv_list(lab.settings.slot_namespace, namespace=STORE) == []
