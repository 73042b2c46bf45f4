"""Engines that train phases: the protocol in base.py, the VeRL engine in verl/."""
