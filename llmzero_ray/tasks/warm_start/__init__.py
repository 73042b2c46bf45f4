"""Supervised warm starts: a base model learns the gold answers of a task before any reinforcement.

One training loop (training.py on an engine of DeepSpeed's) serves the job on Ray Train and the tiny models
that `prepare` makes. Importing this package loads no torch, deepspeed, ray or transformers. Not here: joining
a cluster and printing (the command line).
"""
