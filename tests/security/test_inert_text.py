"""Text of agents, servers, rewards and files on its way to terminals, logs and reports: it is shown and does
nothing."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from rich.live import Live
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from llmzero_ray.cli import main as cli
from llmzero_ray.cli.output import TerminalConsole, print_line
from llmzero_ray.errors import TaskError
from llmzero_ray.hyperparameters import format_value
from llmzero_ray.plots import style
from llmzero_ray.report.render import inert
from llmzero_ray.utils.logs import log_to

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202eb\x00\x08\rc"


def is_plain(text: str) -> bool:
    return all(each.isprintable() or each == "\n" for each in text)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_console_prints_no_control_characters_whatever_it_prints(is_terminal: bool) -> None:
    shown = io.StringIO()
    console = TerminalConsole(file=shown, force_terminal=is_terminal, no_color=True, width=60)
    table, tree = Table(), Tree(Text(HOSTILE))
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    tree.add(HOSTILE)
    print_line(console, HOSTILE)
    console.print(table, tree, HOSTILE)
    text = shown.getvalue()
    assert "owned" in text  # shown as text
    assert all(each not in text for each in ("\x1b]", "\x1b[2J", "\x9b", "\u202e", "\x07", "\x00", "\x08"))


def test_a_live_display_still_redraws_itself() -> None:
    shown = io.StringIO()
    console = TerminalConsole(file=shown, force_terminal=True, width=60)
    with Live(Text(HOSTILE), console=console, auto_refresh=False) as live:
        live.update(Text(f"second {HOSTILE}"), refresh=True)
    text = shown.getvalue()
    assert "\x1b[?25l" in text and "second" in text  # rich's own: the cursor is hidden
    assert "\x1b]0" not in text and "\x1b[2J" not in text


def test_an_error_on_the_terminal_has_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Command:
        def make_context(self, *_: object) -> None:
            raise TaskError(f"{HOSTILE}\nsecond line")

    monkeypatch.setattr(cli, "_command", Command)
    assert cli.main(["list"]) == 2
    shown = capsys.readouterr().err
    assert is_plain(shown) and shown.splitlines()[-1] == "second line"


def test_a_log_line_cannot_pretend_to_be_another_entry(tmp_path: Path) -> None:
    handler = log_to(tmp_path / "coordinator.log")
    try:
        logging.getLogger("llmzero_ray.test").warning("%s\n2026-01-01 00:00:00,000 INFO all is well", HOSTILE)
    finally:
        logging.getLogger("llmzero_ray").removeHandler(handler)
        handler.close()
    written = (tmp_path / "coordinator.log").read_text()
    assert is_plain(written)
    assert sum(line.startswith("20") for line in written.splitlines()) == 1
    assert "\n    2026-01-01" in written


@pytest.mark.parametrize(
    ("foreign", "shown"),
    [
        ("<script>alert(1)</script>", "&lt;script>alert(1)&lt;/script>"),
        ("<img src=x onerror=y>", "&lt;img src=x onerror=y>"),
        ("<!-- hidden -->", "&lt;!-- hidden -->"),
        ("![x](http://evil/p.png)", "![x&#93;(http&#58;//evil/p.png)"),
        ("[c](javascript:alert(1))", "[c&#93;(javascript:alert(1))"),
        ("[c][1]", "[c&#93;[1]"),
        ("- [1]: javascript:x", "- [1&#93;: javascript:x"),
        ("<https://evil>", "&lt;https&#58;//evil>"),
        ("see HTTP://evil and www.evil", "see HTTP&#58;//evil and www&#46;evil"),
        ("_https://evil_ and _www.evil_", "_https&#58;//evil_ and _www&#46;evil_"),
        ("```\n<b>\n```", "&#96;&#96;&#96;\n&lt;b>\n&#96;&#96;&#96;"),
        ("~~~\n```\n~~~\n<b>", "&#126;&#126;&#126;\n&#96;&#96;&#96;\n&#126;&#126;&#126;\n&lt;b>"),
        ("[page](report.htmlx)", "[page&#93;(report.htmlx)"),
        (HOSTILE, "a31mb\nc"),
        ("p < 0.001, betas (0.9, 0.999), [1, 2], a|b", "p < 0.001, betas (0.9, 0.999), [1, 2], a|b"),
    ],
)
def test_a_report_holds_no_foreign_tags_links_or_pictures(foreign: str, shown: str) -> None:
    own = "[report.html](report.html)\n\n```KEYtext\n[a](b) <c>\n```KEY\n"
    assert inert(f"{own}{foreign}\n", "KEY") == f"{own.replace('KEY', '')}{shown}\n"


def test_text_in_a_code_block_cannot_end_it() -> None:
    shown = inert("```KEYtext\na\n```\n   ````\n<b>\n```KEY\n<b>\n", "KEY")
    assert shown == "```text\na\n'''\n   '''`\n<b>\n```\n&lt;b>\n"


def test_a_warning_on_the_terminal_has_no_control_characters() -> None:
    script = f"from llmzero_ray.cli.main import main; import logging; main(['--version']); {_WARNING}"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stderr
    assert is_plain(shown) and "a31mb" in shown


_WARNING = f"logging.getLogger('llmzero_ray.x').warning('%s', {HOSTILE!r})"


def test_text_in_a_picture_is_no_formula() -> None:
    with style.applied():
        figure = style.new_figure(2.0, 1.0)
        figure.add_subplot().set_title(r"$\no{formula$")
        assert style.png(figure)


def test_a_megabyte_that_an_older_version_took_is_shown_in_part() -> None:
    assert len(format_value("data.truncation", "x" * 2**20)) == 200
    assert len(format_value("n", 10**5000)) < 100
