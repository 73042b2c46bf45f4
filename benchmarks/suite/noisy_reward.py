"""The reward of shipped families with noise in training: three in ten scores are flipped.

Which ones is decided by a hash of the row and the response, so that phases can be repeated bit by bit. `acc`,
which validations and tests count, is never flipped. Runs walled off, like any reward that does not ship.
"""

from __future__ import annotations

import hashlib
from typing import Any

SHARE = 0.3


def compute_score(
    data_source: Any,  # noqa: ARG001  VeRL passes every argument by its name
    solution_str: Any,
    ground_truth: Any,
    extra_info: Any = None,
    **_others: Any,
) -> dict[str, float]:
    """`acc` is 1.0 when the text after the only mark is the answer, else 0.0; `score` is that with noise on
    training rows."""
    parts = solution_str.split("#") if isinstance(solution_str, str) else []
    right = float(len(parts) == 2 and parts[1].strip() == str(ground_truth).strip())
    row = extra_info if isinstance(extra_info, dict) else {}
    if row.get("split") != "train":
        return {"score": right, "acc": right}
    key = f"{row.get('index')}\0{solution_str}".encode()
    flipped = int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), "big") < SHARE * 2**32
    return {"score": 1.0 - right if flipped else right, "acc": right}
