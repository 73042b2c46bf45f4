"""The best adapter sent to a Hub on loopback: what goes, what must not, and one message for each refusal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import save_file

from llmzero_ray.cli.main import main
from llmzero_ray.report import write_outcome
from llmzero_ray.storage.manifests import write_manifest
from tests.builders import make_config
from tests.hub_server import TOKEN, HubServer, Repository, hub_server, use
from tests.report.builder import Phase, SearchBuilder

REPO = "ann/demo"
SENT = ("README.md", "adapter_config.json", "adapter_model.safetensors", "checksums.sha256")


def make_search(place: Path, tensors: dict[str, torch.Tensor] | None = None) -> SearchBuilder:
    """A search of one phase whose best/ holds a PEFT folder as the engine saves it."""
    base = place / "models" / "base-4b"
    made = SearchBuilder(place, config=make_config(model={"path": str(base), "hub_id": "Qwen/Qwen3-4B"}))
    made.phases = {0: Phase(val={0: 40, 10: 50, 20: 60})}
    made.ready().play(phases=1)
    adapter = made.storage.paths.adapter(0, 20)
    shutil.rmtree(adapter)
    adapter.mkdir()
    weights = {"base_model.model.layers.0.q_proj.lora_A.weight": torch.ones(2, 3)}
    save_file(tensors or weights, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "r": 2, "base_model_name_or_path": str(base)}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    write_manifest(adapter, {"format": 1})
    assert write_outcome(made.root).problem == ""
    return made


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_search(tmp_path_factory.mktemp("push")).root


@pytest.fixture
def search(template: Path, tmp_path: Path) -> Path:
    """Directory of the search, to be changed."""
    return Path(shutil.copytree(template, tmp_path / "demo"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with hub_server() as server:
        use(server, monkeypatch)
        yield server


def push(search: Path, *words: str, repo: str = REPO) -> int:
    return main(["push", str(search), repo, *words])


def refusal(
    search: Path, capsys: pytest.CaptureFixture[str], *words: str, repo: str = REPO, code: int = 1
) -> str:
    """The one line with which a push is refused; it never shows the token."""
    assert push(search, *words, repo=repo) == code
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert TOKEN not in printed.out + line
    return line


# --- what goes


def test_without_yes_files_and_sizes_are_listed_and_nothing_is_asked(
    search: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    (search / "best" / "optimizer.pt").write_bytes(b"1")
    (search / "best" / "val.parquet").write_bytes(b"1")
    (search / "best" / "id_token").write_bytes(b"1")
    assert push(search) == 0
    printed = capsys.readouterr().out
    assert f"to {hub.url}/{REPO}, private:" in printed
    size = (search / "best" / "adapter_model.safetensors").stat().st_size
    assert f"{size:>12,} bytes  adapter_model.safetensors" in printed
    assert all(f"{name}" in printed for name in ("optimizer.pt", "val.parquet", "id_token"))
    assert "nothing was sent; add --yes to send 4 files" in printed
    assert hub.requests == []


def test_with_yes_exactly_the_listed_files_are_in_one_commit(
    search: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    (search / "best" / "optimizer.pt").write_bytes(b"1")
    assert push(search, "--yes") == 0
    printed = capsys.readouterr()
    repo = hub.repositories[REPO]
    assert repo.private
    assert repo.commits == [list(SENT)]
    assert (
        repo.files["adapter_model.safetensors"]
        == (search / "best" / "adapter_model.safetensors").read_bytes()
    )
    assert json.loads(repo.files["adapter_config.json"]) == {
        "peft_type": "LORA",
        "r": 2,
        "base_model_name_or_path": "Qwen/Qwen3-4B",
    }
    listed = dict(reversed(line.split("  ")) for line in repo.files["checksums.sha256"].decode().splitlines())
    assert listed == {name: sha256(repo.files[name]).hexdigest() for name in listed}
    card = ModelCard(repo.files["README.md"].decode())
    assert card.data.base_model == "Qwen/Qwen3-4B"
    assert f'adapter = "{REPO}"' in card.text and f"--lora-modules demo={REPO}" in card.text
    assert f"sent: {hub.url}/{REPO}" in printed.out
    for content in repo.files.values():
        assert str(search.parent).encode() not in content and TOKEN.encode() not in content
    assert TOKEN not in printed.out + printed.err
    assert {*hub.headers} == {f"Bearer {TOKEN}", ""}


def test_a_push_again_sends_nothing_and_makes_no_commit(
    search: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push(search, "--yes") == 0
    assert "sent: " in capsys.readouterr().out
    assert push(search, "--yes") == 0
    assert "nothing to send, all of it is there" in capsys.readouterr().out
    assert len(hub.repositories[REPO].commits) == 1
    assert hub.asked("PUT", "/storage/") == 1


def test_a_killed_push_leaves_no_half_and_goes_on_where_it_was(search: Path, hub: HubServer) -> None:
    hub.hold_commits = True
    command = [sys.executable, "-m", "llmzero_ray.cli", "push", str(search), REPO, "--yes"]
    process = subprocess.Popen(command, env={**os.environ}, stderr=subprocess.PIPE, start_new_session=True)
    try:
        assert hub.committing.wait(120), "no commit was asked for"
        assert all(TOKEN not in word for word in Path(f"/proc/{process.pid}/cmdline").read_text().split("\0"))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert hub.repositories[REPO].files == {}
    hub.hold_commits = False
    assert push(search, "--yes") == 0
    assert hub.repositories[REPO].commits == [list(SENT)]
    assert hub.asked("PUT", "/storage/") == 1  # the weights had arrived


def test_the_token_may_be_in_a_file(
    search: Path, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "token").write_text(TOKEN + "\n")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    assert push(search, "--yes") == 0
    assert hub.repositories[REPO].commits == [list(SENT)]


# --- what must not go


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hf_" + "a1B2" * 6, "a token of the Hub"),
        ("AKIA" + "ABCD1234" * 2, "an AWS key"),
        ("the-value-of-a-variable", "the value of WANDB_API_KEY"),
    ],
)
def test_a_secret_in_a_file_is_never_sent_nor_shown(
    name: str,
    said: str,
    tmp_path: Path,
    hub: HubServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "the-value-of-a-variable")
    made = make_search(tmp_path, {"lora_A." + name: torch.ones(1)})
    line = refusal(made.root, capsys, "--yes", code=2)
    assert f"adapter_model.safetensors holds {said}" in line and name not in line
    assert hub.requests == []


def test_an_optimizers_state_and_a_path_of_this_machine_are_never_sent(
    tmp_path: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    states = {"layers.0.lora_A": torch.ones(1), "state.exp_avg": torch.ones(1)}
    made = make_search(tmp_path / "a", states)
    assert "tensors that are not an adapter's (state.exp_avg)" in refusal(made.root, capsys, "--yes", code=2)
    named = make_search(tmp_path / "b", {f"lora_A.{tmp_path / 'b' / 'models' / 'base-4b'}": torch.ones(1)})
    assert "names a path of this machine" in refusal(named.root, capsys, "--yes", code=2)
    assert hub.requests == []


def test_an_adapter_that_is_not_the_best_one_any_more_is_not_sent(
    search: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    other = (search / "strategy.yaml").read_text().replace("cut_step: 20", "cut_step: 10")
    (search / "strategy.yaml").write_text(other.replace("total_steps: 20", "total_steps: 10"))
    assert "is not the adapter of the best strategy any more" in refusal(search, capsys, "--yes", code=2)
    shutil.rmtree(search / "best")
    assert "holds no adapter" in refusal(search, capsys, "--yes", code=2)
    assert hub.requests == []


@pytest.mark.parametrize("repo", ["demo", "ann/", "ann/a/b", "../demo", "ann/--yes x"])
def test_an_id_that_cannot_be_one_is_refused(
    repo: str, search: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(search, capsys, "--yes", repo=repo, code=2)
    assert "is not an id of a repository; write OWNER/NAME" in said


@pytest.mark.parametrize(
    ("private", "refused", "taken", "why"),
    [
        (False, ["--yes"], ["--yes", "--public"], "exists and is public. Give --public"),
        (True, ["--yes", "--public"], ["--yes"], "exists and is private. Make it public in its settings"),
    ],
)
def test_a_repository_is_as_public_as_asked_or_nothing_is_sent(
    search: Path,
    hub: HubServer,
    capsys: pytest.CaptureFixture[str],
    private: bool,
    refused: list[str],
    taken: list[str],
    why: str,
) -> None:
    hub.repositories[REPO] = Repository(private=private)
    assert why in refusal(search, capsys, *refused, code=2)
    assert hub.repositories[REPO].commits == []
    assert push(search, *taken) == 0


def test_what_no_push_wrote_is_not_replaced(
    search: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.repositories[REPO] = Repository(private=True, files={".gitattributes": b"", "model.bin": b"1"})
    line = refusal(search, capsys, "--yes", code=2)
    assert "exists and holds what no push wrote (model.bin). Name another repository" in line
    assert hub.repositories[REPO].commits == []


# --- what the Hub refuses


@pytest.mark.parametrize("status", [429, 503])
def test_a_hub_that_fails_in_the_middle_leaves_nothing_half_sent(
    status: int, search: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.refuse_commits = status
    assert push(search, "--yes") == 1
    printed = capsys.readouterr()
    assert "Run the same command again" in printed.err or "then run the same command again" in printed.err
    assert "sent:" not in printed.out
    hub.refuse_commits = 0
    assert push(search, "--yes") == 0
    assert hub.repositories[REPO].commits == [list(SENT)]


def test_without_a_token_it_is_said_where_one_is_read(
    search: Path,
    hub: HubServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    assert "there is no token of the Hugging Face Hub. Set HF_TOKEN" in refusal(
        search, capsys, "--yes", code=2
    )
    assert hub.requests == []


def test_a_refused_token_is_said_and_not_shown(
    search: Path, hub: HubServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = "hf_" + "wr0ng" * 6
    monkeypatch.setenv("HF_TOKEN", wrong)
    line = refusal(search, capsys, "--yes")
    assert f"push to {REPO}: the Hub refuses the token" in line and wrong not in line


@pytest.mark.parametrize("exists", [False, True])
def test_a_repository_of_another_owner_is_refused(
    exists: bool, search: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    if exists:
        hub.repositories["bob/demo"] = Repository(private=True)
    line = refusal(search, capsys, "--yes", repo="bob/demo")
    assert "push to bob/demo: the token may not do that" in line and "belongs to another owner" in line


def test_without_a_network_the_address_is_named(
    search: Path, hub: HubServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound and not listening: refused at once
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        line = refusal(search, capsys, "--yes")
    assert "cannot be reached" in line and "then run the same command again" in line
