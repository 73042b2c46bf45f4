"""The gate that reward code must pass before anything is trained with it: `vet`.

All of it runs in the sandbox. Not here: the sandbox (sandbox/), keeping what was found and checking that the
file stays the same (rewards/vetted.py, manifest.py), a few rows of a task put together by hand
(reward_check.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.gate_report import Check, GateReport, shown
from llmzero_ray.tasks.hostile import hostile_responses
from llmzero_ray.tasks.making import Progress, silent
from llmzero_ray.tasks.reward_check import question, result_problem
from llmzero_ray.tasks.rewards.targets import gold_response
from llmzero_ray.tasks.sandbox import Limits, Outcome, Sandbox

GOLD_SHARE = 0.99
"""Least share of right answers that must score 1."""
MAX_MS = 50.0
"""Processor time of a row."""
MAX_ROWS = 1_500
"""Rows that are looked at; of more, these many from the whole length."""
GOLD_FORMS = (
    "{answer}",
    "<answer>{answer}</answer>",
    "\\boxed{{answer}}",
    "#### {answer}",
    "The answer is {answer}",
    "Answer: {answer}",
    '{"answer": "{answer}"}',
)
"""Forms of a right answer that are tried when none is named."""
GARBAGE = (
    "I am not sure, but purple bicycles dream loudly. 17 ]]} <answer>zzqx</answer>",
    "qwv zzqx \\boxed{zzqx} ### lorem",
    '{"output": "zzqx", "count": -99173}',
)
_BASELINE_SLACK = 0.01
_FORM_ROWS, _REPEATED_ROWS = 20, 200
_SEEDS = (0, 1)
"""PYTHONHASHSEED of the two processes whose results are compared."""
_EXAMPLES = 3

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RewardCode:
    """A reward that nobody has vouched for yet."""

    path: Path
    name: str = "compute_score"
    gold: str | None = None
    """Form of a right answer, `{answer}` standing for the answer; None: the usual ones are tried."""
    allow_unsandboxed: bool = False


@dataclass
class _Seen:
    """What is collected over all calls."""

    problems: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)
    keys: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Keys of results -> the first response that gave them."""
    cpu_ms: list[float] = field(default_factory=list)
    n: int = 0


