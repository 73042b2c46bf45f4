"""Values for planned runs: within their ranges, the same for the same request, and as Ray Tune explores."""

from __future__ import annotations

import dataclasses
import random
import sys
from typing import Any

import pytest

from llmzero_ray.agents.backend import check_agents, make_agents
from llmzero_ray.agents.expert.perturbation import live_dimensions
from llmzero_ray.config import load_config, parse_config
from llmzero_ray.config.schedule import Grid, Ranges, read_schedule, shipped
from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters import canonical, complete, normalize
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.hyperparameters.verl_keys import CLIP_HIGH, KL_LOSS_COEF, WARMUP_RATIO
from llmzero_ray.methods import RunPlan, values
from llmzero_ray.methods.independent import GridSearch
from llmzero_ray.methods.plan_proposer import PlanProposer
from llmzero_ray.methods.population import quantiles
from llmzero_ray.records import Hyperparameters, Proposal, ResumeFrom
from llmzero_ray.records.agents import NodeView, OfferedCheckpoint, ProposalRequest, TaskView
from llmzero_ray.search import MethodRules, load_method
from tests.agents import curves as c
from tests.builders import make_config

ROOT: Hyperparameters = root_hyperparameters(make_config(), 512)
LR, N = canonical("lr"), canonical("n")
RELATIVE = shipped(Ranges, "relative")
TASK = TaskView(
    name="toy", n_train=512, phase_steps=20, max_phase_steps=200, max_model_len=1536, max_prompt_length=512
)


def view(node: int, **changes: Any) -> NodeView:
    given = {"kind": "evolve", "status": "completed", "hyperparameters": {}, "n_steps": 20, "base_step": 0}
    return NodeView(node=node, **{**given, **changes})  # type: ignore[arg-type]


def request(plan: RunPlan, **changes: Any) -> ProposalRequest:
    on = view(0, hyperparameters=ROOT, n_steps=20, score=0.5, best_step=10)
    given: dict[str, Any] = {
        "task": TASK,
        "on": on,
        "path": (on,),
        "siblings": (),
        "best": on,
        "default": ROOT,
        "checkpoints": tuple(
            OfferedCheckpoint(node=0, step=step, global_step=step, val_score=score)
            for step, score in ((10, 0.5), (20, 0.4))
        ),
        "from_scratch": plan.start == "base",
        "node": 3,
        "plan": plan.to_dict(),
    }
    return ProposalRequest(**{**given, **changes})


def propose(plan: RunPlan, method: str = "random", rules: Any = None, **changes: Any) -> Proposal:
    search = load_method(method)(rules or MethodRules())
    return PlanProposer(method, search.values, seed=1).propose(request(plan, **changes))


# --- values -------------------------------------------------------------------------------------------------


def test_drawn_values_lie_in_the_ranges_and_factors_are_of_the_root() -> None:
    rng = random.Random(1)
    drawn = [values.drawn(RELATIVE, ROOT, rng) for _ in range(300)]
    rates = sorted(float(str(one[LR])) for one in drawn)
    assert 2e-4 <= rates[0] < 2.2e-4  # the root's rate is 1e-3
    assert 1.8e-3 < rates[-1] <= 2e-3
    assert rates[150] == pytest.approx((2e-4 * 2e-3) ** 0.5, rel=0.25)  # the middle of equal factors
    assert {one[canonical("batch")] for one in drawn} == {8, 16, 32}
    assert {one[N] for one in drawn} == {3, 4, 6}
    paper = [values.drawn(shipped(Ranges, "paper"), ROOT, rng) for _ in range(50)]
    assert {one[canonical("lora_rank")] for one in paper} == {16, 32, 64, 128}


