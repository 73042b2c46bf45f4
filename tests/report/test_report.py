"""What report.md tells: numbers worked out by hand, and no more certainty than they carry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.cli.event_text import event_line
from llmzero_ray.cli.results import node_facts
from llmzero_ray.cli.trace import chrome_trace
from llmzero_ray.cli.view import final_lines, outcome_lines
from llmzero_ray.coordinator import node_view
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.records import ItemOutcome, PhaseFailure, PhaseResult, PhaseSpec, TokenCounts
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.records.metrics import Curves
from llmzero_ray.report.best_strategy import best_strategy
from llmzero_ray.report.comparison import Policy, policies
from llmzero_ray.report.costs import account_table, costs, stays_of
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.render import card_text
from llmzero_ray.report.summary import reference_in_words, score_table
from llmzero_ray.storage.strategy import load_strategy
from llmzero_ray.ui.view import view
from tests.builders import make_config
from tests.report.builder import T0, Phase, SearchBuilder, items, proposal
from tests.report.conftest import Written, report_of, scripted


def section(report: str, title: str) -> str:
    """The text below a heading, up to the next one of its level."""
    level = title.split(" ")[0]
    found = re.search(rf"^{re.escape(title)}$(.*?)(?=^{level} |\Z)", report, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no {title!r} in the report"
    return found[1]


def data_of(search: SearchBuilder) -> dict[str, Any]:
    """What report.html shows."""
    return view(SearchFacts(search.storage))


def rows(search: SearchBuilder, table: str) -> list[str]:
    """Rows of a table of report.html, their cells joined by bars."""
    return [" | ".join(row) for row in data_of(search)["tables"][table]["rows"]]


def two_runs(directory: Path, **finals: int) -> SearchBuilder:
    """A search of two runs whose policies solve so many test items."""
    search = scripted(directory, runs=2)
    search.finals = {what: items(right) for what, right in finals.items()}
    return search.ready().play()


# --- the result ---------------------------------------------------------------------------------------------


def test_the_three_policies_stand_beside_each_other_with_items_and_standard_errors(finished: Written) -> None:
    table = section(finished.report, "## Result")
    # Standard errors: sqrt(p (1 - p) / 99). Rollouts: 16 prompts x 4 answers a step.
    # Wilson intervals by their formula with z = 1.96.
    assert (
        "| base model | 0.4000 ± 0.0492 (n = 100) | 0.3000 ± 0.0461 (n = 100) "
        "| 0.2189 to 0.3958 | 0 | 0 |" in table
    )
    assert (
        "| default recipe in one phase | 0.7700 ± 0.0423 (n = 100) | 0.7500 ± 0.0435 (n = 100) "
        "| 0.6570 to 0.8245 | 30 | 1,920 |" in table
    )
    assert (
        "| best strategy (node 2, 3 phases) | 0.7800 ± 0.0416 (n = 100) | 0.8000 ± 0.0402 (n = 100) "
        "| 0.7112 to 0.8666 | 50 | 3,200 |" in table
    )


def in_parts(right: int, parts: dict[str, int]) -> tuple[ItemOutcome, ...]:
    """Items of a task's parts, one part after the other, the first ones solved."""
    sources = [source for source, n in parts.items() for _ in range(n)]
    return tuple(
        replace(item, data_source=source) for item, source in zip(items(right), sources, strict=True)
    )


def test_a_task_of_the_paper_has_its_average_over_parts_everywhere(tmp_path: Path) -> None:
    parts = {"ssmr_scale": 60, "ssmr_beat": 30, "ssmr_chord": 10}
    search = scripted(tmp_path, runs=2)
    search.finals = {"base": in_parts(30, parts), "best": in_parts(80, parts)}
    report = report_of(search.ready().play())
    result = section(report, "## Result")
    # Best: 60 of 60, 20 of 30, 0 of 10; their mean is 5/9, its error that of 20 of 30 over 3. Base: 30 of 60.
    assert "As the paper's tables have it, over the task's parts: **0.5556 ± 0.0292 (n = 100)**." in result
    best = "| 0.8000 ± 0.0402 (n = 100) | 0.5556 ± 0.0292 (n = 100) |"
    assert best in result
    assert "| ssmr_beat | 0.0000 ± 0.0000 (n = 30) | 0.6667 ± 0.0875 (n = 30) |" in result
    assert "Without an item: ssmr_interval." in result
    assert (
        "best strategy − base model | test, over its parts | +0.3889 ± 0.0364 = 10.7 standard errors | – "
        "| – | +0.3176 to +0.4602 | – | clearly better"
    ) in rows(search, "differences")
    assert "ssmr_beat | 0.0000 ± 0.0000 (n = 30) | 0.6667 ± 0.0875 (n = 30)" in rows(search, "parts")
    assert best in card_text(SearchFacts(search.storage))
    assert (
        "test  best strategy   0.8000 ± 0.0402 (100 items), over the task's parts 0.5556 ± 0.0292"
        in final_lines(search.core)
    )
    scored = search.core.final.jobs["best"].score
    assert scored is not None
    line = event_line(search.core, scored)
    assert line is not None and line.endswith("(100 items), over the task's parts 0.5556 ± 0.0292")


