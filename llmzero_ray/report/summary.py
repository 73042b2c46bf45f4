"""Head of a report: the policies' scores, and whether their differences exceed noise."""

from __future__ import annotations

import shlex

from llmzero_ray.coordinator.final_evaluation import POLICY_NAMES, WHOLE
from llmzero_ray.dynamics.incumbent import base_problem
from llmzero_ray.prepared.aggregate import task_score
from llmzero_ray.records import TokenCost
from llmzero_ray.records.significance import CLEAR, NOISE, Difference, score_interval
from llmzero_ray.report import formatting as fmt
from llmzero_ray.report.comparison import Comparison, Policy, Split, cost_of, searched
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.utils.text import collapse_whitespace


def end_in_words(facts: SearchFacts) -> str:
    """Reason why the search ended, as text. Empty if it has not."""
    budget, reason = facts.config.budget, facts.core.end_reason
    if reason is None:
        return ""
    return {
        "budget": "its budget of runs was spent",
        "exhausted": "no node could get another child",
        "target": f"the target of {budget.target} in validation was reached",
        "gpu_hours": f"{budget.gpu_hours} GPU hours were spent",
        "compute": f"its compute of {budget.compute or 0.0:.4g} was spent",
        "wall_clock": f"{budget.wall_clock_hours} hours had passed",
        "dollars": f"{budget.dollars} dollars were spent on agents",
        "user": "a person ended it",
    }.get(reason, reason)


def result_lines(
    facts: SearchFacts, known: tuple[Policy, ...], compared: tuple[Comparison, ...]
) -> list[str]:
    """Result as sentences with the essentials in `**`: the best strategy's score, its gains, and doubts.
    Empty if there is neither a strategy nor a doubt."""
    lines, best = [], next((policy for policy in known if policy.what == "best"), None)
    if best is not None:
        split: Split = "validation" if best.test is None else "test"
        whose = (
            "on the test split, which neither agents nor search ever saw"
            if split == "test"
            else "on the validation split, by which it was chosen"
        )
        line = f"The best strategy scores **{fmt.scored(best.score(split))}** {whose}."
        if split == "test" and best.macro is not None:
            line += f" As the paper's tables have it, over the task's parts: **{fmt.scored(best.macro)}**."
        lines.append(line)
        lines += _confirmation_lines(facts)
        lines += [_against(c) for c in compared if c.split == split and c.new.what == "best"]
    base = next((policy.validation for policy in known if policy.what == "base"), None)
    if problem := base_problem(None if base is None else base.mean):
        lines.append(f"**{problem[0].upper()}{problem[1:]}.**")
    for run in facts.runs.values():
        if run.doubts:
            part = ", part of the best strategy" if run.node in facts.path_nodes else ""
            why = collapse_whitespace(" ".join(run.doubts))
            lines.append(
                f"**In doubt: node {run.node}{part}.** {why} Check the reward before you use a score."
            )
    return lines


def _confirmation_lines(facts: SearchFacts) -> list[str]:
    fresh = confirmed_in_words(facts)
    if not fresh:
        return []
    n = sum(job.score is not None for job in facts.core.final.confirmed)
    chosen = "Nothing was chosen by it."
    if n > 1:
        chosen = f"It is the best of {n} confirmed strategies, so that it may still be a little too high."
    return [
        f"On fresh validation items, taken once after the search, it scores **{fresh}**: the validation "
        f"figure to quote. {chosen}"
    ]


def _against(c: Comparison) -> str:
    old, d = c.old, c.sharpest
    at = f" (its best step is {old.steps})" if old.what != "base" and old.steps else ""
    by_item = ", compared item by item" if d.paired else ""
    text = f"Against the {old.name}{at}: {fmt.gain(d)}{by_item}, **{reading(d)}"
    if d.is_noise:
        what = "it" if old.what == "base" else "plain training with the default recipe"
        text += f" (below {NOISE:g} standard errors): this search does not show a gain over {what}"
    return f"{text}**."


def how_sure(facts: SearchFacts, known: tuple[Policy, ...], compared: tuple[Comparison, ...]) -> list[str]:
    """Doubts about the scores, a sentence or two each. Empty without a strategy."""
    if not facts.path:
        return []
    lines = [
        "± is one standard error over the items of the split. It does not cover that another seed of the "
        "same recipe would end elsewhere: every recipe was trained once here."
    ]
    n_validations = sum(len(facts.curves(node).val_scores) for node in facts.runs)
    if n_validations > 1:
        tested = " The test scores were taken once, after the choice." if any(p.test for p in known) else ""
        lines.append(
            f"The best validation score is the highest of {n_validations} validations, so it is too high on "
            f"average, the more the closer they lie together.{tested}"
        )
    if any(c.new.what == "best" and c.old.what == "reference" for c in compared):
        trained = sum(run.outcome.steps_done for run in facts.runs.values() if run.outcome)
        lines.append(
            f"The default recipe was fixed before the search and {reference_of(facts, known)} To find the "
            f"best strategy, the search trained {trained} steps in all."
        )
    elif missing := missing_reference(facts):
        lines.append(missing)
    return lines


