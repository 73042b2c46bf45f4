"""Helpers that know nothing of searches: text, files, logs, plug-ins, keys, the Hugging Face Hub."""