def test_a_confirmed_winner_stands_with_both_scores_and_every_node_with_its_test_score(
    tmp_path: Path,
) -> None:
    final = {"test": "all", "default_recipe": False}
    config = make_config(confirm={"k": 2}, budget={"runs": 3}, search={"rho_min": 0.0}, final=final)
    search = SearchBuilder(tmp_path, config=config)
    search.phases = {
        0: Phase(val={0: 40, 10: 50, 20: 60}),
        1: Phase(val={0: 60, 10: 75, 20: 70}),
        2: Phase(val={0: 60, 10: 72, 20: 71}),
    }
    fresh = {"confirm-1": items(60), "confirm-2": items(70)}
    tested = {"base": items(30), "best": items(72), "node-1": items(66), "node-0": items(50)}
    search.finals = {**fresh, **tested}
    result = section(report_of(search.ready().play()), "## Result")
    assert "best 2 validation scores on 1024 fresh items, which no split holds" in result
    assert (
        "| 1 | 10 | 0.7500 ± 0.0435 (n = 100) | 0.6000 ± 0.0492 (n = 100) | 0.5020 to 0.6906 | – |" in result
    )
    assert (
        "| 2 | 10 | 0.7200 ± 0.0451 (n = 100) | 0.7000 ± 0.0461 (n = 100) | 0.6042 to 0.7811 | the winner |"
    ) in result
    assert "**0.7000 ± 0.0461 (n = 100), 95 % interval 0.6042 to 0.7811**: the validation figure" in result
    assert "best of 2 confirmed strategies" in result
    assert "0 | 20 | 0.6000 ± 0.0492 (n = 100) | 0.5000 ± 0.0503 (n = 100)" in rows(search, "node_tests")
    assert "best strategy (node 2, " in result
    line = "confirm node 2          0.7000 ± 0.0461 (100 items) (95 % 0.6042 to 0.7811), validation 0.7200"
    assert line in final_lines(search.core)


def test_the_confirmed_score_goes_with_the_strategy_and_the_card(tmp_path: Path) -> None:
    config = make_config(confirm={"k": 2}, budget={"runs": 2}, final={"test": False, "default_recipe": False})
    search = SearchBuilder(tmp_path, config=config)
    search.finals = {"confirm-0": items(44), "confirm-1": items(45)}
    search.ready().play()
    facts = SearchFacts(search.storage)
    strategy = best_strategy(facts, {})
    assert strategy is not None
    assert strategy.confirmed is not None
    assert (strategy.confirmed.mean, strategy.confirmed.n, strategy.confirmed.among) == (0.45, 100, 2)
    low, high = strategy.confirmed.interval
    assert (round(low, 4), round(high, 4)) == (0.3561, 0.5476)  # Wilson's, of 45 in 100
    path = tmp_path / "strategy.yaml"
    path.write_text(strategy.to_yaml())
    assert load_strategy(path) == strategy
    assert "0.4500 ± 0.0500 (n = 100), 95 % interval 0.3561 to 0.5476; quote this" in card_text(facts)
    search.post(ev.OutcomeWritten())
    (line,) = [line for line in outcome_lines(Follower.of(search.storage)) if line.startswith("best:")]
    assert "validation 0.5000, confirmed 0.4500 (95 % 0.3561 to 0.5476); strategy" in line


