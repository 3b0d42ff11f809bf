"""Vectors on the wire: float32 numbers as base64 text (N = vectors, D = numbers of each)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from weftline_engine.retrieval.core import InputRefused

Vectors = npt.NDArray[np.float32]


def encode(vectors_ND: Vectors) -> dict[str, Any]:
    """The vectors as JSON: `vectors` holds N rows of `dimensions` numbers."""
    data = np.ascontiguousarray(vectors_ND, dtype="<f4")
    return {"vectors": base64.b64encode(data.tobytes()).decode(), "dimensions": int(data.shape[1])}


def decode(value: Mapping[str, Any]) -> Vectors:
    """The vectors (N, D) of such JSON. Raises Refused for anything else, also for NaN."""
    text, width = value.get("vectors"), value.get("dimensions")
    if not isinstance(text, str) or not isinstance(width, int) or width < 1:
        raise InputRefused("a vector is base64 text in 'vectors' and a number in 'dimensions'")
    try:
        flat = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4")
    except (binascii.Error, ValueError):
        raise InputRefused("'vectors' is not base64 text of float32 numbers") from None
    if flat.size % width:
        raise InputRefused(f"'vectors' holds {flat.size} numbers, which {width} does not divide")
    if not np.isfinite(flat).all():
        raise InputRefused("a vector holds NaN or infinity")
    return flat.reshape(-1, width)
