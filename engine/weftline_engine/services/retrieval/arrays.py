"""Vectors as numpy arrays, and their JSON (N = vectors, D = numbers of each)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from weftline.contract.vectors import Vectors
from weftline_engine.services.retrieval.core import InputRefused

Array = npt.NDArray[np.float32]


def encode(vectors_ND: Array | Sequence[Array]) -> dict[str, Any]:
    """The vectors as JSON: `vectors` holds N rows of `dimensions` numbers."""
    if not len(vectors_ND):
        return Vectors().to_json()
    data = np.ascontiguousarray(vectors_ND, dtype="<f4")
    return Vectors(data.tobytes(), int(data.shape[1])).to_json()


def decode(value: Mapping[str, Any]) -> Array:
    """The vectors (N, D) of such JSON. Raises Refused for anything else, also for NaN."""
    try:
        found = Vectors.from_json(value)
    except ValueError as error:
        raise InputRefused(str(error)) from None
    flat = np.frombuffer(found.data, dtype="<f4")
    if not np.isfinite(flat).all():
        raise InputRefused("a vector holds NaN or infinity")
    return flat.reshape(-1, found.width)