def test_a_strategy_without_a_confirmed_score_is_one_that_older_versions_read(finished: Written) -> None:
    assert "confirmed" not in (finished.root / "strategy.yaml").read_text()
    assert "quote this" not in (finished.root / "best" / "README.md").read_text()


def test_unknown_parts_leave_the_score_over_items(tmp_path: Path) -> None:
    search = scripted(tmp_path, runs=2)
    search.finals = {"best": in_parts(80, {"ssmr_scale": 60, "ssmr_dance": 40})}
    result = section(report_of(search.ready().play()), "## Result")
    assert "**0.8000 ± 0.0402 (n = 100)** on the test split" in result
    assert "parts" not in result


def test_differences_are_given_as_independent_and_item_by_item(finished: Written) -> None:
    found = rows(finished.search, "differences")
    # Base solves items 0-29, the best strategy 0-79: 50 gained. Deviation sqrt(25 / 99) over 10.
    assert found[0] == (
        "best strategy − base model | test | +0.5000 ± 0.0611 = 8.18 standard errors "
        "| +0.5000 ± 0.0503 = 9.95 standard errors | the first 50, the second 0 "
        "| +0.4003 to +0.5997 | < 0.001 | clearly better"
    )
    # The default recipe solves 20-94: 20 items won, 15 lost. Deviation sqrt((35 - 0.25) / 99) over 10.
    assert found[1] == (
        "best strategy − default recipe | test | +0.0500 ± 0.0592 = 0.84 standard errors "
        "| +0.0500 ± 0.0592 = 0.84 standard errors | the first 20, the second 15 "
        "| -0.0676 to +0.1676 | 0.500 | within noise"
    )


def test_a_gain_within_noise_is_called_that_in_the_first_lines(finished: Written) -> None:
    head = section(finished.report, "## Result").split("| policy")[0]
    assert "+0.0500 ± 0.0592 = 0.84 standard errors" in head
    assert (
        "within noise (below 2 standard errors): this search does not show a gain over plain training" in head
    )


def test_a_strategy_that_lost_to_the_default_recipe_is_called_worse(tmp_path: Path) -> None:
    report = report_of(two_runs(tmp_path, base=30, best=60, reference=80))
    head = section(report, "## Result").split("| policy")[0]
    assert "Against the default recipe in one phase (its best step is 30): -0.2000" in head
    assert "**clearly worse**" in head


def test_standard_errors_are_said_to_cover_items_and_not_seeds(finished: Written) -> None:
    result = section(finished.report, "## Result")
    assert "It does not cover that another seed of the same recipe would end elsewhere" in result
    # Validations with a score of their own: 2 in nodes 0, 1, 2 and 4, 1 in node 5.
    assert "the highest of 9 validations, so it is too high on average" in result
    # Steps trained: 20 in nodes 0, 1, 2 and 4, 7 in 3, 12 in 5.
    assert "the search trained 99 steps in all" in result


def test_a_test_score_that_could_not_be_taken_is_named_with_its_reason(tmp_path: Path) -> None:
    report = report_of(two_runs(tmp_path, base=30))
    assert "- best strategy (node 1, 2 phases): nothing was scripted" in report
    assert "by which it was chosen" in section(report, "## Result")


def test_a_search_that_scores_no_test_split_says_so(tmp_path: Path) -> None:
    config = make_config(budget={"runs": 2}, final={"test": False, "default_recipe": False})
    search = SearchBuilder(tmp_path, config=config)
    report = report_of(search.ready().play())
    assert "The test split was not scored (`final.test` is false)." in report
    assert f"`llmzero resume {config.name} --set final.default_recipe=compute` trains" in report


def test_a_search_ended_by_a_person_says_so(tmp_path: Path) -> None:
    search = scripted(tmp_path).ready().play(phases=1)
    search.post(ev.UserStop(reason="enough"))
    report = report_of(search)
    assert "The search ended because a person ended it (1 of at most 6 runs)." in report
    assert "The test split was not scored, as a person ended the search." in report
    assert [node["status"] for node in data_of(search)["nodes"]] == ["completed", "cancelled"]


