"""The command `ui`: the pages of searches in a browser."""

from __future__ import annotations

import contextlib
import errno
import secrets
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from llmzero_ray.cli.options import find_named
from llmzero_ray.cli.output import TerminalConsole, print_lines
from llmzero_ray.coordinator import run_of
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.errors import ConfigError, StorageError
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.locate import is_search, searches_in
from llmzero_ray.utils.parent_death import die_with_parent
from llmzero_ray.utils.plugins import import_problem
from llmzero_ray.utils.private_files import private_file

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def ui(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="STORAGE|SEARCH", help="directory of searches; or one search, or a node of it: demo:3"
        ),
    ] = None,
    *,
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0: any free one")] = 8280,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="address to listen on")] = "127.0.0.1",
    token_file: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="holds the token, mode 0600 (default: a new one)", show_default=False
        ),
    ] = "",
    allow_steering: Annotated[
        bool,
        typer.Option("--allow-steering", help="the page may send hint, veto, clone, approve, pause and stop"),
    ] = False,
    storage: Annotated[str, typer.Option(metavar="DIR", help="where names are looked up")] = "runs",
    child_of: Annotated[int, typer.Option(hidden=True)] = 0,
) -> int:
    """Show searches in a browser, while they run and after, until Ctrl-C.

    Open the printed address: its token is good for this server alone. From another machine, forward the port,
    for example with `ssh -L` or `kubectl port-forward`.
    """
    for package in ("starlette", "uvicorn", "sse_starlette"):
        if problem := import_problem(package):
            raise ConfigError(f"llmzero ui: {package} {problem}; `pip install 'llmzero-ray[ui]'`")
    import uvicorn

    from llmzero_ray.ui.server import Searches, make_app

    if host not in _LOOPBACK and not token_file:
        raise ConfigError(
            f"--host {host} is not a loopback address: others can reach it. Give --token-file FILE, which "
            "holds the token and which nobody else can read, or forward a loopback port."
        )
    if child_of:  # started by `search --ui`, whose search may not have begun
        die_with_parent(child_of, signal.SIGTERM)
    path = Path(place or storage).absolute()
    root, only, node = (path.parent, path.name, None) if child_of else place_of(place or storage, storage)
    listening = _listen(host, port)
    at = listening.getsockname()[1]
    with contextlib.closing(listening), _token(token_file) as (token, kept):
        app = make_app(
            Searches(root, only, steering=allow_steering), token=token, hosts=_LOOPBACK | {host.lower()}
        )
        name = f"[{host}]" if ":" in host else host
        opened = f"http://{name}:{at}/" + (f"s/{only}/" if only else "")
        opened += f"?token={token}" + ("" if node is None else f"#n{node}")
        lines = [f"{only or root} until Ctrl-C; the token is in {kept}", opened]
        print_lines(TerminalConsole(), lines)
        server = uvicorn.Server(
            uvicorn.Config(app, access_log=False, log_level="warning", timeout_graceful_shutdown=1)
        )
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # removes the token's file
        server.run(sockets=[listening])
    return 0


def place_of(place: str, storage: str) -> tuple[Path, str | None, int | None]:
    """(storage, name of the only search in it to show, node to open).

    Raises:
        ConfigError: no search or storage has that name, the storage is empty, or there is no such node.
    """
    path = Path(place).absolute()
    if not is_search(path) and searches_in(path, unreadable=True):
        return path, None, None
    if path == Path(storage).absolute() and not is_search(path):
        raise ConfigError(f"{path} holds no search. Start one with `llmzero search`.")
    found, node = find_named(place, storage)
    core = Follower.of(SearchStorage.at(found.paths.root), started=False).core
    if node is not None:
        run_of(core.runs, node, found.name)
    return found.paths.root.parent, found.paths.root.name, node


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens on this address.

    Raises:
        ConfigError: the address is in use, or does not belong to this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen()
        except OSError:
            made.close()
            raise
    except OSError as error:
        other = "port with --port" if error.errno == errno.EADDRINUSE else "address with --host"
        raise ConfigError(
            f"cannot listen on {host}, port {port}: {error.strerror}. Choose another {other}."
        ) from error
    return made


@contextlib.contextmanager
def _token(file: str) -> Iterator[tuple[str, Path]]:
    """Context with (the token, the file of mode 0600 that holds it). A missing file is created.

    Raises:
        ConfigError: the file can be read by others, or holds fewer than 16 characters.
        StorageError: it cannot be read or created.
    """
    if not file:
        token = secrets.token_urlsafe(32)
        made = private_file("ui", token + "\n")
        try:
            yield token, made.path
        finally:
            made.remove()
        return
    path = Path(file).absolute()
    try:
        if not path.exists():
            path.touch(mode=0o600, exist_ok=False)
            path.write_text(secrets.token_urlsafe(32) + "\n", encoding="utf-8")
        if not path.is_file():
            raise ConfigError(f"{path} is no file; --token-file names one that holds the token.")
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"{path} can be read by others; `chmod 600 {path}`, and write a new token.")
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    if len(token) < 16:
        raise ConfigError(f"{path} holds no token of at least 16 characters; remove it to have one made.")
    yield token, path
