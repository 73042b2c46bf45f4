"""Recorded requests, asked through a real HTTP server with scripted answers, and the scores of these."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic  # noqa: F401 - its first import takes seconds, which no deadline below should pay
import pytest

from llmzero_ray.agents.expert import ExpertErrorAnalyzer
from llmzero_ray.cli.main import main
from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters import canonical
from llmzero_ray.methods.prompt_eval.cases import (
    RECORDED,
    RecordedRequest,
    read_cases,
    recorded_cases,
    write_cases,
)
from llmzero_ray.methods.prompt_eval.scoring import (
    answer_statements,
    proposal_checks,
    substance,
    verdict_checks,
)
from llmzero_ray.records import Change, Diagnosis, Proposal, ResumeFrom, StopDecision
from llmzero_ray.records.agents import ErrorRequest, ProposalRequest, StopRequest
from llmzero_ray.records.metrics import Curves
from tests.agents.llm.conftest import messages_server
from tests.agents.llm.messages_server import Answer, Fail, MessagesServer, Reply, Request

__all__ = ["messages_server"]
DEMO = Path(__file__).parents[1] / "blackbox" / "runs" / "demo"
LR = canonical("lr")


@pytest.fixture(scope="module")
def cases() -> dict[str, RecordedRequest]:
    return {case.name: case for case in read_cases(RECORDED)}


@pytest.fixture(scope="module")
def request_(cases: dict[str, RecordedRequest]) -> ProposalRequest:
    """The shipped set's request for the demo's node 3."""
    found = cases["demo/3"].request
    assert isinstance(found, ProposalRequest)
    return found


def proposal(
    request: ProposalRequest,
    state: Any = "slow",
    factor: float = 2.0,
    said: tuple[str, ...] = (),
    **parts: Any,
) -> Proposal:
    """More of the rate, from the last checkpoint offered, of a phase that is said to be slow."""
    last = request.checkpoints[-1]
    resume = parts.pop("resume_from", ResumeFrom(node=last.node, step=last.step))
    old = request.base(resume)[LR]
    assert isinstance(old, float)
    changes = (Change(key=LR, old=old, new=old * factor, reason="larger steps"),)
    fields = {"changes": changes, "resume_from": resume, "n_steps": 10, **parts}
    return Proposal(
        diagnosis=Diagnosis(state=state, summary="It is so.", evidence=said),
        rationale="",
        agent="claude",
        **fields,
    )


def failing(request: ProposalRequest, made: Proposal) -> set[str]:
    return {name for name, passed in proposal_checks(request, made, n_gpus=1).items() if not passed}


def test_the_set_that_ships_has_requests_to_every_agent_and_no_paths(
    cases: dict[str, RecordedRequest],
) -> None:
    agents = [case.agent for case in cases.values()]
    assert agents.count("proposer") >= 7
    assert agents.count("early_stopper") >= 30
    assert agents.count("error_analyzer") == 3
    for file in RECORDED.glob("*.json.gz"):
        text = gzip.decompress(file.read_bytes()).decode()
        assert not re.search(r"/(?:work|tmp|root|home)/", text), file.name
        assert file.stat().st_size < 200_000


def test_no_verdict_is_right_for_all_phases_and_none_is_asked_about_a_winner(
    cases: dict[str, RecordedRequest],
) -> None:
    asked = [(case.wins, case.request) for case in cases.values() if isinstance(case.request, StopRequest)]
    losing = sum(wins is False for wins, _ in asked) / len(asked)
    assert 0.4 <= losing <= 0.6
    assert all(wins is not None for wins, _ in asked)
    for _, request in asked:
        assert request.incumbent.score is not None
        assert max(request.running.curves.val_scores) <= request.incumbent.score


def test_the_requests_of_recorded_phases_are_what_their_builder_makes(
    cases: dict[str, RecordedRequest], tmp_path: Path
) -> None:
    from benchmarks.stop_requests import FILE, stop_cases

    write_cases(tuple(stop_cases()), tmp_path / "made.json.gz")
    assert read_cases(tmp_path / "made.json.gz") == read_cases(FILE)


def test_requests_of_a_search_are_recorded_and_read_back(tmp_path: Path) -> None:
    found = list(recorded_cases(DEMO))
    assert [case.name for case in found if case.agent == "proposer"] == ["demo/1", "demo/2", "demo/3"]
    write_cases(found, tmp_path / "set.json.gz")
    again = read_cases(tmp_path / "set.json.gz")
    assert [case.name for case in again] == [case.name for case in found]
    for case, other in zip(found, again, strict=True):
        assert isinstance(other.request, type(case.request))
        if isinstance(case.request, ProposalRequest) and isinstance(other.request, ProposalRequest):
            assert other.request.checkpoints[0].step == case.request.checkpoints[0].step
            assert other.request.on.curves.steps == case.request.on.curves.steps


@pytest.mark.parametrize(
    "content", [b"", b"[]", gzip.compress(b"[]"), gzip.compress(b'[{"type": "Nothing"}]')]
)
def test_what_is_no_set_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "set.json.gz").write_bytes(content)
    with pytest.raises(ConfigError, match="holds no recorded requests"):
        read_cases(tmp_path)


def test_a_good_proposal_passes_every_check(request_: ProposalRequest) -> None:
    checks = proposal_checks(request_, proposal(request_), n_gpus=1)
    assert set(checks) == {"keys", "values", "start", "length", "new"}
    assert all(checks.values())


def test_each_rule_has_an_answer_that_breaks_it(request_: ProposalRequest) -> None:
    other = Change(key="trainer.logger", old=None, new="wandb", reason="")
    unknown = Change(key="learning_rat", old=None, new=1.0, reason="")
    nowhere = ResumeFrom(node=request_.on.node, step=3)
    too_long = request_.task.max_phase_steps + 1
    assert failing(request_, proposal(request_, changes=(other,))) >= {"keys"}
    assert failing(request_, proposal(request_, changes=(unknown,))) == {"keys", "values"}
    assert failing(request_, proposal(request_, factor=1e6)) == {"values"}
    assert failing(request_, proposal(request_, resume_from=nowhere)) == {"start"}
    assert failing(request_, proposal(request_, n_steps=too_long)) == {"length"}


@pytest.mark.parametrize("state", ["slow", "declining", "collapsing", "plateau"])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_no_diagnosis_prescribes_a_direction(request_: ProposalRequest, state: str, factor: float) -> None:
    """The paper loosened after `declining` (SSMR-Bench 1 to 4), tightened after `slow` (ChemCoT 2 to 3)."""
    assert failing(request_, proposal(request_, state=state, factor=factor)) == set()


def test_a_copy_of_a_phase_is_seen(request_: ProposalRequest) -> None:
    made = proposal(request_)
    full = {**request_.base(made.resume_from), LR: made.changes[0].new}
    twin = dataclasses.replace(request_.on, node=99, resume_from=made.resume_from, hyperparameters=full)
    assert failing(dataclasses.replace(request_, siblings=(twin,)), made) == {"new"}


def test_moves_are_held_against_what_was_better(request_: ProposalRequest) -> None:
    kl = canonical("kl")
    old = request_.on.hyperparameters[kl]
    assert isinstance(old, float)
    both = proposal(request_, factor=0.5, state="plateau")
    both = dataclasses.replace(both, changes=(*both.changes, Change(key=kl, old=old, new=old * 2, reason="")))

    def moves(better: dict[str, int]) -> bool | None:
        return proposal_checks(request_, both, n_gpus=1, better=better).get("moves")

    assert moves({LR: -1}) is True
    assert moves({LR: 1}) is False
    assert moves({LR: -1, kl: -1}) is False, "as many against it as with it"
    assert moves({LR: -1, kl: 1}) is True
    assert moves({canonical("temperature"): -1}) is None, "not changed"


def test_the_published_requests_are_what_their_builder_makes(
    cases: dict[str, RecordedRequest], tmp_path: Path
) -> None:
    from benchmarks.published_requests import FILE, published_cases

    made = tuple(published_cases())
    write_cases(made, tmp_path / "made.json.gz")
    assert read_cases(tmp_path / "made.json.gz") == read_cases(FILE)
    assert len(made) >= 20
    known = {case.name: case.better for case in made if case.better}
    # The constraints that SSMR-Bench's node 1 set cost score; node 4 took them back and gained most of all.
    tightened, loosened = (
        known["published/ssmr_bench after node 0"],
        known["published/ssmr_bench after node 1"],
    )
    assert (tightened[LR], loosened[LR]) == (1, 1)
    assert (tightened[canonical("kl")], loosened[canonical("kl")]) == (-1, -1)


def test_verdicts_are_held_against_how_the_phase_ended() -> None:
    stop, goes_on = StopDecision(stop=True, reason="", rule=""), StopDecision(stop=False, reason="", rule="")
    assert verdict_checks(stop, wins=True) == {"direction": False} == verdict_checks(goes_on, wins=False)
    assert verdict_checks(stop, wins=False) == {"direction": True} == verdict_checks(goes_on, wins=True)
    assert verdict_checks(stop, wins=None) == {}


def agreeing(request: ProposalRequest, *evidence: str, printed: str = "") -> list[bool]:
    """Whether each number that some evidence states of a series agrees."""
    made = proposal(request, said=evidence)
    return [one.agrees for one in answer_statements(request, made, printed)]


def test_statements_are_looked_up_in_the_series(request_: ProposalRequest) -> None:
    curves = request_.on.curves
    kl = [value for value in curves.metrics["actor/kl_loss"] if value is not None]
    first, last = f"{kl[0]:.3g}", f"{kl[-1]:.3g}"
    scores = f"validation {curves.start_score:.3f} -> {curves.val_scores[-1]:.3f}"
    assert agreeing(request_, f"actor/kl_loss {first} -> {last} over steps 1 to 10", scores) == [True] * 4
    assert agreeing(request_, "actor/kl_loss 7.1 -> 9.3", "Validation went from 0.01 to 0.02") == [False] * 4
    assert agreeing(request_, f"actor/kl_loss {first}@1, {first}@10") == [True, False], "at its step"
    assert agreeing(request_, "It looks healthy.", "nobody/knows 0.1 -> 0.2", "lr 0.1 -> 0.2") == []


def charted(base: ProposalRequest) -> ProposalRequest:
    """A request whose node 3 and node 0 have short series with known numbers."""
    curves = Curves(
        steps=(1, 2, 3),
        metrics={
            "critic/score/mean": (0.227, 0.3, 0.336),
            "actor/kl_loss": (0.14, 0.2, 0.22),
            "response_length/mean": (1630.0, 2278.0, None),
            "actor/entropy": (0.75, 0.2, None),
        },
        val_steps=(3,),
        val_scores=(0.535,),
        start_score=0.573,
    )
    on = dataclasses.replace(base.on, node=3, curves=curves)
    root = dataclasses.replace(
        on, node=0, curves=Curves(val_steps=(10,), val_scores=(0.099,), start_score=0.415)
    )
    return dataclasses.replace(base, on=on, path=(root, on), siblings=(), tree=())


@pytest.mark.parametrize(
    "said",
    [
        "Validation fell although the reward (0.227 -> 0.336) went on rising",
        "Validation lost .038 while KL jumped from .14 to .22",
        "validation 0.573 at the start, then reward 0.227 to 0.336",
        "Validation .573 -> .535, and entropy with it: 0.75 -> 0.2",
        "validation .415 -> .099 in node 0",
        "response_length/mean 1954 -> 1954",
        "actor/entropy .475 -> .475",
    ],
)
def test_a_number_belongs_to_the_metric_named_before_it(request_: ProposalRequest, said: str) -> None:
    found = agreeing(charted(request_), said)
    assert len(found) >= 2
    assert all(found)
    invented = re.sub(r"\d*\.\d+|\d{4}", lambda number: f"{float(number[0]) * 3:.4g}", said)
    assert False in agreeing(charted(request_), invented)


def test_a_number_that_the_request_printed_of_the_metric_is_true(request_: ProposalRequest) -> None:
    printed = "- actor/grad_norm: 0.123 -> 0.456, rising\n- actor/entropy: 0.771 -> 0.772"
    asked = charted(request_)
    assert agreeing(asked, "actor/grad_norm 0.123 -> 0.456", printed=printed) == [True, True]
    assert agreeing(asked, "actor/grad_norm 0.771 -> 0.772", printed=printed) == [False, False]
    assert agreeing(asked, "actor/grad_norm 0.123 -> 0.456") == [], "nothing is known of it"


def test_an_answer_that_says_nothing_fails(request_: ProposalRequest) -> None:
    printed = "- actor/kl_loss: 0.02 -> 0.31, rising"

    def passes(*evidence: str, **parts: Any) -> bool:
        return substance(proposal(request_, said=evidence, **parts), printed)["substance"]

    assert not passes(changes=())
    assert not passes("", "It is so.", changes=())
    assert not passes("actor/kl_loss", changes=(Change(key=LR, old=0.1, new=0.2, reason=" "),))
    assert passes("KL rose to 0.31")
    assert passes("actor/kl_loss rises", changes=()), "to go on as before is an answer"
    assert not substance(StopDecision(stop=True, reason="", rule=""), printed)["substance"]
    assert substance(StopDecision(stop=True, reason="KL is 0.31.", rule=""), printed)["substance"]


# --- the command --------------------------------------------------------------------------------------------


@pytest.fixture
def ask(
    messages_server: MessagesServer, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """`llmzero prompt-eval` against scripted answers; exit code, output, errors."""

    def run(script: Any, *arguments: str) -> tuple[int, str, str]:
        messages_server.play(script)
        settings = [f"agents.base_url={messages_server.base_url}", "agents.visual=false"]
        given = [part for setting in settings for part in ("--set", setting)]
        code = main(["prompt-eval", *given, "--limit", "2", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def sensible(request: Request) -> Reply:
    """Answers that fit the requests of the demo."""
    if request.tool == "give_verdict":
        return Answer(input={"chance": 60, "reason": "It still rises."}, output_tokens=20)
    checkpoint = {"resume_from": None, "reason": "afresh"}
    length = {"n_steps": 10, "arithmetic": ""}
    changes = [{"name": "lr", "value": 0.00031, "reason": "smaller steps"}]
    common = {"changes": changes, "checkpoint": checkpoint, "length": length}
    if request.tool == "propose_fix":
        said = {"failure_class": "engine", "summary": "It broke.", "evidence": []}
        return Answer(input={**said, **common}, output_tokens=100)
    diagnosis = {
        "state": "plateau", "summary": "Flat.", "evidence": ["actor/kl_loss 5.5 -> 9.5"],
        "inflection_points": [], "anomalies": [],
    }  # fmt: skip
    return Answer(input={"diagnosis": diagnosis, **common}, output_tokens=200)


def test_every_agent_is_asked_and_scored(ask: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    code, shown, _ = ask(sensible, "--out", str(tmp_path / "out.json"))
    assert code == 0
    for agent, n in {"proposer": 2, "error_analyzer": 2, "early_stopper": 2}.items():
        assert re.search(rf"{agent}\W+form\W+{n}\W+{n}\W+1\.00", shown), shown
    assert re.search(r"proposer\W+form\W+2\W+2\W+1\.00\W+0\.34 to 1\.00", shown)
    assert re.search(r"proposer\W+statements\W+0\W+4\W+0\.00", shown)
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    assert len(results) == 6
    assert sum(result["dollars"] for result in results) > 0
    assert all(result["checks"]["form"] for result in results)


def test_published_requests_are_asked_like_recorded_ones(
    ask: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    from benchmarks.published_requests import FILE

    out = tmp_path / "out.json"
    code, shown, _ = ask(sensible, "--cases", str(FILE), "--limit", "30", "--out", str(out))
    assert code == 0, shown
    results = json.loads(out.read_text())["results"]
    assert all(result["checks"]["form"] for result in results)
    moves = [result["checks"]["moves"] for result in results if "moves" in result["checks"]]
    assert len(moves) >= 3
    assert re.search(rf"proposer\W+moves\W+{sum(moves)}\W+{len(moves)}", shown), shown


def test_answers_of_wrong_form_end_with_exit_code_1(ask: Callable[..., tuple[int, str, str]]) -> None:
    code, shown, _ = ask([Answer(input={"no": "thing"})], "--agent", "proposer")
    assert code == 1
    assert "no answer (schema, schema) [fails: form]" in shown


def test_a_server_that_fails_is_no_answer(ask: Callable[..., tuple[int, str, str]]) -> None:
    refused = Fail(status=400, type="invalid_request_error", message="no")
    code, shown, _ = ask([refused], "--agent", "early_stopper")
    assert code == 1
    assert "no answer (bad_request)" in shown


def test_the_cap_ends_it_with_what_was_asked_so_far(ask: Callable[..., tuple[int, str, str]]) -> None:
    code, _, message = ask(sensible, "--set", "budget.dollars=0.0001")
    assert code == 1
    assert "0 of 6 requests were asked" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--agent", "oracle"), "--agent oracle: the recorded requests are to"),
        (("--cases", "/nowhere"), "holds no recorded requests"),
        (("--set", "agents.backend=expert"), "asks a language model"),
        (("--record", "/nowhere"), "--record needs --out"),
        (("--limit", "0"), "--limit leaves no request"),
    ],
)
def test_wrong_options_are_one_line(
    ask: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...], message: str
) -> None:
    code, _, shown = ask(sensible, *arguments)
    assert code == 2
    assert message in shown
    assert len(shown.splitlines()) == 1


def test_a_failure_of_each_class_is_recorded_and_can_be_repaired(cases: dict[str, RecordedRequest]) -> None:
    failures = [case for case in cases.values() if isinstance(case.request, ErrorRequest)]
    classes = set()
    for case in failures:
        assert isinstance(case.request, ErrorRequest) and case.request.failed.failure is not None
        classes.add(case.request.failed.failure.failure_class)
        assert "Error" in case.request.failed.failure.log_tail, "the log shows the cause"
        fix = ExpertErrorAnalyzer(n_gpus=case.n_gpus).analyze(case.request)
        assert all(proposal_checks(case.request, fix, n_gpus=case.n_gpus).values()), case.name
    assert classes == {"oom", "nan", "config"}


def test_the_job_is_the_command() -> None:
    import jobs.prompt_eval  # noqa: F401

    assert main(["prompt-eval", "--help"]) == 0
