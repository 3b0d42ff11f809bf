"""Kind `client`: the client computes the step. The client reads the step's inputs, and sets the
step's output."""

from __future__ import annotations

from weftline.contract.steps import ClientStep
from weftline_server.graph.primitive import Effects, Primitive, Traits, Where
from weftline_server.lowering.step import StepKind, step_of


class ClientKind(StepKind[ClientStep]):
    """The client says what a repetition would do; what its code changes is not known."""

    traits = Traits(where=Where.CLIENT, anywhere=True, operation="execute_tool")

    def effects(self, step: ClientStep) -> Effects:
        return Effects(step.effects)


def lease_of(primitive: Primitive) -> float:
    """The seconds for which the step waits for a client that has left."""
    step = step_of(primitive)
    assert isinstance(step, ClientStep), f"no client computes {primitive.kind}"
    return step.lease_s
