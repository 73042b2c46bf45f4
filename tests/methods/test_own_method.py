"""A planned method of one's own: the example of docs/extend.md, and what `next_run` may not return."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.errors import SearchError
from llmzero_ray.launch.preflight import check_plan
from llmzero_ray.methods import PlannedSearch, RunPlan
from llmzero_ray.search import SearchMethod, SearchRules, make_search
from tests.contracts.test_search_methods import Planned, SearchMethodContract, planned_config
from tests.searches import code_of_the_page

LR = "actor_rollout_ref.actor.optim.lr"
OWN = "annealing_of_the_page:Annealing"


@pytest.fixture(scope="module", autouse=True)
def page(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The example as a module that can be imported."""
    folder: Path = tmp_path_factory.mktemp("page")
    (folder / "annealing_of_the_page.py").write_text(code_of_the_page("class Annealing"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


class TestAnnealing(SearchMethodContract):
    def make(self, budget: int | None) -> SearchMethod:
        return make_search(OWN, SearchRules(), budget, 1, {LR: 1e-3})

    def test_a_veto_prunes_and_names_what_still_trains(self) -> None:
        search = self.grown(1)
        assert search.veto(self.begin(search)) == (1,)


def test_the_example_trains_what_it_plans_to_the_end_of_its_budget() -> None:
    check_plan(planned_config(OWN))
    search = Planned(planned_config(OWN)).go_on()
    core = search.core
    assert core.finished is not None and core.finished.reason == "budget"
    specs = [run.spec for run in core.runs.values() if run.spec is not None]
    assert [spec.n_steps for spec in specs] == [20, *[10] * 14]
    root = float(str(specs[0].hyperparameters[LR]))
    rates = [float(str(spec.hyperparameters[LR])) for spec in specs]
    assert rates == pytest.approx([root * 0.7**n for n in range(15)])
    assert all(spec.resume_from is not None for spec in specs[1:])


def test_the_plan_of_a_user_is_in_the_journal_and_those_that_ship_keep_their_form() -> None:
    plan = RunPlan(on=3, start="best", changes={"lr": 0.5}, why="so")
    assert plan.to_dict()["changes"] == {"lr": 0.5}
    assert RunPlan.from_dict(plan.to_dict()) == plan
    assert list(RunPlan(source="draw").to_dict()) == ["recipe", "start", "units", "number", "why"]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"lr": 1}, r"Given\.next_run returned a dict; it must return a RunPlan or None"),
        (RunPlan(on=0), r"returned on=0 with start='base'; give both"),
        (RunPlan(start="last"), r"returned on=None with start='last'; give both"),
        (RunPlan(on=1, start="last"), r"starts on run 1, which still trains; wait for it: return None"),
        (RunPlan(on=7, start="last"), r"node 7 is unknown; the search has 2 nodes"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_in_words(plan: Any, message: str) -> None:
    class Given(PlannedSearch):
        def next_run(self) -> RunPlan | None:
            return plan if len(self.runs) == 2 else RunPlan()

    search = Given(SearchRules(), 8)
    for _ in range(2):
        decision = search.ask()
        search.create(decision.action, decision.on)  # type: ignore[arg-type]
    with pytest.raises(SearchError, match=message):
        search.ask()
