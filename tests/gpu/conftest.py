"""The model on which a GPU is tried."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.gpu.card import ROOT


@pytest.fixture(scope="session")
def model() -> str:
    """Directory that LLMZERO_GPU_MODEL names, else models/Qwen3-0.6B. Any dense Qwen3, Qwen2 or Llama model
    with a chat template serves."""
    place = Path(os.environ.get("LLMZERO_GPU_MODEL", ROOT / "models" / "Qwen3-0.6B"))
    if not place.is_dir():
        pytest.fail(
            f"no model at {place}: hf download Qwen/Qwen3-0.6B --local-dir {place}, or set LLMZERO_GPU_MODEL"
        )
    return str(place)
