"""Human knowledge: complete for what rules read and people may change, readable from checkout and wheel."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from llmzero_ray import hyperparameters as hp
from llmzero_ray.agents.knowledge import (
    Knowledge,
    MetricNote,
    expected_metrics,
    metric_label,
    metric_notes,
    note_of,
    parse_hyperparameters,
    parse_metrics,
    prompt_file,
)
from llmzero_ray.agents.llm.prompts import Prompts
from llmzero_ray.dynamics import features as dynamics
from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters.verl_keys import is_verl_key
from llmzero_ray.methods.skills import skill_texts
from llmzero_ray.records.metrics import REWARDS
from llmzero_ray.stopping import rules


@pytest.fixture(scope="module")
def packaged() -> Knowledge:
    return Prompts.load().knowledge


def test_every_metric_that_a_rule_reads_is_explained() -> None:
    read = {value for name, value in vars(dynamics).items() if name.isupper() and isinstance(value, str)}
    read |= {*REWARDS, *rules.WATCHED}
    assert [name for name in read - set(hp.BY_KEY) if note_of(name) is None] == []


@pytest.mark.parametrize("note", metric_notes().values(), ids=lambda note: note.name)
def test_every_note_says_what_how_it_looks_and_what_it_is_mistaken_for(note: MetricNote) -> None:
    assert all((note.label, note.description, note.healthy, note.confusion))
    assert "\n" not in note.description + note.healthy + note.confusion


def test_every_hyperparameter_of_the_table_is_explained_and_no_other(packaged: Knowledge) -> None:
    assert set(packaged.hyperparameters) == set(hp.BY_KEY)
    assert all(text.strip() for text in packaged.hyperparameters.values())


def test_labels_are_short_and_unknown_metrics_keep_their_name() -> None:
    assert metric_label("actor/kl_loss") == "KL to the base model"
    assert metric_label("val-core/csum/acc/mean@1") == "validation score"
    assert metric_label("my/metric") == "my/metric"
    assert all(len(note.label) <= 30 for note in metric_notes().values())


def test_the_two_clip_ratios_are_distinguished() -> None:
    notes = metric_notes()
    assert "PPO" in notes["response_length/clip_ratio"].confusion
    assert "truncation" in notes["actor/pg_clipfrac"].confusion


def test_nothing_is_read_before_it_is_asked_for() -> None:
    code = (
        "import sys\n"
        "read = []\n"
        "sys.addaudithook(lambda event, args: read.append(str(args[0])) if event == 'open' else None)\n"
        "import llmzero_ray.agents.expert, llmzero_ray.agents.knowledge as knowledge\n"
        "notes = lambda: sum(path.endswith(knowledge.METRICS) for path in read)\n"
        "before = notes(); knowledge.metric_notes(); print(before, notes())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1"]


def test_every_noted_hyperparameter_is_a_key_of_verl(packaged: Knowledge) -> None:
    assert [key for key in packaged.hyperparameters if key not in hp.BY_KEY and not is_verl_key(key)] == []


def test_what_is_logged_follows_the_switches_of_the_phase() -> None:
    default = expected_metrics(hp.defaults())
    assert {"actor/kl_loss", "critic/score/mean", "perf/mfu/actor", "timing_s/ref"} <= default
    assert not {"actor/reward_kl_penalty", "actor/entropy_loss", "val-core", "timing_s/testing"} & default
    without = expected_metrics(hp.complete(hp.defaults(), {"use_kl_loss": False}))
    assert default - without == {"actor/kl_loss", "actor/kl_coef", "timing_s/ref", "timing_per_token_ms/ref"}
    more = expected_metrics(hp.complete(hp.defaults(), {"algo_kl": 0.01, "entropy_coeff": 0.001}))
    assert more - default == {
        "actor/reward_kl_penalty",
        "actor/reward_kl_penalty_coeff",
        "actor/entropy_loss",
    }


def test_a_note_covers_its_family_and_validation_of_any_data_source() -> None:
    assert note_of("critic/returns/min") is metric_notes()["critic/advantages/mean"]
    assert note_of("val-core/chem/acc/mean@1") is metric_notes()["val-core"]
    assert note_of("val-aux/chem/fmt_ok/mean@1") is metric_notes()["val-aux"]
    assert note_of("own/metric") is None


NOTE = "{label: l, description: d, healthy: h, confusion: c}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- a", "holds list"),
        ("a: [", "is not YAML"),
        ("a/b: {label: l}", "a/b: description is missing"),
        ("a/b: text", "a/b holds str"),
        (f"a/b: {NOTE[:-1]}, colour: red}}", "a/b: unknown key 'colour'"),
        (f"a/b: {NOTE[:-1]}, level: top}}", "level is 'top'; must be one of primary, diagnostic, background"),
        (f"a/b: {NOTE[:-1]}, when: noon}}", "when is 'noon'"),
        (f"a/b: {NOTE[:-1]}, also: c/d}}", "also is 'c/d'; must be a list"),
        (f"a/b: {NOTE}\nc/d: {NOTE[:-1]}, also: [a/b]}}", "a/b is covered by a/b and by c/d"),
    ],
)
def test_broken_notes_of_metrics_are_refused_with_their_place(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=r"^mine\.yaml") as caught:
        parse_metrics(text, "mine.yaml")
    assert expected in str(caught.value)


def test_notes_of_hyperparameters_may_use_short_names_and_any_key_of_verl_but_no_other() -> None:
    found = parse_hyperparameters("lr: the step\nactor_rollout_ref.actor.shuffle: order", "mine.yaml")
    assert found == {
        "actor_rollout_ref.actor.optim.lr": "the step",
        "actor_rollout_ref.actor.shuffle": "order",
    }
    with pytest.raises(ConfigError, match=r"mine\.yaml: hyper-parameter 'learning_rat'.*learning_rate"):
        parse_hyperparameters("learning_rat: x", "mine.yaml")


def test_a_directory_replaces_the_files_it_has(tmp_path: Path) -> None:
    (tmp_path / "metrics.yaml").write_text(f"own/metric: {NOTE}")
    assert prompt_file("metrics.yaml", str(tmp_path)) == tmp_path / "metrics.yaml"
    assert prompt_file("hyperparameters.yaml", str(tmp_path)) == prompt_file("hyperparameters.yaml")
    with pytest.raises(ConfigError, match="nowhere does not exist; name a directory"):
        prompt_file("metrics.yaml", str(tmp_path / "nowhere"))


def test_no_text_of_a_skill_contradicts_the_notes_on_metrics() -> None:
    # Low entropy is not a reason for heat, and a KL that grows with the reward none for a pull.
    texts = skill_texts()
    training = " ".join(texts["check_training"].split())
    assert "Low entropy with a high reward is success" in training
    assert "Low entropy with a high reward is success" in metric_notes()["actor/entropy"].confusion
    assert "A KL that grows with the reward is learning" in training
    assert "Growth with a rising reward is learning" in metric_notes()["actor/kl_loss"].confusion
    assert not re.search(r"entropy[^.:]*: (INCREASE|DECREASE)", " ".join(texts.values()), re.IGNORECASE)
    assert "leave it at 0" in texts["generate_config"] and "unless entropy" not in texts["generate_config"]


def test_advice_on_rates_names_the_scale_of_the_adapter_and_the_size_of_the_model(
    packaged: Knowledge,
) -> None:
    for text in (packaged.hyperparameters[hp.canonical("lr")], skill_texts()["download_model"]):
        assert "lr x lora_alpha / lora_rank" in " ".join(text.split())
        assert "5e-5" in text and "8 billion" in text and "1.6e-2" in text


def test_larger_groups_of_fewer_prompts_lost_on_as_many_tasks_as_the_guide_says(packaged: Knowledge) -> None:
    lost = []
    for file in sorted(Path("benchmarks/suite/headroom_runs").glob("*.jsonl")):
        runs = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        wide = [run for run in runs if run["arm"] == "wide"]
        same = {(run["seed"], run["times"]): run["test"] for run in runs if run["arm"] == "default"}
        lost += [run["test"] < same[run["seed"], run["times"]] for run in wide]
    told = packaged.hyperparameters["actor_rollout_ref.rollout.n"]
    assert "8 prompts x 8 answers beat 4 x 16 on six small tasks." in told
    assert lost == [True] * 6


def test_advice_asks_for_no_strong_pull_and_no_step_regardless_of_the_gap(packaged: Knowledge) -> None:
    assert "five-fold" not in " ".join(packaged.hyperparameters.values())
    assert "0.001 to 0.01" in packaged.hyperparameters[hp.canonical("kl")]
    assert "gap of greedy and sampled scores" in packaged.hyperparameters[hp.canonical("temperature")]
