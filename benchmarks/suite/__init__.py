r"""The suite: tiny but real tasks of different kinds, with measured headroom, for comparing search methods.

    python -m benchmarks.suite.headroom                     # measures what is missing; goes on after a kill
    python -m benchmarks.suite.plan dev --methods default unchanged random pbt expert \
        --tasks sum_long register_late codes --seeds 1 2 3 > dev.yaml
    llmzero compare dev.yaml                            # goes on after a kill

Measure headroom first: a comparison refuses a task without it. Seeds 101 to 103 are reserved for headroom.
"""
