"""Pages that mkdocs makes of the code while it builds the site: configuration, commands, security, gallery.

They are never written into docs/, so that none can be out of date.
"""

from __future__ import annotations

import os
import re
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from llmzero_ray.cli.catalogue import subcommands
from llmzero_ray.cli.main import command_help
from llmzero_ray.config import SearchConfig, presets
from llmzero_ray.config.yaml_text import allowed_values
from llmzero_ray.hyperparameters import SPACE, allowed
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.tasks.sft.config import SftConfig
from llmzero_ray.ui.page import report_html

ROOT = Path(__file__).parent.parent
RECORDED = ROOT / "tests" / "blackbox" / "runs"
SUITE = ROOT / "benchmarks" / "suite"
_WORKER = "https://unpkg.com/iframe-worker/shim"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {
        "configuration.md": configuration(),
        "commands.md": commands(),
        "security.md": (ROOT / "SECURITY.md").read_text(),
        "coding_agents.md": (ROOT / "AGENTS.md")
        .read_text()
        .replace("docs/concepts.md", "[Concepts](concepts.md)"),
        **{
            f"gallery/{name}.html": report_html(SearchFacts(RECORDED / name))
            for name in ("demo", "failed", "two_slots")
        },
        "gallery/register_alpha.html": _page_of_archive(SUITE / "search_of_a_model.tar.xz"),
        "gallery/smollm2.html": _page_of_archive(SUITE / "search_of_smollm2.tar.xz"),
        "gallery/smollm2_claude.html": _page_of_archive(SUITE / "search_of_smollm2_claude.tar.xz"),
        "llms.txt": "\n".join(_listed(config.nav or [], config.site_name)) + "\n",
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def _page_of_archive(archive: Path) -> str:
    with tempfile.TemporaryDirectory() as place, tarfile.open(archive) as packed:
        packed.extractall(place, filter="data")
        (search,) = Path(place).iterdir()
        return report_html(SearchFacts(search))


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Read the worker of the search box from the site itself: pages opened as files need it."""
    return output.replace(_WORKER, "../" * page.url.count("/") + "javascripts/iframe-worker-1.0.4.js")


def on_post_template(output_content: str, **_: Any) -> str:
    return output_content.replace(_WORKER, "/javascripts/iframe-worker-1.0.4.js")


def _listed(nav: list[Any], title: str) -> Iterator[str]:
    """The lines of llms.txt: each page of the site with its path."""
    yield f"# {title}"
    for entry in nav:
        for name, page in entry.items():
            if isinstance(page, str):
                yield f"- [{name}]({page.removesuffix('.md')}.html)"
            else:
                yield from ("", f"## {name}", *list(_listed(page, ""))[1:])


# --- the configuration --------------------------------------------------------------------------------------


def configuration() -> str:
    """Every field of search.yaml, the hyper-parameters, and warm_start.yaml."""
    names = ", ".join(f"`{name}`" for name in presets.names())
    lines = [
        "# Configuration",
        "",
        "Written from the settings classes of `llmzero_ray/config/` when this site is built. Unknown keys "
        "are refused, with the nearest known one. Any field can be set on the command line: "
        "`--set budget.runs=12 seed=2`. "
        f"Shipped configurations, found by name: {names}; `llmzero init` copies one.",
        "",
        "Editors that know YAML schemas check and complete the file: `llmzero init` writes the line for it, "
        "`llmzero init --schema` prints the schema.",
        "",
        *_block("", SearchConfig, 2),
        *_hyperparameters(),
        "",
        "## Warm start",
        "",
        "`llmzero warm-start warm_start.yaml` reads these.",
        "",
        *_table(SftConfig, ""),
    ]
    return "\n".join(lines) + "\n"


def _block(path: str, model: type[BaseModel], level: int) -> Iterator[str]:
    """The table of a block's fields, then the blocks below it."""
    yield f"{'#' * level} {f'`{path}`' if path else 'Top level'}"
    yield ""
    doc = (model.__doc__ or "").strip()
    if doc and path:
        yield from (re.sub(r"\n\s*", " ", doc), "")
    yield from _table(model, path)
    yield ""
    for name, field in model.model_fields.items():
        below = _submodel(field)
        if below is not None:
            yield from _block(f"{path}.{name}" if path else name, below, level + bool(path))


def _table(model: type[BaseModel], path: str) -> Iterator[str]:
    yield "| key | default | allowed | meaning |"
    yield "|---|---|---|---|"
    for name, field in model.model_fields.items():
        if _submodel(field) is not None:
            continue
        extra: Any = field.json_schema_extra or {}
        unit = f", {extra['unit']}" if "unit" in extra else ""
        cells = (
            f"`{f'{path}.{name}' if path else name}`",
            _default(field),
            _cell(allowed_values(field)) + unit,
            _cell(field.description or ""),
        )
        yield f"| {' | '.join(cells)} |"


def _submodel(field: FieldInfo) -> type[BaseModel] | None:
    found = field.annotation
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    text = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
    return f"`{text}`" if isinstance(value, str | int | float | bool | None | list | dict) else f"`{value}`"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


def _hyperparameters() -> Iterator[str]:
    yield from (
        "## Hyper-parameters",
        "",
        "`root.overrides` sets those of the first phase, by name or by VeRL's key; proposals change them "
        "within these bounds. "
        "Hot ones are changed between two phases without a new start of the engine.",
    )
    group = None
    for row in SPACE:
        if row.group != group:
            group = row.group
            yield from ("", f"### {group.capitalize()}", "")
            yield from (
                "| name | VeRL's key | default | allowed | hot | meaning |",
                "|---|---|---|---|---|---|",
            )
        names = ", ".join(f"`{name}`" for name in (row.alias, *row.also))
        hot = "yes" if row.hot else "no"
        default = "null" if row.default is None else row.default
        yield f"| {names} | `{row.key}` | `{default}` | {_cell(allowed(row))} | {hot} | {_cell(row.doc)} |"


# --- the commands -------------------------------------------------------------------------------------------


def commands() -> str:
    """The help of every command."""
    lines = [
        "# Commands",
        "",
        "Written from the parser when this site is built. Exit codes: 0 done, 1 other, 2 wrong input, "
        "3 storage, 4 capacity, 5 engine, 130 interrupted. `python -m jobs.COMMAND` is the same for the "
        "commands that are submitted as Ray jobs.",
        "",
        "| group | command | what it does |",
        "|---|---|---|",
        *(
            f"| {one.group} | [`{name}`](#{name}) | {_cell(one.help)} |"
            for name, one in subcommands().items()
        ),
    ]
    os.environ["COLUMNS"] = "100"
    for name in subcommands():
        lines += ["", f"## {name}", "", "```text", command_help(name).rstrip(), "```"]
    return "\n".join(lines) + "\n"
