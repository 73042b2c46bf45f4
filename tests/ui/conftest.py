"""A finished search for the pages, and an application that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from llmzero_ray.records import Diagnosis
from llmzero_ray.ui.server import Searches, make_app
from tests.report.builder import SearchBuilder, proposal
from tests.report.conftest import finished, scripted

__all__ = ["finished"]  # a fixture of the reports'
TOKEN = "a token of the tests that is long"
HOSTILE = (
    '"><img src=x onerror="document.title=1"></script><script>alert(1)</script>\u202ereversed\x1b[31m'
    "<!--<script>'`${1}&quot;\u2028\u2067"
)


@pytest.fixture(scope="session")
def search(tmp_path_factory: pytest.TempPathFactory) -> SearchBuilder:
    """Six nodes: a failed one, an early stop, and a diagnosis that tries to be markup."""
    made = scripted(tmp_path_factory.mktemp("pages"))
    answer = proposal(resume=(0, 20), lr=5e-4)
    seen = Diagnosis(state="plateau", summary=HOSTILE, evidence=(HOSTILE,))
    made.answers[1] = answer.__class__(**{**vars(answer), "diagnosis": seen})
    return made.ready().play()


def client(search: SearchBuilder, *, steering: bool = False, only: str | None = None) -> TestClient:
    """A browser without a cookie."""
    storage = Path(search.root).parent
    app = make_app(
        Searches(storage, only, steering=steering), token=TOKEN, hosts=frozenset({"127.0.0.1", "localhost"})
    )
    return TestClient(app, base_url="http://127.0.0.1:8280", follow_redirects=False)


@pytest.fixture
def page(search: SearchBuilder) -> TestClient:
    """A browser that has opened the printed address."""
    browser = client(search)
    browser.get("/", params={"token": TOKEN})
    return browser
