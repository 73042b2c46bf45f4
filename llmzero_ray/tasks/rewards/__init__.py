"""Reward functions in VeRL's calling convention, named `compute_score`.

One file a task (chemcot, papersearchqa, ssmr, wildsci, marked_answer) or a generic kind (exact_match, mcq,
math_answer, regex_match), to be named as `reward.module` or as `reward.path` of a manifest; they are found by
data_source in tasks/shipped_rewards.py. The other files are their parts. Rewards run on threads of VeRL's
workers, or of the process that embeds VeRL, without a time limit: each one bounds its own work, raises
nothing, prints nothing, and returns the same keys for every row: `score`, `acc`, `fmt_ok` (floats in [0, 1])
and `pred` (the answer as it was compared).
"""
