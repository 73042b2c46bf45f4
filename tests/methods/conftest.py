"""Commands are tested on the small task and the searches of the actors' tests."""

from __future__ import annotations

from tests.actors.conftest import make_search, task_dir

__all__ = ["make_search", "task_dir"]