def test_a_search_whose_final_measurements_still_run_says_so(tmp_path: Path) -> None:
    search = scripted(tmp_path, runs=2).ready().play(phases=2)
    report = report_of(search)
    assert "(2 of at most 2 runs). Its final measurements are not complete yet." in report
    assert "The test split has not been scored yet." in report
    search.post(ev.UserStop(reason="enough"))
    missing = [
        "The search was stopped while it measured: "
        f"`llmzero resume {search.config.name}` measures what is missing.",
        "The default recipe has no score, so nothing says what the search added.",
    ]
    assert [line in report_of(search) for line in missing] == [True, True]
    assert set(missing) <= set(data_of(search)["how_sure"])


def test_a_default_recipe_that_failed_is_named_among_the_failures(tmp_path: Path) -> None:
    search = scripted(tmp_path, runs=2)
    search.phases[-1] = Phase(steps=3, fails="oom", cause="out of memory", saves=())
    report = report_of(search.ready().play())
    assert "| default recipe | oom | out of memory | 3 | no comparison with it |" in report
    assert "default recipe in one phase: the default recipe failed: out of memory" in report


# --- the story ----------------------------------------------------------------------------------------------


def test_the_tree_is_drawn_with_checkpoints_scores_and_the_best_path(finished: Written) -> None:
    assert section(finished.report, "## The tree of weights").split("```")[1] == (
        "text\n"
        "base model\n"
        "└─ 0 root *  0.6000@20  completed, from the base model\n"
        "   └─ 1 evolve *  0.7000@30  completed, from 0@20\n"
        "      └─ 2 evolve *  0.7800@50  completed, from 1@10\n"
        "         ├─ 3 evolve  no score  failed, from 2@20\n"
        "         ├─ 4 evolve  0.7700@60  completed, from 2@20\n"
        "         └─ 5 evolve  0.7100@50  early stopped, from 2@10\n"
    )


def test_each_phase_of_the_strategy_tells_diagnosis_changes_and_what_came_of_it(finished: Written) -> None:
    phase = section(finished.report, "### Phase 3: node 2, global steps 30 to 50")
    assert "Seen in node 1 (*plateau*): flat since step 10\n" in phase
    assert "| `lr` | 0.0005 | 0.0002 | because |" in phase
    assert "| `temperature` | 1 | 0.9 | because |" in phase
    node = data_of(finished.search)["nodes"][2]
    assert node["evidence"] == ["validation 0.500@10, 0.500@20"]
    assert [(one["global_step"], one["score"]) for one in node["validations"]] == [
        (30, 0.7),
        (40, 0.72),
        (50, 0.78),
    ]


def test_an_inherited_change_keeps_the_reason_of_who_made_it(tmp_path: Path) -> None:
    search = scripted(tmp_path)
    # Node 3 repairs node 1, whose lr it keeps, but goes on from node 0, which trained with another.
    for node in (1, 2):
        search.phases[node] = Phase(steps=3, fails="nan", cause="loss is nan", saves=())
    search.answers[3] = proposal(resume=(0, 20), lr=None, temperature=0.9)
    search.phases[3] = Phase(val={0: 60, 10: 70, 20: 75})
    report = report_of(search.ready().play(phases=4))
    strategy = section(report, "### Phase 2: node 3, global steps 20 to 40")
    assert "| `lr` | 0.001 | 0.0005 | as in node 1: because |" in strategy
    assert "| `temperature` | 1 | 0.9 | because |" in strategy


def test_a_coupled_change_is_said_to_follow_from_the_others(tmp_path: Path) -> None:
    search = scripted(tmp_path)
    search.answers[1] = proposal(resume=(0, 20), lr=None, train_batch_size=8)
    report = report_of(search.ready().play(phases=2))
    assert "| `mini_batch_size` | 16 | 8 | follows from the other changes |" in report


def test_early_stops_name_rule_step_and_reason(finished: Written) -> None:
    stops = section(finished.report, "## Early stops")
    assert "5 steps, 1.7 min, 3.1% of the budget" in stops
    assert "| 5 | 11 (ended at 12 of 20) | plateau | rose 0.00 over 10 steps (needs 0.01) | 0.7100 |" in stops
    (verdict,) = rows(finished.search, "verdicts")
    assert verdict.startswith("5 | 11 | STOP | plateau | rose 0.00 over 10 steps")


def test_failures_name_class_cause_and_what_followed(tmp_path: Path) -> None:
    search = scripted(tmp_path, runs=2)
    search.phases[0] = Phase(steps=3, fails="nan", cause="loss is nan", saves=())
    search.answers[1] = proposal(lr=1e-4)
    report = report_of(search.ready().play())
    told = section(report, "## Failures and losses")
    assert "| 0 | nan | loss is nan | 3 | debug run 1: completed |" in told


