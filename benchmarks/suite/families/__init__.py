"""The suite's own task families; the others are those that ship. Their values and first figures: see
tasks.py."""
