"""Kind `mean`: the server makes one vector of several."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, ClassVar

from weftline.contract.errors import InvalidRequest
from weftline.contract.steps import Mean
from weftline.contract.vectors import Vectors
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
        _rows(step, given)
        return {}

    def result(self, step: Mean, given: Mapping[str, Any], result: Any) -> object:
        rows = _rows(step, given)
        mean = (sum(column) / len(rows) for column in zip(*rows, strict=True))
        return {"items": given["0"]["items"][:1], "single": True, **Vectors.of([mean]).to_json()}


def _rows(step: Mean, given: Mapping[str, Any]) -> list[array[float]]:
    """The vectors of the parts. Raises InvalidRequest if they have no mean."""
    parts = [embedded_of(step, given[str(number)]) for number in range(len(step.parts))]
    found: list[Vectors] = []
    try:
        for part in parts:
            found.append(Vectors.from_json(part, MAX_MEAN - sum(map(len, found))))
        rows = Vectors.joined(found).rows()
    except ValueError:
        rows = []
    if not rows:
        raise InvalidRequest(
            f"{named(step)} takes 1 to {MAX_MEAN} vectors, all of one width", param="parts"
        )
    return rows
