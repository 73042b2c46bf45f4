"""The best adapter merged into its base model: the same answers, and what is in the way is not touched."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from llmzero_ray.cli.main import main
from llmzero_ray.prepared import check_model_dir
from llmzero_ray.report import write_outcome
from llmzero_ray.storage.manifests import write_manifest
from llmzero_ray.tasks.greedy_accuracy import generate
from llmzero_ray.tasks.tiny_model import make_model, make_tokenizer, save
from tests.builders import make_config
from tests.report.builder import Phase, SearchBuilder

PROMPTS = ["1+2", "say 17", "what comes after nine?", "abc"]


def save_real_adapter(base: Path, adapter: Path) -> None:
    """A LoRA adapter that changes answers: B, which PEFT starts at zero, is random."""
    torch.manual_seed(3)
    plan = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), plan)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "lora_B" in name:
                weights.normal_(std=0.1)
    shutil.rmtree(adapter)
    model.save_pretrained(adapter)
    write_manifest(adapter, {"format": 1})


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> SearchBuilder:
    """A search of one phase on a tiny model, with a real adapter in best/."""
    place = tmp_path_factory.mktemp("merge")
    tokenizer = make_tokenizer()
    save(make_model(tokenizer, seed=1), tokenizer, place / "base")
    made = SearchBuilder(place, config=make_config(model={"path": str(place / "base")}))
    made.phases = {0: Phase(val={0: 40, 10: 50, 20: 60})}
    made.ready().play(phases=1)
    save_real_adapter(place / "base", made.storage.paths.adapter(0, 20))
    assert write_outcome(made.root).problem == ""
    return made


def answers(model: torch.nn.Module, base: Path) -> list[str]:
    return generate(model, AutoTokenizer.from_pretrained(base), PROMPTS, 24, do_sample=False)


def test_the_merged_model_answers_as_base_and_adapter_together(search: SearchBuilder, tmp_path: Path) -> None:
    out, base = tmp_path / "made" / "merged", Path(str(search.config.model.path))
    assert main(["merge", str(search.root), "--out", str(out)]) == 0
    check_model_dir(out)
    alone = AutoModelForCausalLM.from_pretrained(base)
    before = answers(alone, base)
    together = answers(PeftModel.from_pretrained(alone, str(search.root / "best")), base)
    merged = AutoModelForCausalLM.from_pretrained(out)
    assert answers(merged, out) == together != before
    assert merged.dtype is torch.float32
    assert not [name for name in merged.state_dict() if "lora" in name]


def test_settings_for_generation_that_transformers_does_not_write_are_kept(
    search: SearchBuilder, tmp_path: Path
) -> None:
    base, out = tmp_path / "base", tmp_path / "out"
    shutil.copytree(str(search.config.model.path), base)
    given = json.dumps({"do_sample": False, "temperature": 0.6, "eos_token_id": 2})
    (base / "generation_config.json").write_text(given)
    assert main(["merge", str(search.root), "--out", str(out), "--model", str(base)]) == 0
    assert (out / "generation_config.json").read_text() == given
    check_model_dir(out)


def test_an_adapter_that_is_not_the_best_one_any_more_is_merged_and_that_is_said(
    search: SearchBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(search.root, tmp_path / "copy"))
    other = (copy / "strategy.yaml").read_text().replace("cut_step: 20", "cut_step: 10")
    (copy / "strategy.yaml").write_text(other.replace("total_steps: 20", "total_steps: 10"))
    assert main(["merge", str(copy), "--out", str(tmp_path / "out")]) == 0
    note, made = capsys.readouterr().out.splitlines()
    assert f"note: {copy / 'best'} is not the adapter of the best strategy any more" in note
    assert made == f"merged model: {tmp_path / 'out'}"


def refusal(search: Path, out: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """The one line with which merging is refused."""
    assert main(["merge", str(search), "--out", str(out), *more]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_directory_that_holds_something_is_left_as_it_is(
    search: SearchBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    assert "is not empty; name a new directory" in refusal(search.root, tmp_path, capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert "is not empty" in refusal(search.root, tmp_path / "mine.txt", capsys)


def test_too_little_memory_or_disk_is_said_before_anything_is_loaded(
    search: SearchBuilder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("llmzero_ray.strategy.merge.merged_model", lambda *_: pytest.fail("loaded"))
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as change:
        change.setattr(shutil, "disk_usage", lambda _: usage(2**40, 2**40 - 2**20, 2**20))
        assert "takes about 2 MiB; 1 MiB are free" in refusal(search.root, tmp_path / "a", capsys)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**20))
    assert "needs about 3 MiB of memory" in refusal(search.root, tmp_path / "a", capsys)
    assert not (tmp_path / "a").exists()


def test_a_base_model_that_is_gone_and_an_adapter_that_changed_are_refused(
    search: SearchBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "does not exist" in refusal(search.root, tmp_path / "a", capsys, "--model", str(tmp_path / "gone"))
    copy = Path(shutil.copytree(search.root, tmp_path / "copy"))
    weights = copy / "best" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    assert "its checksums differ" in refusal(copy, tmp_path / "a", capsys)
    shutil.rmtree(copy / "best")
    assert "holds no adapter" in (said := refusal(copy, tmp_path / "a", capsys))
    assert f"Write it again with `llmzero report {copy}`" in said
    shutil.rmtree(copy / "checkpoints")
    said = refusal(copy, tmp_path / "a", capsys)
    assert "It cannot be written from the checkpoint" in said and "incomplete or gone" in said
    assert (
        said.endswith(f"`llmzero retrain {copy}` trains the strategy again.") and "llmzero report" not in said
    )


def test_code_that_a_model_brings_along_is_refused_without_a_question(
    search: SearchBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, ran = tmp_path / "base", tmp_path / "ran"
    shutil.copytree(str(search.config.model.path), base)
    (base / "own.py").write_text(f"open({str(ran)!r}, 'w')\n")
    config = json.loads((base / "config.json").read_text())
    own = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    (base / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": own}))
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question="": asked.append(question) or "y")
    assert "cannot be loaded" in refusal(search.root, tmp_path / "out", capsys, "--model", str(base))
    assert asked == [] and not ran.exists()


def test_a_config_that_is_too_large_is_not_read_whole(
    search: SearchBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "base"
    shutil.copytree(str(search.config.model.path), base)
    with (base / "config.json").open("r+b") as file:
        file.truncate(256 * 2**20)  # a file with a hole: NUL bytes
    assert "is larger than 128 MiB" in refusal(search.root, tmp_path / "out", capsys, "--model", str(base))
