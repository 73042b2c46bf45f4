"""The head of a report: how the search stands, the three policies, and what of their distance is noise.

Not here: the measurements themselves (comparison.py).
"""

from __future__ import annotations

from llmzero_ray.report import words
from llmzero_ray.report.comparison import Comparison, Policy, Split, comparisons, policies
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.noise import CLEAR, NOISE, Difference
from llmzero_ray.tasks.aggregate import task_score


def headline(facts: SearchFacts) -> str:
    """Title, state and result."""
    title = f"# Search `{facts.config.name}`: {words.one_line(str(facts.task.get('name', 'a task')))}"
    return "\n\n".join([title, _state(facts), words.section("Result", *_result(facts))])


def _state(facts: SearchFacts) -> str:
    runs, budget = facts.finished_phases, facts.config.budget.runs
    done = f"{runs} of at most {words.plural(budget, 'run')}"
    core = facts.core
    if core.end_reason is None:
        ending = f", and the search is about to end ({core.ending})" if core.ending else ""
        return f"**Not finished** ({core.stage}): {done} have ended{ending}. What follows is the best so far."
    measuring = " Its final measurements are not complete yet." if core.stage == "measuring" else ""
    return f"The search ended because {_end_in_words(facts, core.end_reason)} ({done}).{measuring}"


def _end_in_words(facts: SearchFacts, reason: str) -> str:
    budget = facts.config.budget
    return {
        "budget": "its budget of runs was spent",
        "exhausted": "no node could get another child",
        "target": f"the target of {budget.target} in validation was reached",
        "gpu_hours": f"{budget.gpu_hours} GPU hours were spent",
        "wall_clock": f"{budget.wall_clock_hours} hours had passed",
        "dollars": f"{budget.dollars} dollars were spent on agents",
        "user": "a person ended it",
    }.get(reason, reason)


def _result(facts: SearchFacts) -> list[str]:
    known = policies(facts)
    compared = comparisons(facts)
    return [
        _sentences(facts, known, compared),
        _scores(known),
        _differences(compared),
        _parts(known),
        _missing_test(facts, known),
        _how_sure(facts, compared),
    ]


# --- sentences ----------------------------------------------------------------------------------------------


def _sentences(facts: SearchFacts, known: tuple[Policy, ...], compared: tuple[Comparison, ...]) -> str:
    best = next((policy for policy in known if policy.what == "best"), None)
    if best is None:
        return _without_best(facts)
    split: Split = "test" if best.test is not None else "validation"
    where = (
        "on the test split, which neither agents nor search ever saw"
        if split == "test"
        else "on the validation split, by which it was chosen"
    )
    opening = f"The best strategy scores **{words.scored(best.score(split))}** {where}."
    if split == "test" and best.macro is not None:
        opening += f" As the paper's tables have it, over the task's parts: **{words.scored(best.macro)}**."
    against = [_against(c) for c in compared if c.split == split and c.new.what == "best"]
    return words.bullets([opening, *against])


def _without_best(facts: SearchFacts) -> str:
    failed = sum(run.status == "failed" for run in facts.runs.values())
    ended = facts.finished_phases
    if ended and failed == ended:
        every = "the only run" if ended == 1 else f"all {ended} runs"
        return f"There is no strategy: {every} failed. See Failures."
    return "There is no strategy: no run has a validation score yet."


def _against(compared: Comparison) -> str:
    difference, old = compared.sharpest, compared.old
    name = "the base model" if old.what == "base" else "the default recipe in one phase"
    steps = f" (best at step {old.steps})" if old.what == "reference" and old.steps else ""
    how = ", compared item by item" if difference.paired else ""
    verdict = reading(difference)
    if difference.is_noise and compared.new.what == "best":
        verdict += (
            f" (below {NOISE:g} standard errors): this search does not show a gain over "
            f"{'it' if old.what == 'base' else 'plain training with the default recipe'}"
        )
    return f"Against {name}{steps}: {words.gain(difference)}{how}, **{verdict}**."


def reading(difference: Difference) -> str:
    """What a difference means, in words that claim no more than it shows."""
    if difference.is_noise:
        return "within noise"
    sure = "clearly" if abs(difference.in_standard_errors) >= CLEAR else "probably"
    return f"{sure} {'better' if difference.gain > 0 else 'worse'}"


# --- tables -------------------------------------------------------------------------------------------------


_OVER_PARTS = "test, over its parts"


