"""A vLLM that died of its memory is the phase's failure; one that died of something else is lost hardware,
and a failed card is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.engines.base import card_fault
from llmzero_ray.engines.verl.engine import VerlEngine
from llmzero_ray.errors import EngineLostError
from llmzero_ray.records import PhaseFailure
from tests.builders import verl_settings
from tests.engines.test_overrides import spec

SERVER = "(RecordingServer pid=71) (EngineCore pid=92) ERROR 11-22 17:40:00 [cumem.py:58] "
OUT = "RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62"


class LosingEngine(VerlEngine):
    """Its VeRL prints `printed` and goes away in the middle of the phase."""

    printed = ""

    def _cold_reason(self, _: Any) -> None:
        return None

    def _train(self, *_: Any) -> Any:
        with open(self._settings.log_path, "a", encoding="utf-8") as log:
            log.write(self.printed)
        raise EngineLostError("a VeRL process went away: RecordingServer")


def engine(log: Path, printed: str) -> LosingEngine:
    made = LosingEngine(verl_settings(log_path=str(log)), 100, spec(), lambda _: True)
    made.printed = printed
    return made


def test_the_agents_learn_that_vllm_had_too_little_memory(tmp_path: Path) -> None:
    outcome = engine(tmp_path / "log", f"{SERVER}{OUT}\n").run(spec(), lambda _: None)
    assert isinstance(outcome, PhaseFailure)
    assert (outcome.failure_class, outcome.node) == ("oom", 3)
    assert outcome.cause == f"vLLM ran out of memory: {OUT}"
    assert OUT in outcome.log_tail


def test_what_an_earlier_phase_printed_is_not_held_against_this_one(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"{SERVER}{OUT}\n")
    lost = engine(tmp_path / "log", f"{SERVER}RuntimeError: something else\n")
    with pytest.raises(EngineLostError, match="went away"):
        lost.run(spec(), lambda _: None)
    assert lost.stage() is None


ECC = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"


def test_a_failed_card_is_read_from_the_log_of_a_lost_engine(tmp_path: Path) -> None:
    lost = engine(tmp_path / "log", f"(WorkerDict pid=71) {ECC}\n(WorkerDict pid=71) Aborted\n")
    with pytest.raises(
        EngineLostError, match=r"went away: RecordingServer; its log says: .*uncorrectable ECC"
    ):
        lost.run(spec(), lambda _: None)


@pytest.mark.parametrize(
    "fault",
    [
        ECC,
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "RuntimeError: no CUDA-capable device is",
    ],
)
def test_a_card_that_failed_is_told_from_other_losses(fault: str) -> None:
    assert card_fault(f"Traceback\n  {fault}\nAborted") == fault
    for other in (OUT, "ActorDiedError: the actor died", "NCCL error: remote process exited", ""):
        assert card_fault(other) is None
