"""The Hugging Face Hub on loopback, as far as `huggingface_hub` uses it to send and to fetch a model.

Repositories are made, asked for and listed; files are sent by preupload, LFS batch, upload, verification and
commit, and fetched by HEAD and GET of `resolve`, as the real API has it. Everything asked is in `requests`.
Not here: Xet, multipart uploads, data sets and spaces.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest

TOKEN = "hf_" + "T0kenOfAnn" * 3
OWNER = "ann"
"""To whom the token belongs."""


@dataclass
class Repository:
    """One model's repository: its newest files, and how many commits there were."""

    private: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[list[str]] = field(default_factory=list)
    """File names of each commit."""

    @property
    def sha(self) -> str:
        state = json.dumps([self.commits, sorted((k, sha256(v)) for k, v in self.files.items())])
        return hashlib.sha1(state.encode()).hexdigest()


@dataclass
class HubServer:
    """The state of the Hub, and what was asked of it."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    """LFS: SHA-256 -> content."""
    requests: list[tuple[str, str]] = field(default_factory=list)
    """(method, path) of each."""
    headers: list[str] = field(default_factory=list)
    """Authorization of each; empty without one."""
    committing: threading.Event = field(default_factory=threading.Event)
    """Set when a commit has been asked for."""
    hold_commits: bool = False
    """Commits are not answered."""
    refuse_commits: int = 0
    """Status with which commits are answered; 0: they are taken."""

    def asked(self, method: str, part: str) -> int:
        """How many requests of this method had `part` in their path."""
        return sum(method == each and part in path for each, path in self.requests)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def hub_server() -> Iterator[HubServer]:
    """A Hub that listens until the block ends."""
    hub, ends = HubServer(), threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub, ends))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        ends.set()
        server.shutdown()
        server.server_close()


def use(hub: HubServer, change: pytest.MonkeyPatch) -> None:
    """Have this process, and those that it starts, take `hub` for the Hub, signed in by the environment."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        change.delenv(name, raising=False)
        change.delenv(name.lower(), raising=False)
    change.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)  # read at its import
    change.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
    template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    change.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    change.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)  # LFS, which every Hub speaks
    change.setenv("HF_HUB_DISABLE_XET", "1")
    change.setenv("HF_ENDPOINT", hub.url)
    change.setenv("HF_TOKEN", TOKEN)


