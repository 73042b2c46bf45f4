"""Engines that train phases: the protocol in base.py, real VeRL in verl/."""
