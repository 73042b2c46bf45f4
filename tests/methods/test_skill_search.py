"""The search of the skill-based agent: every saved checkpoint is offered, and nothing is forced."""

from __future__ import annotations

from llmzero_ray.methods.skill_search import SkillSearch
from llmzero_ray.search import MethodRules, SearchRules, make_search


def grown(*scores: float | None, budget: int | None = 8) -> SkillSearch:
    """A search whose runs ended with these scores; None: it failed."""
    search = SkillSearch(MethodRules(), budget)
    for node, score in enumerate(scores):
        decision = search.ask()
        search.create("evolve" if node else "root", decision.on)
        search.tell(node, "failed" if score is None else "completed", score, None if score is None else 5)
    return search


def test_a_run_hangs_on_the_best_one_and_a_failure_is_not_debugged() -> None:
    decision = grown(0.3, 0.5, None, 0.4).ask()
    assert (decision.action, decision.on) == ("evolve", 1)
    assert decision.seen.to_dict()["plan"] is None
    assert grown(None).ask().on == 0


def test_checkpoints_of_every_run_that_has_ended_are_offered_but_not_to_the_root() -> None:
    search = grown(0.3, 0.5, 0.4)
    search.create("evolve", 1)
    search.create("evolve", 1)
    assert search.offered_checkpoint_nodes(3) == (0, 1, 2)
    assert search.offered_checkpoint_nodes(0) == ()
    search.set_resume_from(3, 2, 5)
    assert search.resume_chain(3) == (2, 3)
    without = make_search("skills", SearchRules(multi_stage=False), 8)
    without.create("root", None)
    without.tell(0, "completed", 0.5, 5)
    without.create("evolve", 0)
    assert without.offered_checkpoint_nodes(1) == ()


def test_a_veto_takes_the_runs_that_were_trained_from_it_and_no_others() -> None:
    search = grown(0.3, 0.5)
    for node, source in ((2, 1), (3, 0), (4, 2)):
        search.create("evolve", 1)
        search.set_resume_from(node, source, 5)
        search.tell(node, "completed", 0.4, 5)
    search.veto(1)
    assert [node.id for node in search.nodes.values() if node.pruned] == [1, 2, 4]
    assert search.ask().on == 3


def test_while_the_first_run_trains_none_begins() -> None:
    search = SkillSearch(SearchRules(), 8)
    search.create("root", None)
    assert search.ask().action == "wait"


def test_every_decision_is_explained() -> None:
    assert SkillSearch(SearchRules()).explain(SkillSearch(SearchRules()).ask().to_dict()) == (
        "first run of the search: the default recipe"
    )
    found = grown(0.3, budget=None)
    assert found.explain(found.ask().to_dict()) == (
        "the agent decides; it is shown node 0 (1 of no limit runs begun)"
    )
    spent = grown(0.3, budget=1)
    assert spent.explain(spent.ask().to_dict()) == (
        "the budget is spent (1 runs begun, 1 of 1 standard phases)"
    )