def _handler(hub: HubServer, ends: threading.Event) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the signature is http.server's
            pass

        def answer(self, status: int, content: Any = None, **headers: str) -> None:
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def refuse(self, status: int, text: str, code: str = "") -> None:
            more = {"X_Error_Code": code} if code else {}
            self.answer(status, {"error": text}, X_Error_Message=text, **more)

        def do_POST(self) -> None:
            self.take()

        def do_PUT(self) -> None:
            self.take()

        def do_GET(self) -> None:
            self.take()

        def do_HEAD(self) -> None:
            self.take()

        def take(self) -> None:
            path = unquote(urlsplit(self.path).path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            authorization = self.headers.get("Authorization", "")
            hub.requests.append((self.command, path))
            hub.headers.append(authorization)
            if path.startswith("/storage/"):  # signed addresses carry no token
                self.store(path.rpartition("/")[2], body)
            elif authorization and authorization != f"Bearer {TOKEN}":
                self.refuse(401, "Invalid credentials in Authorization header")
            elif path == "/api/repos/create":
                self.create(json.loads(body))
            elif path == "/api/validate-yaml":
                self.answer(200, {"errors": [], "warnings": []})
            elif path.endswith(".git/info/lfs/objects/batch"):
                self.batch(path.removesuffix(".git/info/lfs/objects/batch")[1:], json.loads(body))
            elif path.startswith("/api/models/"):
                owner, name, *rest = path.removeprefix("/api/models/").split("/")
                self.model(f"{owner}/{name}", rest, body)
            elif "/resolve/" in path:
                self.resolve(path)
            else:
                self.refuse(404, f"no such address: {path}")

        def may_write(self, repo: str) -> bool:
            if repo.partition("/")[0] == OWNER and self.headers.get("Authorization"):
                return True
            self.refuse(403, f"You don't have the rights to write to {repo}")
            return False

        def create(self, asked: dict[str, Any]) -> None:
            repo = f"{asked['organization']}/{asked['name']}"
            if not self.may_write(repo):
                return
            address = {"url": f"{hub.url}/{repo}"}
            if repo in hub.repositories:
                self.answer(409, {**address, "error": "You already created this model repo"})
                return
            hub.repositories[repo] = Repository(private=asked.get("visibility") == "private")
            self.answer(200, address)

        def model(self, repo: str, rest: list[str], body: bytes) -> None:
            found = hub.repositories.get(repo)
            if found is None or (found.private and not self.headers.get("Authorization")):
                self.refuse(
                    404 if self.headers.get("Authorization") else 401, "Repository not found", "RepoNotFound"
                )
            elif rest[:1] == ["preupload"]:
                if self.may_write(repo):
                    self.preupload(found, json.loads(body))
            elif rest == ["verify"]:
                sent = json.loads(body)
                known = hub.objects.get(sent["oid"])
                self.answer(200 if known is not None and len(known) == sent["size"] else 404, {})
            elif rest[:1] == ["commit"]:
                if self.may_write(repo):
                    self.commit(repo, found, body)
            elif rest[:1] == ["revision"] and rest[1] not in ("main", found.sha):
                self.refuse(404, f"Invalid rev id: {rest[1]}", "RevisionNotFound")
            elif rest[:1] in ([], ["revision"]):
                files = [{"rfilename": name, "size": len(found.files[name])} for name in sorted(found.files)]
                self.answer(
                    200,
                    {"_id": "1", "id": repo, "modelId": repo, "sha": found.sha, "private": found.private}
                    | {"siblings": files, "tags": [], "downloads": 0, "likes": 0},
                )
            elif rest[:1] == ["tree"]:
                self.answer(
                    200,
                    [
                        {"type": "file", "path": name, "size": len(content), "oid": git_hash(content)}
                        for name, content in sorted(found.files.items())
                    ],
                )
            else:
                self.refuse(404, f"no such address: {rest}")

        def preupload(self, repo: Repository, asked: dict[str, Any]) -> None:
            files = []
            for file in asked["files"]:
                known = repo.files.get(file["path"])
                large = file["path"].endswith(".safetensors")
                oid = None if known is None else sha256(known) if large else git_hash(known)
                mode = "lfs" if large else "regular"
                files.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
            self.answer(200, {"files": files})

        def batch(self, repo: str, asked: dict[str, Any]) -> None:
            if not self.may_write(repo):
                return
            assert asked["operation"] == "upload"
            assert "basic" in asked["transfers"]
            objects = []
            for entry in asked["objects"]:
                found: dict[str, Any] = {"oid": entry["oid"], "size": entry["size"]}
                if entry["oid"] not in hub.objects:
                    found["actions"] = {
                        "upload": {"href": f"{hub.url}/storage/{entry['oid']}"},
                        "verify": {"href": f"{hub.url}/api/models/{repo}/verify"},
                    }
                objects.append(found)
            self.answer(200, {"transfer": "basic", "objects": objects})

        def store(self, oid: str, body: bytes) -> None:
            if sha256(body) != oid:
                self.refuse(400, "the content does not have this SHA-256")
                return
            hub.objects[oid] = body
            self.answer(200, {})

        def commit(self, name: str, repo: Repository, body: bytes) -> None:
            hub.committing.set()
            if hub.hold_commits:
                ends.wait()
                return
            if hub.refuse_commits:
                self.refuse(hub.refuse_commits, "try later")
                return
            header, *changes = [json.loads(line) for line in body.splitlines()]
            assert header["key"] == "header"
            assert header["value"]["summary"]
            sent = {}
            for change in changes:
                value = change["value"]
                if change["key"] == "lfsFile":
                    sent[value["path"]] = hub.objects[value["oid"]]
                else:
                    assert change["key"] == "file"
                    sent[value["path"]] = base64.b64decode(value["content"])
            repo.files |= sent
            repo.commits.append(sorted(sent))
            self.answer(200, {"commitUrl": f"{hub.url}/{name}/commit/{repo.sha}", "commitOid": repo.sha})

        def resolve(self, path: str) -> None:
            repo, _, rest = path[1:].partition("/resolve/")
            revision, _, name = rest.partition("/")
            found = hub.repositories.get(repo)
            if found is None or revision not in ("main", found.sha):
                self.refuse(404, "Repository not found", "RepoNotFound")
            elif name not in found.files:
                self.refuse(404, "Entry not found", "EntryNotFound")
            else:
                content = found.files[name]
                self.answer(200, content, ETag=f'"{git_hash(content)}"', X_Repo_Commit=found.sha)

    return Handler