def test_a_grid_has_a_cell_for_every_combination_and_no_more() -> None:
    grid = shipped(Grid, "paper")
    cells = [values.grid_cell(grid, ROOT, number) for number in range(8)]
    rank, alpha = canonical("lora_rank"), ROOT[canonical("lora_rank")]
    assert [one[LR] for one in cells[::2]] == pytest.approx([2e-4, 6e-4, 1e-3, 2e-3])
    assert [one[rank] for one in cells[:2]] == [alpha, 2 * int(str(alpha))]
    with pytest.raises(ValueError, match=r"cell 9 of a grid of 8; set search\.n_trials to 8"):
        values.grid_cell(grid, ROOT, 8)


@pytest.mark.parametrize(("name", "ranks"), [("paper", {64, 128}), ("paper_ssmr", {16, 32, 64, 128})])
def test_the_papers_grids_are_as_published_beside_its_default_recipe(name: str, ranks: set[int]) -> None:
    """App. E.1 and Table 16; a cell of 5 standard phases of one epoch has the paper's 5 epochs."""
    config = load_config("paper_4b")
    table_12, grid = root_hyperparameters(config, 5000), shipped(Grid, name)
    keys = [canonical(key) for key in ("lr", "lora_rank", "resp")]
    n_cells = 4 * len(ranks)
    cells = [values.grid_cell(grid, table_12, number) for number in range(n_cells)]
    rates = ("1e-05", "3e-05", "5e-05", "0.0001")
    assert {tuple(f"{cell[key]:g}" for key in keys) for cell in cells} == {
        (rate, str(rank), "8192") for rate in rates for rank in ranks
    }
    search = GridSearch(MethodRules(n_trials=n_cells), budget=5 * n_cells)
    plan = search.next_run()
    assert plan is not None
    assert plan.units * config.phase.n_steps == 5 * (5000 // 128) <= config.phase.max_steps


def test_a_published_schedule_keeps_its_factors_on_another_root() -> None:
    chemcot = read_schedule("chemcot")
    last = values.scheduled(chemcot, ROOT, 4)
    named = {name: last[canonical(name)] for name in ("lr", "temperature", "n", "adv_norm", "clip_high")}
    assert named == {
        "lr": pytest.approx(1e-3 * 3 / 5),
        "temperature": 0.8,
        "n": 6,
        "adv_norm": True,
        "clip_high": 0.25,
    }
    assert canonical("adv_norm") not in values.scheduled(chemcot, ROOT, 0)


def test_a_published_schedule_is_as_printed_on_the_recipe_that_it_was_found_beside() -> None:
    table_12 = normalize({"lr": 5e-5, "kl_loss_coef": 0.001, "batch": 128, "n": 8, "resp": 6144})
    for name in ("chemcot", "papersearchqa", "ssmr", "wildsci", "guidebook"):
        schedule = read_schedule(name)
        for number, phase in enumerate(schedule.phases):
            found = values.scheduled(schedule, {**ROOT, **table_12}, number)
            for key, value in phase.changes.items():
                assert found[canonical(key)] == pytest.approx(value), (name, number, key)


def test_a_perturbation_moves_one_to_three_hyper_parameters() -> None:
    counts = set()
    for node in range(40):
        found = propose(RunPlan(source="perturb", start="best"), "perturb", node=node)
        counts.add(len(found.changes))
    assert counts == {1, 2, 3}


# --- proposals ----------------------------------------------------------------------------------------------


def test_the_same_request_gives_the_same_proposal_and_another_node_another_one() -> None:
    plan = RunPlan(source="draw", number=2)
    assert propose(plan) == propose(plan)
    assert propose(plan).changes != propose(plan, node=4).changes
    assert propose(plan).changes != propose(plan, tries=1, rejected="a copy of node 1").changes


def test_a_planned_run_starts_where_it_is_planned_and_is_as_long() -> None:
    last = propose(RunPlan(source="unchanged", start="last", units=1.5), "asha")
    assert (last.resume_from, last.n_steps, last.changes) == (ResumeFrom(node=0, step=20), 30, ())
    best = propose(RunPlan(source="perturb", start="best", units=0.01), "perturb")
    assert (best.resume_from, best.n_steps) == (ResumeFrom(node=0, step=10), 1)
    assert propose(RunPlan(source="draw")).resume_from is None
    assert propose(RunPlan(source="unchanged", start="last"), checkpoints=()).resume_from is None
    assert last.agent == "asha"
    assert "the last adapter of node 0" in last.rationale


def test_an_earlier_adapter_of_the_path_is_taken_where_the_last_phase_saved_none() -> None:
    failed = view(1, status="failed", hyperparameters=ROOT)
    root = request(RunPlan(source="default")).on
    found = propose(RunPlan(source="unchanged", start="last"), on=failed, path=(root, failed))
    assert found.resume_from == ResumeFrom(node=0, step=20)


def test_a_change_without_effect_is_not_proposed() -> None:
    # The mini batch is the batch: no clip range acts.
    for node in range(10):
        found = propose(RunPlan(source="draw"), node=node)
        assert canonical("clip_high") not in {change.key for change in found.changes}


def test_a_schedule_may_set_null_and_pairs() -> None:
    offload, betas = canonical("param_offload"), canonical("betas")
    phases = [{"steps": 5, "changes": {"param_offload": True}}]
    phases.append({"steps": 5, "changes": {"param_offload": None, "betas": [0.9, 0.95]}})
    config = make_config(search={"method": "schedule", "schedule": {"phases": phases}})
    assert parse_config(config.to_json()) == config
    on = view(0, hyperparameters={**ROOT, offload: True}, score=0.5, best_step=10)
    plan = RunPlan(on=0, source="phase", start="last", number=1)
    proposal = propose(plan, "schedule", config.search, on=on, path=(on,))
    assert {change.key: change.new for change in proposal.changes} == {offload: None, betas: (0.9, 0.95)}


def test_a_number_of_a_key_without_a_default_can_be_drawn() -> None:
    rules = make_config(search={"ranges": {"min_lr_ratio": {"low": 0.1, "high": 0.5}}}).search
    (change,) = propose(RunPlan(source="draw"), "random", rules).changes
    assert change.key == canonical("min_lr_ratio")
    assert 0.1 <= float(str(change.new)) <= 0.5


def test_what_a_schedule_may_not_set_is_left_out_after_a_refusal() -> None:
    plan = RunPlan(source="phase", start="last", number=2)
    rules = MethodRules(schedule="chemcot")  # type: ignore[arg-type]
    assert {c.key for c in propose(plan, "schedule", rules).changes} >= {LR, canonical("temperature")}
    again = propose(plan, "schedule", rules, rejected="temperature=0.7 is out of bounds", tries=1)
    assert canonical("temperature") not in {change.key for change in again.changes}


# --- population based training against Ray Tune -------------------------------------------------------------


def recorded_scores() -> list[dict[int, float]]:
    rng = random.Random(7)
    return [{member: rng.random() for member in range(size)} for size in (1, 2, 3, 4, 5, 8, 9) for _ in "ab"]


@pytest.mark.parametrize("share", [0.25, 0.5, 0.1])
def test_quantiles_are_those_of_ray_tune(share: float) -> None:
    from ray.tune.schedulers import PopulationBasedTraining

    class Trial:
        def __init__(self, member: int) -> None:
            self.member = member

        def is_finished(self) -> bool:
            return False

    for scores in recorded_scores():
        scheduler = PopulationBasedTraining(
            metric="score", mode="max", hyperparam_mutations={"lr": [1, 2]}, quantile_fraction=share
        )
        for member, score in scores.items():
            state = type("State", (), {"last_score": score})()
            scheduler._trial_state[Trial(member)] = state
        theirs = [[trial.member for trial in part] for part in scheduler._quantiles()]
        assert [list(part) for part in quantiles(scores, share)] == theirs


@pytest.mark.parametrize("seed", range(30))
def test_settings_are_explored_as_ray_tune_explores_them(seed: int) -> None:
    from ray.tune.schedulers.pbt import _explore

    ranges = {name: RELATIVE[name] for name in ("lr", "temperature", "batch", "n")}
    keys = {canonical(name): found for name, found in ranges.items()}
    rng = random.Random(seed)
    mutations = {
        key: list(values.choices(key, found, ROOT))
        if found.choices
        else lambda key=key, found=found: values.draw(key, found, ROOT, random)  # type: ignore[misc]
        for key, found in keys.items()
    }
    settings = {key: ROOT[key] for key in keys}
    random.seed(seed)
    theirs, _ = _explore(settings, mutations, 0.25, (1.2, 0.8), None)
    assert values.explored(settings, ranges, ROOT, rng, 0.25) == theirs


# --- Optuna -------------------------------------------------------------------------------------------------


def suggestions(method: str, n: int, **changes: Any) -> list[Proposal]:
    """One suggestion after the other, where larger learning rates score better and the third recipe fails;
    `changes` are of the last request."""
    proposer = make_agents(make_config(search={"method": method}), 512).proposer
    views = [view(0, kind="root", status="pending")]
    made: list[Proposal] = []
    for number in range(n):
        own = changes if number == n - 1 else {}
        plan = RunPlan(source="suggest", number=number)
        asked = request(plan, on=views[0], tree=tuple(views[1:]), node=number)
        made.append(proposer.propose(dataclasses.replace(asked, **own)))
        full = {**ROOT, **{change.key: change.new for change in made[-1].changes}}
        failed = number == 2
        trained = view(
            number,
            kind="scratch" if number else "root",
            status="failed" if failed else "completed",
            hyperparameters=full,
            score=None if failed else float(str(full[LR])) * 100,
        )
        views = [*views[:number], trained]
    return made


@pytest.mark.parametrize("method", ["tpe", "cmaes"])
def test_a_sampler_suggests_the_same_again_and_learns_from_the_scores(method: str) -> None:
    made = suggestions(method, 16)
    assert suggestions(method, 5) == made[:5]
    assert suggestions(method, 5, tries=1)[4].changes != made[4].changes
    rates = [float(str({c.key: c.new for c in one.changes}.get(LR, ROOT[LR]))) for one in made]
    assert len(set(rates)) > 12
    middle = (2e-4 * 2e-3) ** 0.5
    assert sum(rate > middle for rate in rates[10:]) >= 4  # of 6; of drawn ones a half
    assert {one.resume_from for one in made} == {None}


def test_a_running_recipe_is_no_result_yet() -> None:
    plan = RunPlan(source="suggest", number=1)
    running = view(0, kind="root", status="running", hyperparameters=ROOT, score=None)
    config = make_config(search={"method": "tpe"})
    proposer = make_agents(config, 512).proposer
    assert proposer.propose(request(plan, on=running, node=1)).changes


def test_optuna_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(search={"method": "cmaes"})
    check_agents(config, 0.0, lambda _: None)
    monkeypatch.setitem(sys.modules, "cmaes", None)
    monkeypatch.delitem(sys.modules, "optuna", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs optuna and cmaes: pip install 'llmzero-ray\[optuna\]'"):
        check_agents(config, 0.0, lambda _: None)


def test_a_proposal_of_a_planned_method_does_not_ask_the_agents_of_the_backend() -> None:
    config = make_config(search={"method": "unchanged"}, agents={"proposer": "tests.slow_agents:make_agents"})
    assert isinstance(make_agents(config, 512).proposer, PlanProposer)
    plan = RunPlan(source="unchanged", start="last")
    asked = dataclasses.replace(request(plan), hints=("be bold",))
    assert "Not followed" in make_agents(config, 512).proposer.propose(asked).rationale


def test_dimensions_without_effect_or_without_a_value_are_left_out() -> None:
    def live(**changes: object) -> set[str]:
        return {dimension.key for dimension in live_dimensions(complete(c.TINY, changes))}

    assert CLIP_HIGH not in live()  # one update per step clips nothing
    assert CLIP_HIGH in live(mini_batch_size=8)
    assert KL_LOSS_COEF in live()
    assert KL_LOSS_COEF not in live(use_kl_loss=False)
    assert LR not in live(lr=0)
    assert WARMUP_RATIO not in live(lr_warmup_steps=4)
