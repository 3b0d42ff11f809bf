"""What a session does when another run of the server goes on with the session, and when readers are
gone.

The journal has put the session back into the state after its last event. No primitive of the
session runs yet.
"""

from __future__ import annotations

from weftline.contract.errors import Cancelled, Interrupted
from weftline_engine.api import FinishReason
from weftline_server.graph.primitive import Effects
from weftline_server.session import events as ev
from weftline_server.session.execution import Execution
from weftline_server.session.task import PrimitiveRun, RunState


def abandon(execution: Execution, event: ev.TasksAbandoned) -> list[ev.Action]:
    """End the tasks that the recorded departure of their last reader has ended."""
    actions: list[ev.Action] = []
    for id in event.tasks:
        gone = Cancelled("its last reader went away")
        actions += execution.fail(execution.tasks[id], gone, RunState.CANCELLED)
    return actions


def resume(execution: Execution, event: ev.SessionResumed) -> list[ev.Action]:
    """Run the primitives again that had not ended. A step that may happen once only, and may have
    happened, fails.

    A primitive whose effects are `once` is running, for the session, from before it was sent.
    """
    for variable in execution.variables.values():
        if not variable.settled:
            variable.attempt = event.attempt
    runs = tuple(execution.primitives.values())
    queued = [run for run in runs if run.state is RunState.QUEUED]
    filling = [run for run in runs if run.state is RunState.WAITING and run.filling]
    actions: list[ev.Action] = []
    for run in runs:  # failures come first: what they start would otherwise be started twice
        if run.state is RunState.RUNNING and (value := _lost(execution, run)) is not None:
            ended = ev.PrimitiveFinished(
                now=event.now, primitive=run.id, reason=FinishReason.STOP, value=value
            )
            actions += execution.finished(ended)
        elif run.state is RunState.RUNNING or (run.live and _is_orphan(execution, run)):
            actions += execution.fail(run.task, _interrupted(run), RunState.FAILED)
    actions += [ev.Run(run.id) for run in queued if run.live]
    actions += [ev.Fill(run.id) for run in filling if run.state is RunState.WAITING]
    return actions


def _lost(execution: Execution, run: PrimitiveRun) -> object | None:
    """The value of a primitive that may have run; None where that is a failure."""
    body = execution.graph.primitives[run.id].body
    return None if body is None or _is_orphan(execution, run) else body.lost()


def _is_orphan(execution: Execution, run: PrimitiveRun) -> bool:
    """Whether the request that waited for a tool's result ended with the server."""
    return execution.graph.primitives[run.id].traits.of_request


def _interrupted(run: PrimitiveRun) -> Interrupted:
    return Interrupted(
        f"the server ended while {run.task.task.name!r} ran, and it must not run twice: find out "
        "whether it had its effect, and submit it again if it had none"
    )


def runs_once(execution: Execution, primitive: str) -> bool:
    """Whether the primitive must not run again once an engine may have begun it."""
    return execution.graph.primitives[primitive].effects is Effects.ONCE
