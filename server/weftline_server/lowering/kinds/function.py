"""Kind `function`: the server calls a function that its operator has configured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weftline.contract.steps import FunctionStep
from weftline.contract.vectors import plain
from weftline_server.graph.primitive import Effects, Traits
from weftline_server.lowering.step import Field, Says, StepKind


class FunctionKind(StepKind[FunctionStep]):
    """The client says what a repetition would do; what the function changes is not known."""

    traits = Traits(anywhere=True, operation="execute_tool")
    engine = "function"
    says: ClassVar[Says] = {
        "args": Field("The arguments by name.", {"text": {"var": "question"}}),
        "function": Field("The name of a function of this server.", "clean"),
    }

    def effects(self, step: FunctionStep) -> Effects:
        return Effects(step.effects)

    def inputs(self, step: FunctionStep, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"arguments": {name: plain(value) for name, value in given.items()}}
