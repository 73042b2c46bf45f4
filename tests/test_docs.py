"""The documentation: README for a newcomer, pages, drawings, generated references, citation.

The strict build and the commands in the pages need what `make venv` installs and no network.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer
import yaml

import llmzero_ray
from benchmarks.suite import scores as suite_scores
from benchmarks.suite.headroom import headrooms
from benchmarks.suite.plan import (
    LAST_METHODS,
    LAST_SEEDS,
    LATER_SEEDS,
    LLM_METHODS,
    LLM_SEEDS,
    MENDED_METHODS,
    MENDED_SEEDS,
)
from llmzero_ray import version
from llmzero_ray.cli.catalogue import subcommands
from llmzero_ray.cli.main import _command
from llmzero_ray.cli.settings import with_whole_keys
from llmzero_ray.config import SearchConfig, load_config, presets

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = sorted((ROOT / "docs").glob("*.md"))
DRAWINGS = sorted((ROOT / "docs" / "images").glob("*.svg"))


# --- README


def test_the_readme_is_short_and_has_a_picture_python_and_the_two_commands() -> None:
    assert len(README.encode()) <= 8_000
    assert "    make demo " in README and "    make test " in README
    (picture,) = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert (ROOT / picture).stat().st_size < 200_000
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    compile(example, "README.md", "exec")


def test_the_figures_of_the_readme_are_those_of_the_demo_and_of_the_measurements() -> None:
    demo, measured = ((ROOT / "docs" / f"{name}.md").read_text() for name in ("demo", "measurements"))
    row = r"^\| (base model|default recipe|found strategy)[^|]*\| ([\d.]+ ± [\d.]+) \|"
    line = (
        r"^    test  (base model|default recipe|best strategy)(?:, whole compute)? +([\d.]+ ± [\d.]+) \(1024"
    )
    scores = dict(re.findall(row, README, re.MULTILINE))
    printed = dict(re.findall(line, demo, re.MULTILINE))
    assert len(scores) == 3
    assert scores == {name.replace("best", "found"): score for name, score in printed.items()}
    for figure in ("0.8223", "0.8193", "8.2 min", "11.3 min"):
        assert figure in README and figure in measured
    assert "python -m benchmarks.compare runs/local runs/local-2 runs/local-3" in measured
    headroom = json.loads((ROOT / "benchmarks" / "suite" / "headroom.json").read_text())
    assert (
        f"{headroom['sum_alpha']['best']:.3f}" in README
        and f"{headroom['sum_alpha']['best']:.3f}" in measured
    )


def test_the_scores_of_the_suite_on_the_pages_are_those_that_are_kept() -> None:
    """Base model, then methods in the order of the tables."""
    rows = suite_scores.current(suite_scores.read())
    last = [row for row in rows if row["method"] in LAST_METHODS and row["seed"] in LAST_SEEDS]
    kept = re.findall(r"^\| (\w+) \| (.* \(10\)) \|$", suite_scores.table(last), re.MULTILINE)
    assert {task for task, _ in kept} == set(headrooms())
    suite = (ROOT / "docs" / "suite.md").read_text()
    for task, cells in kept:
        shown = cells.replace(" (10)", "")
        assert re.search(rf"^\| `{task}`[^|]* \| {re.escape(shown)} \|", README, re.MULTILINE), shown
        assert re.search(rf"^\| {task}(, control)? \| {re.escape(shown)} \|", suite, re.MULTILINE), shown
    of_model = ((LLM_METHODS, LLM_SEEDS), (MENDED_METHODS, MENDED_SEEDS), (MENDED_METHODS, LATER_SEEDS))
    for methods, seeds in of_model:
        model = [row for row in rows if row["method"] in methods and row["seed"] in seeds]
        kept = re.findall(r"^\| (\w+) \| (.* \(3\)) \|$", suite_scores.table(model), re.MULTILINE)
        assert len(kept) == 4
        for task, cells in kept:
            shown = cells.replace(" (3)", "")
            assert re.search(rf"^\| {task}(, control)? \| {re.escape(shown)} \|", suite, re.MULTILINE), shown


def test_the_scores_of_development_seeds_on_the_page_are_those_that_are_kept() -> None:
    rows = suite_scores.current(suite_scores.read())
    suite = (ROOT / "docs" / "suite.md").read_text()
    assert suite_scores.tables(rows).split("\n\n")[1] in suite
    ten = [row for row in rows if row["seed"] in range(1, 11)]
    phases = [row for row in ten if row["method"] in ("default", "unchanged", "carried")]
    for task in ("sum_noisy", "codes_alpha"):
        (line,) = re.findall(
            rf"^\| {task} \| [\d.]+ \| (.* \(10\)) \|$", suite_scores.table(phases), re.MULTILINE
        )
        assert f"| {task} | {line.replace(' (10)', '')} |" in suite


def test_every_measurement_is_a_table_with_its_command() -> None:
    sections = re.split(r"\n## ", (ROOT / "docs" / "measurements.md").read_text())[1:]
    assert len(sections) >= 12
    known = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} | {"chaos", "suite"}
    for section in sections:
        named = re.findall(r"`(?:python -m (?:benchmarks|jobs)\.(\w+)|make (\w+)|pytest)", section)
        assert named and "\n|---|" in section, section
        assert {module for module, _ in named if module} <= known


def test_the_drawing_of_the_folders_has_the_order_in_which_they_may_import() -> None:
    drawing = (ROOT / "docs" / "layout.md").read_text().split("```")[1]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = " | ".join(contracts[0]["layers"]).split(" | ")
    drawn = re.findall(r"(\w+)(?:/|\.py)", drawing)
    assert sorted(set(drawn) - set(layers)) == ["actors"]
    drawn.remove("actors")
    assert drawn == layers


def test_an_example_of_an_extension_has_at_most_20_lines() -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "extend.md").read_text(), re.DOTALL)
    assert len(examples) >= 6
    assert [one for one in examples if len(one.splitlines()) > 20] == []


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_links_of_a_page_lead_to_files_of_the_checkout_or_to_pages_of_the_site(page: Path) -> None:
    generated = {"configuration.md", "commands.md", "security.md"}
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http", "gallery/")) and not (page.parent != ROOT and target in generated):
            assert (page.parent / target).exists(), target


# --- commands and settings that the pages show


def shown_commands() -> list[tuple[str, str]]:
    found = []
    notebooks = sorted((ROOT / "docs" / "examples").glob("*.ipynb"))
    for page in (*(ROOT / name for name in ("README.md", "AGENTS.md", "SECURITY.md")), *PAGES, *notebooks):
        text = page.read_text()
        if page in notebooks:
            text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
        lines = re.findall(r"^    (llmzero .*)$", text, re.M) + re.findall(r"`(llmzero [^`]+)`", text)
        found += [(page.name, " ".join(line.split())) for line in lines]
    return found


@pytest.mark.parametrize(("page", "line"), shown_commands(), ids=lambda value: str(value)[:60])
def test_a_command_that_a_page_shows_is_one_that_the_parser_takes(page: str, line: str) -> None:
    words = shlex.split(re.sub(r"\s#.*|\s?\.\.\.|…", "", line))[1:]
    if not words or words[0].isupper() or words[0].startswith("-"):
        return
    assert words[0] in (*subcommands(), "help", "version"), line
    if len(words) > 1:
        numbered = [{"NODE": "3", "N": "3", "S": "60", "STEP": "10"}.get(word, word) for word in words[1:]]
        try:
            _command().get_command(None, words[0]).make_context(words[0], numbered)
        except typer.TyperException as error:
            if not re.search("Missing|requires an argument", error.format_message()):  # a part of a command
                raise
        if words[0] == "search":
            settings = [word for word in words if re.fullmatch(r"[a-z_.]+=\S+", word)]
            load_config("local", with_whole_keys(settings))


def test_settings_that_the_pages_name_exist() -> None:
    fields = set()

    def walk(model: type, path: str) -> None:
        for name, field in model.model_fields.items():  # type: ignore[attr-defined]
            fields.add(f"{path}{name}")
            if hasattr(field.annotation, "model_fields"):
                walk(field.annotation, f"{path}{name}.")

    walk(SearchConfig, "")
    blocks = {name.split(".")[0] for name in fields}
    for page in (ROOT / "README.md", *PAGES):
        for named in re.findall(r"`([a-z_]+\.[a-z_]+)(?:[:=][^`]*)?`", page.read_text()):
            if named.split(".")[0] in blocks and not named.endswith((".yaml", ".md", ".py", ".json")):
                assert named in fields, f"{page.name}: {named}"


# --- the site


class Images(HTMLParser):
    """Addresses of everything that a page loads when it is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("img", "script") and given.get("src"):
            self.loaded.append(str(given["src"]))
        if tag == "link" and given.get("rel") in ("stylesheet", "preload"):
            self.loaded.append(str(given["href"]))


