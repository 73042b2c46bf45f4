"""Agents on a language model: their contexts, structured requests and budget."""