def test_decisions_are_replayed_and_counted(finished: Written) -> None:
    note = data_of(finished.search)["notes"]["decisions"]
    assert "7 decisions: 1 root, 5 evolve, 1 stop." in note
    assert "all of them come out the same" in note
    assert rows(finished.search, "decisions")[3].startswith(
        "3 | evolve | 2 | 0: node 1 1.505 >= new child 1.210;"
    )


def rows_of(report: str) -> Iterator[tuple[str, int, int]]:
    """(row, its cells, its header's cells) of every table."""
    header = 0
    for line in report.splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        header = cells and (header or cells)
        if cells:
            yield line, cells, header


def test_no_text_of_an_agent_or_a_log_breaks_out_of_its_table_or_line(tmp_path: Path) -> None:
    nasty = "a | b\n# heading\n| c |"
    made = proposal(resume=(0, 20), lr=5e-4)
    search = scripted(tmp_path, runs=3)
    search.answers[1] = replace(
        made,
        rationale=nasty,
        diagnosis=replace(made.diagnosis, summary=nasty, evidence=(nasty,)),
        changes=tuple(replace(change, reason=nasty) for change in made.changes),
    )
    search.phases[2] = Phase(steps=2, fails="engine", cause=nasty, saves=())
    report = report_of(search.ready().play())
    assert nasty.replace("\n", " ") in report
    assert not [line for line in report.splitlines() if line.startswith("# heading")]
    assert [(row, cells) for row, cells, header in rows_of(report) if cells != header] == []


def test_every_file_that_the_report_links_is_there(finished: Written) -> None:
    linked = re.findall(r"\[[^]]*\]\(([^)]*)\)", finished.report)
    assert set(linked) == {"report.html", "strategy.yaml", "best/"}
    assert all((finished.root / place).exists() for place in linked)


# --- the account --------------------------------------------------------------------------------------------


def test_the_account_adds_up_by_hand(finished: Written) -> None:
    account = costs(SearchFacts(finished.root))
    assert account.until_ready_s == 30.0
    # Root 160 s and five phases of 100 s; five proposals of 1 s between them.
    assert account.busy_s == 660.0
    assert account.search_s == 665.0
    assert account.between_s == 5.0
    # Default recipe 250 s, three scorings of 5 s.
    assert account.after_s == 265.0
    assert account.wall_s == 30.0 + 665.0 + 265.0
    assert account.gpu_hours == pytest.approx(660 / 3600)
    assert account.reference_gpu_hours == pytest.approx(250 / 3600)
    assert account.cpu_hours == pytest.approx(910 / 3600 * 3)
    assert (account.phases, account.warm, account.cold) == (7, 6, 1)
    assert (account.cold_setups_s, account.warm_setups_s) == ((40.0,), (2.0,) * 5)


def test_a_day_without_hardware_before_the_first_slot_was_ready_is_no_work(tmp_path: Path) -> None:
    search = scripted(tmp_path, runs=2)
    search.now += 60
    search.post(ev.SearchAborted(reason="no GPU is free", exit_code=4))
    search.now += 86_400
    search.post(ev.CoordinatorStarted(epoch=2, host="here", pid=2))
    account = costs(SearchFacts(search.ready().play().storage))
    assert account.until_ready_s == 60.0 + 30.0
    assert account.search_s == account.busy_s + 1.0 == 261.0
    assert account.wall_s == account.until_ready_s + account.search_s + account.after_s


def test_costs_are_shown_with_shares_and_starts(finished: Written) -> None:
    account = rows(finished.search, "account")
    assert "of the search, between phases | 5.0 s (0.8 %)" in account
    together = account.index("GPU hours, together | 0.253")
    assert account[together + 1] == "CPU hours reserved with them | 0.758"  # 3 CPUs per GPU, idle hours apart
    data = data_of(finished.search)
    assert data["notes"]["account"] == (
        "6 of 7 phases started warm, 1 cold (median set-up 2.0 s warm, 40 s cold)."
    )
    assert "0 | 20 | 2 min 40 s | 40 s | 2 min 00 s | 0.0444 | cold (first phase)" in rows(
        finished.search, "phases"
    )
    assert data["on_cpu"]  # torch was recorded as a CPU build


