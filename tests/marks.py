"""Marks of tests that need what not every machine has, and settings of slow properties."""

from __future__ import annotations

import pytest
from hypothesis import settings

from llmzero_ray.prepared.sandbox import find_isolation

needs_sandbox = pytest.mark.skipif(not find_isolation().full, reason=f"no sandbox: {find_isolation().why}")
"""Runs a reward or a source of its own code in the sandbox, for which user namespaces must be allowed; inside
many containers they are not."""

slow_example = settings(max_examples=min(50, settings().max_examples))
"""For a property whose single example takes a tenth of a second: 50 examples in place of the 200 of `ci`."""
