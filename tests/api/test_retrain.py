"""A strategy trained again: its configuration, its rescaling, and a run on the scripted engine."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import llmzero_ray
from llmzero_ray.agents.strategy import StrategyProposer
from llmzero_ray.cli.main import main
from llmzero_ray.config import parse_config
from llmzero_ray.errors import AgentError, ConfigError
from llmzero_ray.hyperparameters import normalize
from llmzero_ray.launch.preflight import check_backends, strategy_note
from llmzero_ray.prepared import PreparedTask, load_task
from llmzero_ray.report import Strategy, load_strategy, write_outcome
from llmzero_ray.storage import SearchStorage
from llmzero_ray.strategy.retrain import (
    RetrainComparison,
    find_strategy,
    plan_retraining,
    rescaled,
    task_of_strategy,
)
from llmzero_ray.tasks.prepare import prepare
from tests.actors.conftest import Search as HeadSearch
from tests.actors.conftest import make_search, task_dir
from tests.builders import make_config
from tests.report.builder import Phase, SearchBuilder
from tests.report.conftest import Written, finished

__all__ = ["finished", "make_search", "task_dir"]

LR = "actor_rollout_ref.actor.optim.lr"


@pytest.fixture(scope="module")
def strategy(finished: Written) -> Strategy:
    """Three phases: 20 steps, 20 cut at 10, 20 cut at 20, constant learning rates; found on 512 rows."""
    found = load_strategy(finished.root / "strategy.yaml")
    return found.model_copy(update={"task": {**found.task, "n_train": 128}})


def plan(strategy: Strategy, task_dir: Path, tmp_path: Path, **wanted: Any) -> Any:
    wanted = {"name": "again", "storage": str(tmp_path), **wanted}
    return plan_retraining(strategy, load_task(task_dir), **wanted)


def test_the_searches_repeat_the_strategy_and_nothing_else(
    strategy: Strategy, task_dir: Path, tmp_path: Path
) -> None:
    engine = {"backend": "tests.fakes:make_engine"}
    made = plan(strategy, task_dir, tmp_path, seeds=3, keep_steps=True, settings={"engine": engine})
    assert [(config.name, config.seed) for config in made.configs] == [
        ("again-1", 1),
        ("again-2", 2),
        ("again-3", 3),
    ]
    config = made.configs[0]
    assert (config.budget.runs, config.search.max_evolve_children, config.search.rho_min) == (3, 1, 0.0)
    assert (config.stopper.enabled, config.final.default_recipe) == (False, False)
    assert config.root.overrides[LR] == strategy.phases[0].hyperparameters[LR]
    assert config.model.lora_rank == strategy.phases[0].hyperparameters["actor_rollout_ref.model.lora_rank"]
    # The second phase ends at its cut: nothing of it is used after that.
    assert [phase.n_steps for phase in made.strategy.phases] == [20, 10, 20]
    assert (config.phase.test_freq, config.phase.save_freq) == (10, 10)
    assert load_strategy(tmp_path / "again.strategy.yaml") == made.strategy
    check_backends(config, 0.0, [].append)


def test_a_given_seed_is_the_first_one_and_no_two_searches_are_the_same(
    strategy: Strategy, task_dir: Path, tmp_path: Path
) -> None:
    made = plan(strategy, task_dir, tmp_path, seeds=3, settings={"seed": 5})
    assert [config.seed for config in made.configs] == [5, 6, 7]
    with pytest.raises(ConfigError, match="seed is 'five'"):
        plan(strategy, task_dir, tmp_path, settings={"seed": "five"})
    for key in ("name", "storage"):
        with pytest.raises(ConfigError, match=f"{key}=mine: all the searches would get it. Give --{key}"):
            plan(strategy, task_dir, tmp_path, seeds=3, settings={key: "mine"})


def test_a_begun_retraining_keeps_its_strategy(strategy: Strategy, task_dir: Path, tmp_path: Path) -> None:
    """It would otherwise go on with the phases of another one."""
    made = plan(strategy, task_dir, tmp_path)
    changed = strategy.phases[1].hyperparameters | {LR: 1e-6}
    phases = list(strategy.phases)
    phases[1] = phases[1].model_copy(update={"hyperparameters": changed})
    other = strategy.model_copy(update={"phases": tuple(phases)})
    plan(other, task_dir, tmp_path)  # no search has begun yet
    plan(strategy, task_dir, tmp_path)
    SearchStorage(tmp_path, "again-1").adopt_config(made.configs[0])
    with pytest.raises(ConfigError, match=r"again-1 in .* trains another strategy.*with --name"):
        plan(other, task_dir, tmp_path)
    assert load_strategy(tmp_path / "again.strategy.yaml") == made.strategy
    more = strategy.search.model_copy(update={"runs": 24})  # the search went on; its best path is the same
    assert plan(strategy.model_copy(update={"search": more}), task_dir, tmp_path).configs == made.configs


def test_the_searches_of_a_long_name_have_a_shorter_one(
    strategy: Strategy, task_dir: Path, tmp_path: Path
) -> None:
    origin = strategy.search.model_copy(update={"name": "q" * 63})
    made = plan(strategy.model_copy(update={"search": origin}), task_dir, tmp_path, name=None, seeds=11)
    assert made.configs[10].name == f"{'q' * 48}-retrained-11"


def test_steps_are_rescaled_to_the_rows_of_the_task_and_that_is_said(
    strategy: Strategy, task_dir: Path, tmp_path: Path
) -> None:
    made = plan(strategy, task_dir, tmp_path)  # 64 rows instead of 128
    assert made.strategy.total_steps == 25
    assert "50 steps became 25: the task has 64 training rows, the strategy's had 128" in made.notes[0]
    assert [(p.base_step, p.cut_step, p.test_freq) for p in made.strategy.phases] == [
        (0, 10, 5),
        (10, 5, 5),
        (15, 10, 5),
    ]
    assert [note for note in made.notes if "the task is echo, the strategy's was toy" in note]
    assert rescaled(strategy, 2.0).total_steps == 100
    assert rescaled(strategy, 0.001).total_steps == 3  # one step each at least


def test_a_strategy_that_carried_its_optimizer_over_begins_each_phase_with_a_new_one(
    strategy: Strategy, task_dir: Path, tmp_path: Path
) -> None:
    engine = {**strategy.setting.engine, "carry_optimizer": True}
    setting = strategy.setting.model_copy(update={"engine": engine})
    carried = strategy.model_copy(update={"setting": setting})
    made, plain = (plan(one, task_dir, tmp_path) for one in (carried, strategy))
    assert made.configs == plain.configs
    (note,) = set(made.notes) - set(plain.notes)
    assert note.startswith("every phase begins with a new optimizer")


def test_another_model_is_used_and_said_and_another_rank_refused_in_every_way(
    strategy: Strategy, finished: Written, task_dir: Path, tmp_path: Path
) -> None:
    made = plan(strategy, task_dir, tmp_path, model=str(tmp_path), settings={"slots.count": 2})
    assert (made.configs[0].model.path, made.configs[0].slots.count) == (str(tmp_path), 2)
    assert any(note.startswith("the base model is") for note in made.notes)
    assert len(made.unsaid) == len(made.notes) - 1  # the start of a search says it
    with pytest.raises(ConfigError, match=r"model.lora_rank is 4; the strategy was found with 16"):
        plan(strategy, task_dir, tmp_path, settings={"model": {"lora_rank": 4}})
    method = {"method": "schedule", "schedule": str(finished.root / "strategy.yaml")}
    ways: dict[str, Any] = {
        "search": method,
        "agents": {"proposer": "strategy", "recorded_from": str(finished.root / "strategy.yaml")},
    }
    for block, values in ways.items():
        given = {"name": "x", "model": {"lora_rank": 4}, block: values}
        with pytest.raises(ConfigError, match=r"model.lora_rank is 4; the strategy was found with 16"):
            check_backends(parse_config(given), 0.0, [].append)
        check_backends(parse_config({**given, "model": {"lora_rank": 16}}), 0.0, [].append)
        note = f"the base model is /other, the strategy's was {strategy.base_model}."
        assert strategy_note(parse_config({**given, "model": {"path": "/other"}})) == note
        assert strategy_note(parse_config({**given, "model": {"path": strategy.base_model}})) is None
    with pytest.raises(ConfigError, match="must be a whole number >= 1"):
        plan(strategy, task_dir, tmp_path, seeds=0)


def test_a_phase_may_have_what_a_person_set_or_allowed_the_agents(
    strategy: Strategy, task_dir: Path, tmp_path: Path
) -> None:
    """A clone's or, with agents.allow, a proposal's: no agent may set these otherwise."""
    own = {"algorithm.adv_estimator": "rloo", "data.truncation": "left"}
    first, *later = strategy.phases
    later = [one.model_copy(update={"hyperparameters": {**one.hyperparameters, **own}}) for one in later]
    given = strategy.model_copy(update={"phases": (first, *later)})
    config = plan(given, task_dir, tmp_path, keep_steps=True).configs[0]
    search = SearchBuilder(tmp_path, config=config)
    search.answers = dict.fromkeys((1, 2), StrategyProposer.of(config.agents.recorded_from).propose)
    search.phases = {node: Phase(val={0: 50, 10: 60 + node, 20: 70 + node}) for node in range(3)}
    search.ready().play()
    for node, phase in enumerate(given.phases):
        found = search.core.runs[node].spec.hyperparameters
        assert found == {**found, **normalize(phase.hyperparameters)}, search.core.runs[node].note


def test_a_strategy_whose_task_is_gone_says_how_to_name_one(
    strategy: Strategy, task_dir: Path, tmp_path: Path
) -> None:
    moved = strategy.model_copy(update={"task": {**strategy.task, "directory": str(tmp_path / "gone")}})
    with pytest.raises(ConfigError, match=r"the task in .*/gone, which is not there\. .*--task DIR"):
        task_of_strategy(moved)
    assert task_of_strategy(moved, str(task_dir)).n_train == 64


def test_a_strategy_of_one_phase_ends_with_its_root(
    strategy: Strategy, task_dir: Path, tmp_path: Path
) -> None:
    first = strategy.model_copy(update={"phases": strategy.phases[:1], "total_steps": 20})
    config = plan(first, task_dir, tmp_path).configs[0]
    assert (config.budget.runs, config.budget.target) == (2, -1e12)


def test_the_strategy_is_found_in_a_file_and_in_a_search(finished: Written, tmp_path: Path) -> None:
    by_file = find_strategy(str(finished.root / "strategy.yaml"))
    assert by_file == find_strategy(str(finished.root))
    assert by_file == find_strategy(finished.root.name, str(finished.root.parent))
    with pytest.raises(ConfigError, match="no search 'nothing' in"):
        find_strategy("nothing", str(tmp_path))


def test_a_task_that_moved_with_its_search_is_found(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    config = make_config(storage=str(old), task={"dir": str(old / "demo" / "task")})
    facts = {"name": "toy", "n_train": 512, "n_val": 100, "directory": config.task.dir}
    search = SearchBuilder(old, config=config, task=facts)
    search.phases = {0: Phase(val={0: 40, 10: 50, 20: 60})}
    search.ready().play(phases=1)
    prepare(dir=config.task.dir, family="echo", n_train=64, n_val=32, n_test=64, seed=1, make_model=False)
    write_outcome(search.root)
    old.rename(new)
    for place in (new / "demo", new / "demo" / "strategy.yaml"):
        assert task_of_strategy(find_strategy(str(place))).directory == str(new / "demo" / "task")


@pytest.mark.parametrize("made_for_the_task", [True, False])
def test_a_base_model_that_moved_with_its_search_is_found(made_for_the_task: bool, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    task, model = old / "demo" / "task", old / "demo" / "task" / "model"
    model.mkdir(parents=True)
    own = {"model_path": str(model)} if made_for_the_task else {}
    config = make_config(
        storage=str(old), task={"dir": str(task)}, model={"path": None if made_for_the_task else str(model)}
    )
    facts = {"name": "toy", "n_train": 512, "n_val": 100, "directory": str(task), **own}
    search = SearchBuilder(old, config=config, task=facts)
    search.phases = {0: Phase(val={0: 40, 10: 50, 20: 60})}
    search.ready().play(phases=1)
    assert find_strategy(str(search.root)).base_model == str(model)
    old.rename(new)
    assert find_strategy(str(new / "demo")).base_model == str(new / "demo" / "task" / "model")


def test_the_proposer_needs_its_file_and_ends_with_it(finished: Written) -> None:
    alone = parse_config({"name": "x", "agents": {"proposer": "strategy"}})
    with pytest.raises(ConfigError, match=r"needs agents\.recorded_from"):
        check_backends(alone, 0.0, [].append)
    proposer = StrategyProposer.of(finished.root / "strategy.yaml")

    class Request:
        """After the third phase."""

        path, from_scratch = (0, 1, 2), False

    with pytest.raises(AgentError, match="has 3 phases and no number 4"):
        proposer.propose(Request())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def other_task(tmp_path_factory: pytest.TempPathFactory) -> PreparedTask:
    directory = tmp_path_factory.mktemp("other") / "echo"
    prepare(dir=directory, family="echo", n_train=32, n_val=16, n_test=32, seed=2, make_model=False)
    return load_task(directory)


@pytest.mark.slow
def test_a_found_strategy_is_trained_again_beside_the_original(
    make_search: Callable[..., HeadSearch],
    other_task: PreparedTask,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    head: str,
) -> None:
    found = make_search(budget={"runs": 4}, final={"test": True, "default_recipe": False}).start()
    found.wait()
    strategy = load_strategy(found.storage.paths.strategy)
    assert len(strategy.phases) > 1

    async def notebook() -> RetrainComparison:  # under its running loop, which `retrain` blocks
        return llmzero_ray.retrain(found.root, seeds=2, storage=tmp_path / "again", name="again")

    again = asyncio.run(notebook())
    assert again.deviations == ()
    assert again.plan.notes == ()
    nodes = llmzero_ray.open(tmp_path / "again" / "again-1").nodes().to_pylist()
    assert len(nodes) == len(strategy.phases)
    for phase, node in zip(strategy.phases, nodes, strict=True):
        assert json.loads(node["hyperparameters"]) == phase.hyperparameters
        assert node["base_step"] == phase.base_step
        assert node["resume_step"] == (None if phase.resume_from is None else phase.resume_from.step)
        assert node["steps_done"] == phase.cut_step
    # The scripted engine has no noise: the same configurations give the same scores.
    assert [phase.scores[0] for phase in again.phases] == [phase.original for phase in again.phases]
    assert again.best[0] == again.best[1] == again.best[2]
    assert again.mean == strategy.scores["test"].best.mean  # type: ignore[union-attr]
    assert again.deviation == 0
    # On another task, by the command; its searches are there afterwards.
    monkeypatch.setenv("RAY_ADDRESS", head)
    path = str(found.storage.paths.strategy)
    command = ["retrain", path, "--task", other_task.directory, "--storage", str(tmp_path), "--name", "other"]
    assert main(command) == 0
    output = capsys.readouterr().out
    assert "training rows, the strategy's had 64" in output
    report = (tmp_path / "other.md").read_text()
    assert "| strategy |" in report
    first = strategy.phases[0].end_step
    assert re.search(rf"^\| 1 \| (?!{first} )\d+ \(original: {first}\) \|", report, flags=re.M)
    assert report.splitlines()[0] in output