def test_hours_on_gpus_are_not_called_logical(tmp_path: Path) -> None:
    search = SearchBuilder(tmp_path, versions={"torch": "2.11.0+cu129"}).ready().play(phases=1)
    assert not data_of(search)["on_cpu"]


def event(kind: type[ev.Event], at: float, **fields: object) -> ev.Event:
    return kind(time=T0 + at, **fields)  # type: ignore[arg-type]


def started(node: int, slot: int, at: float, attempt: int = 0) -> ev.Event:
    return event(ev.PhaseStarted, at, node=node, slot=slot, phase_attempt=attempt)


def failed(node: int, at: float) -> ev.Event:
    failure = PhaseFailure(node=node, failure_class="oom", cause="", log_tail="")
    return event(ev.PhaseFailed, at, node=node, phase_attempt=0, failure=failure)


def test_a_phase_lost_with_its_runner_is_a_stay_of_its_own() -> None:
    lost = event(ev.RunnerLost, 40, slot=0, node=3, phase_attempt=0, reason="gone")
    stays = stays_of([started(3, 0, 10), lost, started(3, 0, 60, attempt=1), failed(3, 90)])
    assert [(s.begin - T0, s.end - T0, s.lost) for s in stays] == [(10, 40, True), (60, 90, False)]


def test_a_coordinator_that_takes_over_does_not_begin_a_running_phase_anew() -> None:
    again = event(ev.CoordinatorStarted, 30, epoch=2, host="here", pid=2)
    stays = stays_of([started(3, 0, 10), again, started(3, 0, 31), failed(3, 90)])
    assert [(s.begin - T0, s.end - T0) for s in stays] == [(10, 90)]


@pytest.mark.parametrize("lost", [False, True])
def test_a_long_time_without_a_coordinator_is_no_stay(lost: bool) -> None:
    again = event(ev.CoordinatorStarted, 36_000, epoch=2, host="here", pid=2, previous_alive=T0 + 40)
    gone = event(ev.RunnerLost, 36_010, slot=0, node=3, phase_attempt=0, reason="gone")
    stays = stays_of([started(3, 0, 10), again, gone if lost else failed(3, 36_010)])
    assert [(s.begin - T0, s.end - T0, s.lost) for s in stays] == [(10, 40, lost), (36_000, 36_010, lost)]


def test_a_pause_is_no_loss_of_hardware_and_its_phase_was_in_its_slot(tmp_path: Path) -> None:
    search = scripted(tmp_path, runs=2).ready().play(phases=0)
    (first,) = (one for one in search.waiting.values() if isinstance(one, cmd.RunPhase))
    search.waiting.clear()
    search.start(first)
    search.now += 3600
    search.post(ev.SearchPaused(reason="night"))
    search.now += 36_000
    search.post(ev.CoordinatorStarted(epoch=2, host="here", pid=2, previous_alive=search.now - 36_000))
    account = costs(SearchFacts(search.ready(after_s=0).play().storage))
    # Node 0 for an hour and for 160 s, one proposal of 1 s, node 1; the default recipe and three scorings.
    assert account.busy_s == account.search_s - 1 == 3600 + 160 + 100
    assert account.gpu_hours == pytest.approx(3860 / 3600)
    assert account.reserved_gpu_hours == pytest.approx((3860 + 1 + 250 + 3 * 5) / 3600)
    assert "lost with hardware" not in account_table(account)


def test_a_phase_that_was_cancelled_while_it_was_handed_over_was_not_in_its_slot(tmp_path: Path) -> None:
    search = scripted(tmp_path, runs=2).ready().play(phases=1).play(phases=0)
    (command,) = (one for one in search.waiting.values() if isinstance(one, cmd.RunPhase))
    search.waiting.clear()
    search.post(ev.BudgetReached(kind="wall_clock", used=1.0, limit=1.0))
    search.start(command)
    assert search.core.runs[1].status == "cancelled"
    facts = SearchFacts(search.play().storage)
    assert costs(facts).busy_s == search.phases[0].wall_s
    assert [stay["node"] for stay in view(facts)["slots"]] == [0, REFERENCE]
    spans = [span for span in chrome_trace(facts)["traceEvents"] if span.get("cat") == "phase"]
    assert [span["name"] for span in spans] == ["node 0", "default recipe"]


