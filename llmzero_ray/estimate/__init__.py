"""Costs of a search, estimated before it starts: `Estimate` computes time, memory and sizes.

It is arithmetic on the configuration, the task's sizes and the model's `config.json`; nothing is loaded or
measured. `SearchMemory` corrects the memory estimate with what the phases of a search have shown.
server_sizes.py chooses vLLM's sizes if the configuration says `auto`. Not here: tables and measured seconds
(cli/).
"""

from llmzero_ray.estimate.card import card_gib, driver_report, is_for_gpus, resolve_platform
from llmzero_ray.estimate.estimate import Estimate
from llmzero_ray.estimate.fit import Assessment
from llmzero_ray.estimate.learned import SearchMemory
from llmzero_ray.estimate.search_time import Cases, Course, EstimateCase, MeasuredTimes, Tokens, first_limit
from llmzero_ray.estimate.server_sizes import with_recorded_sizes, with_server_sizes
from llmzero_ray.estimate.setup import ADAPTER_BUCKET_MEGABYTES, BUCKET_MEGABYTES
from llmzero_ray.estimate.sizes import StageMemory
from llmzero_ray.estimate.stage_times import LEAST_S, StageTimes, TimeLimits

__all__ = [
    "ADAPTER_BUCKET_MEGABYTES",
    "BUCKET_MEGABYTES",
    "LEAST_S",
    "Assessment",
    "Cases",
    "Course",
    "Estimate",
    "EstimateCase",
    "MeasuredTimes",
    "SearchMemory",
    "StageMemory",
    "StageTimes",
    "TimeLimits",
    "Tokens",
    "card_gib",
    "driver_report",
    "first_limit",
    "is_for_gpus",
    "resolve_platform",
    "with_recorded_sizes",
    "with_server_sizes",
]
