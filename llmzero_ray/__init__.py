"""Search for a multi-stage RL post-training strategy as a tree of GRPO phases.

The library below this package is plain Python: it starts no process, opens no connection and imports no
Ray, torch or VeRL until an engine is asked for. Actors and jobs sit on top of it.
"""

__version__ = "0.1.0"