@pytest.mark.slow
def test_the_site_builds_strictly_and_has_every_field_command_and_public_name(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = {path.stem: path.read_text() for path in (tmp_path / "site").glob("*.html")}
    for field in (
        "budget.runs",
        "agents.backend",
        "slots.gpu_memory_gib",
        "search.method",
        "checkpoint_every",
    ):
        assert f"<code>{field}</code>" in pages["configuration"]
    assert "<code>actor_rollout_ref.rollout.temperature</code>" in pages["configuration"]
    for name, one in subcommands().items():
        assert f'id="{name}"' in pages["commands"]
        assert one.examples[0].split("&")[0].split('"')[0] in pages["commands"].replace("&quot;", '"')
    public = [f"llmzero_ray.api.{name}" for name in llmzero_ray.__all__ if name != "__version__"]
    exported = re.search(r"^__all__ = (\[.*?\])$", (ROOT / "llmzero_ray/tune/__init__.py").read_text(), re.M)
    assert exported is not None
    for name in ast.literal_eval(exported[1]):
        assert re.search(rf'id="llmzero_ray\.tune\.([a-z_]+\.)?{name}"', pages["api"])
    for name in (*public, "llmzero_ray.api.Search.nodes", "llmzero_ray.errors.ConfigError"):
        assert f'id="{name}"' in pages["api"]
    assert "Sockets" in pages["security"]
    shown = set(re.findall(r'"(gallery/\w+\.html)"', pages["gallery"]))
    assert len(shown) == 6
    for name in shown:
        assert "<title>" in (tmp_path / "site" / name).read_text()
    for name, page in pages.items():  # nothing comes from another server
        parser = Images()
        parser.feed(page)
        assert [address for address in parser.loaded if re.match(r"(https?:)?//", address)] == [], name


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda path: path.name)
def test_a_drawing_is_sound_and_says_in_words_what_it_shows(drawing: Path) -> None:
    root = ElementTree.parse(drawing).getroot()
    label = root.get("aria-label") or ""
    assert len(label) > 40
    width, height = (float(root.get(side) or 0) for side in ("width", "height"))
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 <= float(text.get("x") or -1) <= width and 0 <= float(text.get("y") or -1) <= height
    assert "http" not in drawing.read_text().replace("http://www.w3.org/2000/svg", "")


def test_concepts_has_every_drawing() -> None:
    concepts = (ROOT / "docs" / "concepts.md").read_text()
    assert all(path.name in concepts for path in (ROOT / "docs" / "images").glob("*.svg"))


# --- citation


def test_the_citation_holds_what_the_format_asks_for() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(cited)
    assert cited["version"] == version.__version__
    assert cited["license"] == "Apache-2.0"
    assert {"family-names", "given-names"} == set(cited["references"][0]["authors"][0])
    assert "2606.18388" in cited["references"][0]["url"]


def test_shipped_configurations_are_named_in_the_pages() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert [name for name in presets.names() if not name.startswith("qwen3") and name not in text] == []
