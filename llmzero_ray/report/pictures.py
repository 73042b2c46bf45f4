"""The figures of a report: names, captions, and drawing those for which the search has data.

Not here: the plots (plot_*.py), style and PNG bytes (plots/style.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmzero_ray.files import replace_file
from llmzero_ray.report.best import remove
from llmzero_ray.report.facts import SearchFacts

FOLDER = "plots"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One picture of the report."""

    name: str
    title: str
    caption: str

    @property
    def file(self) -> str:
        """Where it is, below the search's directory."""
        return f"{FOLDER}/{self.name}.png"


SCORES = Picture(
    name="validation",
    title="Validation accuracy of every node",
    caption="Validation accuracy over global steps. Blue: the best strategy, faint past the step at which it "
    "leaves a phase. Grey: every other node, with its number at its end. A line begins, without a marker, at "
    "the score of the policy it started from. The bar at the best point is one standard error over the "
    "validation items.",
)
CURVES = Picture(
    name="best_path",
    title="Dynamics along the best strategy",
    caption="The best strategy's phases one after the other. The strip above names what each phase changed. "
    "Thin: each step; thick: mean over five steps; faint: past the step at which it leaves a phase.",
)
TREE = Picture(
    name="tree",
    title="The search tree",
    caption="Colour: best validation accuracy of a node's own steps. Shape: how it ended. Bold blue: best "
    "strategy. On the edges: the checkpoint a node started from, as node@step.",
)
RECIPE = Picture(
    name="hyperparameters",
    title="Hyper-parameters along the best strategy",
    caption="What the best strategy's phases train with, over global steps. Grey: never changed.",
)
PICTURES = (SCORES, CURVES, TREE, RECIPE)


def draw_pictures(facts: SearchFacts) -> tuple[tuple[Picture, ...], str]:
    """Write plots/; the pictures drawn (those without data are left out), and why there are none.

    Raises:
        StorageError: the folder cannot be written.
    """
    drawn: list[Picture] = []
    if (facts.paths.root / FOLDER).is_symlink():  # its files would be written elsewhere
        remove(facts.paths.root / FOLDER)
    try:
        import matplotlib  # noqa: F401  (imported once, so that its absence is one message)
    except ImportError:
        for picture in PICTURES:
            remove(facts.paths.root / picture.file)
        return (
            (),
            "plots: matplotlib is not installed; `pip install 'llmzero-ray[report]'`, then write it again",
        )
    for picture, draw in _drawings().items():
        image, place = draw(facts), facts.paths.root / picture.file
        if image is None:
            remove(place)
            continue
        replace_file(place, image)
        drawn.append(picture)
    return tuple(drawn), ""


def _drawings() -> dict[Picture, Callable[[SearchFacts], bytes | None]]:
    from llmzero_ray.report.plot_curves import draw_curves
    from llmzero_ray.report.plot_recipe import draw_recipe
    from llmzero_ray.report.plot_scores import draw_scores
    from llmzero_ray.report.plot_tree import draw_tree

    return {SCORES: draw_scores, CURVES: draw_curves, TREE: draw_tree, RECIPE: draw_recipe}
