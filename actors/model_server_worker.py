"""Module that vLLM loads by name in the workers of a served model, so that they meet without a port."""

from __future__ import annotations

from llmzero_ray.engines.verl import patches

patches.meet_without_ports()


class WithoutPorts:
    """Worker extension for vLLM. It adds nothing itself: vLLM loads its module before any process group
    begins."""
