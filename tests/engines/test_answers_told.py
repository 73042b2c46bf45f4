"""A rollout shows its progress by the answers that VeRL's replay buffer finds finished."""

from __future__ import annotations

from llmzero_ray.engines.verl.verl_hooks import tell_of_answers


class Buffer:
    """Looks once more for each entry of `looks`: answers finished so far."""

    def __init__(self, looks: list[int]) -> None:
        self.partitions: dict[str, dict[str, int]] = {}
        self.looks, self.waited = looks, 0

    def _wait_for_next_poll(self, partition: str, since: float) -> float:
        self.waited += 1
        return since + 1

    def sample(self) -> None:
        since = 0.0
        for answers in self.looks:
            self.partitions = {"train": dict.fromkeys(map(str, range(answers)), 0)}
            since = self._wait_for_next_poll("train", since)
        assert since == len(self.looks) == self.waited


def told(looks: list[int]) -> int:
    calls: list[None] = []
    buffer = Buffer(looks)
    tell_of_answers(buffer, lambda: calls.append(None))
    buffer.sample()
    return len(calls)


def test_only_a_look_that_finds_more_answers_is_progress() -> None:
    assert told([0, 0, 0]) == 0
    assert told([0, 3, 3, 8, 8]) == 2


def test_the_next_batch_begins_from_none_again() -> None:
    assert told([5, 0, 2]) == 2
