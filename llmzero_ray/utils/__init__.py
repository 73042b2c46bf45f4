"""Helpers without knowledge of a search: text, files, logs, plug-ins, keys, the Hugging Face Hub."""
