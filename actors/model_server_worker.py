"""Module that vLLM loads by name in the workers of a served model. Importing it patches their rendezvous so
that it opens no port."""

from __future__ import annotations

from llmzero_ray.engines.verl import patches

patches.meet_without_ports()


class WithoutPorts:
    """Worker extension for vLLM without members. It makes vLLM import this module before it creates a process
    group."""
