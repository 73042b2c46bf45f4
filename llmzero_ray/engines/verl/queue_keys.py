"""Keys of a TransferQueue whose sockets are TCP ports, because its slot may span several machines.

The queue unpickles what it receives, so only processes of the slot may connect. Each start of a slot creates
one CURVE key pair. The slot's processes fetch it from Ray's own key-value store, which requires Ray's token.
The pair is never in an environment variable, file or log. Servers and clients hold the same pair: a peer must
prove that it has the secret key before any of its frames is read, and all traffic is encrypted.

Queues on one machine have their sockets in a private directory instead (internals.py).
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from dataclasses import dataclass
from typing import Any

from llmzero_ray.engines.verl.internals import QUEUE_NAMESPACE_ENV
from llmzero_ray.errors import EngineError

UNPROTECTED = "create_unprotected_zmq_socket"
"""Attribute that keeps the package's own function where it is replaced."""
STORE = b"llmzero-transfer-queue"
"""Namespace of the keys in Ray's store."""
_HANDLER = "inproc://zeromq.zap.01"
"""Endpoint at which ZeroMQ asks, within a context, whether a peer may connect (ZeroMQ RFC 27)."""


@dataclass(frozen=True)
class KeyPair:
    """A CURVE key pair in ZeroMQ's format (Z85)."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        return "KeyPair(...)"


def publish_keys(namespace: str) -> None:
    """Create a start's key pair and publish it to the slot's processes. The slot's driver calls this."""
    import zmq
    from ray.experimental.internal_kv import _internal_kv_put

    public, secret = zmq.curve_keypair()
    _internal_kv_put(namespace, public + b" " + secret, namespace=STORE)


def forget_keys(namespace: str) -> None:
    """Remove the key pair of an ended start. No-op if there is no key pair or no cluster."""
    from ray.experimental.internal_kv import _internal_kv_del

    with contextlib.suppress(Exception):  # the cluster may be ending
        _internal_kv_del(namespace, namespace=STORE)


@functools.cache
def slot_keys() -> KeyPair:
    """Key pair of this process's slot.

    Raises:
        EngineError: this process belongs to no running slot.
    """
    from ray.experimental.internal_kv import _internal_kv_get

    namespace = os.environ[QUEUE_NAMESPACE_ENV]
    found = _internal_kv_get(namespace, namespace=STORE)
    if found is None:
        raise EngineError(f"Ray's store holds no keys for the TransferQueue {namespace}; has the slot ended?")
    return KeyPair(*found.split())


def protect(socket: Any, keys: KeyPair) -> Any:
    """Protect a socket, not yet bound or connected, so that it only communicates with holders of `keys`.

    A ROUTER is a server, any other socket a client. In-process sockets are unaffected.
    """
    import zmq

    socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
    if socket.type == zmq.ROUTER:
        _admit_holders(socket.context)
        socket.curve_server = True
        socket.zap_domain = keys.public  # tells the handler which key this server accepts
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # rejects peers if the handler does not answer
    else:
        socket.curve_serverkey = keys.public
    return socket


def _admit_holders(context: Any) -> None:
    """Start a handler that lets a peer connect to a server of this context only with the server's own key.

    pyzmq's handler is not used, because it keeps its sockets open, so that its context can never be
    terminated. The handler's socket is unknown to `context`: `destroy` would close it while the thread waits
    on it, which aborts the process.
    """
    import zmq

    handler = zmq.Context.shadow(context).socket(zmq.REP)
    try:
        handler.bind(_HANDLER)
    except zmq.ZMQError:  # the context already has a handler
        handler.close()
        return
    threading.Thread(target=_answer, args=(handler,), name="queue-admission", daemon=True).start()


def _answer(handler: Any) -> None:
    from zmq import ContextTerminated
    from zmq.utils import z85

    with contextlib.suppress(ContextTerminated), handler:
        while True:
            version, request, domain, _address, _identity, mechanism, *credentials = handler.recv_multipart()
            known = mechanism == b"CURVE" and credentials == [z85.decode(domain)]
            status = [b"200", b"OK"] if known else [b"400", b"not of this slot"]
            handler.send_multipart([version, request, *status, b"", b""])


def create_socket(ctx: Any, socket_type: Any, ip: str, identity: Any = None) -> Any:
    """TransferQueue's `create_zmq_socket`, with the slot's keys."""
    import transfer_queue.utils.zmq_utils as sockets

    create = getattr(sockets, UNPROTECTED, sockets.create_zmq_socket)
    return protect(create(ctx, socket_type, ip, identity), slot_keys())
