"""Sockets on which a search listens, and who may connect: a row each, as described in SECURITY.md. Pure."""

from __future__ import annotations

from llmzero_ray.cli.doctor.rows import Row, Status

_CLOSED = "this needs a network that is closed to others"
_TOKEN = "set RAY_AUTH_MODE=token where Ray is started and here; see cluster.yaml"


def listeners(*, private_head: bool, n_machines: int, has_token: bool) -> list[Row]:
    """Rows for a cluster of `n_machines`. `has_token` is set if Ray requires its token.

    A `warn` is a socket through which a neighbour can run code. Sockets of slots exist while a search runs.
    """
    ray_is_closed = private_head or has_token
    at = "loopback" if private_head else "every address"
    asked = "Ray's token" if has_token else "no authentication"
    rows = [
        _row("Ray", f"{at}: gRPC of GCS, raylet and workers, HTTP of agents", asked)
        if ray_is_closed
        else _row("Ray", f"{at}: gRPC of GCS, raylet and workers", "anybody may run code", _TOKEN, bad=True),
        _row("Ray's metrics", at, "no authentication", "" if private_head else _CLOSED),
    ]
    if n_machines == 1:
        rows.append(_row("TransferQueue", "files in a directory of mode 0700", "processes of this user"))
        where = "files in a directory of mode 0700; their connections on loopback"
        rows.append(_row("torch's process groups", where, "processes of this user; of this machine"))
    else:
        rows.append(
            _row("TransferQueue", "the nodes' addresses", "keys made for each start of a slot (CURVE)")
        )
        where = "every address, of slots on several machines; of others loopback"
        rows.append(_row("torch's process groups", where, "no authentication", _CLOSED))
    rows.append(_row("vLLM", "no port", "calls of a Ray actor"))
    where = "loopback" if private_head else "the node's address, HTTP without encryption"
    rows.append(_row("llmzero serve", where, "a key made for each start"))
    return rows


def _row(who: str, where: str, authentication: str, todo: str = "", *, bad: bool = False) -> Row:
    status: Status = "warn" if bad else "ok"
    found = f"{where}; {authentication}"
    return Row(name=f"sockets, {who}", kind="capacity", status=status, found=found, todo=todo)
