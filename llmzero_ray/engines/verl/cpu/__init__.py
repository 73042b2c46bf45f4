"""Fast path for small models on the CPU: a batch in few calls, a queue without processes of its own, and each
prompt computed only once.

`engine.rollout_calls: batched`, the default on the CPU, turns on the first two. `platform.py` registers the
CPU as a VeRL platform.
"""
