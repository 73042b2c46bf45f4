"""Makes prepared tasks from procedural families or from your own data.

Not here: prepared tasks (llmzero_ray/prepared).
"""
