"""Kind `text`: the server writes one text of several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weftline.contract.errors import InvalidRequest
from weftline.contract.steps import Text
from weftline_server.graph.primitive import Traits, Where
from weftline_server.lowering.step import Field, Says, StepKind, named


class TextKind(StepKind[Text]):
    """The value is the parts, one after the other."""

    traits = Traits(where=Where.SERVER)
    says: ClassVar[Says] = {
        "parts": Field(
            "What the text is made of, in order.", [{"value": "Answer: "}, {"var": "question"}]
        ),
    }

    def inputs(self, step: Text, given: Mapping[str, Any]) -> dict[str, Any]:
        self.result(step, given, None)
        return {}

    def result(self, step: Text, given: Mapping[str, Any], result: Any) -> object:
        for number in range(len(step.parts)):
            if not isinstance(part := given[str(number)], str):
                raise InvalidRequest(
                    f"{named(step)} takes parts that are text, and part {number} is a "
                    f"{type(part).__name__}",
                    param="parts",
                )
        return "".join(given[str(number)] for number in range(len(step.parts)))
