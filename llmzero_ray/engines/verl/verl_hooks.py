"""Replacements for parts of VeRL's trainer: a resource pool on reserved bundles, numbered rows, a logger, and
conversion of VeRL's values to plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.single_controller.ray.base import ResourcePoolManager, SubRayResourcePool

from llmzero_ray.dynamics.stored_outcomes import expected_of, prompt_text
from llmzero_ray.engines.verl.cpu.batched_rollouts import ROW_KEY, rows_of
from llmzero_ray.engines.verl.settings import VerlSettings
from llmzero_ray.records import Answer, ItemOutcome
from llmzero_ray.records.metrics import BEST_OF_N, MIXED_GROUPS


class ReservedBundles(ResourcePoolManager):
    """VeRL's resource pool on placement groups that the coordinator reserved."""

    def __init__(self, settings: VerlSettings, groups: list[Any], mapping: dict[Any, str]) -> None:
        per_node = [settings.n_gpus_per_node] * settings.nnodes
        super().__init__(resource_pool_spec={"global_pool": per_node}, mapping=mapping)
        self._groups, self._per_node = groups, per_node

    def create_resource_pool(self) -> None:
        """Create one pool over all bundles, in their order."""
        self.resource_pool_dict["global_pool"] = SubRayResourcePool(
            placement_groups=self._groups,
            start_bundle_index=0,
            subgroup_world_size=sum(self._per_node),
            process_on_nodes=self._per_node,
            use_gpu=True,
            max_colocate_count=self.max_colocate_count,
            name_prefix="llmzero",
        )


class NumberedRows(Dataset):
    """VeRL's data set with each row's place in the file as its `index`, whatever the file says. Rows that
    VeRL left out because of their length count."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows
        # The places of the rows that `datasets` has kept, or None if it has dropped none.
        kept = getattr(getattr(rows, "dataframe", None), "_indices", None)
        self._places: Sequence[int] = range(len(rows)) if kept is None else kept.column(0).to_pylist()
        self._read: list[dict[str, Any]] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> Any:
        row = self._rows[i]
        row["index"] = self._places[i]
        return row

    def rows(self) -> list[dict[str, Any]]:
        """All rows, read once. Callers must not change them."""
        if self._read is None:
            self._read = [self[i] for i in range(len(self))]
        return self._read


def with_numbered_rows(loader: StatefulDataLoader) -> StatefulDataLoader:
    """VeRL's training loader, which has not begun, over `NumberedRows`."""
    return StatefulDataLoader(
        dataset=NumberedRows(loader.dataset),
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        drop_last=loader.drop_last,
        collate_fn=loader.collate_fn,
        sampler=loader.sampler,
    )


def tell_of_answers(replay_buffer: Any, tell: Callable[[], None]) -> None:
    """Make a VeRL replay buffer that waits for a batch call `tell` whenever it finds more finished answers
    than at its previous poll."""
    wait, seen = replay_buffer._wait_for_next_poll, 0

    def _wait_for_next_poll(*args: Any) -> Any:
        nonlocal seen
        before, seen = seen, sum(len(answers) for answers in replay_buffer.partitions.values())
        if seen > before:
            tell()
        return wait(*args)

    replay_buffer._wait_for_next_poll = _wait_for_next_poll


class CallbackLogger:
    """Logger for VeRL's Tracking that passes every step's metrics to the callback `log(data, step)`."""

    def __init__(self, log: Callable[[dict[str, Any], int], None]) -> None:
        self._log = log

    def log(self, data: dict[str, Any], step: int) -> None:
        """Pass one step's metrics on."""
        self._log(data, step)

    def finish(self) -> None:
        """No-op: nothing is held open."""


SAMPLED_FIELDS = ("raw_prompt", "responses", "extra_fields", "reward_model")
"""VeRL's columns that are needed to show an answer."""
MOST_PRED = 200
"""Maximum characters stored of the answer that a reward extracted."""


