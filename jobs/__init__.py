"""Entry points for `python -m jobs.<name>` and `ray job submit`; all work is done elsewhere."""
