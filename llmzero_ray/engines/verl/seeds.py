"""Seeds derived from names: one for every random draw, so that a phase is reproducible on any machine."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: object) -> int:
    """Seed in [0, 2^62) that depends only on the parts (no process state, no hash randomisation)."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 2
