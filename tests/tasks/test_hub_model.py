"""A base model by its id on the Hub: downloaded once from a Hub on loopback, kept at its commit, refused."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import ConfigError, HubError, TaskError
from llmzero_ray.launch.hub_model import with_model_here
from llmzero_ray.prepared import check_model_dir
from tests.builders import make_config
from tests.hub_server import HubServer, Repository, hub_server, use
from tests.tasks.builders import WEIGHTS

ID = "ann/base-4b"
FILES = {
    "config.json": b'{"model_type": "qwen3"}',
    "model.safetensors": WEIGHTS.encode(),
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b'{"chat_template": "{{ messages }}"}',
}
NOT_WANTED = {"modeling.py": b"import os", "pytorch_model.bin": b"pickle", "original/params.json": b"{}"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    with hub_server() as server:
        use(server, monkeypatch)
        server.repositories[ID] = Repository(files=FILES | NOT_WANTED)
        yield server


def given(path: str | None = ID, **engine: str) -> SearchConfig:
    return make_config(model={"path": path}, engine={"backend": "verl", "platform": "cpu", **engine})


def located(config: SearchConfig, known: SearchConfig | None = None) -> SearchConfig:
    return with_model_here(config, known, lambda line: None)


def test_an_id_becomes_a_directory_of_its_commit_without_code_and_pickles(hub: HubServer) -> None:
    found = located(given()).model
    directory = Path(str(found.path))
    assert directory.name == hub.repositories[ID].sha
    assert {path.name for path in directory.iterdir()} == set(FILES)
    assert found.hub_id == ID
    check_model_dir(directory)


def test_it_is_downloaded_once_and_serves_without_a_network(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = located(given())
    asked = hub.asked("GET", "/resolve/")
    assert located(given()) == first
    assert hub.asked("GET", "/resolve/") == asked
    with without_network(monkeypatch):
        assert located(given()) == first


def test_a_search_keeps_the_commit_it_began_with(hub: HubServer) -> None:
    began = located(given())
    hub.repositories[ID] = Repository(
        files=FILES | {"config.json": b'{"model_type": "other"}'}, commits=[["x"]]
    )
    assert located(given(), began) == began
    newer = located(given(f"{ID}@{hub.repositories[ID].sha}"), began)
    assert newer.model.path != began.model.path
    assert json.loads((Path(str(newer.model.path)) / "config.json").read_text())["model_type"] == "other"


def test_a_search_with_a_hub_id_of_its_own_keeps_its_commit_and_another_model_is_looked_up(
    hub: HubServer,
) -> None:
    model = {"path": ID, "hub_id": "ann/mine"}
    config = make_config(model=model, engine={"backend": "verl", "platform": "cpu"})
    began = located(config)
    hub.repositories[ID] = Repository(files=FILES, commits=[["x"]])
    assert located(config, began) == began
    other = "ann/other"
    hub.repositories[other] = Repository(files=FILES)
    config = make_config(model={**model, "path": other}, engine={"backend": "verl", "platform": "cpu"})
    assert located(config, began).model.path != began.model.path


@pytest.mark.parametrize("path", [None, "/models/base", "base", "here/model", "a/b/c", "../x/y"])
def test_any_other_path_is_kept_and_nothing_is_asked(
    path: str | None, hub: HubServer, tmp_path: Path
) -> None:
    (tmp_path / "here" / "model").mkdir(parents=True)
    config = given(path)
    assert located(config) is config
    assert hub.requests == []


@pytest.mark.parametrize(
    "path",
    [
        "models/base-4b",
        "Models/base-4b",
        "data/m",
        "runs/m",
        "checkpoints/step_10",
        "output/m",
        "here/gone",
        "here/gone@main",
        "./ann/base-4b",
        "../ann/base-4b",
        "~/base-4b",
        "ann/base-4b/",
        "ann\\base-4b",
        "ann/base/4b",
        "/ann/base-4b",
    ],
)
def test_a_directory_that_is_missing_is_never_looked_up_as_a_strangers_model(
    path: str, hub: HubServer, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    config = given(path)
    assert located(config) is config
    assert hub.requests == []
    assert config.model.id_on_the_hub is None
    with pytest.raises(TaskError, match=r"does not exist.*model\.path=hf://OWNER/NAME"):
        check_model_dir(path)


def test_hf_names_a_model_of_the_hub_whatever_directories_there_are(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / ID).mkdir(parents=True)
    hub.repositories["models/base"] = Repository(files=FILES)
    assert located(given(f"hf://{ID}")).model.hub_id == ID
    assert given(f"hf://{ID}@main").model.id_on_the_hub == ID
    assert located(given("hf://models/base")).model.hub_id == "models/base"


@pytest.mark.parametrize("path", ["hf://base", "hf:ann/base", "hf://ann/base/4b", "HF://ann/base", "hf://"])
def test_a_broken_address_of_a_model_is_refused_with_the_right_form(path: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.path.*hf://OWNER/NAME@REVISION"):
        given(path)


def test_without_a_network_and_a_copy_it_is_said_what_to_do(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with without_network(monkeypatch), pytest.raises(HubError) as raised:
        located(given())
    said = str(raised.value)
    assert f"model.path {ID} names a model of the Hub" in said
    assert "the cache has no copy" in said and f"hf download {ID}" in said
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="the cache has no copy"):
        located(given())


@pytest.mark.parametrize("path", ["ann/nothing", f"{ID}@no-such-revision"])
def test_what_the_hub_does_not_have_is_one_message(path: str, hub: HubServer) -> None:
    with pytest.raises(HubError, match="names a model of the Hub") as raised:
        located(given(path))
    assert "hf_" not in str(raised.value) and "\n" not in str(raised.value)


class without_network:  # noqa: N801 - used as a function
    """The Hub's address leads to a port on which nobody listens."""

    def __init__(self, change: pytest.MonkeyPatch) -> None:
        self._change = change

    def __enter__(self) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._change.setenv("HF_ENDPOINT", address)
        self._change.setattr("huggingface_hub.constants.ENDPOINT", address)

    def __exit__(self, *_: object) -> None:
        self._socket.close()
