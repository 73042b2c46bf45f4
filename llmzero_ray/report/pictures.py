"""The figures of a report: names, captions, and drawing those for which the search has data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.utils.files import replace_file, storage_error
from llmzero_ray.utils.plugins import import_problem
from llmzero_ray.utils.text import one_line

FOLDER = "plots"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One picture of the report."""

    name: str
    title: str
    caption: str

    @property
    def file(self) -> str:
        """Path below the search's directory."""
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
    """Write plots/. Returns the pictures to show (those without data are left out), and a note on those that
    were not updated, since a picture that cannot be drawn stays as it is.

    Raises:
        StorageError: the folder cannot be written.
    """
    folder = facts.paths.root / FOLDER
    if folder.is_symlink():  # its files would be written elsewhere
        try:
            folder.unlink()
        except OSError as error:
            raise storage_error(folder, error) from error
    if problem := import_problem("matplotlib"):
        kept = _there(facts, PICTURES)
        what = "not drawn" if not kept else "those of an earlier report are shown"
        install = "`pip install 'llmzero-ray[report]'`, then write it again"
        return kept, f"plots/: {what}, as matplotlib {problem}; {install}"
    shown: list[Picture] = []
    problems: list[str] = []
    for picture, draw in _drawings().items():
        try:
            image = draw(facts)
        except Exception as error:  # noqa: BLE001 - what the search found is written without its pictures
            kept = _there(facts, (picture,))
            what = "not drawn" if not kept else "that of an earlier report is shown"
            problems.append(f"{picture.file}: {what} ({one_line(f'{type(error).__name__}: {error}', 200)})")
            shown += kept
            continue
        if image is not None:
            replace_file(facts.paths.root / picture.file, image)
            shown.append(picture)
    return tuple(shown), "; ".join(problems)


def _there(facts: SearchFacts, pictures: tuple[Picture, ...]) -> tuple[Picture, ...]:
    """Pictures that an earlier report drew."""
    return tuple(picture for picture in pictures if (facts.paths.root / picture.file).is_file())


def _drawings() -> dict[Picture, Callable[[SearchFacts], bytes | None]]:
    from llmzero_ray.report.plot_curves import draw_curves
    from llmzero_ray.report.plot_scores import draw_scores
    from llmzero_ray.report.plot_strategy import draw_recipe
    from llmzero_ray.report.plot_tree import draw_tree

    return {SCORES: draw_scores, CURVES: draw_curves, TREE: draw_tree, RECIPE: draw_recipe}
