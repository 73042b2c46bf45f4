"""Making of prepared tasks: from procedural families, or from data of your own.

Not here: prepared tasks (llmzero_ray/prepared).
"""
