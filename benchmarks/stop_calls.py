"""Measure what the curve bank saves and costs in front of the early stopper: python -m benchmarks.stop_calls

Runs synthetic searches (stop_curves.py) under the real tree search and the real stopping policy. The agent is
the expert stopper, or one that foresees the true curve: what an ideal agent would save, hence the most that
not asking it can lose. Arms see the same phases at the same places of the tree:

    never      no agent, no bank; the rules (non-finite, collapse) stay on in all arms
    ask        the agent at every interval
    bank       the bank in front of the agent; it may only say CONTINUE
    bank_stop  the same, and it may say STOP; `+earlier`: it begins with the phases of one more search of the
               same task, in which nothing was stopped

Prints one JSON object; pairs are [mean or ratio, standard error over searches]. `calls_ratio`: agent calls
over those of `ask`. `score`: true score of the checkpoint with the best validation, at an equal number of
runs (`_runs`) or of trained steps (`_steps`: steps saved become further runs). `loss_to_X`: X's score minus
the arm's in paired searches, in points (1/100); negative: the arm is better. A winner is a phase whose best
validation, had it run on, beats the score it had to beat when it was last judged; a true winner also has a
true score there more than 1 point above the record's. `winners_stopped`: the share of them that agent or bank
stopped. `recorded`: the same on real curves (stop_recorded.py).

100 searches of all regimes with both agents take about 15 minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

from benchmarks.stop_recorded import report
from benchmarks.stop_search import REGIMES, Search, Tally

ARMS = ("never", "ask", "bank", "bank_stop", "bank_stop+earlier")


def mean_se(values: Sequence[float]) -> list[float]:
    """[mean, standard error] of two values or more."""
    return [round(fmean(values), 4), round(stdev(values) / math.sqrt(len(values)), 4)]


def ratio_se(top: Sequence[float], bottom: Sequence[float]) -> list[float] | None:
    """[sum / sum, standard error by the delta method] over paired searches; None where the sum below is 0."""
    below = fmean(bottom)
    if not below:
        return None
    ratio = fmean(top) / below
    rest = [t - ratio * b for t, b in zip(top, bottom, strict=True)]
    return [round(ratio, 4), round(stdev(rest) / math.sqrt(len(top)) / below, 4)]


def study(name: str, seeds: Sequence[int], agent: str, arms: Sequence[str] = ARMS) -> dict[str, object]:
    """All arms of one regime with one agent."""
    regime = REGIMES[name]
    by_runs = {arm: [Search(s, regime, arm, agent).finish() for s in seeds] for arm in arms}
    total = regime.runs * regime.n_steps
    by_steps = {arm: [Search(s, regime, arm, agent, max_steps=total).finish() for s in seeds] for arm in arms}
    return {
        "regime": name,
        "agent": agent,
        "searches": len(seeds),
        "arms": {arm: _figures(by_runs, by_steps, arm) for arm in arms},
    }


def _figures(
    by_runs: dict[str, list[Tally]], by_steps: dict[str, list[Tally]], arm: str
) -> dict[str, object]:
    mine, ask, never = by_runs[arm], by_runs["ask"], by_runs["never"]

    def column(tallies: Sequence[Tally], read: Callable[[Tally], float]) -> list[float]:
        return [float(read(t)) for t in tallies]

    def loss(table: dict[str, list[Tally]], against: str) -> list[float]:
        pairs = zip(table[against], table[arm], strict=True)
        return mean_se([100 * (a.score - b.score) for a, b in pairs])

    by: Counter[str] = sum((t.by for t in mine), Counter())
    due = sum(by.values())
    return {
        "score_runs": mean_se(column(mine, lambda t: t.score)),
        "score_steps": mean_se(column(by_steps[arm], lambda t: t.score)),
        "loss_to_ask_runs": loss(by_runs, "ask"),
        "loss_to_ask_steps": loss(by_steps, "ask"),
        "loss_to_never_runs": loss(by_runs, "never"),
        "loss_to_never_steps": loss(by_steps, "never"),
        "calls": mean_se(column(mine, lambda t: t.calls)),
        "calls_ratio": ratio_se(column(mine, lambda t: t.calls), column(ask, lambda t: t.calls)),
        "calls_ratio_steps": ratio_se(
            column(by_steps[arm], lambda t: t.calls), column(by_steps["ask"], lambda t: t.calls)
        ),
        "steps_saved": mean_se([1 - m.steps / n.steps for m, n in zip(mine, never, strict=True)]),
        "phases_stopped": mean_se(column(mine, lambda t: t.stopped)),
        "winners_stopped": ratio_se(
            column(mine, lambda t: t.winners_stopped), column(mine, lambda t: t.winners)
        ),
        "true_winners_stopped": ratio_se(
            column(mine, lambda t: t.true_winners_stopped), column(mine, lambda t: t.true_winners)
        ),
        "late_take_offs_stopped": sum(t.late_winners_stopped for t in mine),
        "decided_by": {key: round(n / due, 4) for key, n in by.most_common()} if due else {},
    }


def main(argv: list[str] | None = None) -> int:
    """Run the study and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--regimes", nargs="+", choices=REGIMES, default=list(REGIMES))
    parser.add_argument(
        "--agents", nargs="+", choices=("expert", "foresight"), default=["expert", "foresight"]
    )
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--searches", type=int, default=200, help="searches per arm")
    parser.add_argument("--seed", type=int, default=1000, help="seed of the first search")
    options = parser.parse_args(argv)
    if options.searches < 2:
        parser.error(f"--searches is {options.searches}; must be >= 2 for a standard error.")
    seeds = range(options.seed, options.seed + options.searches)
    arms = ["never", "ask", *(arm for arm in options.arms if arm not in ("never", "ask"))]
    found = [study(name, seeds, agent, arms) for name in options.regimes for agent in options.agents]
    text = json.dumps({"first_seed": options.seed, "studies": found, "recorded": report()}, indent=1)
    # Pairs on one line: [mean, standard error].
    sys.stdout.write(re.sub(r"\[\s+([-\d.]+),\s+([-\d.]+)\s+\]", r"[\1, \2]", text) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
