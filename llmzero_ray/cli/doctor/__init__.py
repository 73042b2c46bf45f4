"""Checks of a cluster against a configuration: the command is in command.py, its table in checks.py."""
