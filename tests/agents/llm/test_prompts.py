"""Prompts: packaged or replaced, checked before a search, stable parts first, small enough."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from llmzero_ray import hyperparameters as hp
from llmzero_ray.agents.expected_cost import TYPICAL_TOKENS
from llmzero_ray.agents.llm.agent_client import StructuredRequest
from llmzero_ray.agents.llm.agents import LlmAgents, LlmAgentSettings
from llmzero_ray.agents.llm.context import (
    MOST_TOKENS,
    error_context,
    proposer_context,
    stable_context,
    stop_context,
)
from llmzero_ray.agents.llm.context_examples import example_contexts
from llmzero_ray.agents.llm.prompt_text import tokens
from llmzero_ray.agents.llm.prompts import FILES, TEMPLATES, Prompts, Rendered
from llmzero_ray.errors import AgentError, ConfigError
from llmzero_ray.methods.prompt_eval.cases import RECORDED, read_cases
from llmzero_ray.records import Change, ComputeLimit, ResumeFrom, TokenCost
from llmzero_ray.records.agents import AGENT_NAMES, Budget, ProposalRequest
from tests.agents.llm import large_requests
from tests.agents.llm.large_requests import PICTURE_TOKENS

PACKAGED = Prompts.load()
TASK = large_requests.proposal_request().task
BUDGET = Budget(runs=5, gpu_hours=212.5, wall_clock_hours=31.2, dollars=1.37)

EPOCHS_OF_THE_PAPER = "Passes through data. Increase if validation still improving at final epoch."


def replaced(folder: Path, name: str, text: str) -> Prompts:
    (folder / name).write_text(text, encoding="utf-8")
    return Prompts.load(str(folder))


def proposer_call() -> Rendered:
    knowledge = PACKAGED.knowledge
    call = proposer_context(replace(large_requests.proposal_request(), budget=BUDGET), knowledge, n_gpus=8)
    return PACKAGED.render("proposer", stable_context("proposer", TASK, knowledge, n_gpus=8), call)


# --- files --------------------------------------------------------------------------------------------------


def test_the_packaged_prompts_are_complete_and_pass_their_check() -> None:
    assert set(PACKAGED.texts) == set(FILES)
    PACKAGED.check()


def test_every_file_of_the_folder_is_read() -> None:
    folder = Path(PACKAGED.origins[FILES[0]]).parent
    assert {path.name for path in folder.glob("*.j2")} == set(TEMPLATES)


def test_a_directory_replaces_single_files_and_shows_in_the_hashes(tmp_path: Path) -> None:
    own = replaced(tmp_path, "early_stopper.system.md.j2", "Judge {{ task.name }}.")
    own.check()
    differs = {name for name in FILES if own.hashes[name] != PACKAGED.hashes[name]}
    assert differs == {"early_stopper.system.md.j2"}
    assert own.hashes["early_stopper.system.md.j2"] == hashlib.sha256(b"Judge {{ task.name }}.").hexdigest()
    assert own.digest != PACKAGED.digest
    assert Prompts.load().digest == PACKAGED.digest


def test_knowledge_is_replaced_in_the_same_way(tmp_path: Path) -> None:
    note = "own/metric: {label: mine, description: what it is, healthy: high, confusion: none}"
    own = replaced(tmp_path, "metrics.yaml", note)
    own.check()
    text = own.render("proposer", *example_contexts("proposer", own.knowledge)[0])
    assert "own/metric: what it is" in text.system
    assert "actor/entropy: " not in text.system


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"prompt directory .*/absent does not exist"):
        Prompts.load(str(tmp_path / "absent"))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"prompt directory .*/file is not a directory"):
        Prompts.load(str(tmp_path / "file"))


def test_a_file_that_nothing_reads_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"proposer\.system\.j2 .* did you mean proposer\.system\.md\.j2\?"):
        replaced(tmp_path, "proposer.system.j2", "x")


def test_hidden_files_and_a_readme_do_not_disturb(tmp_path: Path) -> None:
    (tmp_path / ".backup").write_text("x")
    assert replaced(tmp_path, "README.md", "mine").digest == PACKAGED.digest


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metrics.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"metrics\.yaml cannot be read"):
        Prompts.load(str(tmp_path))


def test_prompts_travel_between_processes() -> None:
    proposer_call()
    there = pickle.loads(pickle.dumps(PACKAGED))
    assert there.digest == PACKAGED.digest
    there.check()


def test_with_appendix_f_the_proposer_is_told_all_that_the_paper_tells_its_own() -> None:
    appendix = PACKAGED.knowledge.appendix
    stable = stable_context("proposer", TASK, PACKAGED.knowledge, priors="appendix_f")
    call = proposer_context(large_requests.proposal_request(), PACKAGED.knowledge)
    lines = PACKAGED.render("proposer", stable, call).system.splitlines()
    told = [*appendix.metrics.values(), *appendix.hyperparameters.values(), EPOCHS_OF_THE_PAPER]
    assert len(told) == 12 + 14
    assert [text for text in told if not any(line.endswith(f": {text}") for line in lines)] == []


# --- the check ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "early_stopper.system.md.j2",
            "a\nb {{ tsk.name }}",
            r":2: unknown variable 'tsk': did you mean task",
        ),
        ("early_stopper.system.md.j2", "a\n\n{{ task.nmae }}", r":3: the template fails: .*nmae"),
        # In a branch that is not taken by every request.
        (
            "early_stopper.user.md.j2",
            "{{ running }}{{ incumbent }}\n{% if checks %}\n{{ chekcs }}{% endif %}",
            r":3: unknown variable 'chekcs': did you mean checks",
        ),
        (
            "early_stopper.user.md.j2",
            "{{ incumbent }}\n{% if not metrics %}{{ running.bset }}{% endif %}",
            r":2: the template fails: .*bset",
        ),
        ("early_stopper.user.md.j2", "{{ running }}\n{% if %}", r":2: the template cannot be read"),
        # What changes with each call has no place in the part that is cached.
        (
            "early_stopper.system.md.j2",
            "{{ task.name }} {{ running.step }}",
            r":1: unknown variable 'running'",
        ),
        ("early_stopper.system.md.j2", "{{ task.__class__.__mro__ }}", r":1: the template fails: .*unsafe"),
        ("early_stopper.system.md.j2", "{{ task.n_val / 0 }}", r":1: the template fails: .*zero"),
    ],
)
def test_a_prompt_that_cannot_work_is_refused_with_file_line_and_variable(
    name: str, text: str, expected: str, tmp_path: Path
) -> None:
    prompts = replaced(tmp_path, name, text)
    with pytest.raises(ConfigError, match=rf"(?s){re.escape(str(tmp_path / name))}.*({expected})"):
        prompts.check()


def test_values_are_inserted_and_never_run() -> None:
    stable, call = example_contexts("early_stopper", PACKAGED.knowledge)[0]
    text = PACKAGED.render("early_stopper", stable, {**call, "differs": "{{ 7 * 7 }} {% endif %} <b>&"})
    assert "{{ 7 * 7 }} {% endif %} <b>&" in text.user


# --- content of prompts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", AGENT_NAMES)
def test_the_system_text_is_the_same_in_every_call_of_a_search(agent: str) -> None:
    examples = example_contexts(agent, PACKAGED.knowledge)  # type: ignore[arg-type]
    stable = examples[0][0]
    texts = {PACKAGED.render(agent, stable, call).system for _, call in examples}  # type: ignore[arg-type]
    assert len(texts) == 1


@pytest.mark.parametrize("agent", AGENT_NAMES)
def test_every_prompt_states_that_quoted_text_is_data(agent: str) -> None:
    stable, call = example_contexts(agent, PACKAGED.knowledge)[0]  # type: ignore[arg-type]
    system = " ".join(PACKAGED.render(agent, stable, call).system.split())  # type: ignore[arg-type]
    assert re.search(r"(is|are) data.*never (an instruction|instructions)", system)


def test_the_proposer_goes_through_its_stages_in_order() -> None:
    system = proposer_call().system
    places = [system.index(f"## {i}. {stage}") for i, stage in enumerate(
        ("Diagnosis", "Changes", "Checkpoint", "Length"), start=1
    )]  # fmt: skip
    assert places == sorted(places)
    assert system.index("primary metrics") < system.index("diagnostic metrics")


def test_the_proposer_sees_every_key_it_may_change_and_no_forbidden_one() -> None:
    system = proposer_call().system
    rows_of_guide = [line for line in system.splitlines() if line.startswith("- ")]
    lines = {line.split()[1].rstrip(":") for line in rows_of_guide}
    lines |= {name for line in rows_of_guide for name in line.removeprefix("- ").split(", ")}
    rows = [row for row in hp.SPACE if row.group not in ("duration", "fixed")]
    allowed = {row.alias for row in rows if hp.forbidden(row.key) is None}
    assert allowed <= lines
    assert not {row.alias for row in hp.SPACE if hp.forbidden(row.key)} & lines


def test_prompts_name_every_value_that_a_phase_that_resumes_keeps() -> None:
    fix = PACKAGED.render("error_analyzer", *example_contexts("error_analyzer", PACKAGED.knowledge)[0])
    for system in (proposer_call().system, fix.system):
        (kept,) = re.findall(r"phase that\s+resumes keeps (.*?)\.\n", system, flags=re.S)
        assert set(re.split(r",\s+|\s+and\s+", kept)) == set(map(hp.short, hp.VERL_SPACE.kept_at_resume))


def test_names_in_the_guide_are_understood_when_an_answer_uses_them() -> None:
    hints = re.findall(r"^- (\S+) = ([\w.]+)", proposer_call().system, flags=re.M)
    assert {"n", "batch_size", "algo_kl"} & dict(hints).keys()
    assert all(hp.canonical(alias) == hp.canonical(end) for alias, end in hints)


def test_without_figures_and_stages_no_prompt_mentions_them() -> None:
    stable, call = example_contexts("proposer", PACKAGED.knowledge)[2]
    system = PACKAGED.render("proposer", stable, call).system
    assert "picture" not in system
    assert "among the checkpoints offered" not in system
    assert "resume_from is null" in system


# --- size ---------------------------------------------------------------------------------------------------


def asked(request: ProposalRequest, n_val: int = 500) -> tuple[Rendered, float]:
    """The texts of the proposer's call, and its tokens with form and picture."""
    found: list[StructuredRequest] = []

    class Client:
        def generate(self, question: StructuredRequest) -> None:
            found.append(question)
            raise AgentError("not sent")

    picture = b"\x89PNG\r\n\x1a\n" + bytes(8) + struct.pack(">II", 1100, PICTURE_TOKENS * 750 // 1100)
    settings = LlmAgentSettings(n_val=n_val, n_gpus=8, stop_below=0.1)
    agents = LlmAgents({"proposer": Client()}, PACKAGED, settings, lambda *_: picture)  # type: ignore[dict-item]
    agents.propose(request)
    (question,) = found
    text, tool = question.render(None), question.tool
    form = tokens(json.dumps([tool.name, tool.description, tool.schema]))
    return text, form + tokens(text.system + text.user) + PICTURE_TOKENS


def test_a_large_proposer_call_fits_its_budget_and_most_of_it_is_cacheable() -> None:
    request = replace(large_requests.proposal_request(), budget=BUDGET)
    text, whole = asked(request)
    full = proposer_call()
    assert tokens(full.user) - tokens(text.user) > 1000
    assert whole <= MOST_TOKENS
    assert tokens(text.system) >= 0.45 * whole
    typical = TYPICAL_TOKENS["proposer"]
    assert typical.system + typical.input == pytest.approx(whole - PICTURE_TOKENS, rel=0.02)
    assert typical.input == pytest.approx(tokens(text.user), rel=0.02)
    for title in ("Budget", "Configuration that your changes apply to, YAML"):  # never thinned
        part = full.user.partition(f"## {title}")[2].partition("\n## ")[0]
        assert part and part in text.user
    for kind in ("right", "wrong"):
        assert len(re.findall(rf"^(sampled in step \d+, )?{kind}, score", text.user, re.M)) >= 2
    for line in ("- node 6 (", "- node 12 ("):  # the shown and the best phase
        assert line in text.user


def test_a_request_of_a_long_path_a_large_tree_and_long_texts_fits_too() -> None:
    request = replace(large_requests.proposal_request(), budget=BUDGET)
    views = [replace(request.path[i % 3], node=50 + i) for i in range(10)]
    why = Change(key=hp.canonical("lr"), old=1e-4, new=5e-5, reason="KL tripled from step 13 on. " * 40)
    on = replace(request.on, changes=(why,))
    many = tuple(
        replace(request.tree[-7], node=100 + i, resume_from=ResumeFrom(node=0, step=i)) for i in range(100)
    )
    _, whole = asked(
        replace(
            request,
            on=on,
            path=(*views, on),
            tree=(*request.tree, *many),
            hints=("Keep n small. " * 20,) * 20,
        )
    )
    assert whole <= MOST_TOKENS


def test_a_small_request_is_shown_in_full() -> None:
    (case,) = [case for case in read_cases(RECORDED) if case.name == "demo/1"]
    assert isinstance(case.request, ProposalRequest)
    text, _ = asked(case.request, case.n_val)
    call = proposer_context(case.request, PACKAGED.knowledge, n_val=case.n_val, n_gpus=8)
    stable = stable_context("proposer", case.request.task, PACKAGED.knowledge, n_val=case.n_val, n_gpus=8)
    assert text == PACKAGED.render("proposer", stable, call)


def test_recorded_requests_with_their_budget_and_answers_stay_below_eight_thousand_tokens() -> None:
    compute = ComputeLimit(amount=2.4e6, cost=TokenCost(rollout=0.5, trained=0.25))
    budget = Budget(runs=27, dollars=49.9, gpu_hours=12.5, compute=compute, whole_compute=1e7)
    cases = [case for case in read_cases(RECORDED) if case.agent == "proposer"]
    assert len(cases) > 20
    for case in cases:
        assert isinstance(case.request, ProposalRequest)
        on = replace(case.request.on, answers=large_requests.proposal_request().on.answers)
        request = replace(case.request, on=on, budget=budget)
        text, whole = asked(request, case.n_val)
        assert "- compute: " in text.user and "## Answers" in text.user
        assert whole <= MOST_TOKENS == 8000


def test_a_large_stopper_call_is_small_even_without_a_cache() -> None:
    call = stop_context(large_requests.stop_request(), checks=("kl_runaway: " + "x" * 500,) * 9)
    text = PACKAGED.render("early_stopper", stable_context("early_stopper", TASK, PACKAGED.knowledge), call)
    assert tokens(text.system + text.user) + 900 * 520 / 750 <= 3000


def test_a_large_error_call_fits_the_proposers_budget() -> None:
    request = large_requests.error_request(
        log="Traceback: out of memory, tried to allocate 2.00 GiB\n" * 2000
    )
    call = error_context(replace(request, budget=BUDGET), n_gpus=8)
    text = PACKAGED.render("error_analyzer", stable_context("error_analyzer", TASK, PACKAGED.knowledge), call)
    assert tokens(text.system + text.user) <= 5000
