"""Agents that are a language model: what they see, how they are asked, what it costs."""
