"""Skill-based agent of the paper's comparison (App. B.7): one conversation with a language model that plans
its own work with eight skills, and with a ninth that hands runs over to the tree search."""

from llmzero_ray.methods.skills.agent import SkillAgent, SkillSettings
from llmzero_ray.methods.skills.tools import SKILLS, skill_texts
from llmzero_ray.methods.skills.transcript import Episode, Transcript

__all__ = ["SKILLS", "Episode", "SkillAgent", "SkillSettings", "Transcript", "skill_texts"]
