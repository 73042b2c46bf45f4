"""Entry points for `python -m jobs.<name>` and `ray job submit`; they only call the command line."""
