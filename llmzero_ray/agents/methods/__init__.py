"""Values for the runs that a search method plans: drawn, of a grid or a schedule, perturbed, explored."""

from llmzero_ray.agents.methods.proposer import PlanProposer

__all__ = ["PlanProposer"]
