"""Choose which rows of a data set become training, validation and test set: a pure function of the rows.

It sees eight numbers per row, most of them digests of its content, never where a row stands: other file
orders, block counts or machines choose the same rows. Not here: making those numbers (facts.py).

Prompts are unique over all splits, groups never cross them, data sources share each split, and the test set
depends neither on the sizes of the other two nor on anything that they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from llmzero_ray.tasks.sources.base import Shares

Facts: TypeAlias = npt.NDArray[np.void]
"""Shape (rows,), of `FACTS`."""
Indices: TypeAlias = npt.NDArray[np.int64]

FACTS = np.dtype(
    [
        ("group", "<u8"),
        ("key", "<u8"),
        ("prompt", "<u8"),
        ("gold", "<u8"),
        ("content", "<u8"),
        ("source", "<u8"),
        ("home", "u1"),
        ("file", "<u4"),
        ("row", "<u8"),
    ]
)
"""Digests of the group, of (task, source, id, prompt), of the prompt, of the ground truth, of the whole item
and of its data source; the split that it is bound to; and where it stands, which decides nothing."""
ANYWHERE = 0
HOMES = {"": ANYWHERE, "val": 1, "test": 2}

HELD_OUT = ("test", "val")
_LARGEST_HELD_OUT_SHARE = 3
"""A data source gives at most one in this many of its rows to a set that is not trained on."""

DUPLICATE = "duplicate prompt"
CONFLICT = "duplicate prompt with another answer"
GROUP_ELSEWHERE = "its group is in another split"
NOT_NEEDED = "not needed"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which rows, as positions in the facts; each split in an order that the content alone decides."""

    splits: Mapping[str, Indices]
    dropped: Mapping[str, int]
    """Rows by reason; with the chosen ones they are all rows."""


def select(facts: Facts, sizes: Mapping[str, int], shares: Shares) -> Selection:
    """At most `sizes` rows for train, val and test."""
    kept, dropped = _first_of_each_prompt(facts)
    groups, homes = facts["group"], facts["home"]
    ordered = kept[np.lexsort((facts["key"][kept], groups[kept]))]
    pool = ordered[homes[ordered] == ANYWHERE]
    chosen: dict[str, Indices] = {}
    taken_groups: list[npt.NDArray[np.uint64]] = []
    for split in (*HELD_OUT, "train"):
        bound = ordered[homes[ordered] == HOMES[split]] if split in HELD_OUT else pool[:0]
        members = bound if len(bound) else pool
        if taken_groups:
            members = members[~np.isin(groups[members], np.concatenate(taken_groups))]
        limited = split in HELD_OUT and not len(bound)
        caps = _caps(facts["source"], members, pool, limited=limited)
        chosen[split] = _take(facts["source"], members, sizes[split], caps, shares)
        taken_groups.append(np.unique(groups[chosen[split]]))
    left = np.setdiff1d(kept, np.concatenate(list(chosen.values())))
    elsewhere = np.isin(groups[left], np.concatenate(taken_groups[: len(HELD_OUT)])).sum()
    dropped |= {GROUP_ELSEWHERE: int(elsewhere), NOT_NEEDED: int(len(left) - elsewhere)}
    splits = {
        split: chosen[split][np.argsort(facts["key"][chosen[split]], kind="stable")] for split in chosen
    }
    return Selection(splits=splits, dropped={reason: n for reason, n in dropped.items() if n})


def _first_of_each_prompt(facts: Facts) -> tuple[Indices, dict[str, int]]:
    """The rows that stay, and how many went; a row that is bound to the test set goes before all others."""
    order = np.lexsort((facts["content"], facts["key"], facts["group"], -facts["home"].astype(np.int64)))
    prompts = facts["prompt"][order]
    _, first, inverse = np.unique(prompts, return_index=True, return_inverse=True)
    repeated = np.ones(len(order), dtype=bool)
    repeated[first] = False
    gold = facts["gold"][order]
    conflicts = int((repeated & (gold != gold[first][inverse])).sum())
    return order[np.sort(first)], {DUPLICATE: int(repeated.sum()) - conflicts, CONFLICT: conflicts}


def _caps(
    sources: npt.NDArray[np.uint64], members: Indices, pool: Indices, *, limited: bool
) -> dict[int, int]:
    """Rows by data source that a split may take."""
    caps = _count(sources[members])
    if limited:
        whole = _count(sources[pool])
        caps = {source: min(n, whole[source] // _LARGEST_HELD_OUT_SHARE) for source, n in caps.items()}
    return caps


def _take(
    sources: npt.NDArray[np.uint64], members: Indices, size: int, caps: Mapping[int, int], shares: Shares
) -> Indices:
    """The first members of each data source, as many as its quota says."""
    weights = _count(sources[members]) if shares == "proportional" else dict.fromkeys(caps, 1)
    quotas = allot(size, weights, caps)
    parts = [members[sources[members] == source][:n] for source, n in quotas.items() if n]
    return np.concatenate(parts) if parts else members[:0]


def _count(sources: npt.NDArray[np.uint64]) -> dict[int, int]:
    values, counts = np.unique(sources, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def allot(size: int, weights: Mapping[int, int], caps: Mapping[int, int]) -> dict[int, int]:
    """Share `size` by weight, largest remainders first, nobody above its cap.

    What a capped one cannot take goes to the others. The sum is `size`, or that of the caps if it is less.
    """
    got = dict.fromkeys(sorted(weights), 0)
    while (left := size - sum(got.values())) > 0:
        open_ones = [name for name in got if got[name] < caps[name]]
        if not open_ones:
            break
        total = sum(weights[name] for name in open_ones)
        remainders = sorted(open_ones, key=lambda name: (-(left * weights[name] % total), name))
        floors = {name: left * weights[name] // total for name in open_ones}
        extra = set(remainders[: left - sum(floors.values())])
        for name in open_ones:
            got[name] = min(caps[name], got[name] + floors[name] + (name in extra))
    return got
