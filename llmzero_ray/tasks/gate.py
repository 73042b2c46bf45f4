"""The gate that reward code must pass before anything is trained with it: `vet`.

All of it runs in the sandbox. Not here: the sandbox (sandbox/), keeping what was found and checking that the
file stays the same (rewards/vetted.py, manifest.py), a few rows of a task put together by hand
(reward_check.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.gate_report import EXAMPLES, RIGHT, Check, GateReport, shown, shown_result
from llmzero_ray.tasks.gate_tally import Tally, accuracy, example, is_right, is_unpaid
from llmzero_ray.tasks.making import Progress, silent
from llmzero_ray.tasks.responses import GARBAGE, GOLD_FORMS, hostile_responses
from llmzero_ray.tasks.reward_check import question
from llmzero_ray.tasks.rewards.targets import gold_response
from llmzero_ray.tasks.sandbox import Limits, Outcome, Sandbox

GOLD_SHARE = 0.99
"""Least share of right answers that must score 1."""
MAX_MS = 50.0
"""Processor time of a row."""
MAX_ROWS = 1_500
"""Rows that are looked at; of more, these many from the whole length."""
_BASELINE_SLACK = 0.01
_FORM_ROWS, _REPEATED_ROWS = 20, 200
_SEEDS = (0, 1)
"""PYTHONHASHSEED of the two processes whose results are compared."""

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RewardCode:
    """A reward that nobody has vouched for yet."""

    path: Path
    name: str = "compute_score"
    gold: str | None = None
    """Form of a right answer, `{answer}` standing for the answer; None: the usual ones are tried."""
    allow_unsandboxed: bool = False


def vet(
    reward: RewardCode, rows: Sequence[Row], *, limits: Limits | None = None, progress: Progress = silent
) -> GateReport:
    """The report on a reward, tried on rows of a task (VeRL's schema) with right, empty, meaningless,
    constant and hostile answers, twice and in two processes.

    Raises:
        TaskError: there are no rows, the reward cannot be imported or is asynchronous, or there is no
            sandbox.
    """
    if not rows:
        raise TaskError(f"reward {reward.path} cannot be vetted without rows; give at least one")
    rows = rows[:: -(-len(rows) // MAX_ROWS)]
    bounds = limits or Limits()
    with _sandbox(reward, bounds, _SEEDS[0]) as first, _sandbox(reward, bounds, _SEEDS[1]) as second:
        if first.asynchronous:
            raise TaskError(
                f"reward {reward.path}:{reward.name} is asynchronous; only plain functions can be vetted"
            )
        trial = _Trial(reward, rows, first, second, progress)
        checks = [trial.time()] if trial.is_slow else trial.checks()
        return GateReport(
            reward=f"{reward.path}:{reward.name}",
            n_rows=len(rows),
            isolation=first.isolation.kind,
            gold_response=trial.form,
            checks=tuple(checks),
        )


def _sandbox(reward: RewardCode, limits: Limits, seed: int) -> Sandbox:
    return Sandbox(
        reward.path,
        reward.name,
        limits=limits,
        hash_seed=seed,
        allow_unsandboxed=reward.allow_unsandboxed,
    )


class _Trial:
    """One vetting: the questions, and what the answers say."""

    def __init__(
        self, reward: RewardCode, rows: Sequence[Row], first: Sandbox, second: Sandbox, progress: Progress
    ) -> None:
        self._rows, self._first, self._second, self._progress = rows, first, second, progress
        self._tally = Tally()
        # Imports and caches of the first call are not the row's time.
        for sandbox in (first, second):
            sandbox.score([question(rows[0], "")])
        self.form = self._best_form([reward.gold] if reward.gold is not None else GOLD_FORMS)
        self.is_slow = self._tally.median_ms() >= MAX_MS
        """Whether the verdict is known already, and the rest would take long."""

    def checks(self) -> list[Check]:
        """All checks, in the order in which they are told."""
        self._say("right answers", 0.1)
        golds = [self._gold(row) for row in self._rows]
        right = self._ask(self._first, golds)
        self._say("empty and meaningless answers", 0.3)
        garbage = list(islice(cycle(GARBAGE), len(self._rows)))
        nothing = self._ask(self._first, [""] * len(self._rows))
        meaningless = self._ask(self._first, garbage)
        found = [
            self._right(right, golds),
            self._unpaid("empty answers", nothing, [""] * len(self._rows)),
            self._unpaid("meaningless answers", meaningless, garbage),
        ]
        self._say("constant answers", 0.5)
        found += self._constant(right)
        self._say("the same again", 0.7)
        found.append(self._same_again([*golds[:_REPEATED_ROWS], *garbage[:_REPEATED_ROWS]]))
        found.append(self.time())
        self._say("hostile answers", 0.8)
        found.append(self._hostile())
        return [*found, self._tally.raises(), self._tally.keys()]

    def _say(self, what: str, share: float) -> None:
        self._progress(f"vetting the reward: {what}", share)

    def _gold(self, row: Row) -> str:
        return gold_response(self.form, row["reward_model"]["ground_truth"])

    def time(self) -> Check:
        """The check of the time so far."""
        return self._tally.time(MAX_MS)

    def _best_form(self, forms: Sequence[str]) -> str:
        """The form that is right most often on a few rows; the first of equals."""
        rows = self._rows[:: -(-len(self._rows) // _FORM_ROWS)]
        n_right = []
        for form in forms:
            golds = [gold_response(form, row["reward_model"]["ground_truth"]) for row in rows]
            n_right.append(sum(map(is_right, self._ask(self._first, golds, rows))))
        return forms[n_right.index(max(n_right))]

    def _ask(
        self, sandbox: Sandbox, responses: Sequence[str], given: Sequence[Row] | None = None
    ) -> list[Outcome]:
        """Outcomes of one response per row, from the first of all rows on, or of the given ones."""
        rows = list(islice(cycle(given or self._rows), len(responses)))
        outcomes = sandbox.score([question(row, text) for row, text in zip(rows, responses, strict=True)])
        for row, text, outcome in zip(rows, responses, outcomes, strict=True):
            self._tally.add(row, text, outcome)
        return outcomes

    def _right(self, outcomes: Sequence[Outcome], golds: Sequence[str]) -> Check:
        wrong = [number for number, outcome in enumerate(outcomes) if not is_right(outcome)]
        share = 1 - len(wrong) / len(outcomes)
        return Check(
            name=RIGHT,
            passed=share >= GOLD_SHARE,
            found=f"{share:.1%} of {len(outcomes)}, written as {self.form}",
            needed=f"{GOLD_SHARE:.0%}",
            examples=self._examples(wrong, golds, outcomes),
        )

    def _unpaid(self, name: str, outcomes: Sequence[Outcome], responses: Sequence[str]) -> Check:
        paid = [number for number, outcome in enumerate(outcomes) if not is_unpaid(outcome)]
        return Check(
            name=f"{name} score 0",
            passed=not paid,
            found=f"{len(paid)} of {len(outcomes)} do not",
            needed="0",
            examples=self._examples(paid, responses, outcomes),
        )

    def _constant(self, right: Sequence[Outcome]) -> Iterable[Check]:
        """Per data_source, what its most frequent answer earns when it is given to every row.

        Answers are the same when the reward reads the same `pred` out of them: worked solutions differ where
        their results do not.
        """
        by_source: dict[str, list[tuple[Row, str]]] = {}
        for row, outcome in zip(self._rows, right, strict=True):
            truth = row["reward_model"]["ground_truth"]
            read = outcome.result.get("pred") if is_right(outcome) else None
            answer = read if isinstance(read, str) and read else truth
            by_source.setdefault(row["data_source"], []).append((row, answer))
        for source, answered in sorted(by_source.items()):
            rows = [row for row, _ in answered]
            [(most, n)] = Counter(answer for _, answer in answered).most_common(1)
            truth = next(row["reward_model"]["ground_truth"] for row, answer in answered if answer == most)
            response = gold_response(self.form, truth)
            outcomes = self._ask(self._first, [response] * len(rows), rows)
            share, baseline = sum(accuracy(outcome) for outcome in outcomes) / len(rows), n / len(rows)
            yield Check(
                name=f"constant answer to {source}" if len(by_source) > 1 else "constant answer",
                passed=share <= baseline + _BASELINE_SLACK,
                found=f"{share:.3f} for {shown(response)}",
                needed=f"<= {baseline:.3f}, its share of the answers",
                examples=(),
            )

    def _same_again(self, responses: Sequence[str]) -> Check:
        one, again, other = (
            self._ask(sandbox, responses) for sandbox in (self._first, self._first, self._second)
        )
        differing = {
            number: where
            for where, outcomes in (("in another process", other), ("the second time", again))
            for number, (a, b) in enumerate(zip(one, outcomes, strict=True))
            if repr((a.result, a.problem)) != repr((b.result, b.problem))
        }
        rows = list(islice(cycle(self._rows), len(responses)))
        return Check(
            name="same answer, same score",
            passed=not differing,
            found=f"{len(differing)} of {len(responses)} differ",
            needed="0, twice and with another PYTHONHASHSEED",
            examples=tuple(
                f"{example(rows[number], responses[number])}: differs {differing[number]}"
                for number in sorted(differing)[:EXAMPLES]
            ),
        )

    def _hostile(self) -> Check:
        responses, before = hostile_responses(), len(self._tally.problems)
        outcomes = self._ask(self._first, responses)
        return Check(
            name="hostile answers raise nothing",
            passed=not any(outcome.problem for outcome in outcomes),
            found=f"{sum(bool(outcome.problem) for outcome in outcomes)} of {len(outcomes)} do",
            needed="0",
            examples=tuple(self._tally.problems[before:][:EXAMPLES]),
        )

    def _examples(
        self, numbers: Sequence[int], responses: Sequence[str], outcomes: Sequence[Outcome]
    ) -> tuple[str, ...]:
        return tuple(
            f"{example(self._rows[number], responses[number])}: "
            f"{outcomes[number].problem or shown_result(outcomes[number].result)}"
            for number in numbers[:EXAMPLES]
        )
