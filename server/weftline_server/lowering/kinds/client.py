"""Kind `client`: the client computes the step. The client reads the step's inputs, and sets the
step's output."""

from __future__ import annotations

from typing import ClassVar

from weftline.contract.steps import ClientStep
from weftline_server.graph.primitive import Effects, Primitive, Traits, Where
from weftline_server.lowering.step import Field, Says, StepKind, step_of


class ClientKind(StepKind[ClientStep]):
    """The client says what a repetition would do; what its code changes is not known."""

    traits = Traits(where=Where.CLIENT, anywhere=True, operation="execute_tool")
    says: ClassVar[Says] = {
        "lease_s": Field("Seconds that the client may take before the step fails.", 60.0),
        "reads": Field("Variables that the client needs.", ["draft"]),
    }

    def effects(self, step: ClientStep) -> Effects:
        return Effects(step.effects)


def lease_of(primitive: Primitive) -> float:
    """The seconds for which the step waits for a client that has left."""
    step = step_of(primitive)
    assert isinstance(step, ClientStep), f"no client computes {primitive.kind}"
    return step.lease_s
