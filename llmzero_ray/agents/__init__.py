"""Agents that diagnose, propose, stop and debug: the protocols in base.py, the offline rules in expert/."""