def test_a_running_phase_stays_until_the_last_event() -> None:
    stays = stays_of([started(0, 0, 10), started(1, 1, 20), failed(1, 50)])
    assert {(s.node, s.end - T0) for s in stays} == {(0, 50), (1, 50)}


# --- equal compute ------------------------------------------------------------------------------------------


def policies_with(default: float | None, whole: float | None = None) -> tuple[Policy, ...]:
    """The strategy computed 200; the default recipe at the same steps or compute, and at the whole."""
    known = [Policy(what="reference", name="default recipe", steps=40, compute=default)]
    if whole is not None:
        known.append(Policy(what="reference-whole", name="default recipe, whole", steps=90, compute=whole))
    return (*known, Policy(what="best", name="best strategy", steps=40, compute=200.0))


def test_the_policies_compute_stands_beside_their_scores_where_it_was_counted() -> None:
    rows = score_table(policies_with(150.0, 900.0)).splitlines()
    assert rows[0].endswith("| compute (strategy = 1) |")
    assert [row.split("|")[-2].strip() for row in rows[2:]] == ["0.75", "4.50", "1.00"]
    assert "compute" not in score_table(policies_with(None))


def test_steps_of_a_best_checkpoint_stand_beside_those_that_were_trained() -> None:
    whole = Policy(what="reference-whole", name="default recipe, whole", steps=10, trained=102)
    rows = score_table((whole, Policy(what="best", name="best strategy", steps=40))).splitlines()
    assert [row.split("|")[-3].strip() for row in rows[2:]] == ["10 (of 102)", "40"]


def words(known: tuple[Policy, ...], *, by_compute: bool) -> str:
    """Of a search that computed 900 in all."""
    return reference_in_words(
        known, by_compute=by_compute, searched=900.0, unit="Compute counts tokens.", name="demo"
    )


def test_equal_steps_are_not_called_equal_compute() -> None:
    text = words(policies_with(150.0), by_compute=False)
    assert text.startswith("trained in one phase for as many steps as the best strategy; ")
    assert "up to there it computed 0.75 times what the strategy did" in text
    assert "The whole search computed 4.50 times that of the strategy" in text
    assert "`llmzero resume demo --set final.default_recipe=whole`" in text


def test_at_equal_compute_and_at_the_whole_the_report_says_so() -> None:
    text = words(policies_with(200.0), by_compute=True)
    assert text.startswith("trained in one phase for what the best strategy's phases computed; ")
    assert "Equal steps" not in text
    both = words(policies_with(200.0, 900.0), by_compute=True)
    assert "within what the best strategy computed, and its best of all." in both
    assert "--set" not in both


class CountedSearch(SearchBuilder):
    """A search whose phases count 200 tokens a step."""

    def outcome(self, spec: PhaseSpec, phase: Phase) -> PhaseResult | PhaseFailure:
        def counts(steps: int) -> TokenCounts:
            return TokenCounts(rollout=100.0 * steps, trained=100.0 * steps)

        made = super().outcome(spec, phase)
        kept = tuple(replace(one, tokens=counts(one.step)) for one in made.checkpoints)
        return replace(made, tokens=counts(made.steps_done), checkpoints=kept)


@pytest.mark.parametrize("test", [True, False])
def test_steps_at_the_strategys_compute_and_at_the_whole_do_not_depend_on_a_test(
    tmp_path: Path, test: bool
) -> None:
    config = make_config(
        budget={"runs": 3}, search={"rho_min": 0.0}, final={"test": test, "default_recipe": "whole"}
    )
    search = CountedSearch(tmp_path, config=config)
    search.answers = {node: proposal(resume=(0, 20), lr=lr) for node, lr in ((1, 5e-4), (2, 2e-4))}
    search.phases = {
        0: Phase(val={0: 40, 10: 50, 20: 60}),
        1: Phase(val={0: 60, 10: 70, 20: 66}),
        2: Phase(val={0: 60, 10: 62, 20: 61}),
        -1: Phase(val={0: 40, 20: 60, 30: 65, 60: 75}, steps=60),
    }
    search.finals = {what: items(50) for what in ("base", "best", "reference", "reference-whole")}
    shown = policies(SearchFacts(search.ready().play().storage))
    assert [(one.what, one.steps, one.compute, one.validation and one.validation.mean) for one in shown] == [
        ("base", 0, None, 0.4),
        ("reference", 30, 6000.0, 0.65),
        ("reference-whole", 60, 12000.0, 0.75),
        ("best", 30, 6000.0, 0.7),
    ]


