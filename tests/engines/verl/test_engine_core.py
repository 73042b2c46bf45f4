"""vLLM's engine in a process of its own, as on GPUs: its death is lost hardware, not a failed phase."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from llmzero_ray.engines.verl.environment import EXECUTOR
from llmzero_ray.errors import EngineLostError
from llmzero_ray.records import MetricPoint, PhaseFailure
from tests.engines.verl.conftest import COLD_KEYS, Lab, processes_of
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.verl, pytest.mark.slow, pytest.mark.long]


@pytest.fixture
def own_core(lab: Lab) -> Iterator[Lab]:
    """The engine of the other tests is ended; this one's vLLM has an EngineCore process."""
    from llmzero_ray.engines.verl.engine import VerlEngine

    lab.engine.close()
    settings = dataclasses.replace(
        lab.settings, search="core", overrides={**lab.settings.overrides, EXECUTOR: "mp"}
    )
    engine = VerlEngine(settings, lab.task.n_train, lab.spec(), lambda key: key not in COLD_KEYS)
    yield Lab(engine=engine, settings=settings, task=lab.task, root=lab.root / "core")
    engine.close()


def test_a_killed_engine_core_loses_the_engine(own_core: Lab) -> None:
    killed: list[int] = []
    children: list[psutil.Process] = []

    def kill(point: MetricPoint) -> None:
        if point.step == 1:
            (server,) = processes_of("RecordingServer")
            children.extend(psutil.Process(server).children(recursive=True))
            cores = [p for p in children if any("EngineCore" in word for word in p.cmdline())]
            killed.extend(p.pid for p in cores)
            os.kill(killed[0], signal.SIGKILL)

    with pytest.raises(EngineLostError):
        own_core.run(own_core.spec(n_steps=200), each=kill)
    assert len(killed) == 1
    own_core.engine.close()
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert not alive  # vLLM's workers neither


def test_an_engine_core_that_cannot_start_says_why(lab: Lab) -> None:
    from llmzero_ray.engines.verl.engine import VerlEngine

    lab.engine.close()
    settings = dataclasses.replace(lab.settings, search="nocore", kv_cache_bytes=4096)
    engine = VerlEngine(settings, lab.task.n_train, lab.spec(), lambda key: key not in COLD_KEYS)
    outcome = engine.run(lab.spec(n_steps=1), lambda _: None)
    engine.close()
    assert isinstance(outcome, PhaseFailure)
    assert "vLLM's engine core did not start: " in outcome.cause and "KV cache" in outcome.cause
    assert outcome.failure_class == "oom"
