"""Kind `mean`: the server makes one vector of several."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Mapping
from typing import Any

from weftline.contract.errors import InvalidRequest
from weftline.contract.steps import Mean
from weftline_server.graph.primitive import Traits, Where
from weftline_server.lowering.items import FLOAT_BYTES, embedded_of
from weftline_server.lowering.step import StepKind, named

MAX_MEAN = 256  # vectors of one mean


class MeanKind(StepKind[Mean]):
    """The value is the mean of all vectors of the parts, with the first item."""

    traits = Traits(where=Where.SERVER)

    def inputs(self, step: Mean, given: Mapping[str, Any]) -> dict[str, Any]:
        _rows(step, given)
        return {}

    def result(self, step: Mean, given: Mapping[str, Any], result: Any) -> object:
        rows = _rows(step, given)
        numbers = array("f", (sum(column) / len(rows) for column in zip(*rows, strict=True)))
        return {
            "items": given["0"]["items"][:1],
            "vectors": base64.b64encode(numbers.tobytes()).decode(),
            "dimensions": len(numbers),
            "single": True,
        }


def _rows(step: Mean, given: Mapping[str, Any]) -> list[array[float]]:
    """The vectors of the parts. Raises InvalidRequest if they have no mean."""
    parts = [embedded_of(step, given[str(number)]) for number in range(len(step.parts))]
    width, texts = parts[0]["dimensions"], [part["vectors"] for part in parts]
    try:
        if not (isinstance(width, int) and all(part["dimensions"] == width for part in parts)):
            raise ValueError
        size = FLOAT_BYTES * width
        if size <= 0 or sum(map(len, texts)) > 2 * MAX_MEAN * size:
            raise ValueError
        raw = b"".join(base64.b64decode(text, validate=True) for text in texts)
        if not 0 < len(raw) <= MAX_MEAN * size or len(raw) % size:
            raise ValueError
    except (TypeError, ValueError):
        raise InvalidRequest(
            f"{named(step)} takes 1 to {MAX_MEAN} vectors, all of one width", param="parts"
        ) from None
    return [array("f", raw[at : at + size]) for at in range(0, len(raw), size)]