def outcomes_of(
    data_sources: Sequence[Any],
    infos: dict[str, list[Any]],
    responses: Sequence[str],
    cut: Sequence[bool],
) -> tuple[ItemOutcome, ...]:
    """One outcome per validated row, in row order. Removes the rows' places from `infos`. `cut` says
    whether each response ended at the cap."""
    accs, preds = infos.get("acc", infos["reward"]), infos.get("pred", (None,) * len(responses))
    columns = (infos.pop(ROW_KEY), data_sources, infos["reward"], accs, responses, preds, cut)
    outcomes = [
        ItemOutcome(
            index=int(row),
            data_source=str(source),
            score=float(score),
            acc=float(acc),
            response=text,
            pred=None if pred is None else str(pred)[:MOST_PRED],
            cut=at_cap,
        )
        for row, source, score, acc, text, pred, at_cap in zip(*columns, strict=True)
    ]
    return tuple(sorted(outcomes, key=lambda outcome: outcome.index))


def with_wrong(items: Sequence[ItemOutcome], missing: Mapping[int, Any]) -> tuple[ItemOutcome, ...]:
    """`items` and one wrong outcome for each row of `missing` (row -> data_source), in row order."""
    wrong = [
        ItemOutcome(index=row, data_source=str(source), score=0.0, acc=0.0, response="")
        for row, source in missing.items()
    ]
    return tuple(sorted([*items, *wrong], key=lambda item: item.index))


def mean_accuracy(items: Sequence[ItemOutcome]) -> float:
    """Mean of `acc` over at least one outcome."""
    return sum(item.acc for item in items) / len(items)


def group_metrics(keys: Sequence[str], scores: Sequence[float]) -> dict[str, float]:
    """Share of groups whose answers have different scores, and the mean of the groups' best scores.

    `keys` are VeRL's names of the answers, `{prompt}_{session}_{index}`; answers to one prompt are a group.
    """
    groups: dict[str, list[float]] = {}
    for key, score in zip(keys, scores, strict=True):
        groups.setdefault(key.rsplit("_", 2)[0], []).append(score)
    best = [max(group) for group in groups.values()]
    mixed = [min(group) < max(group) for group in groups.values()]
    return {MIXED_GROUPS: sum(mixed) / len(groups), BEST_OF_N: sum(best) / len(groups)}


def places_to_show(scores: Sequence[float], cut: Sequence[bool]) -> list[int]:
    """Positions of up to three answers: one with the best score, a worse one, and a worse one that was cut
    off. Among equal ones it is the middle one, because a batch may be sorted by length."""
    best, worst = max(scores), min(scores)
    kinds: list[list[int]] = [[], [], []]
    for place, score in enumerate(scores):
        kinds[0 if score == best > worst else 2 if cut[place] else 1].append(place)
    found = []
    for kind in filter(None, kinds):
        least = min(scores[place] for place in kind)
        alike = [place for place in kind if scores[place] == least]
        found.append(alike[len(alike) // 2])
    return found


def sampled_answers(
    columns: Any, judged: Sequence[tuple[float, bool]], tokenizer: Any, step: int
) -> tuple[Answer, ...]:
    """Answers of a training step, with their texts, from VeRL's columns SAMPLED_FIELDS. `judged` has each
    answer's score and whether it ended at the cap."""
    found = []
    for row, (score, cut) in zip(rows_of(columns), judged, strict=True):
        (response,) = tokenizer.batch_decode([row["responses"]], skip_special_tokens=True)
        info = (row.get("extra_fields") or {}).get("reward_extra_info") or {}
        pred = info.get("pred")
        answer = Answer(
            prompt=prompt_text(list(row["raw_prompt"])),
            response=response,
            score=score,
            acc=float(info.get("acc", score)),
            pred=None if pred is None else str(pred)[:MOST_PRED],
            expected=expected_of(row),
            cut=cut,
            step=step,
        )
        found.append(answer)
    return tuple(found)


def scalars(data: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among a step's logged values."""
    return {key: float(value) for key, value in data.items() if _is_scalar(value)}


def _is_scalar(value: Any) -> bool:
    if isinstance(value, bool | str | bytes) or value is None:
        return False
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
