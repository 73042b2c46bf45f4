"""The functional core of a search: events in, commands out, no clock, no Ray, no disk."""

from llmzero_ray.coordinator.budget import over_budget
from llmzero_ray.coordinator.core import CoordinatorCore
from llmzero_ray.coordinator.plan import root_hyperparameters
from llmzero_ray.coordinator.replay import DecisionCheck, check_decisions, replay
from llmzero_ray.coordinator.requests import (
    build_request,
    incumbent_path,
    node_view,
    overlay_record,
    request_record,
    task_view,
)

__all__ = [
    "CoordinatorCore",
    "DecisionCheck",
    "build_request",
    "check_decisions",
    "incumbent_path",
    "node_view",
    "over_budget",
    "overlay_record",
    "replay",
    "request_record",
    "root_hyperparameters",
    "task_view",
]
