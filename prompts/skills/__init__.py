"""Instructions of the skill-based agent: agent.md is its system prompt, every other file one skill."""
