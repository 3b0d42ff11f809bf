"""What clients give a session: values of variables, and the outcomes of their own steps.

A client sets a variable that no task writes. The client also sets the output of a step of kind
`client`, once the step's inputs are ready.
"""

from __future__ import annotations

from weftline.contract.errors import AlreadySet, InvalidRequest
from weftline_engine.api import FinishReason
from weftline_server.graph.primitive import Where
from weftline_server.session import events as ev
from weftline_server.session.budget import Spent
from weftline_server.session.execution import Execution
from weftline_server.session.task import UNDER_WAY, PrimitiveRun
from weftline_server.session.variable import SessionVariable


def give(
    execution: Execution, spent: Spent, event: ev.VariableSet, opened: float
) -> list[ev.Action]:
    """Set a variable. Raises AlreadySet, BudgetExceeded, and InvalidRequest if it is too early."""
    offered = _by_client(execution, event.variable)
    if offered is not None:
        if offered.state not in UNDER_WAY:
            name = offered.task.task.name
            raise InvalidRequest(
                f"the inputs of {name!r}, which makes {event.variable!r}, are not ready: set it "
                "when they are",
                param=event.variable,
            )
        spent.check_value(event.value, event.now - opened)  # its end charges it
        client = Where.CLIENT.value
        execution.sent(ev.PrimitiveSent(now=event.now, primitive=offered.id, engine=client))
        finished = ev.PrimitiveFinished(
            now=event.now, primitive=offered.id, reason=FinishReason.STOP, value=event.value
        )
        return execution.finished(finished)
    spent.take_value(event.value, event.now - opened)
    variable = execution.variables.setdefault(event.variable, SessionVariable(event.variable))
    variable.set(event.value)
    return execution.settled(variable, event.now)


def refuse(execution: Execution, event: ev.VariableRefused) -> list[ev.Action]:
    """Fail a variable for the client's reason. Raises AlreadySet."""
    step = _by_client(execution, event.variable)
    if step is not None:
        return execution.fail(step.task, event.error)
    variable = execution.variables.setdefault(event.variable, SessionVariable(event.variable))
    variable.fail(event.error)
    return execution.settled(variable, event.now)


def client_step(execution: Execution, variable: str) -> PrimitiveRun | None:
    """The step of kind `client` that makes the variable; None if there is none."""
    producer = execution.graph.producer.get(variable)
    if producer is None:
        return None
    if execution.graph.primitives[producer].traits.where is not Where.CLIENT:
        return None
    return execution.primitives[producer]


def _by_client(execution: Execution, id: str) -> PrimitiveRun | None:
    """The client's step that makes variable `id`; None if the variable has no producer."""
    variable, run = execution.variables.get(id), client_step(execution, id)
    by_other = run is None and id in execution.graph.producer
    if by_other or (variable is not None and variable.settled):
        raise AlreadySet(
            f"variable {id!r} already has a value or a producer: use another", param=id
        )
    return run
