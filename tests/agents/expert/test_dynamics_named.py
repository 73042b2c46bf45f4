"""An entropy that climbs, answers that never end, scores that may be worth nothing: named, and acted on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from llmzero_ray import hyperparameters as hp
from llmzero_ray.agents.expert.proposer import ExpertProposer
from llmzero_ray.dynamics.diagnosis import Finding, diagnose
from llmzero_ray.dynamics.features import observe
from llmzero_ray.hyperparameters.verl_keys import ENTROPY_COEFF, KL_LOSS_COEF, LR, MAX_RESPONSE, TEMPERATURE
from llmzero_ray.records import Proposal, ResumeFrom
from llmzero_ray.records.agents import NodeView
from llmzero_ray.stopping.signals import annotate
from tests.agents import curves as c
from tests.agents.expert.test_proposer import PROPOSER, changed, request

N = 40
FLAT: dict[str, Any] = {"start": 0.42, "val": {10: 0.42, 20: 0.42, 30: 0.41, 40: 0.42}}
RISING: dict[str, Any] = {"start": 0.3, "val": {10: 0.35, 20: 0.42, 30: 0.5, 40: 0.55}}
CLIMB = c.line(0.3, 2.0, N, 0.02)


def phase(
    entropy: Sequence[float] = (),
    reward: Sequence[float] | None = None,
    n: int = N,
    settings: dict[str, Any] | None = None,
    **more: Any,
) -> NodeView:
    """A phase at a flat reward of .45, under a cap of 2048 tokens."""
    reward = c.line(0.45, 0.45, n, 0.02) if reward is None else reward
    series = {"kl": c.line(0.001, 0.02, n), **({"entropy": entropy} if len(entropy) else {})}
    full = hp.complete(c.PRACTITIONER, {"max_response_length": 2048, **(settings or {})})
    return c.node(c.curves(n, reward=reward, **{**series, **more}), full)


def findings(on: NodeView, before: NodeView | None = None) -> tuple[Finding, ...]:
    return diagnose(observe(on.curves, on.hyperparameters), on, before)


def kinds(on: NodeView, before: NodeView | None = None) -> list[str]:
    return [finding.kind for finding in findings(on, before)]


def noted(on: NodeView) -> set[str]:
    """Names of what the early stopper is told."""
    return {note.split(":")[0] for note in annotate(on)}


# --- entropy ------------------------------------------------------------------------------------------------


def late(steps: int) -> list[float]:
    return c.joined(c.line(0.4, 0.4, N - steps, 0.02), c.line(0.45, 1.6, steps, 0.02))


@pytest.mark.parametrize(
    "on",
    [
        phase(CLIMB, **FLAT),
        phase(CLIMB, reward=c.line(0.45, 0.35, N, 0.02), start=0.42, val={20: 0.40, 40: 0.36}),
        phase(CLIMB),
        phase([0.3 * 1.06**i for i in range(N)], **FLAT),
        phase(late(10), **FLAT),
        phase(late(5), **FLAT),
        phase(c.line(0.3, 1.5, 8, 0.01), n=8, start=0.42, val={4: 0.42, 8: 0.41}),
    ],
    ids=["flat", "falling", "not validated", "exponential", "late", "at the very end", "short"],
)
def test_an_entropy_that_climbs_without_a_gain_is_named_as_instability(on: NodeView) -> None:
    first = findings(on)[0]
    assert (first.kind, first.state) == ("entropy_climb", "unstable")
    assert first.summary.startswith("Unstable: entropy climbed")
    assert any(fact.startswith("actor/entropy") for fact in first.evidence)
    assert "warming_up" not in kinds(on)
    assert "entropy_climb" in noted(on)


@pytest.mark.parametrize(
    "on",
    [
        phase(CLIMB, **RISING),
        phase(CLIMB, reward=c.line(0.3, 0.6, N, 0.02), **RISING),
        phase(c.line(0.02, 0.4, N, 0.01), **RISING),
        phase(c.line(0.01, 0.03, N, 0.001), **FLAT),
        phase(c.line(0.5, 0.6, N, 0.02), **FLAT),
        phase([0.5 + 0.2 * c.wave(i) for i in range(N)], **FLAT),
        phase(c.joined(c.line(0.4, 1.2, 20, 0.02), c.line(1.2, 0.45, 20, 0.02)), **FLAT),
        phase(CLIMB, reward=c.line(0.2, 0.6, N, 0.02), **FLAT),
    ],
    ids=["gain", "gain in both", "from near zero", "tiny", "small", "noise", "came back", "reward rises"],
)
def test_an_entropy_that_rises_a_little_or_with_a_gain_is_not(on: NodeView) -> None:
    assert "entropy_climb" not in kinds(on)
    assert "entropy_climb" not in noted(on)


def test_the_numbers_of_a_climb_are_the_levels_that_it_left_and_reached() -> None:
    (first, *_) = findings(phase(c.joined([0.4] * 20, c.line(0.4, 1.54, 20)), **FLAT))
    # Means over three steps: of 0.4, 0.4 and 0.46 up to step 22, and of 1.42, 1.48 and 1.54.
    assert first.summary.startswith("Unstable: entropy climbed 0.42 -> 1.48 (x3.52) from step 22 on")
    assert first.since == 22


def test_a_climb_asks_for_smaller_steps_and_a_stronger_pull_from_before_it_began() -> None:
    up = c.joined(c.line(0.3, 0.5, 20, 0.01), c.line(0.5, 0.5, 20, 0.01))
    entropy = c.joined(c.line(0.5, 0.4, 20, 0.01), c.line(0.4, 1.6, 20, 0.01))
    proposal = PROPOSER.propose(request(phase(entropy, reward=up, start=0.3, val={20: 0.5, 40: 0.49})))
    on = phase()
    assert proposal.resume_from == ResumeFrom(node=0, step=20)
    new = changed(proposal)
    assert new[LR] < on.hyperparameters[LR]  # type: ignore[operator]
    assert new[KL_LOSS_COEF] > on.hyperparameters[KL_LOSS_COEF]  # type: ignore[operator]


def test_an_entropy_bonus_is_named_as_the_cause_and_taken_away() -> None:
    on = phase(CLIMB, settings={"entropy_coeff": 0.01}, **FLAT)
    assert "The entropy bonus (entropy_coeff 0.01) rewards that." in findings(on)[0].summary
    assert changed(PROPOSER.propose(request(on))) == {ENTROPY_COEFF: 0.0}


# --- answers that never end ---------------------------------------------------------------------------------


def cut(shares: Sequence[float] | None, length: Sequence[float], **more: Any) -> NodeView:
    n = len(length)
    logged = {} if shares is None else {"longest": [2048.0] * n, "at_longest": shares}
    given = {"reward": c.line(0.2, 0.2, n, 0.02), "start": 0.2, "val": {10: 0.2, 20: 0.2}, **more}
    return phase(n=n, length=length, **logged, **given)


ALL_CUT = cut([1.0] * 20, [2048.0] * 20)
ENDLESS = {
    "all": ALL_CUT,
    "95 %": cut(c.line(0.95, 0.95, 20, 0.02), c.line(1990, 1990, 20, 10)),
    "share not logged": cut(None, [2048.0] * 20),
    "share not logged, some end": cut(None, c.line(1980, 1990, 20, 20)),
    "nothing moves": cut([1.0] * 20, [2048.0] * 20, reward=[0.2] * 20, kl=[0.0] * 20),
    "no reward": cut([1.0] * 20, [2048.0] * 20, reward=[0.0] * 20, start=0.0, val={20: 0.0}),
}


@pytest.mark.parametrize("on", ENDLESS.values(), ids=ENDLESS.keys())
def test_answers_that_never_end_point_at_end_token_and_template_and_the_cap_is_kept(on: NodeView) -> None:
    (first,) = findings(on)
    assert first.kind == "never_ends"
    assert "from the first step on. Check first that the end token and the chat template" in first.summary
    proposal = PROPOSER.propose(request(on))
    assert MAX_RESPONSE not in changed(proposal)
    assert "check both before this phase" in proposal.rationale


def test_no_further_proposal_for_answers_that_never_end_raises_the_cap() -> None:
    asked = request(ALL_CUT)
    tried: list[Proposal] = []
    for number in range(1, 6):
        proposal = PROPOSER.propose(asked)
        tried.append(proposal)
        full = hp.complete(ALL_CUT.hyperparameters, changed(proposal))
        child = replace(ALL_CUT, node=number, hyperparameters=full, resume_from=proposal.resume_from)
        asked = replace(asked, siblings=(*asked.siblings, child))
    assert len({tuple(changed(one).items()) for one in tried}) == 5
    assert not any(MAX_RESPONSE in changed(one) or "Nothing speaks against" in one.rationale for one in tried)


@pytest.mark.parametrize("shares", [c.line(0.05, 0.9, 20), c.line(0.6, 0.98, 20)])
def test_answers_that_grow_into_the_cap_are_given_room(shares: Sequence[float]) -> None:
    on = cut(shares, c.line(900, 2000, 20, 10))
    assert findings(on)[0].kind == "truncated"
    new = changed(PROPOSER.propose(request(on)))
    assert new[MAX_RESPONSE] > on.hyperparameters[MAX_RESPONSE]  # type: ignore[operator]


def test_a_phase_that_goes_on_from_answers_that_ended_is_given_room() -> None:
    before = cut(c.line(0.05, 0.9, 20), c.line(900, 2000, 20, 10))
    on = replace(cut(c.line(0.93, 0.97, 20, 0.01), c.line(1990, 2000, 20, 10)), node=1)
    assert kinds(on, before)[0] == "truncated"
    assert kinds(on, ALL_CUT) == ["never_ends"]


def test_a_low_cap_at_which_most_answers_are_right_is_neither_raised_nor_called_endless() -> None:
    on = cut(
        [1.0] * 20, [2048.0] * 20, reward=c.line(0.85, 0.86, 20, 0.02), start=0.85, val={10: 0.85, 20: 0.86}
    )
    assert {"truncated", "never_ends", "doubtful"}.isdisjoint(kinds(on))
    assert MAX_RESPONSE not in changed(PROPOSER.propose(request(on)))


# --- scores in doubt ----------------------------------------------------------------------------------------

HACK: dict[str, Any] = {"reward": c.line(0.2, 0.99, 20), "start": 0.2, "val": {10: 0.6, 20: 0.99}}
DOUBT = "Answers are of no use."


@pytest.mark.parametrize("shares", [c.line(0.3, 1.0, 20), [1.0] * 20])
def test_a_score_that_rises_on_answers_cut_off_is_doubted_and_nothing_is_built_on_it(
    shares: Sequence[float],
) -> None:
    on = cut(shares, [2048.0] * 20, **HACK)
    (first,) = findings(on)
    assert (first.kind, first.state) == ("doubtful", "doubtful")
    assert "cut off at the cap of 2048 tokens and rewarded all the same" in first.summary
    assert "doubtful" in noted(on)
    proposal = PROPOSER.propose(request(on))
    assert proposal.resume_from is None
    assert MAX_RESPONSE not in changed(proposal)
    assert "whose score is in doubt" in proposal.rationale


def test_answers_that_were_looked_at_decide_over_the_curves() -> None:
    on = cut(c.line(0.3, 1.0, 20), [2048.0] * 20, **HACK)
    assert "doubtful" not in kinds(replace(on, doubts=()))
    sound = phase(n=20, **HACK)
    (first,) = findings(replace(sound, doubts=(DOUBT, "More.")))
    assert first.kind == "doubtful"
    assert DOUBT in first.summary
    assert first.evidence[0] == "More."


def test_a_phase_that_goes_on_from_a_doubted_score_is_doubted_and_left_for_what_came_before() -> None:
    first = phase(n=20, start=0.3, val={10: 0.32, 20: 0.35})
    hacked = replace(phase(n=20, **HACK), node=1, base_step=20, doubts=(DOUBT,))
    after = replace(phase(n=20, start=0.99, val={10: 0.99, 20: 0.99}), node=2, base_step=40, doubts=())
    proposal = PROPOSER.propose(request(after, path=(first, hacked, after)))
    assert f"In node 1, from which it continues: {DOUBT}" in proposal.diagnosis.summary
    assert proposal.resume_from == ResumeFrom(node=0, step=20)


def test_a_doubted_gain_is_no_evidence_for_the_settings_that_brought_it() -> None:
    on = phase(n=20, start=0.3, val={10: 0.45, 20: 0.5}, reward=c.line(0.3, 0.5, 20, 0.02))
    faster = hp.complete(on.hyperparameters, {"lr": 1e-4, "kl_loss_coef": 0.002})
    gained = c.curves(20, start=0.5, val={10: 0.8, 20: 0.9}, reward=c.line(0.5, 0.9, 20, 0.02))
    child = c.node(gained, faster, node=1, kind="evolve", resume_from=ResumeFrom(node=0, step=20))

    def proposed(sibling: NodeView) -> Proposal:
        asked = request(on, siblings=(sibling,))
        return ExpertProposer(n_val=500).propose(replace(asked, best=on))

    believed, doubted = proposed(child), proposed(replace(child, doubts=(DOUBT,)))
    assert LR not in changed(believed)  # what gained .4 is not followed by smaller steps
    assert changed(doubted)[LR] < on.hyperparameters[LR]  # type: ignore[operator]
    assert ", in doubt)." in doubted.rationale


def test_a_fresh_start_does_not_take_over_the_settings_of_a_doubted_best() -> None:
    on = phase(n=20, settings={"lr": 2e-4, "temperature": 0.8}, **HACK)
    doubted = replace(on, doubts=(DOUBT,))
    asked = request(phase(), best=doubted, from_scratch=True, n_scratch=1)
    proposal = PROPOSER.propose(asked)
    assert proposal.diagnosis.state == "doubtful"
    assert "may be worth nothing" in proposal.diagnosis.summary
    assert changed(proposal).get(TEMPERATURE) != 0.8
