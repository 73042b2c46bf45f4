"""Loaded by VeRL itself in each of its processes (VERL_USE_EXTERNAL_MODULES): CPU platform and patches.
Nothing else."""

import os

from llmzero_ray.engines.verl import patches

if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    from llmzero_ray.engines.verl import cpu_platform  # noqa: F401  registers itself

patches.apply()
