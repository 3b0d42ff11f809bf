"""Vectors as numpy arrays (N = vectors, D = numbers of each)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from weftline.contract.vectors import Vectors
from weftline_engine.services.retrieval.core import InputRefused

Array = npt.NDArray[np.float32]


def vectors_of(rows_ND: Array | Sequence[Array]) -> Vectors:
    """The rows as vectors."""
    if not len(rows_ND):
        return Vectors()
    data = np.ascontiguousarray(rows_ND, dtype="<f4")
    return Vectors(data.tobytes(), int(data.shape[1]))


def rows_of(found: object) -> Array:
    """The rows (N, D) of vectors. Raises Refused for anything else, also for NaN."""
    if not isinstance(found, Vectors):
        raise InputRefused(f"vectors are wanted, not a {type(found).__name__}")
    flat = np.frombuffer(found.data, dtype="<f4")
    if not np.isfinite(flat).all():
        raise InputRefused("a vector holds NaN or infinity")
    return flat.reshape(-1, found.width)
