"""What a search leaves behind: which files, when they are renewed, what happens when something is missing."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml
from huggingface_hub import ModelCard

import llmzero_ray
from llmzero_ray.cli.view import outcome_lines
from llmzero_ray.coordinator import replay
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.errors import ConfigError, JournalError, StorageError
from llmzero_ray.journal import Journal
from llmzero_ray.records import Event, PhaseResult
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.report import load_strategy, write_outcome
from llmzero_ray.report.best_strategy import current_strategy
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.finalize import finalize, interrupted_phases
from llmzero_ray.report.outcome import adapter_in_best
from llmzero_ray.storage import SearchPaths, SearchStorage
from llmzero_ray.storage.metric_files import lost_phase
from llmzero_ray.strategy.retrain import find_strategy
from llmzero_ray.ui.view import view
from tests.builders import Driver, make_config, make_failure, make_result
from tests.report.builder import Phase, SearchBuilder, proposal, save_adapter
from tests.report.conftest import Written, scripted, written

Hide: TypeAlias = Callable[[str], None]


def contents(root: Path) -> dict[str, bytes]:
    """Everything an outcome consists of."""
    files = ("strategy.yaml", "report.md", "report.html")
    places = [*(root / name for name in files), *(root / "best").rglob("*")]
    return {str(path.relative_to(root)): path.read_bytes() for path in places if path.is_file()}


def yaml_head(root: Path) -> dict[str, Any]:
    """The front matter of the card in best/."""
    head: dict[str, Any] = yaml.safe_load((root / "best" / "README.md").read_text().split("---\n")[1])
    return head


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def one_node(directory: Path, phase: Phase) -> SearchBuilder:
    """A search whose root ended as given and whose second run has not begun."""
    search = scripted(directory)
    search.phases[0] = phase
    return search.ready().play(phases=1)


# --- what is written ----------------------------------------------------------------------------------------


def test_a_finished_search_leaves_strategy_adapter_report_and_page(finished: Written) -> None:
    assert {"strategy.yaml", "best", "report.md", "report.html"} <= names(finished.root)
    assert finished.outcome.best == 2
    assert finished.outcome.problem == ""
    assert all(path.exists() for path in finished.outcome.files)


def test_best_is_the_adapter_of_the_best_node_at_its_best_step(finished: Written) -> None:
    source = finished.search.storage.paths.adapter(2, 20)
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (finished.root / "best" / name).read_bytes() == (source / name).read_bytes()


def test_checksums_beside_the_adapter_and_in_the_strategy_are_those_of_its_files(finished: Written) -> None:
    listed = dict(
        reversed(line.split("  "))
        for line in (finished.root / "best" / "checksums.sha256").read_text().splitlines()
    )
    digests = {
        name: sha256((finished.root / "best" / name).read_bytes()).hexdigest()
        for name in ("adapter_config.json", "adapter_model.safetensors")
    }
    assert listed == digests
    assert load_strategy(finished.root / "strategy.yaml").adapter == digests


def test_the_card_tells_how_to_load_and_serve_the_adapter(finished: Written) -> None:
    card = (finished.root / "best" / "README.md").read_text()
    assert "PeftModel.from_pretrained" in card
    assert "vllm serve tiny --enable-lora --max-lora-rank 16 --lora-modules demo=best" in card
    assert "0.8000 ± 0.0402 (n = 100)" in card
    assert "| 3 | 30–50 | 0.9 | 0.0002 | 0.001 | 4 | 1024 | 0.7800 |" in card
    assert "names no licence" in card


def test_the_card_names_the_licence_of_the_data_where_the_task_does(tmp_path: Path) -> None:
    task = {"name": "toy", "n_train": 512, "licence": "CC-BY-4.0"}
    search = SearchBuilder(tmp_path, task=task).ready().play(phases=1)
    write_outcome(search.root)
    assert "The task's data: CC-BY-4.0." in (search.root / "best" / "README.md").read_text()


def test_the_head_of_the_card_is_what_the_hub_reads(finished: Written, tmp_path: Path) -> None:
    card = ModelCard.load(finished.root / "best" / "README.md")
    assert card.data.library_name == "peft"
    assert {"lora", "grpo"} <= set(card.data.tags)
    assert card.data.get("base_model") is None  # nobody said what it is called there
    (score,) = card.data.eval_results
    assert (score.dataset_name, score.dataset_split) == ("toy", "test")
    assert (score.metric_type, score.metric_value) == ("accuracy", 0.8)
    assert score.metric_name == "accuracy of greedy answers, ± 0.0402, 100 items"

    config = make_config(model={"path": str(tmp_path / "models" / "base"), "hub_id": "Qwen/Qwen3-4B"})
    search = SearchBuilder(tmp_path, config=config).ready().play(phases=1)
    write_outcome(search.root)
    named = ModelCard.load(search.root / "best" / "README.md")
    assert (named.data.base_model, named.data.base_model_relation) == ("Qwen/Qwen3-4B", "adapter")
    assert 'base = "Qwen/Qwen3-4B"' in named.text
    assert str(tmp_path) not in named.content


def test_names_of_others_stay_values_in_the_head_of_the_card(tmp_path: Path) -> None:
    task = {"name": "toy\n---\n<script>x</script>\nlicense: mit", "n_train": 512}
    search = SearchBuilder(tmp_path, task=task)
    search.phases = {0: Phase(val={0: 40, 10: 50, 20: 60})}
    write_outcome(search.ready().play(phases=1).root)
    card = ModelCard.load(search.root / "best" / "README.md")
    assert card.data.license is None
    assert card.data.eval_results[0].dataset_name == "toy --- _script_x_/script_ license_ mit"
    assert card.data.eval_results[0].dataset_split == "validation"
    assert "<script>" not in card.text


@pytest.fixture(params=[None, "raise RuntimeError('built for another numpy')", "import no_such_part"])
def unusable(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hide:
    """Make a package unusable: not installed, broken, or without a package that it needs itself."""

    def hide(package: str) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        if request.param is None:
            monkeypatch.setitem(sys.modules, package, None)  # what Python does where there is none
            return
        (tmp_path / "broken" / package).mkdir(parents=True, exist_ok=True)
        (tmp_path / "broken" / package / "__init__.py").write_text(request.param)
        monkeypatch.syspath_prepend(tmp_path / "broken")

    return hide


def test_without_huggingface_hub_the_card_has_no_head_and_the_report_says_so(
    tmp_path: Path, unusable: Hide
) -> None:
    search = scripted(tmp_path).ready().play(phases=1)
    unusable("huggingface_hub")
    problem = write_outcome(search.root).problem
    assert "best/README.md: it has no front matter, as huggingface_hub " in problem
    assert "`pip install 'llmzero-ray[report]'`" in problem
    assert (search.root / "best" / "README.md").read_text().startswith("# LoRA adapter")


# --- again and again ----------------------------------------------------------------------------------------


def test_writing_it_again_gives_the_same_bytes(finished: Written) -> None:
    before = contents(finished.root)
    write_outcome(finished.root)
    assert contents(finished.root) == before


def test_what_the_journal_says_after_the_outcome_was_written_does_not_change_it(tmp_path: Path) -> None:
    search = scripted(tmp_path, runs=2).ready().play()
    first = written(search).report
    search.now += 500.0
    search.finish()
    assert written(search).report == first


def test_a_search_that_was_moved_gives_the_same_outcome(finished: Written, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "demo"
    shutil.copytree(finished.root, moved)
    before = contents(finished.root)
    write_outcome(moved)
    assert contents(moved) == before


def test_a_better_node_replaces_the_adapter_of_the_one_before(tmp_path: Path) -> None:
    search = scripted(tmp_path).ready().play(phases=1)
    write_outcome(search.root)
    assert "node 0 step 20" in (search.root / "best" / "adapter_model.safetensors").read_text()
    (search.root / "best" / "left_over").write_text("of an earlier adapter")
    search.play(phases=1)
    write_outcome(search.root)
    assert "node 1 step 10" in (search.root / "best" / "adapter_model.safetensors").read_text()
    assert "left_over" not in names(search.root / "best")
    assert not [name for name in names(search.root) if name.startswith(".best")]


def test_a_strategy_of_an_earlier_report_is_not_taken_for_the_best_one(tmp_path: Path) -> None:
    search = scripted(tmp_path).ready().play(phases=2)
    write_outcome(search.root)
    written = find_strategy(str(search.root))
    assert written == load_strategy(search.root / "strategy.yaml")
    search.play(phases=1)
    facts = SearchFacts(search.storage)
    for found in (current_strategy(facts), find_strategy(str(search.root))):
        assert found is not None
        assert [phase.node for phase in found.phases] == [phase.node for phase in facts.path] == [0, 1, 2]
    assert find_strategy(str(search.root / "strategy.yaml")) == written  # a file that is named


def test_the_storage_object_serves_as_well_as_the_directory(tmp_path: Path) -> None:
    search = scripted(tmp_path).ready().play(phases=1)
    assert write_outcome(search.storage).root == search.root


# --- searches that are not whole ----------------------------------------------------------------------------


def test_an_unfinished_search_gives_the_best_so_far(tmp_path: Path) -> None:
    found = written(scripted(tmp_path).ready().play(phases=2))
    assert found.outcome.best == 1
    assert "**Not finished**: 2 of at most 6 runs have ended" in found.report
    assert "sealed until the search has ended" in found.report
    strategy = load_strategy(found.root / "strategy.yaml")
    assert (strategy.search.state, strategy.search.runs, strategy.total_steps) == ("searching", 2, 30)
    assert "had not ended when this was written" in (found.root / "best" / "README.md").read_text()


def test_a_search_without_any_score_has_a_report_and_no_strategy(tmp_path: Path) -> None:
    found = written(one_node(tmp_path, Phase(steps=5, saves=(5,))))
    assert found.outcome.best is None
    assert "There is no strategy: no run has a validation score yet." in found.report
    assert {"strategy.yaml", "best"} & names(found.root) == set()


def test_a_search_of_failures_only_says_so_and_why(tmp_path: Path) -> None:
    search = scripted(tmp_path, runs=2)
    search.answers[1] = proposal(lr=1e-4)
    broken = Phase(steps=3, fails="nan", cause="loss is nan at step 3", saves=())
    search.phases = {0: broken, 1: broken}
    found = written(search.ready().play())
    assert "There is no strategy: all 2 runs failed." in found.report
    assert "| 0 | nan | loss is nan at step 3 | 3 | debug run 1: failed |" in found.report
    assert "| base model | – | 0.3000 ± 0.0461 (n = 100) | 0.2189 to 0.3958 | 0 | 0 |" in found.report
    assert found.outcome.problem == ""


def test_a_search_that_has_only_begun_has_a_report(tmp_path: Path) -> None:
    search = SearchBuilder(tmp_path)
    found = written(search)
    assert "No run has begun yet." in found.report
    assert found.outcome.files == (search.root / "report.html", search.root / "report.md")


def test_one_node_is_a_strategy_of_one_phase(tmp_path: Path) -> None:
    found = written(one_node(tmp_path, Phase(val={10: 50, 20: 45})))
    strategy = load_strategy(found.root / "strategy.yaml")
    assert [(p.node, p.cut_step) for p in strategy.phases] == [(0, 10)]
    assert "1 phase, 10 training steps along the path" in found.report


def test_a_phase_in_progress_is_shown_with_what_is_on_the_disk(tmp_path: Path) -> None:
    search = scripted(tmp_path).ready().play(phases=1)
    search.play(phases=0)  # node 1 is proposed and waits for its runner
    command = next(iter(search.waiting.values()))
    search.start(command)
    search.write_points(command.spec, search.phases[1], until=13)
    found = written(search)
    assert "1 evolve  no score  running, from 0@20" in found.report
    node = view(SearchFacts(search.storage))["series"]["1"]["critic/score/mean"]
    assert node[0][-1] == 20 + 13
    assert found.outcome.best == 0  # a score counts once its phase has ended


@pytest.mark.parametrize(
    ("interruption", "why"),
    [
        ((), "its runner was lost"),
        ((ev.SearchPaused(reason="night"),), "the search was interrupted"),
        ((ev.SearchAborted(reason="the disk is full", exit_code=3),), "the search was interrupted"),
    ],
)
def test_a_stop_keeps_what_a_phase_saved_before_it_was_killed_or_interrupted(
    tmp_path: Path, interruption: tuple[Event, ...], why: str
) -> None:
    search = scripted(tmp_path).ready().play(phases=0)
    command = next(one for one in search.waiting.values() if isinstance(one, cmd.RunPhase))
    search.start(command)
    search.write_points(command.spec, search.phases[0], until=15)
    search.post(*interruption)
    finalize(search.storage, "enough")
    facts = SearchFacts(search.storage)
    run = facts.runs[0]
    assert (run.status, run.score, [kept.step for kept in run.checkpoints]) == ("completed", 0.5, [10])
    assert isinstance(run.outcome, PhaseResult)
    assert run.outcome.stop_reason == f"user ({why})"
    assert run.outcome.tokens is not None
    assert [(phase.node, phase.cut) for phase in facts.path] == [(0, 10)]
    assert facts.core.finished is not None and facts.core.finished.reason == "user"


def test_a_stop_ends_each_phase_once_although_one_of_them_reaches_the_target(tmp_path: Path) -> None:
    search = Driver(make_config(budget={"runs": 9, "target": 0.8}, slots={"count": 2}))
    search.ready(0, 1)
    search.train(0, score=0.5)
    for node, score in ((1, 0.9), (2, 0.7)):
        search.propose(node)
        search.start(node)
        saved = make_failure(node, failure_class="resource", score=score, saved=(10,))
        slot = search.core.runs[node].slot
        search.post(
            ev.RunnerLost(
                slot=slot, node=node, phase_attempt=0, reason="gone", restart_step=10, salvaged=saved
            )
        )
    storage = SearchStorage(tmp_path, search.core.config.name)
    storage.adopt_config(search.core.config)
    journal = Journal(storage.paths.journal)
    for event in search.journal:
        journal.append(event, now=event.time)
    finalize(storage, "enough")
    facts = SearchFacts(storage)
    ends = [event.node for event in facts.events if isinstance(event, ev.PhaseFinished)]
    assert sorted(ends) == [0, 1, 2]
    assert [facts.runs[node].score for node in (1, 2)] == [0.9, 0.7]


@pytest.mark.parametrize("trained", [True, False])
def test_a_resumed_search_that_ends_before_a_phase_has_its_slot_keeps_what_that_had_saved(
    tmp_path: Path, trained: bool
) -> None:
    search = scripted(tmp_path).ready().play(phases=0)
    command = next(one for one in search.waiting.values() if isinstance(one, cmd.RunPhase))
    search.start(command)
    if trained:
        search.write_points(command.spec, search.phases[0], until=15)
    search.post(ev.SearchPaused(reason="night"), ev.CoordinatorStarted(epoch=2, host="here", pid=2))
    search.post(*interrupted_phases(search.storage, search.core, search.journal.history))
    assert list(interrupted_phases(search.storage, search.core, search.journal.history)) == []
    assert search.core.runs[0].stage == "planned"
    search.post(ev.UserStop(reason="enough"))
    run = SearchFacts(search.storage).core.runs[0]
    assert (run.status, run.score) == (("completed", 0.5) if trained else ("cancelled", None))
    if isinstance(run.outcome, PhaseResult):
        assert run.outcome.stop_reason == "user (the search was interrupted)"
        assert [kept.step for kept in run.checkpoints] == [10]
        assert run.outcome.tokens is not None


@pytest.mark.parametrize("dies_between", [False, True])
def test_phases_that_had_ended_before_a_pause_keep_their_results_although_one_reaches_the_target(
    tmp_path: Path, dies_between: bool
) -> None:
    search = Driver(make_config(budget={"runs": 9, "target": 0.8}, slots={"count": 2}))
    storage = SearchStorage(tmp_path, search.core.config.name)
    search.ready(0, 1)
    search.train(0, score=0.5)
    results = {}
    for node, score in ((1, 0.9), (2, 0.95)):
        search.propose(node)
        search.start(node)
        results[node] = make_result(node, score=score)
        storage.write_result(node, 0, results[node])
    search.post(ev.SearchPaused(reason="night"), ev.CoordinatorStarted(epoch=2, host="here", pid=2))
    found = list(interrupted_phases(storage, search.core, search.journal))
    if dies_between:
        assert [type(event) for event in found] == [ev.PhaseInterrupted, ev.PhaseFinished, ev.PhaseFinished]
        search.post(*found[:2], ev.CoordinatorStarted(epoch=3, host="here", pid=3))
        found = list(interrupted_phases(storage, search.core, search.journal))
    search.post(*found)
    assert {node: search.core.runs[node].outcome for node in results} == results
    assert search.core.end_reason == "target"
    assert search.core.best is not None and search.core.best.node == 2
    assert replay(search.journal, storage.paths.root).runs == search.core.runs


def test_hours_of_a_lost_attempt_count_once_if_the_search_is_stopped_before_the_next(tmp_path: Path) -> None:
    search = scripted(tmp_path).ready().play(phases=0)
    command = next(one for one in search.waiting.values() if isinstance(one, cmd.RunPhase))
    search.start(command)
    search.write_points(command.spec, search.phases[0], until=15)
    left = lost_phase(search.storage, 0, "it died", n_gpus=1, attempt=0)
    search.post(ev.RunnerLost(slot=0, node=0, phase_attempt=0, reason="it died", salvaged=left))
    hours = SearchFacts(search.storage).core.gpu_hours
    assert hours > 0
    finalize(search.storage, "enough")
    core = SearchFacts(search.storage).core
    assert (core.gpu_hours, core.runs[0].stop_reason or core.runs[0].outcome.stop_reason) == (
        pytest.approx(hours),
        "user (its runner was lost)",
    )


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        (ev.UserStop(reason="enough", source="user:1"), "user"),
        (ev.BudgetReached(kind="wall_clock", used=2.0, limit=2.0), "wall_clock"),
    ],
)
def test_a_stop_ends_a_search_that_was_interrupted_while_it_ended(
    tmp_path: Path, ending: Event, reason: str, paused: bool
) -> None:
    search = scripted(tmp_path).ready().play(phases=0)
    search.start(next(one for one in search.waiting.values() if isinstance(one, cmd.RunPhase)))
    search.post(ending)
    if paused:
        search.post(ev.SearchPaused(reason="Ctrl-C", source="user:2"))
    finalize(search.storage, "enough, really")
    follower = Follower.of(search.storage)
    assert follower.finished is not None and follower.finished.reason == reason
    assert outcome_lines(follower)[0].startswith(f"search demo has ended ({reason}) after 1 runs")


def test_a_stop_finds_the_end_that_the_attempt_before_a_pause_wrote(tmp_path: Path) -> None:
    search = scripted(tmp_path).ready().play(phases=0)
    command = next(one for one in search.waiting.values() if isinstance(one, cmd.RunPhase))
    search.start(command)
    search.write_points(command.spec, search.phases[0])
    ended = search.outcome(command.spec, search.phases[0])
    search.storage.write_result(0, 0, ended)
    search.post(ev.SearchPaused(reason="pause"), ev.CoordinatorStarted(epoch=2, host="here", pid=2))
    search.ready().post(ev.PhaseStarted(node=0, slot=0, phase_attempt=1))
    finalize(search.storage, "enough")
    assert SearchFacts(search.storage).runs[0].outcome == ended


def test_a_failed_node_can_hold_the_best_score(tmp_path: Path) -> None:
    found = written(one_node(tmp_path, Phase(val={10: 50}, steps=12, fails="nan", cause="loss is nan")))
    assert found.outcome.best == 0
    (node, *_) = view(SearchFacts(found.root))["nodes"]
    assert (node["status"], node["steps_done"], node["ended_by"]) == ("failed", 12, "nan: loss is nan")
    assert (node["in_strategy"], node["global_step"]) == (True, 10)


def test_a_check_before_training_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    search = scripted(tmp_path).ready()
    command = next(iter(search.waiting.values()))
    search.start(command)
    search.write_points(command.spec, search.phases[0])
    result = replace(search.outcome(command.spec, search.phases[0]), start_score=float("nan"))
    search.post(ev.PhaseFinished(node=0, phase_attempt=0, result=result))
    assert write_outcome(search.root).problem == ""
    assert load_strategy(search.root / "strategy.yaml").phases[0].validation_at_start is None


# --- what is missing ----------------------------------------------------------------------------------------


def test_a_lost_adapter_is_named_and_everything_else_written(tmp_path: Path) -> None:
    search = scripted(tmp_path).ready().play(phases=1)
    (search.storage.paths.adapter(0, 20) / "adapter_model.safetensors").unlink()
    found = written(search)
    assert "adapter_model.safetensors: cannot be read" in found.outcome.problem
    assert found.outcome.problem in found.report
    assert "best" not in names(found.root)
    assert load_strategy(found.root / "strategy.yaml").adapter == {}


@pytest.mark.parametrize("damage", [Path.unlink, lambda weights: weights.write_text("half of it")])
def test_a_copy_in_best_outlives_the_checkpoint_it_was_made_of(
    finished: Written, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    root = shutil.copytree(finished.root, tmp_path / "demo")
    before = contents(root)
    damage(SearchPaths(root=root).adapter(2, 20) / "adapter_model.safetensors")
    write_outcome(root)
    after = contents(root)
    assert after == before


def test_an_earlier_adapter_in_best_stays_where_the_newer_one_is_lost_and_is_called_that(
    tmp_path: Path,
) -> None:
    search = scripted(tmp_path).ready().play(phases=1)
    write_outcome(search.root)
    before = {path.name: path.read_bytes() for path in (search.root / "best").iterdir()}
    search.play(phases=1)
    shutil.rmtree(search.storage.paths.adapter(1, 10))
    found = written(search)
    assert "The adapter there is an earlier one and was kept." in found.report
    assert {path.name: path.read_bytes() for path in (search.root / "best").iterdir()} == before
    assert load_strategy(found.root / "strategy.yaml").adapter == {}


def test_an_adapter_that_is_not_what_was_saved_is_refused(tmp_path: Path) -> None:
    search = scripted(tmp_path).ready().play(phases=1)
    weights = search.storage.paths.adapter(0, 20) / "adapter_model.safetensors"
    weights.write_text("half of it")
    found = written(search)
    assert "adapter_model.safetensors is not what was saved" in found.outcome.problem
    assert "best" not in names(found.root)


def test_an_adapter_without_a_manifest_is_taken_as_it_is(tmp_path: Path) -> None:
    search = scripted(tmp_path).ready().play(phases=1)
    adapter = search.storage.paths.adapter(0, 20)
    save_adapter(adapter, "another engine")
    (adapter / "manifest.json").unlink()
    assert written(search).outcome.problems == ()


def test_a_search_in_ray_tune_misses_no_adapter(finished: Written, tmp_path: Path) -> None:
    root = Path(shutil.copytree(finished.root, tmp_path / "demo"))
    shutil.rmtree(root / "best")
    for saved in [*(root / "checkpoints").glob("*/step_*")]:
        shutil.rmtree(saved)
        saved.write_text("train_1/checkpoint_000002")
    assert write_outcome(root).problems == ()
    assert "incomplete or gone" not in (root / "report.md").read_text()
    with pytest.raises(ConfigError, match="Ray Tune keeps the checkpoints of this search"):
        adapter_in_best(SearchFacts(root))
    assert llmzero_ray.open(root).adapter is None


def test_a_page_that_cannot_be_made_keeps_nothing_else_from_being_written(
    finished: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = shutil.copytree(finished.root, tmp_path / "demo")

    def fail(_: object) -> bytes:
        raise ValueError("no font")

    monkeypatch.setattr("llmzero_ray.ui.page.view", fail)
    before = contents(root)
    assert write_outcome(root).problems == ("report.html: not written (ValueError: no font)",)
    assert "report.html: not written" in (root / "report.md").read_text()
    after = contents(root)
    assert {name for name in {*before, *after} if before.get(name) != after.get(name)} == {"report.md"}


@pytest.mark.parametrize("place", ["report.md", "strategy.yaml", "report.html"])
def test_a_place_that_cannot_be_written_is_a_storage_error_that_names_it(tmp_path: Path, place: str) -> None:
    search = scripted(tmp_path).ready().play(phases=1)
    (search.root / place).mkdir()
    with pytest.raises(StorageError, match=place):
        write_outcome(search.root)


def test_a_directory_without_a_search_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no search here"):
        write_outcome(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_journal_is_never_reported_from(tmp_path: Path) -> None:
    search = scripted(tmp_path).ready().play(phases=1)
    second = sorted((search.root / "journal").iterdir())[1]
    body = json.loads(second.read_text())
    second.write_text(json.dumps({**body, "checksum": "00000000"}))
    with pytest.raises(JournalError, match="fails its checksum"):
        write_outcome(search.root)


def test_proposals_with_unsaved_resume_steps_are_shown_as_they_were_changed(tmp_path: Path) -> None:
    search = scripted(tmp_path)
    search.answers[1] = proposal(resume=(0, 17), lr=5e-4)
    found = written(search.ready().play(phases=2))
    assert "step 17 of node 0 is not saved: resumed from step 10" in found.report
