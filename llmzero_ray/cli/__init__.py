"""The command line: `llmzero COMMAND` and `python -m jobs.COMMAND` begin in main.py."""
