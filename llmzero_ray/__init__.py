"""Search for a multi-stage RL post-training strategy as a tree of GRPO phases.

The library below this package is plain Python: it starts no process, opens no connection and imports no
Ray, torch or VeRL until an engine is created. Actors and jobs are layers above it.
"""

__version__ = "0.1.0"
