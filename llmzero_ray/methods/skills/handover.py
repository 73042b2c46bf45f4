"""Runs that the skill-based agent hands over: the tree search treats all earlier runs as its tree and plans
the next one with the fixed workflow. Pure, except for the workflow's own calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from llmzero_ray.errors import HyperparameterError
from llmzero_ray.hyperparameters import Limits, Space
from llmzero_ray.methods.skills.workbench import rebased
from llmzero_ray.records import Proposal, ResumeFrom
from llmzero_ray.records.agents import NodeView, ProposalRequest, Proposer
from llmzero_ray.search import SearchRules, TreeSearch


def proposal_of_tree(
    request: ProposalRequest,
    views: Mapping[int, NodeView],
    rules: SearchRules,
    workflow: Proposer,
    *,
    space: Space,
    n_gpus: int,
) -> Proposal:
    """The run that the tree search would begin next, proposed by its workflow. Nothing is debugged: failed
    runs are left to the agent."""
    own = SearchRules(**{name: getattr(rules, name) for name in SearchRules.model_fields})
    tree = grown(views, own.model_copy(update={"max_debug_children": 0}))
    decision = tree.ask()
    on = request.on.node if decision.on is None or decision.on not in views else decision.on
    scratch = decision.action == "scratch"
    chain = tree.resume_chain(on) if on in tree.nodes else (on,)
    children = tree.node(on).children if on in tree.nodes else []
    inner = dataclasses.replace(
        request,
        on=views[on],
        path=tuple(views[node] for node in chain),
        siblings=tuple(views[node] for node in children),
        checkpoints=() if scratch else tuple(one for one in request.checkpoints if one.node in chain),
        from_scratch=scratch,
        tree=tuple(view for node, view in views.items() if node != on),
    )
    proposal = workflow.propose(inner)
    values = {change.key: change.new for change in proposal.changes}
    base = inner.base(proposal.resume_from)
    task = request.task
    limits = Limits(max_model_len=task.max_model_len, n_train=task.n_train)
    try:
        full = space.complete(base, values, n_gpus=n_gpus, limits=limits)
    except HyperparameterError:
        return proposal  # the search rejects it, with the reason
    return rebased(proposal, full, request, space)


def grown(views: Mapping[int, NodeView], rules: SearchRules) -> TreeSearch:
    """The runs as a tree. A run's parent is the run whose checkpoint it resumed, or the first run if it
    started from the base model."""
    tree = TreeSearch(rules)
    for node, view in sorted(views.items()):
        if not view.hyperparameters:
            continue  # not planned yet
        source: ResumeFrom | None = view.resume_from
        if not tree.nodes:
            tree.create("root", None, node)
        elif source is not None and source.node in tree.nodes:
            tree.create("evolve", source.node, node)
            if rules.multi_stage:
                tree.set_resume_from(node, source.node, source.step)
        else:
            tree.create("scratch", next(iter(tree.nodes)), node)
        match view.status:
            case "completed" | "early_stopped" | "failed":
                tree.tell(node, view.status, view.score, view.best_step)
            case _:
                pass  # still running
    return tree
