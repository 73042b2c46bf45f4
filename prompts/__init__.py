"""Text only: prompts of the agents, and human knowledge about metrics and hyper-parameters."""
