"""Results of those tools of the skill-based agent that show or check something. Read-only."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

from llmzero_ray.agents.knowledge import MetricNote
from llmzero_ray.agents.llm import context_nodes as nodes
from llmzero_ray.agents.llm.context import answer_lines, stop_context
from llmzero_ray.agents.llm.context_budget import budget_lines
from llmzero_ray.agents.llm.context_metrics import describe, gain_course, summarise, validation_course
from llmzero_ray.agents.llm.prompt_text import quote
from llmzero_ray.agents.llm.proposal_response import ProposalBounds, parse_proposal
from llmzero_ray.agents.llm.response_schemas import LengthSchema
from llmzero_ray.errors import HyperparameterError
from llmzero_ray.hyperparameters import Space
from llmzero_ray.methods.skills.tools import CheckConfig, ReadMetrics, SubmitTraining
from llmzero_ray.records import Change, Diagnosis, Hyperparameters, Proposal, ResumeFrom
from llmzero_ray.records.agents import NodeView, ProposalRequest, StopRequest, TaskView
from llmzero_ray.records.metrics import accuracy_error, series
from llmzero_ray.utils.text import number_ranges, one_line

AUTHOR = "skills"
"""Name that is recorded as the author of proposals."""
_MOST_METRICS = 12
"""Maximum number of metrics shown at once."""


class Workbench:
    """The runs and checkpoints of one request, as the tools show them."""

    def __init__(
        self,
        request: ProposalRequest | StopRequest,
        notes: Mapping[str, MetricNote],
        *,
        n_val: int,
        n_gpus: int,
        space: Space,
    ) -> None:
        self.request = request
        self._notes, self._n_val, self._n_gpus, self._space = notes, n_val, n_gpus, space
        self.views = _views(request)

    @property
    def task(self) -> TaskView:
        """Facts about the task."""
        return self.request.task

    def show_task(self) -> str:
        """Rows, reward, model and limits."""
        task = self.task
        size = "" if task.n_parameters is None else f", {task.n_parameters / 1e6:.4g} million parameters"
        lines = [
            f"Task {one_line(task.name, 80)}: {task.n_train} training items, {self._n_val} validation items "
            f"(standard error of a score at most {accuracy_error(0.5, self._n_val):.3f}).",
            f"Base model: {one_line(task.base_model or 'not named', 80)}{size}.",
            f"Reward: {one_line(task.reward or 'not named', 80)}."
            + (f" {one_line(task.reward_says, 300)}" if task.reward_says and task.reward_ships else ""),
            f"Prompt and response together have at most {task.max_model_len} tokens, prompts "
            f"{task.max_prompt_length}.",
            f"A run usually has {task.phase_steps} steps and at most {task.max_phase_steps}; it trains on "
            f"{self._n_gpus} GPUs.",
        ]
        if task.data_sources:
            lines.append(f"Data sources: {', '.join(one_line(name, 60) for name in task.data_sources[:12])}.")
        if task.chance is not None:
            lines.append(f"The most frequent answer, given always, would score {task.chance:.3f}.")
        if task.eval_response_length is not None:
            lines.append(f"Validation cuts responses at {task.eval_response_length} tokens.")
        if task.reward_says and not task.reward_ships:
            lines.append(quote(task.reward_says, label="reward"))
        if task.description:
            lines.append(quote(task.description, label="description"))
        if isinstance(self.request, ProposalRequest) and self.request.on.answers:
            shown = f"Answers of node {self.request.on.node}"
            lines.append(f"{shown}, greedy in its last validation or sampled in training:")
            for one in answer_lines(self.request.on):
                lines += [f"{one['title']}:", one["text"]]
        return "\n".join(lines)

    def list_runs(self) -> str:
        """All runs, grouped by their start, and the available checkpoints."""
        if isinstance(self.request, StopRequest):
            return "\n".join(f"{nodes.title(view)}: {nodes.outcome(view)}" for view in self.views.values())
        lines: list[str] = []
        for group in nodes.tree_groups(self.request):
            lines += [f"From {group['start']}:", *(f"- {line}" for line in group["lines"])]
        failed = [view for view in self.views.values() if view.failure is not None]
        for view in failed[-3:]:
            assert view.failure is not None
            cause = quote(view.failure.cause, label="cause", max_chars=600)
            lines += [f"Node {view.node} failed ({view.failure.failure_class}):", cause]
        offered = nodes.checkpoint_lines(self.request.checkpoints)
        return "\n".join([*lines, "Checkpoints:", *(offered or ["none: the base model alone"])])

    def read_metrics(self, wanted: ReadMetrics) -> str:
        """Metrics of one run.

        Raises:
            HyperparameterError: there is no such run.
        """
        view = self.views.get(wanted.node)
        if view is None:
            known = number_ranges(self.views) or "none"
            raise HyperparameterError(f"node {wanted.node} is not known here; known are {known}.")
        curves = view.curves
        points = tuple(zip(curves.val_steps, curves.val_scores, strict=True))
        lines = [f"{nodes.title(view)}: {nodes.outcome(view)}"]
        lines += [quote("\n".join(view.doubts), label="doubts")] if view.doubts else []
        lines += [f"validation: {validation_course(points)}"] if points else []
        gains = gain_course(curves)
        lines += [f"difference to its start: {gains}"] if gains else []
        if not wanted.names:
            found = summarise(curves, self._notes)
            lines += [str(line) for part in found.values() if isinstance(part, list) for line in part]
            return "\n".join(lines)
        for name in wanted.names[:_MOST_METRICS]:
            if name in curves.metrics:
                lines.append(describe(series(curves, name), curves.val_steps))
            else:
                lines.append(f"{one_line(name, 80)}: not logged")
        return "\n".join(lines)

    def check_config(self, wanted: CheckConfig) -> str:
        """The complete configuration of a run as it would train.

        Raises:
            HyperparameterError: the run breaks a rule; the message names it.
        """
        if not isinstance(self.request, ProposalRequest):
            raise HyperparameterError(
                "a run trains now; a configuration is checked when the next is asked for."
            )
        start = wanted.resume_from
        resume = None if start is None else ResumeFrom(node=start.node, step=start.step)
        base = self._base(resume)
        changes = [
            Change(key=one.name, old=None, new=_value(one.value), reason=one.reason) for one in wanted.changes
        ]
        full = self._checked(changes, resume, wanted.n_steps)
        return f"Allowed. The run would train with:\n{nodes.configuration(full, self.request.default)}\n" + (
            "" if base != full else "Nothing is changed: it goes on as before."
        )

    def proposal(self, wanted: SubmitTraining) -> Proposal:
        """Proposal of the submitted run, with its changes relative to the configuration to which the search
        applies them.

        Raises:
            HyperparameterError: the run breaks a rule; the message names it.
        """
        assert isinstance(self.request, ProposalRequest)
        verdicts = tuple(f"{one.name}: {one.verdict}. {one.reason}" for one in wanted.verdicts)
        found = parse_proposal(
            Diagnosis(state=wanted.state, summary=wanted.summary, evidence=verdicts),
            wanted.changes,
            wanted.checkpoint,
            LengthSchema.model_construct(n_steps=wanted.n_steps, arithmetic=""),
            self._bounds(),
            AUTHOR,
        )
        full = self._checked(found.changes, found.resume_from, found.n_steps)
        found = dataclasses.replace(found, predicted=wanted.expected_validation)
        return rebased(found, full, self.request, self._space)

    def question(self) -> str:
        """Question to the agent, with the most important numbers."""
        request = self.request
        if isinstance(request, StopRequest):
            return self._check_question(request)
        left = budget_lines(
            request.budget,
            request.on,
            self.task.phase_steps,
            self._n_gpus,
            test_freq=self.task.test_freq,
            others=self.views.values(),
        )
        lines = [f"# The next run (node {request.node})", self.list_runs()]
        lines += ["Budget:", *(f"- {line}" for line in left)] if left else []
        if request.from_scratch:
            lines.append("This run starts from the base model: resume_from is null.")
        if request.hints:
            lines += [
                "Hints of the person who runs this project:",
                *(one_line(h, 300) for h in request.hints),
            ]
        if request.rejected is not None:
            lines += ["The run that you handed in was refused:", quote(request.rejected, label="refusal")]
        lines.append("Hand in the next run (submit_training), or hand over (tree_search).")
        return "\n".join(lines)

    def _check_question(self, request: StopRequest) -> str:
        found: dict[str, Any] = stop_context(
            request, n_val=self._n_val, n_gpus=self._n_gpus, checks=request.checks
        )
        running, best = found["running"], found["incumbent"]
        lines = [
            f"# Run {running['number']} trains: step {running['step']} of {running['n_steps']}",
            f"Its validation by global step: {running['validation']}.",
            f"The best run is node {best['number']} with {best['best']}: {best['validation']}.",
            f"Its configuration differs in: {found['differs']}.",
            *found["metrics"],
            *found["standings"],
            f"The rules' verdict: {found['rules']}.",
            *(f"Checked: {check}" for check in found["checks"]),
        ]
        lines += [f"A stop now saves {found['saves']}."] if found["saves"] else []
        if found["budget"]:
            lines += ["Budget, without the steps so far:", *(f"- {line}" for line in found["budget"])]
        return "\n".join([*lines, "Does it continue? Answer with decide_run."])

    # --- parts ----------------------------------------------------------------------------------------------

    def _bounds(self) -> ProposalBounds:
        assert isinstance(self.request, ProposalRequest)
        return ProposalBounds(
            task=self.task,
            base=self._base,
            checkpoints=self.request.checkpoints,
            n_gpus=self._n_gpus,
            space=self._space,
        )

    def _base(self, resume: ResumeFrom | None) -> Hyperparameters:
        """Configuration at a start: the resumed run's, or the default recipe."""
        assert isinstance(self.request, ProposalRequest)
        if resume is not None and resume.node in self.views:
            return self.views[resume.node].hyperparameters
        return self.request.default

    def _checked(self, changes: Any, resume: ResumeFrom | None, n_steps: int) -> dict[str, Any]:
        assert isinstance(self.request, ProposalRequest)
        longest = self.task.max_phase_steps
        if not 1 <= n_steps <= longest:
            raise HyperparameterError(f"n_steps is {n_steps}; must be between 1 and {longest}.")
        if resume is not None:
            saved = [one.step for one in self.request.checkpoints if one.node == resume.node]
            if resume.step not in saved:
                raise HyperparameterError(
                    f"step {resume.step} of node {resume.node} is not offered; offered are "
                    f"{number_ranges(saved) or 'no steps of it'}."
                )
        values = {}
        for change in changes:
            key = self._space.canonical(change.key)
            values[key] = self._space.proposed(key, change.new)
        base = self._base(resume)
        full = self._space.complete(base, values, n_gpus=self._n_gpus, limits=self._bounds().limits)
        if resume is not None:
            self._space.check_transition(base, full)
        return dict(full)


def rebased(proposal: Proposal, full: Hyperparameters, request: ProposalRequest, space: Space) -> Proposal:
    """The proposal, with changes that turn the configuration to which the search applies them into `full`."""
    source = None if proposal.resume_from is None else proposal.resume_from.node
    views = _views(request)
    if source is not None and source in views:
        base: Hyperparameters = views[source].hyperparameters
    else:
        base = request.base(None)
    reasons = {}
    for change in proposal.changes:
        with contextlib.suppress(HyperparameterError):
            reasons[space.canonical(change.key)] = change.reason
    changes = tuple(
        Change(
            key=key, old=old, new=new, reason=reasons.get(key, "as in the configuration that it starts with")
        )
        for key, (old, new) in space.diff(base, full).items()
    )
    return dataclasses.replace(proposal, changes=changes)


def _views(request: ProposalRequest | StopRequest) -> dict[int, NodeView]:
    if isinstance(request, StopRequest):
        found = (*request.incumbent_chain, request.incumbent, request.running)
    else:
        found = (*request.tree, *request.path, request.on)
    own = request.node if isinstance(request, ProposalRequest) else None
    return {view.node: view for view in sorted(found, key=lambda view: view.node) if view.node != own}


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
