"""Agents that draft a task from a folder and a sentence: what is in the folder, what the task is, which
recipe fits, which reward judges it.

`perceive` reads the folder, `draft_task` puts the questions, `write_draft` writes the files. Nothing here
prepares or trains anything. Not here: the command line (cli/draft.py).
"""
