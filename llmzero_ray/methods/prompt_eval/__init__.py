"""Evaluation of prompts: sends recorded requests to a language model and scores its answers by rule.

`recorded_cases` takes requests from searches, `read_cases` reads a recorded set, `evaluate` asks and scores.
No judge: every check is one that a program can decide. Not here: the command line (command.py).
"""
