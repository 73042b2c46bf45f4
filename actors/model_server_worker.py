"""Loaded by vLLM, by name, in the worker processes of a served model: they meet without a port."""

from __future__ import annotations

from llmzero_ray.engines.verl import patches

patches.meet_without_ports()


class WithoutPorts:
    """vLLM's extension of a worker. It adds nothing: its module is loaded before any process group begins."""
