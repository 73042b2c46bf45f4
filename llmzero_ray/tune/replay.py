"""Names of 0.1, by which Ray Tune restores a trial that began with it. They go with 0.3."""

from llmzero_ray.tune.retraining import StrategyRetraining as StrategyReplay
from llmzero_ray.tune.retraining import TrialPhase as ReplayPhase

__all__ = ["ReplayPhase", "StrategyReplay"]
