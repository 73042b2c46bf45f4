"""Hostile answers of a model: each is refused back to it with the reason or passed through unchanged, and a
second one is repaired or replaced by the expert's; nothing of it starts, lengthens or hides anything."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.agents.llm.proposal_response import bounds_of, enforce_bounds, parse_proposal
from llmzero_ray.agents.llm.response_schemas import TOOLS
from llmzero_ray.coordinator import replay
from llmzero_ray.coordinator.plan import Planner
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.errors import ConfigError, ProposalError
from llmzero_ray.hyperparameters import VERL_SPACE, Space, space_with
from llmzero_ray.records import Diagnosis, Event, Proposal, from_json, to_json
from llmzero_ray.records.events import PhasePlanned, SearchStarted
from llmzero_ray.utils.text import clean
from tests.agents.llm.large_requests import proposal_request
from tests.builders import Driver, make_config, make_proposal

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
MEGABYTE = "x" * 2**20
TITLE = "\x1b]0;owned\x07\x1b[2J"

REFUSED: tuple[tuple[str, Any], ...] = (
    # processes and threads
    ("data.dataloader_num_workers", 100_000),
    ("data.filter_overlong_prompts_workers", 4096),
    (f"{ROLLOUT}.agent.num_workers", 1000),
    (f"{ROLLOUT}.data_parallel_size", 64),
    (f"{ROLLOUT}.pipeline_model_parallel_size", 64),
    (f"{ROLLOUT}.expert_parallel_size", 64),
    (f"{ACTOR}.ulysses_sequence_parallel_size", 64),
    (f"{ACTOR}.fsdp_config.fsdp_size", 64),
    ("reward.num_workers", 10_000),
    (f"{MODEL}.tiled_mlp.num_shards", 10**6),
    # rank, strategy, seeds, precision
    (f"{MODEL}.lora.rank", 128),
    (f"{MODEL}.lora.merge", True),
    (f"{MODEL}.lora.alpha", 1),
    (f"{MODEL}.lora.adapter_path", "/etc"),
    (f"{ACTOR}.fsdp_config.strategy", "fsdp"),
    (f"{ACTOR}.strategy", "fsdp"),
    (f"{ACTOR}.fsdp_config.seed", 1),
    (f"{ACTOR}.fsdp_config.full_determinism", True),
    (f"{ACTOR}.data_loader_seed", 7),
    (f"{ROLLOUT}.seed", 7),
    ("data.seed", 7),
    (f"{ACTOR}.fsdp_config.model_dtype", "bf16"),
    (f"{ACTOR}.fsdp_config.forward_only", True),
    (f"{ACTOR}.fsdp_config.mixed_precision.param_dtype", "${oc.env:ANTHROPIC_API_KEY}"),
    (f"{ACTOR}.fsdp_config.mixed_precision.x.y", "{a:1}"),
    (f"{ACTOR}.fsdp_config.mixed_precisionx", "fp16"),
    ("actor_rollout_ref.hybrid_engine", False),
    # validation, prompts, rewards
    (f"{ROLLOUT}.ignore_eos", True),
    (f"{ROLLOUT}.val_kwargs.n", 64),
    (f"{ROLLOUT}.val_kwargs.temperature", 1.0),
    ("data.val_batch_size", 1),
    ("data.truncation", "left"),
    ("data.truncation", MEGABYTE),
    ("algorithm.gamma", [0.5] * 100_000),
    ("reward.custom_reward_function.path", "/tmp/r.py"),
    # code, paths, logs
    (f"{MODEL}.path", "/tmp/evil"),
    (f"{MODEL}.trust_remote_code", True),
    (f"{MODEL}.external_lib", "os"),
    (f"{MODEL}.use_shm", True),
    (f"{MODEL}.override_config.auto_map", "evil.Model"),
    (f"{ROLLOUT}.engine_kwargs.vllm.worker_cls", "evil.Worker"),
    (f"{ACTOR}.optim.optimizer_impl", "os"),
    ("trainer.logger", "wandb"),
    ("trainer.default_local_dir", "/"),
    ("+trainer.x", 1),
    ("~trainer", None),
    ("hydra.run.dir", "/tmp"),
    # values of keys that may be set
    ("lr", 10**400),
    ("lr", "NaN"),
    ("lr", True),
    ("lr", 3.0),
    ("n", 10**9),
    ("n", -1),
    ("betas", [0.9]),
    ("betas", [0.9] * 100_000),
    ("lr_scheduler", "cosine'; rm"),
    ("lr_scheduler", TITLE),
    ("target_modules", MEGABYTE),
    ("target_modules", "q_proj" + TITLE),
    ("target_modules", "${oc.env:HOME}"),
    ("target_modules", "???"),
    ("target_modules", "q\u202eproj"),
    (f"{ACTOR}.policy_loss.loss_mode", "my_module.loss"),
    ("policy_loss.loss_mode", "another_module.loss"),
    ("tensor_model_parallel_size", 512),
    (MEGABYTE, 1),
)


def answer(*changes: tuple[str, Any], **parts: Any) -> dict[str, Any]:
    return {
        "diagnosis": {
            "state": "plateau", "summary": "flat", "evidence": [], "inflection_points": [], "anomalies": [],
        },
        "changes": [{"name": name, "value": value, "reason": "why not"} for name, value in changes],
        "checkpoint": {"resume_from": None, "reason": "again"},
        "length": {"n_steps": 10, "arithmetic": ""},
        **parts,
    }  # fmt: skip


REQUEST = proposal_request()
BOUNDS = bounds_of(REQUEST, n_gpus=1)


def read(body: dict[str, Any]) -> Proposal:
    """The proposal in an answer as the server sends it. Raises ProposalError where it is asked for again."""
    response = TOOLS["proposer"].parse(json.loads(json.dumps(body)))
    diagnosis = Diagnosis(state="plateau", summary=response.diagnosis.summary)
    return parse_proposal(diagnosis, response.changes, response.checkpoint, response.length, BOUNDS, "claude")


def planner(space: Space = VERL_SPACE) -> tuple[Planner, PhaseRun]:
    root = PhaseRun(node=0, kind="root", on=None, slot=0)
    made = Planner(
        config=make_config(engine={"max_prompt_length": 1024, "max_response_length": 8192}),
        n_train=10_000,
        root=dict(REQUEST.on.hyperparameters),
        runs={0: root},
        space=space,
    )
    root.spec = made.root_phase()
    return made, PhaseRun(node=1, kind="evolve", on=0, slot=0)


def refusal_of_form(body: dict[str, Any]) -> str | None:
    try:
        read(body)
    except ProposalError as refused:
        return str(refused)
    return None


def is_inert(text: str) -> bool:
    return len(text) < 4000 and clean(text) == text and "\n" not in text


@pytest.mark.parametrize(
    ("name", "value"), REFUSED, ids=[f"{i}-{clean(name)[:50]}" for i, (name, _) in enumerate(REFUSED)]
)
def test_a_hostile_change_goes_back_to_its_author_and_is_then_left_out_or_moved(
    name: str, value: Any
) -> None:
    body = answer((name, value), ("wd", 0.05))
    refusal = refusal_of_form(body)
    if refusal is not None:
        assert is_inert(refusal)
        return  # the model is asked again with the reason, and then the expert answers
    proposal = read(body)
    made, run = planner()
    with pytest.raises(ProposalError) as goes_back:
        made.proposed_phase(run, proposal, offered=())
    assert is_inert(str(goes_back.value))
    bounded = enforce_bounds(proposal, BOUNDS)
    assert bounded is not None
    repaired, notes = bounded
    assert notes and all(is_inert(note) for note in notes)
    planned = made.proposed_phase(run, repaired, offered=())
    moved = VERL_SPACE.diff(made.root, planned.spec.hyperparameters)
    assert moved["actor_rollout_ref.actor.optim.weight_decay"][1] == 0.05  # what was good is kept
    for key, (_, new) in moved.items():
        assert VERL_SPACE.forbidden(key) is None
        assert VERL_SPACE.proposed(key, new) == new


@pytest.mark.parametrize("name", [MEGABYTE, TITLE, "a\nb"], ids=["megabyte", "title", "line"])
def test_a_field_that_a_model_made_up_is_named_in_part(name: str) -> None:
    for made_up in ({name: 1}, {"diagnosis": {**answer()["diagnosis"], name: 1}}):
        with pytest.raises(ProposalError, match="extra inputs are not permitted") as refused:
            read(answer(("lr", 2e-5), **made_up))
        assert len(str(refused.value)) < 300 and is_inert(str(refused.value))


@pytest.mark.parametrize(
    "parts",
    [
        {"length": {"n_steps": 2**1024, "arithmetic": ""}},
        {"checkpoint": {"resume_from": {"node": 2**1024, "step": 1}, "reason": ""}},
        {"checkpoint": {"resume_from": {"node": 1, "step": -(2**70)}, "reason": ""}},
        {"expected_validation": "Infinity"},
    ],
)
def test_a_huge_number_elsewhere_goes_back_too(parts: dict[str, Any]) -> None:
    with pytest.raises(ProposalError) as refused:
        read(answer(("lr", 2e-5), **parts))
    assert is_inert(str(refused.value))


def test_a_key_that_is_named_twice_is_refused_and_then_counts_once_with_a_note() -> None:
    proposal = read(answer(("lr", 2e-5), ("optim.lr", 3e-5)))
    made, run = planner()
    with pytest.raises(ProposalError, match="named twice"):
        made.proposed_phase(run, proposal, offered=())
    bounded = enforce_bounds(proposal, BOUNDS)
    assert bounded is not None
    repaired, notes = bounded
    assert [(change.key.rpartition(".")[2], change.new) for change in repaired.changes] == [("lr", 3e-5)]
    assert notes == ("lr was named 2 times: the last value counts",)
    made.proposed_phase(run, repaired, offered=())


@pytest.mark.parametrize("modules", [r".*\.q_proj", r"a\\b", r"it's", r"\'", "end\\", r"(q|k)_proj$"])
def test_a_text_arrives_in_verls_configuration_as_it_was_proposed(modules: str) -> None:
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser")
    from llmzero_ray.engines.verl.overrides import hydra_literal

    made, run = planner()
    planned = made.proposed_phase(run, read(answer(("target_modules", modules))), offered=())
    value = planned.spec.hyperparameters[f"{MODEL}.target_modules"]
    assert value == modules
    override = parser.OverridesParser.create().parse_override(f"x={hydra_literal(value)}")
    assert override.value() == modules


def test_a_user_allows_keys_with_bounds_also_of_an_engine_of_their_own() -> None:
    config = make_config(
        agents={
            "allow": {
                "data.truncation": {"kind": "choice", "choices": ["error", "left"]},
                "my_engine.depth": {"kind": "int", "low": 1, "high": 4, "doc": "Layers."},
            }
        }
    )
    space = space_with(config.agents.allow)
    made, run = planner(space)
    allowed = make_proposal(**{"data.truncation": "left", "my_engine.depth": 3})
    found = made.proposed_phase(run, allowed, offered=()).spec.hyperparameters
    assert (found["data.truncation"], found["my_engine.depth"]) == ("left", 3)
    for refused in ({"data.truncation": "right"}, {"my_engine.depth": 5}, {"my_engine.width": 1}):
        with pytest.raises(ProposalError):
            made.proposed_phase(run, make_proposal(**refused), offered=())


@pytest.mark.parametrize(
    ("allow", "message"),
    [
        ({"trainer.logger": {"kind": "text"}}, "may not be changed by a proposal"),
        ({f"{ROLLOUT}.val_kwargs.n": {"kind": "int", "low": 1, "high": 2}}, "validation is measured one way"),
        ({"lr": {"kind": "float", "low": 0, "high": 1}}, "has bounds of its own"),
        ({"x": {"kind": "float"}}, "needs low and high"),
        ({"x": {"kind": "choice"}}, "needs choices"),
    ],
)
def test_what_cannot_be_allowed_is_refused_at_the_start(allow: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        space_with(make_config(agents={"allow": allow}).agents.allow)


def test_a_user_sets_at_the_root_and_in_a_clone_what_agents_may_not() -> None:
    made, run = planner()
    run.clone = "user:1"
    asked = make_proposal(**{"data.truncation": "left"})
    assert made.proposed_phase(run, asked, offered=()).spec.hyperparameters["data.truncation"] == "left"
    with pytest.raises(ProposalError, match="may not be changed"):
        made.proposed_phase(run, make_proposal(**{"trainer.logger": "wandb"}), offered=())


def test_a_journal_with_values_outside_the_bounds_is_replayed_and_gone_on_with() -> None:
    """As an older version took them: a phase that trained with such values is the base of the next one."""
    search = Driver(make_config())
    search.ready()
    search.train(0)
    old = {"data.truncation": MEGABYTE, f"{MODEL}.lora.rank": 7}
    journal: list[Event] = []
    for event in search.journal:
        if isinstance(event, SearchStarted):
            event = dataclasses.replace(event, root={**event.root, **old})
        elif isinstance(event, PhasePlanned):
            spec = dataclasses.replace(event.spec, hyperparameters={**event.spec.hyperparameters, **old})
            event = dataclasses.replace(event, spec=spec)
        journal.append(from_json(json.loads(json.dumps(to_json(event)))))
    core = replay(journal, Path("/nowhere"))
    core.resume()
    run = PhaseRun(node=1, kind="evolve", on=0, slot=0)
    planned = core.planner.proposed_phase(run, make_proposal(lr=2e-5), offered=(0,))
    assert {key: planned.spec.hyperparameters[key] for key in old} == old
