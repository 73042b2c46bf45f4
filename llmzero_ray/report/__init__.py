"""Writes the outcome of a search from its journal: strategy.yaml, the winning adapter with its card,
reports."""

from llmzero_ray.config.strategy_file import Strategy
from llmzero_ray.report.outcome import Outcome, write_outcome
from llmzero_ray.storage.strategy import load_strategy, phase_specs

__all__ = ["Outcome", "Strategy", "load_strategy", "phase_specs", "write_outcome"]
