"""Text only: what the agents are told that draft a task from a folder."""
