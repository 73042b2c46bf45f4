"""Chooses the rows of a data set's training, validation and test splits, as a pure function of the rows.

It sees a few numbers per row, most of them digests of its content, and never depends on a row's position:
another order of files, number of shares or machine gives the same rows.

Prompts are unique over all splits, groups never cross them, data sources share each split, and the test set
depends neither on the sizes nor on the rows of the other two. Rows to confirm winners are chosen from the
remaining ones, so they change none of the splits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from llmzero_ray.prepared.splits import CONFIRM
from llmzero_ray.tasks.sources.base import Shares

RowKeys: TypeAlias = npt.NDArray[np.void]
"""Shape (rows,), of `ROW_KEYS`."""
Indices: TypeAlias = npt.NDArray[np.int64]

ROW_KEYS = np.dtype(
    [
        ("group", "<u8"),
        ("key", "<u8"),
        ("prompt", "<u8"),
        ("gold", "<u8"),
        ("content", "<u8"),
        ("source", "<u8"),
        ("only_split", "u1"),
        ("file", "<u4"),
        ("row", "<u8"),
    ]
)
"""64-bit digests of the group, of (task, source, id, prompt), of the prompt, of the ground truth, of the
whole example and of its data source; the only split that the row may enter (`SPLIT_CODES`); and the numbers
of file and row, which do not affect the selection."""
ANYWHERE = 0
SPLIT_CODES = {"": ANYWHERE, "val": 1, "test": 2, CONFIRM: 3}
_PRECEDENCE = np.array([0, 1, 2, -1])
"""Priority by split code. Of rows with equal prompts the one with the highest priority stays."""

HELD_OUT = ("test", "val")
_LARGEST_HELD_OUT_SHARE = 3
"""A held-out split takes at most one in this many rows of a data source."""

DUPLICATE = "duplicate prompt"
CONFLICT = "duplicate prompt with another answer"
GROUP_ELSEWHERE = "its group is in another split"
NOT_NEEDED = "not needed"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The chosen rows as positions in the keys, shape (rows of the split,); the order depends on content
    alone."""

    splits: Mapping[str, Indices]
    dropped: Mapping[str, int]
    """Number of rows by reason; together with the chosen ones they are all rows."""


def select(keys: RowKeys, sizes: Mapping[str, int], shares: Shares) -> Selection:
    """Selection of at most `sizes` rows for train, val and test."""
    kept, dropped = _first_of_each_prompt(keys)
    groups, only_splits = keys["group"], keys["only_split"]
    ordered = kept[np.lexsort((keys["key"][kept], groups[kept]))]
    pool = ordered[only_splits[ordered] == ANYWHERE]
    chosen: dict[str, Indices] = {}
    taken_groups: list[npt.NDArray[np.uint64]] = []
    for split in (*HELD_OUT, "train"):
        bound = ordered[only_splits[ordered] == SPLIT_CODES[split]] if split in HELD_OUT else pool[:0]
        members = bound if len(bound) else pool
        if taken_groups:
            members = members[~np.isin(groups[members], np.concatenate(taken_groups))]
        limited = split in HELD_OUT and not len(bound)
        caps = _caps(keys["source"], members, pool, limited=limited)
        chosen[split] = _take(keys["source"], members, sizes[split], caps, shares)
        taken_groups.append(np.unique(groups[chosen[split]]))
    left = np.setdiff1d(kept, np.concatenate(list(chosen.values())))
    elsewhere = np.isin(groups[left], np.concatenate(taken_groups[: len(HELD_OUT)])).sum()
    dropped |= {GROUP_ELSEWHERE: int(elsewhere), NOT_NEEDED: int(len(left) - elsewhere)}
    splits = {split: chosen[split][np.argsort(keys["key"][chosen[split]], kind="stable")] for split in chosen}
    return Selection(splits=splits, dropped={reason: n for reason, n in dropped.items() if n})


def set_aside(
    keys: RowKeys, selection: Selection, n: int, shares: Shares, without: Indices | None = None
) -> Selection:
    """The selection with at most `n` further validation rows as `confirm`. Its other splits are unchanged.

    The rows have the same origin and data sources as validation rows, and share no group with any split.
    `without` are rows that may not be taken.
    """
    kept, _ = _first_of_each_prompt(keys)
    groups, only_splits, sources = keys["group"], keys["only_split"], keys["source"]
    used = np.concatenate(list(selection.splits.values()))
    codes = (SPLIT_CODES[CONFIRM], SPLIT_CODES["val"], ANYWHERE)
    code = next((code for code in codes if (only_splits[kept] == code).any()), ANYWHERE)
    free = (only_splits[kept] == code) & ~np.isin(groups[kept], groups[used])
    free &= np.isin(sources[kept], sources[selection.splits["val"]])
    if without is not None:
        free &= ~np.isin(kept, without)
    members = kept[free]
    members = members[np.lexsort((keys["key"][members], groups[members]))]
    chosen = _take(sources, members, n, _count(sources[members]), shares)
    chosen = chosen[np.argsort(keys["key"][chosen], kind="stable")]
    left = selection.dropped.get(NOT_NEEDED, 0) - len(chosen)
    dropped = {**selection.dropped, NOT_NEEDED: left}
    return Selection(
        splits={**selection.splits, CONFIRM: chosen},
        dropped={reason: rows for reason, rows in dropped.items() if rows},
    )


def _first_of_each_prompt(keys: RowKeys) -> tuple[Indices, dict[str, int]]:
    """(positions of the rows to keep, number of dropped rows by reason). Of rows with equal prompts, one
    bound to the test set is kept first."""
    order = np.lexsort((keys["content"], keys["key"], keys["group"], -_PRECEDENCE[keys["only_split"]]))
    prompts = keys["prompt"][order]
    _, first, inverse = np.unique(prompts, return_index=True, return_inverse=True)
    repeated = np.ones(len(order), dtype=bool)
    repeated[first] = False
    gold = keys["gold"][order]
    conflicts = int((repeated & (gold != gold[first][inverse])).sum())
    return order[np.sort(first)], {DUPLICATE: int(repeated.sum()) - conflicts, CONFLICT: conflicts}


def _caps(
    sources: npt.NDArray[np.uint64], members: Indices, pool: Indices, *, limited: bool
) -> dict[int, int]:
    """Data source -> maximum rows that a split may take."""
    caps = _count(sources[members])
    if limited:
        whole = _count(sources[pool])
        caps = {source: min(n, whole[source] // _LARGEST_HELD_OUT_SHARE) for source, n in caps.items()}
    return caps


def _take(
    sources: npt.NDArray[np.uint64], members: Indices, size: int, caps: Mapping[int, int], shares: Shares
) -> Indices:
    """First members of each data source, up to its quota."""
    weights = _count(sources[members]) if shares == "proportional" else dict.fromkeys(caps, 1)
    quotas = allot(size, weights, caps)
    parts = [members[sources[members] == source][:n] for source, n in quotas.items() if n]
    return np.concatenate(parts) if parts else members[:0]


def _count(sources: npt.NDArray[np.uint64]) -> dict[int, int]:
    values, counts = np.unique(sources, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def allot(size: int, weights: Mapping[int, int], caps: Mapping[int, int]) -> dict[int, int]:
    """Share `size` by weight with the largest-remainder method (Hamilton's), none above its cap.

    What a capped source cannot take goes to the others. The sum is `size`, or that of the caps if it is less.
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
