"""The agents without a language model: documented rules, deterministic and offline.

Source of the rules: the LLMZero paper's human knowledge (arXiv 2606.18388, App. F).
"""

from llmzero_ray.agents.expert.early_stopper import ExpertEarlyStopper
from llmzero_ray.agents.expert.error_analyzer import ExpertErrorAnalyzer
from llmzero_ray.agents.expert.proposer import ExpertProposer

__all__ = ["ExpertEarlyStopper", "ExpertErrorAnalyzer", "ExpertProposer"]