def test_where_no_tokens_were_counted_nothing_is_said_of_compute() -> None:
    assert "omput" not in words(policies_with(None), by_compute=False)


def test_a_score_in_doubt_is_named_at_the_result_in_the_terminal_and_where_a_node_is_shown(
    tmp_path: Path,
) -> None:
    doubt = (
        "At least 84% of the sampled answers were cut off at the cap of 16 tokens and rewarded all the same."
    )
    search = two_runs(tmp_path / "plain")
    assert "In doubt" not in report_of(search)
    search = scripted(tmp_path / "doubted", runs=2)
    search.phases[1] = replace(search.phases[1], doubts=(doubt,))
    search.ready().play()
    result = section(report_of(search), "## Result")
    assert f"- **In doubt: node 1, part of the best strategy.** {doubt} Check the reward" in result
    assert f"- **in doubt**: {doubt}" in card_text(SearchFacts(search.root))
    search.post(ev.OutcomeWritten())
    assert f"IN DOUBT: node 1: {doubt}" in outcome_lines(Follower.of(search.storage))
    facts = SearchFacts(search.root)
    ends = [event for event in facts.events if isinstance(event, ev.PhaseFinished) and event.node >= 0]
    lines = [event_line(search.core, event) or "" for event in ends]
    assert [line.endswith(f"; IN DOUBT: {doubt}") for line in lines] == [False, True]
    assert node_facts(facts, 1)["doubts"] == [doubt]
    assert node_view(search.core, 1, lambda _: Curves()).doubts == (doubt,)


@pytest.mark.parametrize(("solved", "said"), [(0, "never right"), (100, "always right"), (40, None)])
def test_a_base_model_that_cannot_learn_is_named_at_the_result(
    tmp_path: Path, solved: int, said: str | None
) -> None:
    search = scripted(tmp_path, runs=2)
    search.phases[0] = replace(search.phases[0], val={0: solved, 10: 0, 20: 0})
    search.ready().play()
    result = section(report_of(search), "## Result")
    assert ("**The base model is" in result) == bool(said)
    assert said is None or said in result


@pytest.mark.parametrize(
    "guesses",
    ["There are some potential root causes. (1) killed due to h", "Some common causes include: (1) killed"],
)
def test_a_lost_runner_is_told_in_whole_sentences_and_apart_from_failures(
    tmp_path: Path, guesses: str
) -> None:
    search = scripted(tmp_path).ready().play(phases=1)
    ray = f"The actor died unexpectedly. {guesses}"
    cut = f"{'The process ended. ' * 15}It was kil".ljust(300, "l")
    for reason in (ray, cut):
        search.post(ev.RunnerLost(slot=0, node=None, phase_attempt=0, reason=reason, salvaged=None))
    report = report_of(search)
    told = report[report.index("## Failures and losses") :]
    assert "No run failed for good." in told
    assert "- Slot 0 lost its runner while idle: The actor died unexpectedly.\n" in told
    assert "The process ended.\n" in told
    assert "kil" not in told.partition("## Decisions")[0]
    assert "kil" not in " ".join(line for _, line in data_of(search)["feed"])


def test_a_runner_that_is_lost_after_the_search_is_not_said_to_have_been_idle(tmp_path: Path) -> None:
    search = scripted(tmp_path, runs=2).ready()
    search.play(phases=2)
    assert search.core.stage == "measuring"
    search.post(ev.RunnerLost(slot=0, node=None, phase_attempt=0, reason="gone"))
    assert "- Slot 0 lost its runner in the final evaluation: gone.\n" in report_of(search)


def test_test_scores_that_were_not_taken_are_not_said_to_have_been(tmp_path: Path) -> None:
    assert "The test scores were taken once" not in report_of(scripted(tmp_path).ready().play(phases=2))


def test_a_node_off_the_best_path_has_its_plan(finished: Written) -> None:
    node = data_of(finished.search)["nodes"][4]
    assert node["rationale"]
    assert not node["in_strategy"]
    assert "n" in [change["name"] for change in node["changes"]]