def reading(difference: Difference) -> str:
    """Word for a difference by its number of standard errors: clear, unclear or noise."""
    if difference.is_noise:
        return "within noise"
    sure = "clearly" if abs(difference.in_standard_errors) >= CLEAR else "probably"
    return f"{sure} {'better' if difference.gain > 0 else 'worse'}"


_OVER_PARTS = "test, over its parts"


def policy_table(known: tuple[Policy, ...]) -> str:
    """Table of policies and their scores."""
    header, rows = _score_columns(known)
    return fmt.table(header, rows)


def _score_columns(known: tuple[Policy, ...]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(header, rows) of policies and their scores, with a column for averages over parts if the task has
    parts."""
    header: tuple[str, ...] = ("policy", "validation accuracy", "test accuracy")
    rows: list[tuple[str, ...]] = [(p.name, fmt.scored(p.validation), fmt.scored(p.test)) for p in known]
    if not any(p.macro for p in known):
        return header, rows
    return (*header, _OVER_PARTS), [(*row, fmt.scored(p.macro)) for row, p in zip(rows, known, strict=True)]


def score_table(known: tuple[Policy, ...]) -> str:
    """Table of policies with their scores and training. Empty if there are none."""
    if not known:
        return ""
    header, rows = _score_columns(known)
    effort = [
        (
            fmt.NONE if policy.test is None else fmt.interval(score_interval(policy.test)),
            _steps(policy),
            fmt.NONE if policy.rollouts is None else f"{policy.rollouts:,}",
        )
        for policy in known
    ]
    whole = [(*row, *more) for row, more in zip(rows, effort, strict=True)]
    columns = (*header, "test, 95 % interval", "training steps", "rollouts")
    right = (len(columns) - 2, len(columns) - 1)
    best = next((policy.compute for policy in known if policy.what == "best"), None)
    if not best or not any(policy.compute for policy in known if policy.what == "reference"):
        return fmt.table(columns, whole, right=right)
    shares = [fmt.NONE if policy.compute is None else f"{policy.compute / best:.2f}" for policy in known]
    return fmt.table(
        (*columns, "compute (strategy = 1)"),
        [(*row, share) for row, share in zip(whole, shares, strict=True)],
        right=(*right, len(columns)),
    )


def _steps(policy: Policy) -> str:
    """`25`, or `10 (of 102)` if the run's best checkpoint is before its end."""
    if policy.steps is None:
        return fmt.NONE
    return f"{policy.steps}{f' (of {policy.trained})' if policy.trained else ''}"


def reference_in_words(
    known: tuple[Policy, ...], *, by_compute: bool, searched: float, unit: str, name: str
) -> str:
    """Description of how the default recipe was trained for the comparison in the search `name`, and how that
    relates to `searched`, the compute of the whole search in `unit`."""
    found = {policy.what: policy for policy in known}
    if WHOLE in found:
        return (
            "trained in one phase for what all phases of the search computed; compared are its best "
            f"checkpoint by validation within what the best strategy computed, and its best of all. {unit}"
        )
    length = (
        "what the best strategy's phases computed" if by_compute else "as many steps as the best strategy"
    )
    text = f"trained in one phase for {length}; its best checkpoint by validation is the one compared."
    best, default = found["best"].compute, found["reference"].compute
    if not best or default is None:
        return text
    if not by_compute:
        share = f"up to there it computed {default / best:.2f} times what the strategy did"
        text += f" Equal steps are not equal compute: {share}."
    return (
        f"{text} {unit} The whole search computed {searched / best:.2f} times that of the strategy; "
        f"`{_measured_by(name, 'whole')}` measures what that would have bought the default recipe."
    )


def unscored(facts: SearchFacts, known: tuple[Policy, ...]) -> str:
    """Reason why there is no test score. Empty if there is one, or if the report gives the cause
    elsewhere."""
    core = facts.core
    if core.final.dropped:
        name = shlex.quote(facts.name)
        return f"The search was stopped while it measured: `llmzero resume {name}` measures what is missing."
    if any(policy.test or policy.problem for policy in known):
        return ""
    if core.end_reason is None:
        return "The test split is sealed until the search has ended."
    if not facts.config.final.test:
        return "The test split was not scored (`final.test` is false)."
    if core.end_reason == "user":
        return "The test split was not scored, as a person ended the search."
    return "The test split has not been scored yet."


def missing_reference(facts: SearchFacts) -> str:
    """Advice on adding the missing comparison to an ended search. Empty if it has or will have one."""
    known = facts.core.end_reason is not None and facts.path
    if known and facts.core.stage != "measuring" and facts.config.final.default_recipe:
        return "The default recipe has no score, so nothing says what the search added."
    if not known or facts.config.final.default_recipe:
        return ""
    return (
        "The default recipe was not trained with it, so nothing says what the search added: "
        f"`{_measured_by(facts.name, 'compute')}` trains and scores it at the strategy's compute, and "
        "`whole` in place of `compute` at that of the whole search."
    )


def _measured_by(name: str, wanted: str) -> str:
    return f"llmzero resume {shlex.quote(name)} --set final.default_recipe={wanted}"


def reference_of(facts: SearchFacts, known: tuple[Policy, ...]) -> str:
    """`reference_in_words` for a search."""
    run = facts.reference
    limit = None if run is None or run.spec is None else run.spec.compute
    cost = cost_of(facts)
    unit = "Compute counts every token sampled or trained on."
    if cost != TokenCost():
        sampled, trained = (f"{1e3 * seconds:.3g} ms" for seconds in (cost.rollout, cost.trained))
        unit = f"Compute is {sampled} for a token sampled (validations too) and {trained} for one trained on."
    return reference_in_words(
        known, by_compute=limit is not None, searched=searched(facts), unit=unit, name=facts.name
    )


def difference_table(compared: tuple[Comparison, ...]) -> str:
    """Table of the policies' differences. Empty if there are none."""
    if not compared:
        return ""
    rows: list[tuple[str, ...]] = [
        (
            f"{POLICY_NAMES[c.new.what]} − {POLICY_NAMES[c.old.what]}",
            c.split,
            fmt.gain(c.independent),
            fmt.gain(c.paired),
            _solved(c.paired),
            fmt.interval(c.sharpest.interval, signed=True),
            fmt.p_value(c.paired.p_value if c.paired else None),
            reading(c.sharpest),
        )
        for c in compared
    ]
    rows += [
        (
            f"{POLICY_NAMES[c.new.what]} − {POLICY_NAMES[c.old.what]}",
            _OVER_PARTS,
            fmt.gain(c.macro),
            fmt.NONE,
            fmt.NONE,
            fmt.interval(c.macro.interval, signed=True),
            fmt.NONE,
            reading(c.macro),
        )
        for c in compared
        if c.macro is not None
    ]
    header = (
        "difference",
        "split",
        "as independent scores",
        "item by item",
        "solved only by",
        "95 % interval",
        "exact p (McNemar)",
        "reading",
    )
    return fmt.table(header, rows)


def confirm_table(facts: SearchFacts) -> str:
    """Table of the best strategies by validation, with their scores on fresh items. Empty if none was
    confirmed."""
    rows = []
    for job in facts.core.final.confirmed:
        if job.node is None or not job.done:
            continue
        raw = facts.validation(job.node, job.step, facts.runs[job.node].score)
        missing = f"not measured: {job.problem}"
        fresh = job.measured
        found = missing if fresh is None else fmt.scored(fresh)
        sure = fmt.NONE if fresh is None else fmt.interval(score_interval(fresh))
        wins = "the winner" if job.node == facts.core.final.winner else ""
        rows.append((str(job.node), str(job.step), fmt.scored(raw), found, sure, wins))
    header = ("node", "best step", "validation accuracy", "on fresh items", "95 % interval", "")
    return fmt.table(header, rows) if rows else ""


def confirmed_in_words(facts: SearchFacts) -> str:
    """`0.7000 ± 0.0461 (n = 100), 95 % interval 0.6042 to 0.7811`: the winner's score on fresh items. Empty
    if it has none."""
    job = facts.core.final.confirmation
    fresh = None if job is None else job.measured
    if fresh is None:
        return ""
    return f"{fmt.scored(fresh)}, 95 % interval {fmt.interval(score_interval(fresh))}"


def node_test_table(facts: SearchFacts) -> str:
    """Table of the test accuracy of every node's best step (`final.test: all`). Empty if only the best node
    was scored."""
    rows = []
    for job in facts.core.final.jobs.values():
        if job.node is None or job.score is None or not job.what.startswith("node-"):
            continue
        raw = facts.validation(job.node, job.step, facts.runs[job.node].score)
        rows.append((str(job.node), str(job.step), fmt.scored(raw), fmt.scored(job.measured)))
    return fmt.table(("node", "best step", "validation accuracy", "test accuracy"), rows) if rows else ""


def part_table(known: tuple[Policy, ...]) -> str:
    """Table of test accuracy by data source and by the task's averages. Empty for tasks without parts."""
    shown = [policy for policy in known if policy.macro is not None and policy.test_items]
    if not shown:
        return ""
    scores = [task_score((item.data_source, item.acc) for item in policy.test_items) for policy in shown]
    columns = [{**score.sources, **score.parts} for score in scores]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [(name, *(fmt.scored(column.get(name)) for column in columns)) for name in names]
    missing = scores[0].missing
    absent = f"\n\nWithout an item: {', '.join(missing)}." if missing else ""
    return fmt.table(("test accuracy by part", *(policy.name for policy in shown)), rows).followed_by(absent)


def _solved(difference: Difference | None) -> str:
    if difference is None or difference.only_new is None:
        return fmt.NONE
    return f"the first {difference.only_new}, the second {difference.only_old}"
