"""Functional core of a search: events in, commands out. It uses no clock, no Ray and no disk."""

from llmzero_ray.coordinator.budget import budget_limits, gpu_hours, over_budget, time_left
from llmzero_ray.coordinator.core import CoordinatorCore
from llmzero_ray.coordinator.plan import phase_seed
from llmzero_ray.coordinator.replay import (
    apply_recorded,
    check_decisions,
    not_started,
    replay,
    run_of,
    started_core,
)
from llmzero_ray.coordinator.requests import (
    budget_of,
    build_request,
    earlier_verdicts,
    incumbent_chain,
    node_view,
    overlay_record,
    request_record,
    task_view,
)
from llmzero_ray.coordinator.steering import extension_problem, measures_alone, refusal

__all__ = [
    "CoordinatorCore",
    "apply_recorded",
    "budget_limits",
    "budget_of",
    "build_request",
    "check_decisions",
    "earlier_verdicts",
    "extension_problem",
    "gpu_hours",
    "incumbent_chain",
    "measures_alone",
    "node_view",
    "not_started",
    "over_budget",
    "overlay_record",
    "phase_seed",
    "refusal",
    "replay",
    "request_record",
    "run_of",
    "started_core",
    "task_view",
    "time_left",
]
