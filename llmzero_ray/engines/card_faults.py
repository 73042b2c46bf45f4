"""What CUDA and NVIDIA's driver say of a card that has failed, whatever was computed on it.

A lost process, a lost connection and a full memory are no such faults. Pure text work.
"""

from __future__ import annotations

import re

CARD_FAULT = (
    r"uncorrectable (?:ECC|NVLink)|GPU is lost|fallen off the bus|no CUDA-capable device|hardware stack error"
    r"|Xid \("
)
_FAULT = re.compile(CARD_FAULT, re.IGNORECASE)
_LIMIT = 300


def card_fault(text: str) -> str | None:
    """The last line of a message or log that tells of a failed card, at most 300 characters; None: none
    does."""
    found = [line.strip() for line in text.splitlines() if _FAULT.search(line)]
    return found[-1][:_LIMIT] if found else None
