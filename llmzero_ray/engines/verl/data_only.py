"""Reads torch files that may contain only data.

A full checkpoint is in the search's storage, to which other processes and machines write. VeRL unpickles it,
and unpickling runs any code in the file.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


@contextlib.contextmanager
def loading_data_alone() -> Iterator[None]:
    """Context in which `torch.load` builds only tensors, numbers, texts, containers and NumPy arrays, even if
    VeRL asks for more. Anything else in a file raises `pickle.UnpicklingError`."""
    original = torch.load
    random_states: list[Any] = [np.ndarray, np.dtype, type(np.dtype(np.uint32)), _reconstruct()]
    torch.load = functools.partial(_load, original)
    try:
        with torch.serialization.safe_globals(random_states):
            yield
    finally:
        torch.load = original


def _load(original: Any, *args: Any, **kwargs: Any) -> Any:
    return original(*args, **{**kwargs, "weights_only": True})


def _reconstruct() -> Any:
    """Function with which NumPy arrays are pickled."""
    made: Any = np.zeros(0).__reduce__()
    return made[0]