def vet(
    reward: RewardCode, rows: Sequence[Row], *, limits: Limits | None = None, progress: Progress = silent
) -> GateReport:
    """The report on a reward, tried on rows of a task (VeRL's schema): right, empty, meaningless, constant and
    hostile answers, twice and in two processes.

    Raises:
        TaskError: there are no rows, the reward cannot be imported or is asynchronous, or there is no sandbox.
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
        checks = trial.checks()
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
        self._seen = _Seen()
        # Imports and caches of the first call are not the row's time.
        first.score([question(rows[0], "")])
        self.form = reward.gold or self._best_form()

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
        found += self._constant()
        self._say("the same again", 0.7)
        found.append(self._same_again([*golds[:_REPEATED_ROWS], *garbage[:_REPEATED_ROWS]]))
        found.append(self._time())
        self._say("hostile answers", 0.8)
        found.append(self._hostile())
        return [*found, self._raises(), self._keys()]

    def _say(self, what: str, share: float) -> None:
        self._progress(f"vetting the reward: {what}", share)

    def _gold(self, row: Row) -> str:
        return gold_response(self.form, row["reward_model"]["ground_truth"])

    def _best_form(self) -> str:
        """The form that is right most often on a few rows; the first of equals."""
        rows = self._rows[:: -(-len(self._rows) // _FORM_ROWS)]
        asked = [
            question(row, gold_response(form, row["reward_model"]["ground_truth"]))
            for form in GOLD_FORMS
            for row in rows
        ]
        outcomes = self._first.score(asked)
        n_right = [
            sum(_is_right(outcome) for outcome in outcomes[start : start + len(rows)])
            for start in range(0, len(outcomes), len(rows))
        ]
        return GOLD_FORMS[n_right.index(max(n_right))]

    def _ask(self, sandbox: Sandbox, responses: Sequence[str]) -> list[Outcome]:
        """Outcomes of one response per row, from the first row on."""
        rows = list(islice(cycle(self._rows), len(responses)))
        outcomes = sandbox.score([question(row, text) for row, text in zip(rows, responses, strict=True)])
        for row, text, outcome in zip(rows, responses, outcomes, strict=True):
            self._note(row, text, outcome)
        return outcomes

    def _note(self, row: Row, response: str, outcome: Outcome) -> None:
        seen, said = self._seen, _example(row, response)
        seen.n += 1
        seen.cpu_ms.append(outcome.cpu_ms)
        if outcome.problem:
            seen.problems.append(f"{said}: {outcome.problem}")
        elif problem := result_problem(outcome.result):
            seen.misshapen.append(f"{said}: {problem}")
        else:
            seen.keys.setdefault(tuple(sorted(outcome.result)), said)

    def _right(self, outcomes: Sequence[Outcome], golds: Sequence[str]) -> Check:
        wrong = [number for number, outcome in enumerate(outcomes) if not _is_right(outcome)]
        share = 1 - len(wrong) / len(outcomes)
        return Check(
            name="right answers score 1",
            passed=share >= GOLD_SHARE,
            found=f"{share:.1%} of {len(outcomes)}, written as {self.form}",
            needed=f"{GOLD_SHARE:.0%}",
            examples=self._examples(wrong, golds, outcomes),
        )

    def _unpaid(self, name: str, outcomes: Sequence[Outcome], responses: Sequence[str]) -> Check:
        paid = [number for number, outcome in enumerate(outcomes) if not _is_unpaid(outcome)]
        return Check(
            name=f"{name} score 0",
            passed=not paid,
            found=f"{len(paid)} of {len(outcomes)} do not",
            needed="0",
            examples=self._examples(paid, responses, outcomes),
        )

    def _constant(self) -> Iterable[Check]:
        """Per data_source, what its most frequent answer earns when it is given to every row."""
        by_source: dict[str, list[Row]] = {}
        for row in self._rows:
            by_source.setdefault(row["data_source"], []).append(row)
        for source, rows in sorted(by_source.items()):
            [(truth, n)] = Counter(row["reward_model"]["ground_truth"] for row in rows).most_common(1)
            response = gold_response(self.form, truth)
            outcomes = self._first.score([question(row, response) for row in rows])
            for row, outcome in zip(rows, outcomes, strict=True):
                self._note(row, response, outcome)
            share, baseline = sum(_acc(outcome) for outcome in outcomes) / len(rows), n / len(rows)
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
                f"{_example(rows[number], responses[number])}: differs {differing[number]}"
                for number in sorted(differing)[:_EXAMPLES]
            ),
        )

    def _time(self) -> Check:
        spent = self._seen.cpu_ms
        late = quantiles(spent, n=100, method="inclusive")[98] if len(spent) > 1 else spent[0]
        return Check(
            name="processor time of a row",
            passed=late < MAX_MS,
            found=f"median {median(spent):.2f} ms, p99 {late:.2f} ms",
            needed=f"p99 < {MAX_MS:g} ms",
            examples=(),
        )

    def _hostile(self) -> Check:
        responses, before = hostile_responses(), len(self._seen.problems)
        outcomes = self._ask(self._first, responses)
        return Check(
            name="hostile answers raise nothing",
            passed=not any(outcome.problem for outcome in outcomes),
            found=f"{sum(bool(outcome.problem) for outcome in outcomes)} of {len(outcomes)} do",
            needed="0",
            examples=tuple(self._seen.problems[before:][:_EXAMPLES]),
        )

    def _raises(self) -> Check:
        seen = self._seen
        return Check(
            name="every call gives a result",
            passed=not seen.problems,
            found=f"{len(seen.problems)} of {seen.n} do not",
            needed="0",
            examples=tuple(seen.problems[:_EXAMPLES]),
        )

    def _keys(self) -> Check:
        seen = self._seen
        kinds = [f"{', '.join(keys) or 'no keys'} ({said})" for keys, said in seen.keys.items()]
        return Check(
            name="same keys, finite numbers",
            passed=not seen.misshapen and len(kinds) == 1,
            found=f"{len(kinds)} sets of keys, {len(seen.misshapen)} results of another form",
            needed="1 and 0",
            examples=tuple([*seen.misshapen, *(kinds if len(kinds) > 1 else [])][:_EXAMPLES]),
        )

    def _examples(
        self, numbers: Sequence[int], responses: Sequence[str], outcomes: Sequence[Outcome]
    ) -> tuple[str, ...]:
        return tuple(
            f"{_example(self._rows[number], responses[number])}: "
            f"{outcomes[number].problem or shown(repr(outcomes[number].result))}"
            for number in numbers[:_EXAMPLES]
        )


def _example(row: Row, response: str) -> str:
    truth = row["reward_model"]["ground_truth"]
    return f"row {row['extra_info'].get('index', '?')}, answer {shown(response)}, ground truth {shown(truth)}"


def _is_right(outcome: Outcome) -> bool:
    return _is_good(outcome) and outcome.result["acc"] == 1 and outcome.result["score"] == 1


def _is_unpaid(outcome: Outcome) -> bool:
    return _is_good(outcome) and outcome.result["acc"] == 0 and outcome.result["score"] <= 0


def _acc(outcome: Outcome) -> float:
    return float(outcome.result["acc"]) if _is_good(outcome) else 0.0


def _is_good(outcome: Outcome) -> bool:
    return not outcome.problem and result_problem(outcome.result) is None
