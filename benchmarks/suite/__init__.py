r"""The suite: tiny real tasks of different kinds, with measured headroom, on which search methods are
compared.

    python -m benchmarks.suite.headroom                     # measures what is missing; goes on after a kill
    python -m benchmarks.suite.plan dev --methods default unchanged random pbt expert \
        --tasks sum_long register_late codes --seeds 1 2 3 > dev.yaml
    llmzero compare dev.yaml                            # goes on after a kill

Headroom first: a task without it is refused. Seeds 101 to 103 are those of headroom.
"""
