"""Settings of a search: search.yaml, the presets that ship, and changes of single fields."""

from llmzero_ray.config.loading import (
    REMOVED,
    RENAMED,
    change_settings,
    load_config,
    parse_config,
    resolve_config,
    set_key,
    stored_config,
    without_removed,
)
from llmzero_ray.config.search_config import (
    FIXED_NUM_SEQS,
    FIXED_UTILIZATION,
    HUB_ID,
    AgentModelConfig,
    AgentsConfig,
    AllowedKey,
    ModelConfig,
    SearchConfig,
    TokenCostConfig,
    TrackingConfig,
    hub_model,
)

__all__ = [
    "FIXED_NUM_SEQS",
    "FIXED_UTILIZATION",
    "HUB_ID",
    "REMOVED",
    "RENAMED",
    "AgentModelConfig",
    "AgentsConfig",
    "AllowedKey",
    "ModelConfig",
    "SearchConfig",
    "TokenCostConfig",
    "TrackingConfig",
    "change_settings",
    "hub_model",
    "load_config",
    "parse_config",
    "resolve_config",
    "set_key",
    "stored_config",
    "without_removed",
]
