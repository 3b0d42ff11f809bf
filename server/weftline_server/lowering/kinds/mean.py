"""Kind `mean`: the server makes one vector of several."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from weftline.contract.errors import InvalidRequest
from weftline.contract.steps import Mean
from weftline.contract.vectors import Embedded, Vectors
from weftline_server.graph.primitive import Traits, Where
from weftline_server.lowering.item_kinds import embedded_of
from weftline_server.lowering.step import Field, Says, StepKind, named

MAX_MEAN = 256  # vectors of one mean


class MeanKind(StepKind[Mean]):
    """The value is the mean of all vectors of the parts, with the first item."""

    traits = Traits(where=Where.SERVER)
    says: ClassVar[Says] = {
        "parts": Field("The embedded texts.", [{"var": "question"}, {"var": "passage"}]),
    }

    def inputs(self, step: Mean, given: Mapping[str, Any]) -> dict[str, Any]:
        _rows(step, _parts(step, given))
        return {}

    def result(self, step: Mean, given: Mapping[str, Any], result: Any) -> object:
        parts = _parts(step, given)
        rows = _rows(step, parts)
        mean = (sum(column) / len(rows) for column in zip(*rows, strict=True))
        return Embedded(parts[0].items[:1], Vectors.of([mean]), single=True)


def _parts(step: Mean, given: Mapping[str, Any]) -> list[Embedded]:
    """What the step reads. Raises InvalidRequest for anything but embedded texts."""
    return [embedded_of(step, given[str(at)], MAX_MEAN) for at in range(len(step.parts))]


def _rows(step: Mean, parts: Sequence[Embedded]) -> list[array[float]]:
    """The vectors of the parts. Raises InvalidRequest if they have no mean."""
    count = sum(len(part.vectors) for part in parts)
    if not 1 <= count <= MAX_MEAN or len({part.vectors.width for part in parts}) > 1:
        raise InvalidRequest(
            f"{named(step)} takes 1 to {MAX_MEAN} vectors, all of one width", param="parts"
        )
    return Vectors.joined(part.vectors for part in parts).rows()
