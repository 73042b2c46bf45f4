"""The fast path of small models on the CPU: a batch in few calls, a queue without processes of its own, each
prompt computed once.

`engine.rollout_calls: batched`, the default on the CPU, turns on the first two. `platform.py` makes the CPU
one of VeRL's platforms.
"""
