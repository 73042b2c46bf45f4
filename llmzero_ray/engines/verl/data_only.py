"""Reading of torch's files that may hold data alone.

A full checkpoint lies in the search's storage, which other processes and machines write to. VeRL reads it by
unpickling, and unpickling runs whatever the file says.
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
    """Inside, `torch.load` builds tensors, numbers, texts, containers and NumPy arrays and nothing else, also
    where VeRL asks it for more; anything else in a file raises `pickle.UnpicklingError`."""
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
    """What NumPy's arrays are pickled by."""
    made: Any = np.zeros(0).__reduce__()
    return made[0]
