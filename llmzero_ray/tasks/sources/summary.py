"""Summary of a task that was made from a data set, as values and as lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmzero_ray.prepared.manifest import SourceEntry, SplitCounts, ValidationEntry, read_manifest
from llmzero_ray.prepared.reward_validation import (
    GOLD_SHARE,
    RewardAccuracy,
    ScoredSample,
    Table,
    validation_table,
)
from llmzero_ray.prepared.splits import CONFIRM, SPLITS
from llmzero_ray.prepared.task import PreparedTask, repeated_questions
from llmzero_ray.tasks.sources.scan import ScannedRows
from llmzero_ray.utils.text import collapse_whitespace

_PROMPT_SHOWN, _TRUTH_SHOWN = 60, 30


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A prepared task and how it was made."""

    task: PreparedTask
    made: bool
    """False if the task already existed. Nothing was then read, and `examples` and `notes` are empty."""
    rows_read: int
    counts: Mapping[str, SplitCounts]
    """Rows by data_source and split."""
    dropped: Mapping[str, int]
    """Rows by reason."""
    examples: Mapping[str, tuple[str, ...]]
    """A few dropped rows by reason: file, row, defect, remedy."""
    notes: Mapping[str, str]
    """File -> what is odd about it."""
    majority_baselines: Mapping[str, float]
    trial: RewardAccuracy | None
    """Accuracies of gold, empty and garbage answers; None for an asynchronous reward."""
    validation: ValidationEntry | None
    """Validation of a user's reward, or None for shipped rewards."""
    warnings: tuple[str, ...]
    """Points to look at before training."""

    def split_table(self) -> Table:
        """Header and one line per data_source: rows by split, accuracy of a constant answer."""
        splits = (*SPLITS, CONFIRM) if any(n.confirm for n in self.counts.values()) else SPLITS
        head = ("data_source", *splits, "majority")
        body = tuple(
            (
                source,
                *(str(getattr(n, split)) for split in splits),
                f"{self.majority_baselines.get(source, 0):.3f}",
            )
            for source, n in self.counts.items()
        )
        total = ("all", *(str(sum(getattr(n, split) for n in self.counts.values())) for split in splits))
        return (head, *body, (*total, f"{self.task.majority_baseline or 0:.3f}"))

    def dropped_table(self) -> Table:
        """Header and one line per reason, with an example if there is one."""
        head = ("dropped", "rows", "for example")
        lines = [
            (reason, str(n), (*self.examples.get(reason, ()), "")[0]) for reason, n in self.dropped.items()
        ]
        return (head, *lines)

    def reward_table(self) -> Table:
        """Header and one line per check of the reward's validation; empty for shipped rewards."""
        return validation_table(self.validation) if self.validation is not None else ()

    def no_thought_table(self) -> Table:
        """Header and one line per kind of answer that needs no thought: its reward, and the number of rows in
        which it is paid although it is wrong."""
        trial = self.trial
        if trial is None or not trial.no_thought:
            return ()
        gold = "-" if trial.gold is None else f"{trial.gold:.3f}"
        lines = [
            (pay.kind, f"{pay.earned:.3f}", f"{pay.n_faults} of {pay.n_rows}") for pay in trial.no_thought
        ]
        return (
            ("answer without thought", "earned", "paid though wrong"),
            ("(right answers)", gold, ""),
            *lines,
        )

    def sample_table(self) -> Table:
        """Header and one line per sample row, with the accuracy of a gold, an empty and a garbage answer."""
        head = ("data_source", "prompt", "ground truth", "gold", "empty", "garbage")
        samples = self.trial.samples if self.trial is not None else ()
        return (head, *(_sample_line(sample) for sample in samples))


def summarise(
    task: PreparedTask, sizes: Mapping[str, int], trial: RewardAccuracy | None, scanned: ScannedRows | None
) -> Summary:
    """The summary of a task. `scanned` is None if the task already existed."""
    manifest = read_manifest(Path(task.directory))
    source = manifest.source or SourceEntry(
        adapter="", files=(), counts={}, dropped={}, majority_baselines={}, max_prompt_chars=0
    )
    notes = scanned.notes if scanned is not None else {}
    return Summary(
        task=task,
        made=scanned is not None,
        rows_read=sum(file.rows for file in source.files),
        counts=source.counts,
        dropped=source.dropped,
        examples=scanned.dropped_examples if scanned is not None else {},
        notes=notes,
        majority_baselines=source.majority_baselines,
        trial=trial,
        validation=manifest.gate,
        warnings=(
            *_validation_warnings(manifest.gate),
            *_size_warnings(task, sizes),
            *_trial_warnings(trial),
            *repeated_questions(task),
            *notes.values(),
        ),
    )


def _size_warnings(task: PreparedTask, sizes: Mapping[str, int]) -> list[str]:
    found = {"train": task.n_train, "val": task.n_val, "test": task.n_test}
    return [
        f"{split} has {found[split]} rows, {sizes[split]} were asked for; give more data, or lower n_{split}"
        for split in SPLITS
        if found[split] < sizes[split]
    ]


def _validation_warnings(found: ValidationEntry | None) -> list[str]:
    if found is None or found.isolation == "bubblewrap":
        return []
    return [f"the reward was validated without a sandbox (isolation: {found.isolation}), as task.yaml allows"]


def _trial_warnings(trial: RewardAccuracy | None) -> list[str]:
    if trial is None:
        return ["the reward is asynchronous and was not tried"]
    warnings = []
    if trial.gold is None:
        warnings.append("no gold answer is known, so that the reward could not be tried with right answers")
    elif trial.gold < GOLD_SHARE:
        warnings.append(
            f"the reward accepts {trial.gold:.1%} of {trial.n_rows} gold answers; {GOLD_SHARE:.0%} or more "
            "are needed to trust it: correct the answers or the reward"
        )
    if trial.garbage > 0:
        warnings.append(f"the reward pays {trial.garbage:.1%} of garbage answers; correct it")
    warnings += [
        f"{pay.text()}: a model can earn that without solving anything; give the task a reward that refuses "
        "it, such as exact_match or one of your own"
        for pay in trial.no_thought
        if pay.is_fault
    ]
    return warnings


def _sample_line(sample: ScoredSample) -> tuple[str, ...]:
    prompt, truth = collapse_whitespace(sample.prompt), sample.ground_truth
    gold = "-" if sample.gold is None else f"{sample.gold:g}"
    shown = (prompt[:_PROMPT_SHOWN], truth[:_TRUTH_SHOWN])
    return (sample.data_source, *shown, gold, f"{sample.empty:g}", f"{sample.garbage:g}")
