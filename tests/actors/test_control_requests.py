"""Requests in a search's directory: accepted, or refused with a reason; none blocks the coordinator."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from actors.control_requests import ControlRequests
from actors.event_loop import Judge
from llmzero_ray.records import Event
from llmzero_ray.records import events as ev
from llmzero_ray.storage.presence import is_extension_requested, request
from tests.builders import Driver, make_config


class Searching:
    """A search with one trained node that takes its requests from a searching."""

    def __init__(self, root: Path, *, fixed_capacity: bool = False, **blocks: Any) -> None:
        self.root, self.search, self.posted = root, Driver(make_config(**blocks)), list[Event]()
        self.search.ready()
        self.search.train(0)
        self.requests = ControlRequests(
            self.search.core, self.post, root, use_settings=self.use_settings, fixed_capacity=fixed_capacity
        )

    async def post(self, judge: Judge) -> Event | None:
        event = judge()
        if event is not None:
            self.posted.append(event)
            self.search.post(event)
        return event

    async def use_settings(self) -> None:
        """Nothing follows the settings here."""

    def leave(self, name: str, content: str) -> None:
        (self.root / "requests").mkdir(exist_ok=True)
        (self.root / "requests" / f"{name}.json").write_text(content)

    def take(self) -> list[Event]:
        """The events that came of all that waited."""
        self.posted.clear()
        asyncio.run(self.requests.take())
        assert list((self.root / "requests").iterdir()) == []
        return self.posted


def body(kind: str, **asked: Any) -> str:
    return json.dumps({"kind": kind, "reason": "", **asked})


MALFORMED = (
    (body("clone", node=0, of=0, changes=[["lr", 1]]), "changes: Input should be a valid dictionary"),
    (body("clone", node=0, changes={"lr": []}), "lr"),
    (body("clone", changes={}), "node: Field required"),
    (body("set", changes=["budget.runs"]), "changes: Input should be a valid dictionary"),
    (body("set", changes={"budget.runs": {"a": 1}}), "budget.runs"),
    (body("hint", text=5), "text: Input should be a valid string"),
    (body("hint"), "text: Field required"),
    (body("approve"), "node: Field required"),
    (body("approve", node=1, changes={"lrr": 1}), "hyper-parameter 'lrr' is not known"),
    (body("approve", node=1, refuse="perhaps"), "refuse: Input should be a valid boolean"),
    (body("approve", node=0), "node 0 is completed; no proposal waits for approval."),
    (body("veto", node="root"), "node: Input should be a valid integer"),
    (body("stop", deadline_s=-5), "deadline_s: Input should be greater than or equal to 0"),
    (body("stop", deadline_s=float("nan")), "deadline_s: Input should be a finite number"),
    (body("stop", deadline_s=10**400), "deadline_s"),
    (body("dance"), "kind 'dance' is unknown"),
    ("[" * 100_000, "RecursionError"),
    ("{}", "KeyError"),
    ("[1]", "is not a request and was removed"),
    ("\x00", "is not a request and was removed"),
    (body("hint", text="x" * 2**20), "it is longer than 1048576 bytes"),
)


@pytest.mark.parametrize(("content", "expected"), MALFORMED, ids=[expected[:30] for _, expected in MALFORMED])
def test_a_malformed_request_is_refused_by_name_and_the_next_one_is_taken(
    tmp_path: Path, content: str, expected: str
) -> None:
    searching = Searching(tmp_path)
    searching.leave("0", content)
    request(tmp_path, "stop", "enough")
    refused, stopped = searching.take()
    assert isinstance(refused, ev.RequestRefused)
    assert refused.source == "user:0"
    assert expected in refused.message
    assert isinstance(stopped, ev.UserStop)


def test_what_is_no_file_is_refused_without_being_opened(tmp_path: Path) -> None:
    searching = Searching(tmp_path)
    request(tmp_path, "stop", "enough")
    os.mkfifo(tmp_path / "requests" / "0.json")  # nobody writes: to open it would block for ever
    (tmp_path / "requests" / "00.json").symlink_to("/dev/zero")
    *refused, stopped = searching.take()
    assert [event.source for event in refused] == ["user:0", "user:00"]
    for event in refused:
        assert isinstance(event, ev.RequestRefused) and "it is not a regular file" in event.message
    assert isinstance(stopped, ev.UserStop)


def test_a_request_that_cannot_be_journalled_is_refused_instead(tmp_path: Path) -> None:
    searching = Searching(tmp_path)

    async def post(judge: Judge) -> Event | None:
        if isinstance(judge(), ev.HintGiven):
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
        return await searching.post(judge)

    searching.requests = ControlRequests(
        searching.search.core, post, tmp_path, use_settings=searching.use_settings, fixed_capacity=False
    )
    request(tmp_path, "hint", text="\ud800")
    (refused,) = searching.take()
    assert isinstance(refused, ev.RequestRefused)
    assert "surrogates not allowed" in refused.message


def machine(cpus: float, gpus: float) -> dict[str, Any]:
    has = {"CPU": cpus, "GPU": gpus}
    return {"NodeID": "a0", "NodeManagerAddress": "10.0.0.1", "Alive": True, "Resources": has}


def test_more_slots_than_a_private_head_has_are_refused_with_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.nodes", lambda: [machine(26, 2)])
    searching = Searching(tmp_path, fixed_capacity=True)
    request(tmp_path, "set", changes={"slots.count": 8})
    (refused,) = searching.take()
    assert isinstance(refused, ev.RequestRefused)
    assert "asked: 8 slot(s)" in refused.message
    assert "2 GPUs, 26 CPUs" in refused.message
    assert searching.search.core.config.slots.count == 1
    request(tmp_path, "set", changes={"slots.count": 2})
    (changed,) = searching.take()
    assert isinstance(changed, ev.SettingsChanged)
    assert searching.search.core.config.slots.count == 2


def test_a_cluster_that_may_grow_is_asked_for_as_many_slots_as_one_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.nodes", lambda: [machine(2, 0)])
    searching = Searching(tmp_path)
    request(tmp_path, "set", changes={"slots.count": 8})
    (changed,) = searching.take()
    assert isinstance(changed, ev.SettingsChanged)


def test_a_request_is_known_again_by_its_id(tmp_path: Path) -> None:
    searching = Searching(tmp_path)
    asked = request(tmp_path, "hint", text="a higher lr was fine elsewhere")
    (given,) = searching.take()
    assert given == dataclasses.replace(
        ev.HintGiven(text="a higher lr was fine elsewhere"), source=f"user:{asked}"
    )


def measured(search: Driver) -> None:
    """Bring the search to its end."""
    search.search_to_end([0.5, 0.6, 0.4, 0.3])
    search.post(ev.UserStop(reason="enough"))
    search.post(ev.OutcomeWritten())
    assert search.core.finished is not None


def test_settings_that_come_after_the_end_are_left_for_the_next_coordinator(tmp_path: Path) -> None:
    """The present one closes: what it took would be answered, and nobody would act on it."""
    searching = Searching(tmp_path)
    request(tmp_path, "set", changes={"budget.runs": 9})
    request(tmp_path, "hint", text="late")
    looked = searching.post

    async def post(judge: Judge) -> Event | None:
        if searching.search.core.finished is None:  # the end comes between the look and the event
            measured(searching.search)
            searching.posted.clear()
        return await looked(judge)

    searching.requests = ControlRequests(
        searching.search.core, post, tmp_path, use_settings=searching.use_settings, fixed_capacity=False
    )
    asyncio.run(searching.requests.take())
    (refused,) = searching.posted
    assert isinstance(refused, ev.RequestRefused) and refused.kind == "hint"
    assert is_extension_requested(tmp_path)
    searching.posted.clear()
    asyncio.run(searching.requests.take(at_start=True))
    (extended,) = searching.posted
    assert isinstance(extended, ev.SearchExtended)
    assert searching.search.core.finished is None
    assert not is_extension_requested(tmp_path)


def test_a_request_whose_file_cannot_be_removed_is_taken_once_and_the_next_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)  # another user's directory, for example
    searching = Searching(tmp_path)
    request(tmp_path, "hint", text="lower the lr")
    request(tmp_path, "veto", "no", node=9)
    for _ in range(3):
        asyncio.run(searching.requests.take())
    assert [type(event) for event in searching.posted] == [ev.HintGiven, ev.RequestRefused]
    assert [record.message for record in caplog.records if "cannot be removed" in record.message] == [
        f"requests/{path.name} cannot be removed: [Errno 13] Permission denied: '{path}'. It was taken; "
        "remove it."
        for path in sorted((tmp_path / "requests").iterdir())
    ]
