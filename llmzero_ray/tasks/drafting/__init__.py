"""Agents that draft a task from a folder of data and one sentence.

`inspect_data` profiles the folder, `draft_task` runs the agents (task descriptor, reward writer, tool
selector), `write_draft` writes the files. Nothing here prepares or trains anything.
"""
