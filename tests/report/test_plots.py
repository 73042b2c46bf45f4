"""The pictures: there when there is something to show, readable files with the right things in them."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from llmzero_ray.plots import style
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.pictures import PICTURES
from llmzero_ray.report.plot_curves import draw_curves
from llmzero_ray.report.plot_scores import draw_scores, line_of
from llmzero_ray.report.plot_strategy import draw_recipe, shown_keys
from llmzero_ray.report.plot_tree import draw_tree, layout
from tests.report.builder import Phase, proposal
from tests.report.conftest import Written, scripted

SIZES = {"validation": (1650, 930), "best_path": (1800, 1560)}


def pixels(image: bytes) -> np.ndarray:
    """The picture's colours, one number 0xRRGGBB a pixel."""
    red, green, blue = np.moveaxis(
        np.asarray(Image.open(io.BytesIO(image)).convert("RGB"), dtype=np.uint32), 2, 0
    )
    return red << 16 | green << 8 | blue


def amount(image: bytes, colour: str) -> int:
    """Pixels of exactly this colour."""
    return int((pixels(image) == int(colour.removeprefix("#"), 16)).sum())


@pytest.mark.parametrize("name", [picture.name for picture in PICTURES])
def test_pictures_are_whole_png_files_with_something_drawn_in_them(finished: Written, name: str) -> None:
    path = finished.root / "plots" / f"{name}.png"
    with Image.open(path) as image:
        image.verify()
        assert image.format == "PNG"
        assert min(image.size) >= 500
        assert name not in SIZES or image.size == SIZES[name]
    assert (pixels(path.read_bytes()) != 0xFFFFFF).mean() > 0.02
    assert amount(path.read_bytes(), style.BEST) > 500  # the best strategy's colour


def test_what_happened_has_its_colour_only_when_it_happened(finished: Written, tmp_path: Path) -> None:
    whole = draw_scores(SearchFacts(finished.root))
    assert whole is not None
    assert amount(whole, style.EARLY) > 50
    assert amount(whole, style.REFERENCE) > 500
    begun = draw_scores(SearchFacts(scripted(tmp_path).ready().play(phases=2).root))
    assert begun is not None
    assert amount(begun, style.EARLY) == 0
    assert amount(begun, style.REFERENCE) == 0
    assert amount(begun, style.BEST) > 500


def test_a_failed_node_is_outlined_in_the_tree(finished: Written, tmp_path: Path) -> None:
    whole = draw_tree(SearchFacts(finished.root))
    begun = draw_tree(SearchFacts(scripted(tmp_path).ready().play(phases=2).root))
    assert whole is not None
    assert begun is not None
    assert amount(whole, style.FAILED) > 100
    assert amount(begun, style.FAILED) == 0


def test_the_same_search_gives_the_same_bytes(finished: Written) -> None:
    facts = SearchFacts(finished.root)
    assert draw_tree(facts) == draw_tree(SearchFacts(finished.root))


def test_without_scores_only_the_tree_is_drawn(tmp_path: Path) -> None:
    search = scripted(tmp_path)
    search.phases[0] = Phase(steps=5)
    facts = SearchFacts(search.ready().play(phases=1).root)
    assert [draw(facts) for draw in (draw_scores, draw_curves, draw_recipe)] == [None, None, None]
    assert draw_tree(facts) is not None


def test_metrics_that_are_not_finite_or_not_logged_leave_gaps_and_no_error(tmp_path: Path) -> None:
    search = scripted(tmp_path)
    odd = {"critic/score/mean": [float("nan")] * 20, "actor/kl_loss": [float("inf"), *([0.1] * 19)]}
    search.phases[0] = Phase(val={10: 50, 20: 60}, metrics=odd)
    assert draw_curves(SearchFacts(search.ready().play(phases=1).root)) is not None


def test_a_line_is_drawn_in_global_steps_and_up_to_the_cut(finished: Written) -> None:
    curves = SearchFacts(finished.root).curves(1)
    assert line_of(curves).steps == (30, 40)
    kept = line_of(curves, until=10)
    assert (kept.steps, kept.scores, kept.start) == ((30,), (0.7,), (20, 0.6))


def test_hyper_parameters_that_a_phase_changed_get_a_row(tmp_path: Path) -> None:
    search = scripted(tmp_path)
    changes = {"clip_high": 0.3, "mini_batch_size": 8, "loss_agg_mode": "token-sum"}
    search.answers[1] = proposal(resume=(0, 20), lr=None, **changes)
    facts = SearchFacts(search.ready().play(phases=2).root)
    assert [key.rpartition(".")[2] for key in shown_keys(facts)] == [
        "lr",
        "kl_loss_coef",
        "temperature",
        "n",
        "max_response_length",
        "loss_agg_mode",
        "clip_ratio_high",
        "ppo_mini_batch_size",
    ]
    assert draw_recipe(facts) is not None  # a choice has no height of its own and is drawn all the same


def test_the_layout_puts_every_node_on_a_place_of_its_own_beside_its_parent(finished: Written) -> None:
    facts = SearchFacts(finished.root)
    places = layout(facts)
    assert len(set(places.values())) == len(facts.nodes) == 6
    for node in facts.nodes.values():
        if node.parent is not None:
            assert places[node.id][0] == places[node.parent][0] + 1
        if node.children:
            below = [places[child][1] for child in node.children]
            assert min(below) <= places[node.id][1] <= max(below)


@given(
    wanted=st.lists(st.floats(min_value=-1, max_value=1), max_size=20),
    gap=st.floats(min_value=0.01, max_value=0.5),
)
def test_labels_keep_their_distance_their_order_and_their_middle(wanted: list[float], gap: float) -> None:
    placed = style.spread(wanted, gap)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    for before, after in pairwise(order):
        assert placed[after] - placed[before] >= gap - 1e-9
    assert sum(placed) == pytest.approx(sum(wanted), abs=1e-6)


def test_labels_that_are_far_apart_stay_where_they_are() -> None:
    assert style.spread([0.9, 0.1, 0.5], 0.1) == [0.9, 0.1, 0.5]


def test_the_rolling_mean_skips_gaps() -> None:
    nan = float("nan")
    means = style.rolling_mean([1.0, nan, 3.0, nan, nan, nan, nan], 1)
    assert means[:4] == [1.0, 2.0, 3.0, 3.0]
    assert np.isnan(means[5])
