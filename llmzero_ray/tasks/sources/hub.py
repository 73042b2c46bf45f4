"""Data sets of the Hugging Face hub, through the `datasets` package, as Parquet files on this machine.

Not here: signing in (`hf auth login`, which gated data sets need).
"""

from __future__ import annotations

from pathlib import Path

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.sources.base import OnlySplit
from llmzero_ray.tasks.sources.readers import SourceFile

_SPLIT_OF_WORD: dict[str, OnlySplit] = {"test": "test", "validation": "val", "val": "val", "dev": "val"}


def fetch(name: str, revision: str | None, directory: Path) -> list[SourceFile]:
    """Every split of a data set as one file in `directory`; test and validation keep their place.

    Raises:
        TaskError: `datasets` is missing, or the data set cannot be had.
    """
    try:
        import datasets
    except ImportError as error:
        raise TaskError(
            f"hub: {name} needs the package datasets, which cannot be imported ({error}); install it, or "
            "download the files and name them as files"
        ) from error
    try:
        loaded = datasets.load_dataset(name, revision=revision)
    except Exception as error:  # the hub's client raises errors of many libraries
        raise TaskError(
            f"hub: {name} cannot be loaded ({type(error).__name__}: {error}). Without a network, or for a "
            "gated data set without access, download the files elsewhere and name them as files"
        ) from error
    files = []
    for split, rows in loaded.items():
        path = directory / f"{split}.parquet"
        rows.to_parquet(str(path))
        only_split = only_split_of(str(split))
        files.append(SourceFile(path=str(path), name=f"{name}/{split}.parquet", only_split=only_split))
    return files


def only_split_of(split: str) -> OnlySplit:
    """The split that rows of a published split are bound to; training rows are not bound."""
    words = split.lower().replace("-", "_").split("_")
    return next((_SPLIT_OF_WORD[word] for word in words if word in _SPLIT_OF_WORD), "")