def score_columns(known: tuple[Policy, ...]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(header, rows) of policies and their scores; a column for averages over parts where the task has
    some."""
    header: tuple[str, ...] = ("policy", "validation accuracy", "test accuracy")
    rows: list[tuple[str, ...]] = [(p.name, words.scored(p.validation), words.scored(p.test)) for p in known]
    if not any(p.macro for p in known):
        return header, rows
    return (*header, _OVER_PARTS), [(*row, words.scored(p.macro)) for row, p in zip(rows, known, strict=True)]


def _scores(known: tuple[Policy, ...]) -> str:
    if not known:
        return ""
    header, rows = score_columns(known)
    effort = [
        (
            words.NONE if policy.steps is None else str(policy.steps),
            words.NONE if policy.rollouts is None else f"{policy.rollouts:,}",
        )
        for policy in known
    ]
    whole = [(*row, *more) for row, more in zip(rows, effort, strict=True)]
    return words.table((*header, "training steps", "rollouts"), whole, right=(len(header), len(header) + 1))


def _differences(compared: tuple[Comparison, ...]) -> str:
    if not compared:
        return ""
    names = {"base": "base model", "reference": "default recipe", "best": "best strategy"}
    rows: list[tuple[str, ...]] = [
        (
            f"{names[c.new.what]} − {names[c.old.what]}",
            c.split,
            words.gain(c.independent),
            words.gain(c.paired),
            _solved(c.paired),
            reading(c.sharpest),
        )
        for c in compared
    ]
    rows += [
        (
            f"{names[c.new.what]} − {names[c.old.what]}",
            _OVER_PARTS,
            words.gain(c.macro),
            words.NONE,
            words.NONE,
            reading(c.macro),
        )
        for c in compared
        if c.macro is not None
    ]
    header = ("difference", "split", "as independent scores", "item by item", "solved only by", "reading")
    return words.table(header, rows)


def _parts(known: tuple[Policy, ...]) -> str:
    """Test accuracy by data source and by the averages of the task; empty for tasks without parts."""
    shown = [policy for policy in known if policy.macro is not None and policy.test_items]
    if not shown:
        return ""
    scores = [task_score((item.data_source, item.acc) for item in policy.test_items) for policy in shown]
    columns = [{**score.sources, **score.parts} for score in scores]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [(name, *(words.scored(column.get(name)) for column in columns)) for name in names]
    missing = scores[0].missing
    absent = f"\n\nWithout an item: {', '.join(missing)}." if missing else ""
    return words.table(("test accuracy by part", *(policy.name for policy in shown)), rows) + absent


def _solved(difference: Difference | None) -> str:
    if difference is None or difference.only_new is None:
        return words.NONE
    return f"the first {difference.only_new}, the second {difference.only_old}"


def _missing_test(facts: SearchFacts, known: tuple[Policy, ...]) -> str:
    problems = [f"{policy.name}: {policy.problem}" for policy in known if policy.problem]
    if problems:
        return "Test scores that could not be taken:\n\n" + words.bullets(problems)
    if any(policy.test for policy in known):
        return ""
    if facts.core.end_reason is None:
        return "The test split is sealed until the search has ended."
    if not facts.config.final.test:
        return "The test split was not scored (`final.test` is false)."
    if facts.core.end_reason == "user":
        return "The test split was not scored, as a person ended the search."
    return "The test split has not been scored yet."


def _how_sure(facts: SearchFacts, compared: tuple[Comparison, ...]) -> str:
    if not facts.path:
        return ""
    n = sum(len(facts.curves(node).val_scores) for node in facts.runs)
    trained = sum(run.outcome.steps_done for run in facts.runs.values() if run.outcome)
    notes = [
        "± is one standard error over the items of the split. It does not cover that another seed of the "
        "same recipe would end elsewhere: every recipe was trained once here.",
    ]
    if n > 1:
        notes.append(
            f"The best validation score is the highest of {n} validations, so it is too high on average, the "
            "more the closer they lie together. The test scores were taken once, after the choice."
        )
    if any(c.new.what == "best" and c.old.what == "reference" for c in compared):
        notes.append(
            "The default recipe was fixed before the search and trained in one phase for as many steps as "
            "the best strategy; its best checkpoint by validation is the one compared. To find the best "
            f"strategy, the search trained {trained} steps in all."
        )
    return "How sure is this?\n\n" + words.bullets(notes)
