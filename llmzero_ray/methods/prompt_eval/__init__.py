"""Evaluation of prompts: sends recorded requests to a language model and scores its answers by rules.

`recorded_cases` takes requests from searches, `read_cases` reads a recorded set, `evaluate` asks and scores.
There is no judge model: a program can decide every check. Not here: the command line (command.py).
"""
