"""Figures for agents: small, repeatable, without empty panels, and without data that agents must not see."""

from __future__ import annotations

import io
import math
import struct
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from llmzero_ray.agents.llm import figures
from llmzero_ray.agents.llm.figures import composite_png, draw_figure, overlay_png
from llmzero_ray.dynamics.incumbent import scores_along
from llmzero_ray.errors import AgentError
from llmzero_ray.plots import style
from llmzero_ray.records.agents import NodeView, ProposalRequest, StopRequest
from llmzero_ray.records.metrics import Curves
from tests.agents import curves as c
from tests.agents.llm import large_requests

PATH = [c.node(c.recorded(i), node=i) for i in range(4)]


def size(png: bytes | None) -> tuple[int, int]:
    assert png is not None
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def tokens(png: bytes | None) -> float:
    width, height = size(png)
    return width * height / 750


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures behind the pictures, in the order in which they were saved."""
    saved: list[Any] = []
    png = style.png

    def keep(figure: Any) -> bytes:
        saved.append(figure)
        return png(figure)

    monkeypatch.setattr(style, "png", keep)
    return saved


def colours(axes: Any) -> list[str]:
    return [line.get_color() for line in axes.lines]


def steps(axes: Any) -> list[float]:
    return [float(x) for line in axes.lines for x in line.get_xdata() if line.get_linestyle() in ("-", "--")]


def running_request() -> StopRequest:
    view = c.node(c.cut(c.recorded(3), 5), node=3, status="running", n_steps=20)
    path = tuple(
        (v.base_step + s, score)
        for v in PATH[:3]
        for s, score in zip(v.curves.val_steps, v.curves.val_scores, strict=True)
    )
    return StopRequest(task=c.TASK, running=view, incumbent=PATH[2], incumbent_path=path)


@pytest.mark.slow
def test_pictures_are_as_small_as_they_can_be_read() -> None:
    big = large_requests.proposal_request()
    for png in (composite_png(PATH[-1], PATH), composite_png(big.on, big.path)):
        assert size(png)[0] == 1100
        assert tokens(png) <= 850
    assert size(overlay_png(running_request())) == (900, 520)
    assert tokens(overlay_png(large_requests.stop_request())) <= 650


@pytest.mark.slow
def test_the_same_request_gives_the_same_bytes() -> None:
    assert composite_png(PATH[1], PATH[:2]) == composite_png(PATH[1], PATH[:2])
    assert overlay_png(running_request()) == overlay_png(running_request())


def test_a_path_is_drawn_by_global_step_with_its_borders_and_cuts(drawn: list[Any]) -> None:
    # The second phase left the first one at its step 6.
    second = c.node(replace(c.recorded(1), base_step=6), node=1)
    composite_png(second, (PATH[0], second))
    validation, reward = drawn[0].axes[:2]
    assert validation.get_title(loc="left").startswith("validation")
    curves = [line for line in reward.lines if len(line.get_xdata()) > 2]
    assert max(curves[0].get_xdata()) == 6
    assert min(curves[-1].get_xdata()) == 7
    assert max(steps(reward)) == 16
    borders = [line for line in reward.lines if line.get_linestyle() == "--"]
    assert [list(line.get_xdata()) for line in borders] == [[6, 6]]


def test_only_panels_with_data_are_drawn(drawn: list[Any]) -> None:
    found = c.curves(20, reward=c.line(0.1, 0.5, 20), kl=c.line(0, 0.1, 20), val={10: 0.3, 20: 0.4})
    assert size(composite_png(c.node(found)))[1] < 400
    assert [axes.get_title(loc="left") for axes in drawn[0].axes] == [
        "validation ± 1 std. error",
        "reward (train)",
        "KL to the base model",
    ]
    flat = c.curves(20, reward=c.line(0.1, 0.5, 20), kl=[0.1] * 20, entropy=[0.5] * 20, val={20: 0.4})
    composite_png(c.node(flat))
    assert [axes.get_title(loc="left") for axes in drawn[1].axes] == [
        "validation ± 1 std. error",
        "reward (train)",
    ]
    big = large_requests.proposal_request()
    full = composite_png(big.on, big.path)
    assert len(drawn[2].axes) == figures.MOST_PANELS
    assert size(full)[1] <= 600


def test_the_best_of_a_group_stands_beside_the_mean_reward(drawn: list[Any]) -> None:
    found = c.curves(20, reward=c.line(0.1, 0.5, 20))
    groups = {"critic/score/best@n": (0.8,) * 20, "critic/score/mixed_groups": tuple(c.line(0.3, 0.6, 20))}
    composite_png(c.node(replace(found, metrics={**found.metrics, **groups})))
    reward, mixed = drawn[0].axes
    assert [text.get_text() for text in reward.texts] == ["mean", "best of n"]
    assert set(colours(reward)) == {style.BLUE, style.ORANGE}
    assert mixed.get_title(loc="left") == "share of mixed groups"


@pytest.mark.slow
def test_a_palette_keeps_every_colour_in_less_than_half_of_the_bytes(drawn: list[Any]) -> None:
    asked = large_requests.proposal_request()
    best = replace(asked.siblings[2], node=99, base_step=30)
    png = draw_figure("composite", replace(asked, best=best), 500)
    whole = style.png(drawn[0])
    assert len(png) < len(whole) / 2
    with Image.open(io.BytesIO(png)) as small, Image.open(io.BytesIO(whole)) as large:
        assert (small.mode, small.size) == ("P", large.size)
        off = np.abs(np.asarray(small.convert("RGB"), int) - np.asarray(large.convert("RGB"), int))
    assert off.max() <= 30


def test_siblings_and_the_best_phase_stand_beside_the_path(drawn: list[Any]) -> None:
    asked = large_requests.proposal_request()
    best = replace(asked.siblings[2], node=99, base_step=30)
    draw_figure("composite", asked, 500)
    draw_figure("composite", replace(asked, best=best), 500)
    draw_figure("composite", replace(asked, siblings=(), best=asked.on), 500)
    assert [figure.axes[0].get_title(loc="left") for figure in drawn] == [
        "validation; siblings orange, best green",
        "validation; siblings orange, best green",
        "validation ± 1 std. error",
    ]
    for figure, n_siblings, n_best in zip(drawn, (4, 5, 0), (1, 1, 0), strict=True):
        found = colours(figure.axes[0])
        assert (found.count(style.ORANGE), found.count(style.GREEN)) == (n_siblings, n_best)
    named = [text.get_text().strip() for text in drawn[1].axes[0].texts if text.get_color() == style.ORANGE]
    assert named == [f"n{view.node}" for view in asked.siblings]
    (line,) = [line for line in drawn[1].axes[0].lines if line.get_color() == style.GREEN]
    assert list(line.get_xdata()) == [30 + step for step in best.curves.val_steps]


def test_nothing_logged_gives_no_picture() -> None:
    assert composite_png(c.node(Curves())) is None
    with pytest.raises(AgentError, match="node 6 has logged nothing"):
        draw_figure("composite", empty_proposal(), 500)


def empty_proposal() -> ProposalRequest:
    asked = large_requests.proposal_request()
    on = replace(asked.on, curves=Curves())
    return replace(asked, on=on, path=(on,))


@pytest.mark.slow
def test_pictures_are_found_by_kind(drawn: list[Any]) -> None:
    asked = large_requests.proposal_request()
    draw_figure("composite", asked, 500)
    draw_figure("composite", replace(asked, from_scratch=True), 500)
    assert [figure.axes[-1].get_xlabel() for figure in drawn] == ["global step", "step of the phase"]
    assert size(draw_figure("overlay", running_request(), 500)) == (900, 520)
    with pytest.raises(AgentError, match="'pie'; there are composite and overlay"):
        draw_figure("pie", asked, 500)


def test_a_forced_fresh_start_sees_the_node_alone_by_its_own_steps(drawn: list[Any]) -> None:
    composite_png(PATH[2], PATH[:3], from_scratch=True)
    axes = drawn[0].axes
    assert all(max(steps(panel)) <= 10 for panel in axes)
    assert {panel.get_xlabel() for panel in axes} == {"", "step of the phase"}
    assert [text.get_text() for text in axes[0].texts] == []


def test_values_that_are_not_finite_leave_gaps_and_a_flat_line_its_value(drawn: list[Any]) -> None:
    reward = c.line(0.2, 0.6, 20)
    reward[5] = math.nan
    reward[6] = math.inf
    found = c.curves(20, reward=reward, length=[8.0] * 20, val={10: math.nan, 20: 0.4})
    composite_png(c.node(found))
    overlay_png(replace(running_request(), running=c.node(found), incumbent_chain=(c.node(found),)))
    length = drawn[1].axes[-1]
    assert length.get_title(loc="left") == "response length"
    assert length.get_ylim() == pytest.approx((7.2, 8.8))
    assert all(np.isfinite(line.get_ydata()).all() for axes in drawn[0].axes for line in axes.lines)


@pytest.mark.slow
def test_letters_do_not_run_into_each_other_or_out_of_the_picture(drawn: list[Any]) -> None:
    big = large_requests.proposal_request()
    draw_figure("composite", big, 500)
    composite_png(PATH[-1], PATH)
    overlay_png(running_request())
    for figure in drawn:
        width, height = figure.canvas.get_width_height()
        renderer = figure.canvas.get_renderer()
        titles = []
        for axes in figure.axes:
            texts = [axes._left_title, axes.xaxis.label, *axes.texts]
            boxes = [text.get_window_extent(renderer) for text in texts if text.get_text()]
            assert all(b.x0 >= 0 and b.y0 >= 0 and b.x1 <= width and b.y1 <= height for b in boxes)
            outside = [
                t for t in axes.texts if t.get_position()[1] > 1 and t.get_transform() == axes.transAxes
            ]
            titles += [t.get_window_extent(renderer) for t in (axes._left_title, *outside)]
            if axes.get_legend() is not None:
                titles.append(axes.get_legend().get_window_extent(renderer))
        overlaps = [(a, b) for i, a in enumerate(titles) for b in titles[:i] if a.overlaps(b)]
        assert overlaps == []
        assert min(t.get_fontsize() for axes in figure.axes for t in axes.get_xticklabels()) >= 6.5


def test_the_overlay_shows_running_in_blue_and_best_in_dashed_green_by_global_step(drawn: list[Any]) -> None:
    overlay_png(running_request())
    main, reward, length = drawn[0].axes
    lines = {line.get_label(): line for line in main.lines}
    best, running = lines["best (node 2)"], lines["running (node 3)"]
    assert (best.get_color(), best.get_linestyle()) == (style.GREEN, "--")
    assert (running.get_color(), running.get_linestyle()) == (style.BLUE, "-")
    assert list(best.get_xdata()) == [5, 10, 15, 20, 25, 30]
    assert list(running.get_xdata()) == [30, 35]
    assert reward.get_title(loc="left") == "reward (train)"
    assert set(colours(reward)) == set(colours(length)) == {style.GREEN, style.BLUE}
    assert max(steps(reward)) == 35


def test_the_overlay_shows_the_incumbents_whole_path_from_the_start_in_every_panel(drawn: list[Any]) -> None:
    chain = tuple(replace(view, curves=view.curves.until(10)) for view in PATH[:3])
    request = replace(running_request(), incumbent_chain=chain, incumbent_path=scores_along(chain))
    overlay_png(request)
    main, reward, length = drawn[0].axes
    best = next(line for line in main.lines if line.get_label() == "best (node 2)")
    assert list(best.get_xdata()) == [0, 5, 10, 15, 20, 25, 30]
    for panel in (reward, length):
        green = [line for line in panel.lines if line.get_color() == style.GREEN]
        shown = {step for line in green for step in line.get_xdata()}
        assert shown == set(range(1, 31))


def test_an_overlay_without_any_history_is_still_a_picture(drawn: list[Any]) -> None:
    bare: NodeView = c.node(Curves(), node=1, status="running", n_steps=20)
    empty = c.node(Curves(), node=0, score=0.5)
    assert size(overlay_png(StopRequest(task=c.TASK, running=bare, incumbent=empty, incumbent_path=()))) == (
        900,
        520,
    )
    assert [text.get_text() for text in drawn[0].axes[1].texts] == ["not logged"]


def test_the_users_own_look_changes_nothing() -> None:
    import matplotlib

    usual = composite_png(PATH[0])
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black", "lines.linewidth": 9}):
        assert composite_png(PATH[0]) == usual
        assert matplotlib.rcParams["font.size"] == 30


def test_nothing_is_loaded_before_a_picture_is_drawn() -> None:
    code = "import sys, llmzero_ray.agents.llm.figures; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
