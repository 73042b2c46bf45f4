"""GPU hours for which slots were reserved, including idle time, computed from the times of events."""

from __future__ import annotations

from llmzero_ray.records import Event
from llmzero_ray.records import events as ev
from llmzero_ray.storage.presence import STALE_S


class Meter:
    """Meter of slots with `n_gpus` GPUs each. A slot counts from when it is ready until it is released."""

    def __init__(self, n_gpus: int) -> None:
        self._n_gpus = n_gpus
        self._since: dict[int, float] = {}
        self._closed_s = 0.0

    def take(self, event: Event) -> None:
        """Apply the next event of the journal."""
        if isinstance(event, ev.SlotReady):
            self._since.setdefault(event.slot, event.time)
        elif isinstance(event, ev.SlotClosed):
            self._close(event.slot, event.time)
        elif isinstance(event, ev.ENDS):
            for slot in tuple(self._since):
                self._close(slot, event.time)
        elif isinstance(event, ev.CoordinatorStarted):
            self._taken_over(event)

    def gpu_hours(self, now: float | None = None) -> float:
        """GPU hours reserved so far. Slots that are still reserved count up to `now`, or not at all if it is
        None."""
        open_s = 0.0 if now is None else sum(max(0.0, now - since) for since in self._since.values())
        return (self._closed_s + open_s) / 3600 * self._n_gpus

    def _close(self, slot: int, now: float) -> None:
        since = self._since.pop(slot, None)
        if since is not None:
            self._closed_s += max(0.0, now - since)

    def _taken_over(self, event: ev.CoordinatorStarted) -> None:
        gone = gone_since(event)
        if gone is not None:
            for slot in tuple(self._since):
                self._close(slot, gone)
                self._since[slot] = event.time


def gone_since(event: ev.CoordinatorStarted) -> float | None:
    """Unix time of the last heartbeat before a long gap without a coordinator. The cluster was gone in it, so
    nothing was reserved and nothing trained. None without such a gap."""
    before = event.previous_alive
    return before if before is not None and event.time - before > STALE_S else None
