"""Checks of a cluster against a configuration: `llmzero doctor` begins in command.py."""
