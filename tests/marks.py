"""Marks of tests that need what not every machine has."""

from __future__ import annotations

import pytest

from llmzero_ray.prepared.sandbox import find_isolation

needs_sandbox = pytest.mark.skipif(not find_isolation().full, reason=f"no sandbox: {find_isolation().why}")
"""Runs a reward or a source of its own code in the sandbox, for which user namespaces must be allowed; inside
many containers they are not."""
