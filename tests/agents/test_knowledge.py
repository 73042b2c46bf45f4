"""Human knowledge: complete for what rules read and people may change, readable from checkout and wheel."""

from __future__ import annotations

import subprocess
import sys

import pytest

from llmzero_ray import hyperparameters as hp
from llmzero_ray.agents import dynamics
from llmzero_ray.agents.knowledge import hyperparameter_notes, metric_label, metric_notes
from llmzero_ray.stopping import rules


def test_every_metric_that_a_rule_reads_is_explained() -> None:
    read = {value for name, value in vars(dynamics).items() if name.isupper() and isinstance(value, str)}
    read |= {*dynamics.REWARD, *rules.WATCHED}
    assert read - set(hp.BY_KEY) <= set(metric_notes())


@pytest.mark.parametrize("note", metric_notes().values(), ids=lambda note: note.name)
def test_every_note_says_what_how_it_looks_and_what_it_is_mistaken_for(note: object) -> None:
    assert all(isinstance(text, str) and text.strip() for text in vars(note).values())


def test_every_hyperparameter_of_the_table_is_explained_and_no_other() -> None:
    assert set(hyperparameter_notes()) == set(hp.BY_KEY)
    assert all(text.strip() for text in hyperparameter_notes().values())


def test_labels_are_short_and_unknown_metrics_keep_their_name() -> None:
    assert metric_label("actor/kl_loss") == "KL to the base model"
    assert metric_label("val-core/csum/acc/mean@1") == "validation score"
    assert metric_label("my/metric") == "my/metric"
    assert all(len(note.label) <= 30 for note in metric_notes().values())


def test_the_two_clip_ratios_are_told_apart() -> None:
    notes = metric_notes()
    assert "PPO" in notes["response_length/clip_ratio"].confusion
    assert "truncation" in notes["actor/pg_clipfrac"].confusion


def test_nothing_is_read_before_it_is_asked_for() -> None:
    code = "import sys, llmzero_ray.agents.expert, llmzero_ray.agents.knowledge; print('yaml' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
