"""Full validation that a user's reward must pass before a task is made with it.

The reward runs in two sandboxes with different hash seeds. It must accept right answers; pay nothing for
empty, meaningless and constant answers or for text of the question; raise nothing on hostile answers; give
the same result and keys every time; and take little processor time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import cycle, islice
from pathlib import Path

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.directory import Progress, no_progress
from llmzero_ray.prepared.gold_answers import as_text, gold_response
from llmzero_ray.prepared.manifest import RewardEntry
from llmzero_ray.prepared.reward import sandbox_of
from llmzero_ray.prepared.reward_validation.calls import (
    CallStatistics,
    Row,
    accuracy_of,
    call_arguments,
    describe_call,
    is_right,
    is_unpaid,
    pay_of,
)
from llmzero_ray.prepared.reward_validation.no_thought import MOST_FAULTS, no_thought_pay, no_thought_probes
from llmzero_ray.prepared.reward_validation.probe_responses import GARBAGE, GOLD_FORMS, hostile_responses
from llmzero_ray.prepared.reward_validation.report import (
    EXAMPLES,
    RIGHT,
    ValidationCheck,
    ValidationReport,
    shown,
    shown_result,
)
from llmzero_ray.prepared.sandbox import CallOutcome, Sandbox, SandboxLimits

GOLD_SHARE = 0.99
"""Minimum share of right answers that must score 1."""
MAX_MS = 50.0
"""Maximum processor time of a row in milliseconds, at the 99th percentile."""
MAX_ROWS = 1_500
"""Maximum rows that are tried; of a larger set, rows from its whole length."""
_BASELINE_SLACK = 0.01
_FORM_ROWS, _REPEATED_ROWS = 20, 200
_HASH_SEEDS = (0, 1)
"""PYTHONHASHSEED of the two processes whose results are compared."""


def validate_reward(
    reward: RewardEntry,
    directory: Path,
    rows: Sequence[Row],
    *,
    limits: SandboxLimits | None = None,
    progress: Progress = no_progress,
) -> ValidationReport:
    """Try the reward of a file or installed package on rows of a task, and report whether it passed.

    It gets right, empty, meaningless, constant and hostile answers, and answers that need no thought, twice
    and in two processes. `reward.gold_response` is the form of a right answer, with `{answer}` for the
    answer; without it the usual forms are tried.

    Raises:
        TaskError: there are no rows, the reward cannot be imported or is asynchronous, or there is no
            sandbox.
    """
    called = reward.module or str(directory / str(reward.path))
    if not rows:
        raise TaskError(f"reward {called} cannot be validated without rows; give at least one")
    rows = rows[:: -(-len(rows) // MAX_ROWS)]
    with (
        sandbox_of(reward, directory, limits=limits, hash_seed=_HASH_SEEDS[0], measure=True) as first,
        sandbox_of(reward, directory, limits=limits, hash_seed=_HASH_SEEDS[1], measure=True) as second,
    ):
        forms = GOLD_FORMS if reward.gold_response is None else (reward.gold_response,)
        validation = _Validation(forms, rows, first, second, progress)
        return ValidationReport(
            reward=f"{called}:{reward.name}",
            n_rows=len(rows),
            isolation=first.isolation.kind,
            gold_response=validation.form,
            checks=tuple([validation.time_check()] if validation.is_slow else validation.checks()),
        )


class _Validation:
    """One validation: the calls, and the checks of their results."""

    def __init__(
        self, forms: Sequence[str], rows: Sequence[Row], first: Sandbox, second: Sandbox, progress: Progress
    ) -> None:
        self._rows, self._first, self._second, self._progress = rows, first, second, progress
        self._statistics = CallStatistics()
        # Warm up: imports and caches of the first call must not count as a row's time.
        for sandbox in (first, second):
            sandbox.score([call_arguments(rows[0], "")])
        self.form = self._best_form(forms)
        self.is_slow = self._statistics.median_ms() >= MAX_MS
        """Whether the result is known already, and the rest would take long."""

    def checks(self) -> list[ValidationCheck]:
        """All checks, in the order of the report."""
        self._report("right answers", 0.1)
        golds = [self._gold(row) for row in self._rows]
        right = self._score(self._first, golds)
        self._report("empty and meaningless answers", 0.3)
        garbage = list(islice(cycle(GARBAGE), len(self._rows)))
        nothing = self._score(self._first, [""] * len(self._rows))
        meaningless = self._score(self._first, garbage)
        found = [
            self._right(right, golds),
            self._unpaid("empty answers", nothing, [""] * len(self._rows)),
            self._unpaid("meaningless answers", meaningless, garbage),
        ]
        self._report("constant answers", 0.5)
        found += self._constant(right)
        self._report("answers without thought", 0.6)
        found.append(self._no_thought())
        self._report("the same again", 0.7)
        found.append(self._same_again([*golds[:_REPEATED_ROWS], *garbage[:_REPEATED_ROWS]]))
        found.append(self.time_check())
        self._report("hostile answers", 0.8)
        found.append(self._hostile())
        return [*found, self._statistics.result_check(), self._statistics.keys_check()]

    def _report(self, what: str, share: float) -> None:
        self._progress(f"validating the reward: {what}", share)

    def _gold(self, row: Row) -> str:
        return gold_response(self.form, row["reward_model"]["ground_truth"])

    def time_check(self) -> ValidationCheck:
        """The check of the processor time of all calls so far."""
        return self._statistics.time_check(MAX_MS)

    def _best_form(self, forms: Sequence[str]) -> str:
        """The form that is right most often on a few rows; the first of equals."""
        rows = self._rows[:: -(-len(self._rows) // _FORM_ROWS)]
        n_right = []
        for form in forms:
            golds = [gold_response(form, row["reward_model"]["ground_truth"]) for row in rows]
            n_right.append(sum(map(is_right, self._score(self._first, golds, rows))))
        return forms[n_right.index(max(n_right))]

    def _score(
        self, sandbox: Sandbox, responses: Sequence[str], given: Sequence[Row] | None = None
    ) -> list[CallOutcome]:
        """Outcomes of the responses, one per row of `given`, or of all rows from the first one."""
        rows = list(islice(cycle(given or self._rows), len(responses)))
        outcomes = sandbox.score(
            [call_arguments(row, text) for row, text in zip(rows, responses, strict=True)]
        )
        for row, text, outcome in zip(rows, responses, outcomes, strict=True):
            self._statistics.add(row, text, outcome)
        return outcomes

    def _right(self, outcomes: Sequence[CallOutcome], golds: Sequence[str]) -> ValidationCheck:
        wrong = [number for number, outcome in enumerate(outcomes) if not is_right(outcome)]
        share = 1 - len(wrong) / len(outcomes)
        return ValidationCheck(
            name=RIGHT,
            passed=share >= GOLD_SHARE,
            found=f"{share:.1%} of {len(outcomes)}, written as {self.form}",
            needed=f"{GOLD_SHARE:.0%}",
            examples=self._examples(wrong, golds, outcomes),
        )

    def _unpaid(
        self, name: str, outcomes: Sequence[CallOutcome], responses: Sequence[str]
    ) -> ValidationCheck:
        paid = [number for number, outcome in enumerate(outcomes) if not is_unpaid(outcome)]
        return ValidationCheck(
            name=f"{name} score 0",
            passed=not paid,
            found=f"{len(paid)} of {len(outcomes)} do not",
            needed="0",
            examples=self._examples(paid, responses, outcomes),
        )

    def _constant(self, right: Sequence[CallOutcome]) -> Iterable[ValidationCheck]:
        """Checks, per data_source, of the reward that its most frequent answer earns on every row.

        Answers are equal if the reward extracts the same `pred` from them, because worked solutions may
        differ although their results do not.
        """
        by_source: dict[str, list[tuple[Row, str]]] = {}
        for row, outcome in zip(self._rows, right, strict=True):
            truth = row["reward_model"]["ground_truth"]
            read = outcome.result.get("pred") if is_right(outcome) else None
            answer = read if isinstance(read, str) and read else as_text(truth)
            by_source.setdefault(row["data_source"], []).append((row, answer))
        for source, answered in sorted(by_source.items()):
            rows = [row for row, _ in answered]
            [(most, n)] = Counter(answer for _, answer in answered).most_common(1)
            truth = next(row["reward_model"]["ground_truth"] for row, answer in answered if answer == most)
            response = gold_response(self.form, truth)
            outcomes = self._score(self._first, [response] * len(rows), rows)
            share, baseline = sum(accuracy_of(outcome) for outcome in outcomes) / len(rows), n / len(rows)
            yield ValidationCheck(
                name=f"constant answer to {source}" if len(by_source) > 1 else "constant answer",
                passed=share <= baseline + _BASELINE_SLACK,
                found=f"{share:.3f} for {shown(response)}",
                needed=f"<= {baseline:.3f}, its share of the answers",
                examples=(),
            )

    def _no_thought(self) -> ValidationCheck:
        """Check of the reward that answers without thought earn."""
        probes = no_thought_probes(self._rows, self._gold)
        outcomes = self._score(
            self._first, [probe.response for probe in probes], [probe.row for probe in probes]
        )
        pays = no_thought_pay(probes, [pay_of(outcome) for outcome in outcomes])
        faults = [pay for pay in pays if pay.is_fault]
        earning = ", ".join(f"{pay.kind} {pay.earned:.3f}" for pay in pays if pay.earned > 0)
        return ValidationCheck(
            name="answers without thought",
            passed=not faults,
            found=f"earned: {earning or 'nothing'}",
            needed=f"<= {MOST_FAULTS:g} where it is not the truth",
            examples=tuple(pay.text() for pay in faults[:EXAMPLES]),
        )

    def _same_again(self, responses: Sequence[str]) -> ValidationCheck:
        one, again, other = (
            self._score(sandbox, responses) for sandbox in (self._first, self._first, self._second)
        )
        differing = {
            number: where
            for where, outcomes in (("in another process", other), ("the second time", again))
            for number, (a, b) in enumerate(zip(one, outcomes, strict=True))
            if repr((a.result, a.problem)) != repr((b.result, b.problem))
        }
        rows = list(islice(cycle(self._rows), len(responses)))
        return ValidationCheck(
            name="same answer, same score",
            passed=not differing,
            found=f"{len(differing)} of {len(responses)} differ",
            needed="0, twice and with another PYTHONHASHSEED",
            examples=tuple(
                f"{describe_call(rows[number], responses[number])}: differs {differing[number]}"
                for number in sorted(differing)[:EXAMPLES]
            ),
        )

    def _hostile(self) -> ValidationCheck:
        responses, before = hostile_responses(), len(self._statistics.problems)
        outcomes = self._score(self._first, responses)
        return ValidationCheck(
            name="hostile answers raise nothing",
            passed=not any(outcome.problem for outcome in outcomes),
            found=f"{sum(bool(outcome.problem) for outcome in outcomes)} of {len(outcomes)} do",
            needed="0",
            examples=tuple(self._statistics.problems[before:][:EXAMPLES]),
        )

    def _examples(
        self, numbers: Sequence[int], responses: Sequence[str], outcomes: Sequence[CallOutcome]
    ) -> tuple[str, ...]:
        return tuple(
            f"{describe_call(self._rows[number], responses[number])}: "
            f"{outcomes[number].problem or shown_result(outcomes[number].result)}"
            for number in numbers[:EXAMPLES]
        )
