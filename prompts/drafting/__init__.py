"""Text only: prompts of the agents that draft a task from a folder."""
