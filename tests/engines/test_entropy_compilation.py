"""How many graphs the entropy of packed micro batches is compiled to: on a GPU each stalls a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("verl")

from tests.engines.fake_ranks import fake_rank  # noqa: E402
from tests.engines.test_gpu_presets import PRESETS, composed  # noqa: E402

pytestmark = pytest.mark.slow  # VeRL's engine is imported, and Dynamo traces

CHUNK, VOCABULARY = 64, 8
LENGTHS = tuple(4 * CHUNK - 6 + 7 * i for i in range(12))
"""Tokens of packed micro batches: no two are alike, and their last chunk is another one each time."""
DYNAMOS_LIMIT = 8
"""Graphs of one function, after which Dynamo runs it as it is for good."""

Entropies = Callable[[Any], int]


@pytest.fixture
def n_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Entropies:
    """Graphs that VeRL's engine with that FSDP configuration compiles for all `LENGTHS`."""
    from torch._dynamo.testing import CompileCounter
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    def count(fsdp_config: Any) -> int:
        counter = CompileCounter()
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
        torch._dynamo.reset()
        model = SimpleNamespace(use_remove_padding=True, lora_rank=64, hf_config=SimpleNamespace())
        with fake_rank(0, 8):
            engine = FSDPEngine(model, omega_conf_to_dataclass(fsdp_config), None, None)
        chunked = fsdp_config.entropy_from_logits_with_chunking
        for length in LENGTHS:
            logits = torch.randn(length, VOCABULARY)
            found = engine.compute_entropy_from_logits(logits, **({"chunk_size": CHUNK} if chunked else {}))
            torch.testing.assert_close(found, torch.distributions.Categorical(logits=logits).entropy())
        monkeypatch.undo()
        torch._dynamo.reset()
        return int(counter.frame_count)

    return count


def fsdp_config_of(name: str, directory: Path, **changes: Any) -> Any:
    from omegaconf import OmegaConf

    found = composed(PRESETS[name], directory).actor_rollout_ref.actor.fsdp_config
    return OmegaConf.merge(found, changes)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_does_not_compile_anew_for_each_length(
    name: str, n_graphs: Entropies, tmp_path: Path
) -> None:
    assert n_graphs(fsdp_config_of(name, tmp_path)) <= 2


def test_chunks_that_are_compiled_are_compiled_up_to_the_limit(n_graphs: Entropies, tmp_path: Path) -> None:
    """Why the presets turn compiling off; once this fails, they need not."""
    config = fsdp_config_of("qwen3_4b.yaml", tmp_path, use_torch_compile=True)
    assert n_graphs(config) == DYNAMOS_LIMIT


def test_without_chunks_one_graph_serves_every_length(n_graphs: Entropies, tmp_path: Path) -> None:
    changes = {"use_torch_compile": True, "entropy_from_logits_with_chunking": False}
    assert n_graphs(fsdp_config_of("qwen3_4b.yaml", tmp_path, **changes)) == 1
