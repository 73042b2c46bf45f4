"""A search in experiment trackers, through VeRL's own `Tracking`: one run per node and one for the search.

    TrackerProcess   the coordinator's handle: starts and restarts the tracker, waits for it at the end
    tracker          the tracker process: follows the search's files, feeds one process per run and backend
    backend_process  one run in one backend: VeRL's `Tracking`, whose state is global to a process

All data is read from the search's directory, so that no runner and no decision waits for a tracker.
"""

from __future__ import annotations

from .handle import TrackerProcess, tracker_keys

__all__ = ["TrackerProcess", "tracker_keys"]
