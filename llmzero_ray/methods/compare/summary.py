"""Report of an ended comparison, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping

from llmzero_ray.hyperparameters.compute import amount
from llmzero_ray.methods.compare.pilot import Pilot
from llmzero_ray.methods.compare.plan import ComparedRun, ComparePlan, times_of
from llmzero_ray.methods.compare.results import NEEDS_A_MODEL, RunOutcome
from llmzero_ray.methods.compare.tables import MethodLine, lines

_BUDGETS = {
    "compute": "Every method may compute the same: tokens sampled and trained on, each at its cost, as "
    "many as the default recipe takes in the plan's steps; failed and stopped phases and validations count.",
    "steps": "Every method may take the same number of training steps; what they compute stands next to it.",
}


def report(plan: ComparePlan, outcomes: Mapping[ComparedRun, RunOutcome], pilots: Mapping[str, Pilot]) -> str:
    """Tables of a comparison. A run without a score counts with the base model's score."""
    bases = {
        task.name: next(
            (one.base for run, one in outcomes.items() if run.task == task.name and one.base), 0.0
        )
        for task in plan.tasks
    }
    missing = {run.method for run, one in outcomes.items() if one.problem == NEEDS_A_MODEL}
    scores = {
        method.name: {
            task.name: [
                bases[task.name] if score is None else score
                for seed in plan.seeds
                for score in (outcomes[ComparedRun(task.name, method.name, seed)].test,)
            ]
            for task in plan.tasks
        }
        for method in plan.methods
        if method.name not in missing
    }
    text = [
        f"# {plan.name}: test accuracy of the policy that validation chose",
        "",
        f"{len(plan.tasks)} tasks, {len(plan.seeds)} seeds. {_BUDGETS[plan.budget]} Intervals: 95 %, "
        "bootstrap over the seeds of each task.",
        "",
        *_methods(plan, outcomes, scores, pilots),
        "",
        *_tasks(plan, scores, bases, pilots),
    ]
    failed = [
        f"- {run.name}: {one.problem}"
        for run, one in outcomes.items()
        if one.problem and run.method not in missing
    ]
    return "\n".join([*text, *(["", "Without a score:", *failed] if failed else []), ""])


def _methods(
    plan: ComparePlan,
    outcomes: Mapping[ComparedRun, RunOutcome],
    scores: Mapping[str, Mapping[str, list[float]]],
    pilots: Mapping[str, Pilot],
) -> list[str]:
    first = plan.methods[0].name
    text = [
        f"| method | mean | interval | rank | to {first} | P(better than {first}) | losses | failed "
        "| compute, of the budget | in stopped or failed phases | steps a run | tokens a run | hours a run |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    times = times_of(plan)
    ranked = lines({name: own for name, own in scores.items() if times[name] == 1})
    beside = [lines({first: scores[first], name: scores[name]})[1] for name in scores if times[name] > 1]
    for line in (*ranked, *beside):
        own = {run: one for run, one in outcomes.items() if run.method == line.method}
        text.append(_line(line, own, pilots, times[line.method]))
    columns = text[0].count("|") - 3
    text += [
        f"| {method.name} | {NEEDS_A_MODEL} |{' |' * columns}"
        for method in plan.methods
        if method.name not in scores
    ]
    return text


def _line(
    line: MethodLine, own: Mapping[ComparedRun, RunOutcome], pilots: Mapping[str, Pilot], times: int
) -> str:
    """Line of one method. A method with a larger budget has no rank."""
    n = len(own)
    interval = "one seed" if line.interval is None else f"{line.interval[0]:.4f} to {line.interval[1]:.4f}"
    error = "" if line.difference_error is None else f" ± {line.difference_error:.4f}"
    share = (
        sum(amount(one.tokens, pilots[run.task].cost) / pilots[run.task].compute for run, one in own.items())
        / n
    )
    name = line.method if times == 1 else f"{line.method}, at {times} times the budget"
    return (
        f"| {name} | {line.mean:.4f} | {interval} | {f'{line.rank:.2f}' if times == 1 else '–'} "
        f"| {line.difference:+.4f}{error} | {line.improvement:.2f} "
        f"| {line.losses} of {line.pairs} | {sum(bool(one.problem) for one in own.values())} "
        f"| {share:.2f} | {sum(one.stopped_share for one in own.values()) / n:.2f} "
        f"| {sum(one.steps for one in own.values()) / n:.0f} "
        f"| {sum(one.tokens.rollout + one.tokens.trained for one in own.values()) / n:.3g} "
        f"| {sum(one.hours for one in own.values()) / n:.3f} |"
    )


def _tasks(
    plan: ComparePlan,
    scores: Mapping[str, Mapping[str, list[float]]],
    bases: Mapping[str, float],
    pilots: Mapping[str, Pilot],
) -> list[str]:
    text = [
        f"| task | headroom | base | {' | '.join(scores)} | budget |",
        "|---|---|---|" + "---|" * (len(scores) + 1),
    ]
    for task in plan.tasks:
        means = [sum(own[task.name]) / len(plan.seeds) for own in scores.values()]
        cells, pilot = " | ".join(f"{mean:.4f}" for mean in means), pilots[task.name]
        budget = f"{pilot.compute:.4g} {pilot.unit}, {pilot.steps} steps of the default"
        headroom = "not measured" if task.headroom is None else f"{task.headroom:+.3f}"
        text.append(f"| {task.name} | {headroom} | {bases[task.name]:.4f} | {cells} | {budget} |")
    return text
