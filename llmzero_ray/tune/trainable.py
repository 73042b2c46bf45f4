"""Helper for trainables: the checkpoint that a trial of a search continues from."""

from __future__ import annotations

from typing import Any


def get_checkpoint() -> Any:
    """The `ray.tune.Checkpoint` that this trial continues from, or None if it starts from scratch.

    It is the trial's own newest one after a restart, otherwise the one of another trial that its phase
    resumes from. A trainable that loads its step counter with its weights continues there and repeats
    nothing:

        def train(config):
            checkpoint = get_checkpoint()
            model, step = load(checkpoint) if checkpoint else (new_model(), 0)
            while True:  # the search ends the phase
                step += 1
                ...
                tune.report({"accuracy": ...}, checkpoint=tune.Checkpoint.from_directory(folder))

    Raises:
        RuntimeError: it is called outside of a trial of Ray Tune.
    """
    from ray import tune
    from ray.train._internal.session import get_session

    if get_session() is None:
        raise RuntimeError(
            "get_checkpoint() was called outside of a trial; call it inside the function that Tuner runs."
        )
    return tune.get_checkpoint()
