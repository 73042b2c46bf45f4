"""The proposer that searches locally: per hyper-parameter a step that success lengthens and failure reverses.

No language model, no state of its own: what it remembers is read from the search's nodes at each request.
"""

from llmzero_ray.agents.local.hybrid import HybridProposer
from llmzero_ray.agents.local.proposer import LocalProposer

__all__ = ["HybridProposer", "LocalProposer"]
