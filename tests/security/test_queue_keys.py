"""The TransferQueue on TCP ports reads no frame of a process that does not hold the slot's keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from llmzero_ray.engines.verl.queue_keys import KeyPair, protect

PATIENCE_MS = 20_000


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def keys() -> KeyPair:
    return KeyPair(*zmq.curve_keypair())


def server(context: zmq.Context[Any], keys: KeyPair) -> tuple[Any, str]:
    socket = protect(context.socket(zmq.ROUTER), keys)
    socket.rcvtimeo = PATIENCE_MS
    return socket, f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"


def refused(intruder: Any, address: str) -> bool:
    """Whether a server ends the connection instead of taking the frames."""
    monitor = intruder.get_monitor_socket()
    intruder.connect(address)
    intruder.send_multipart([b"hello"])
    failures = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    failures |= zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_DISCONNECTED
    while monitor.poll(PATIENCE_MS):
        event = int.from_bytes(monitor.recv_multipart()[0][:2], "little")
        if event & zmq.EVENT_HANDSHAKE_SUCCEEDED:
            return False
        if event & failures:
            return True
    raise AssertionError("the server neither took nor refused the connection")


def test_processes_of_a_slot_speak_to_each_other(context: zmq.Context[Any], keys: KeyPair) -> None:
    there, address = server(context, keys)
    here = protect(context.socket(zmq.DEALER), keys)
    here.connect(address)
    here.send_multipart([b"a", b"b"])
    assert there.recv_multipart()[1:] == [b"a", b"b"]


def test_sockets_within_a_process_stay_as_they_are(context: zmq.Context[Any], keys: KeyPair) -> None:
    back, front = (protect(context.socket(zmq.DEALER), keys) for _ in range(2))
    back.bind("inproc://workers")
    front.connect("inproc://workers")
    front.send(b"x")
    back.rcvtimeo = PATIENCE_MS
    assert back.recv() == b"x"


@pytest.mark.parametrize("intruder", ["without keys", "other keys", "public key alone"])
def test_frames_of_others_are_not_read(context: zmq.Context[Any], keys: KeyPair, intruder: str) -> None:
    there, address = server(context, keys)
    elsewhere = zmq.Context()
    socket = elsewhere.socket(zmq.DEALER)
    if intruder != "without keys":
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        socket.curve_serverkey = zmq.curve_keypair()[0] if intruder == "other keys" else keys.public
    assert refused(socket, address)
    elsewhere.destroy(linger=0)
    with pytest.raises(zmq.Again):
        there.recv_multipart(zmq.DONTWAIT)


def test_an_unprotected_server_takes_the_frames_of_anybody(context: zmq.Context[Any]) -> None:
    there = context.socket(zmq.ROUTER)
    there.rcvtimeo = PATIENCE_MS
    address = f"tcp://127.0.0.1:{there.bind_to_random_port('tcp://127.0.0.1')}"
    assert not refused(context.socket(zmq.DEALER), address)
    assert there.recv_multipart()[1:] == [b"hello"]


def test_a_context_with_protected_servers_can_be_ended(keys: KeyPair) -> None:
    context = zmq.Context()
    there, _ = server(context, keys)
    more, _ = server(context, keys)
    there.close(linger=0)
    more.close(linger=0)
    context.term()
    assert context.closed


def test_keys_are_not_shown(keys: KeyPair) -> None:
    assert keys.secret.decode() not in repr(keys)


def test_servers_of_two_slots_in_one_context_admit_the_holders_of_their_own_keys(
    context: zmq.Context[Any], keys: KeyPair
) -> None:
    others = KeyPair(*zmq.curve_keypair())
    for own, foreign in ((keys, others), (others, keys)):
        there, address = server(context, own)
        intruder = context.socket(zmq.DEALER)
        intruder.curve_publickey, intruder.curve_secretkey = foreign.public, foreign.secret
        intruder.curve_serverkey = own.public
        assert refused(intruder, address)
        intruder.close(linger=0)
        here = protect(context.socket(zmq.DEALER), own)
        here.connect(address)
        here.send_multipart([b"a"])
        assert there.recv_multipart()[1:] == [b"a"]
