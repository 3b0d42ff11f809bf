"""All events that change a session, and all actions that it asks for; both are plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from weftline.contract.errors import WeftlineError
from weftline.contract.protocol import Criterion
from weftline_engine.api import FinishReason, Usage
from weftline_engine.api.record import record, short_record
from weftline_server.graph.engine_score import EngineScore
from weftline_server.graph.primitive import Task
from weftline_server.prompt.tool_parser import Delta
from weftline_server.session.origin import NOBODY, Origin
from weftline_server.session.task import TokenLogprob


@record
class SessionEvent:
    """Something that happened at `now`, in seconds of the monotonic clock.

    Events of clients keep the session from expiring; events of engines do not.
    """

    by_client: ClassVar[bool] = False
    now: float


@record
class TasksSubmitted(SessionEvent):
    """A client submitted tasks. With `detach` they run although their outputs have no reader. The
    client takes the values of the variables `whole` when these are complete, and no part of them
    before. `criteria` is what the client asks for that reads some of the outputs."""

    by_client: ClassVar[bool] = True
    tasks: tuple[Task, ...]
    detach: bool = False
    origin: Origin = NOBODY
    whole: tuple[str, ...] = ()
    criteria: Criterion | None = None


@record
class TurnCame(SessionEvent):
    """The session has asked to plan or start the next part of a large submit, and now may."""


@record
class VariableEvent(SessionEvent):
    """An event about one variable."""

    by_client: ClassVar[bool] = True
    variable: str


@record
class VariableSet(VariableEvent):
    """A client gave an empty variable its value."""

    value: Any


@record
class VariableRefused(VariableEvent):
    """A client cannot give the variable a value."""

    error: WeftlineError


@record
class ReaderOpened(VariableEvent):
    """A get waits for the variable from now on, or a stream for its text."""

    criteria: Criterion | None = None
    wait: bool = False
    streams: bool = False


@record
class ReaderClosed(VariableEvent):
    """A get or a stream ended; `served` if it got its value."""

    served: bool


@record
class VariableRead(VariableEvent):
    """A client was given the value of the variable, or a part of its text."""


@record
class TextTaken(VariableEvent):
    """A stream passes on text of the variable before its value is ready."""


@record
class VariableCancelled(VariableEvent):
    """A client does not want the variable any more."""


@record
class PrimitiveEvent(SessionEvent):
    """An event about one primitive."""

    primitive: str


@record
class PrimitivePrepared(PrimitiveEvent):
    """The prompt was rendered. `tokens` counts the prompt and the longest allowed output."""

    tokens: int


@record
class PrimitiveSent(PrimitiveEvent):
    """The primitive went to an engine, on another machine where `node` names one. `why` has what
    placement weighed, for that engine first. `admitted` is when the primitive's application was
    admitted to the KV cache, if the primitive waited for that.
    """

    engine: str
    node: str = ""
    why: tuple[EngineScore, ...] = ()
    admitted: float | None = None


@record
class TextGenerated(PrimitiveEvent):
    """An engine generated a part of the primitive's output. `made` are the output's tokens so far,
    0 where the engine does not say.
    """

    text: str
    made: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    deltas: tuple[Delta, ...] = ()  # what was read of an answer that may call tools
    thoughts: str = ""  # where they are no part of the text


@record
class ItemsMade(PrimitiveEvent):
    """More items of the list that the primitive makes. The primitive's end decides the final
    list."""

    values: tuple[Any, ...]


@record
class PrimitiveRestarted(PrimitiveEvent):
    """The primitive's engine was lost. The primitive runs again from the start, and the text that
    it generated is forgotten. A replay names the `attempt` that its text comes from.
    """

    attempt: int | None = None


@record
class PrimitiveFinished(PrimitiveEvent):
    """An engine finished the primitive. The primitive's transforms made `value` of the result, or
    failed with `error`."""

    reason: FinishReason
    value: Any
    usage: Usage | None = None
    error: WeftlineError | None = None
    transform_s: float = 0.0


@record
class ItemsCame(PrimitiveEvent):
    """Items of the list that the primitive works on are known, from number `offset` on."""

    offset: int
    items: tuple[Any, ...]


@record
class PrimitiveFailed(PrimitiveEvent):
    """The primitive failed and is not tried again. Failed attempts before are not reported.

    `is_taken` says that a client has a part of the primitive's output.
    """

    error: WeftlineError
    is_taken: bool = False


@record
class TaskCancelled(SessionEvent):
    """A client cancelled a task."""

    by_client: ClassVar[bool] = True
    task: str


@record
class TasksAbandoned(SessionEvent):
    """Tasks ended because their last reader went away. Only a journal has this event: the event
    stands for the departure of the reader, which a replay does not know of.
    """

    tasks: tuple[str, ...]


@record
class SessionResumed(SessionEvent):
    """Another run of the server goes on with the session; `attempt` is larger in each run."""

    by_client: ClassVar[bool] = True  # clients have the whole idle time from now on to come back
    attempt: int


@record
class SessionClosed(SessionEvent):
    """The session ends, and all primitives that still run are cancelled."""

    reason: str = "the session was closed"


@short_record
class Run:
    """Render, tokenise and queue the primitive."""

    primitive: str


@short_record
class Fill:
    """Early fill: more of the primitive's prompt is known, but not all of it."""

    primitive: str


@short_record
class Stop:
    """Take the primitive back from the queue or the engine."""

    primitive: str


@short_record
class Cut:
    """End the primitive, which an engine has, with what it has said so far."""

    primitive: str


@short_record
class Notify:
    """Wake the readers of the variable, which has a new part, a value or an error."""

    variable: str


@short_record
class Replan:
    """The hints of these primitives, which are queued or run, have changed."""

    primitives: tuple[str, ...]


@short_record
class Ended:
    """The task has ended, well or badly."""

    task: str


@dataclass(frozen=True, slots=True)
class GoOn:
    """Tell the session a TurnCame in a later turn of the event loop, because the session holds more
    primitives."""


Action = Run | Fill | Stop | Cut | Notify | Replan | Ended | GoOn


def about(event: SessionEvent) -> str:
    """The id of the event's task, primitive or variable, or the ids of several."""
    match event:
        case TasksSubmitted():
            return " ".join(task.id for task in event.tasks)
        case TasksAbandoned():
            return " ".join(event.tasks)
        case VariableEvent():
            return event.variable
        case PrimitiveEvent():
            return event.primitive
        case TaskCancelled():
            return event.task
    return ""


def detail(event: SessionEvent) -> str:
    """Text for a person, shown beside the event's name."""
    match event:
        case TasksSubmitted():
            return " ".join(task.name for task in event.tasks)
        case VariableSet():
            return str(event.value)
        case VariableRefused() | PrimitiveFailed():
            return f"{event.error.type}: {event.error}"
        case PrimitivePrepared():
            return f"{event.tokens} tokens"
        case PrimitiveSent():
            return event.engine
        case TextGenerated():
            return event.text
        case ItemsMade():
            return f"{len(event.values)} items"
        case PrimitiveFinished():
            return str(event.reason if event.error is None else event.error)
        case ItemsCame():
            return f"{len(event.items)} from {event.offset}"
        case SessionClosed():
            return event.reason
    return ""


@dataclass(frozen=True, slots=True)
class StoryLine:
    """One event as a person reads it; `at_s` counts seconds since the session was opened."""

    number: int
    at_s: float
    event: str
    about: str
    text: str

    def __str__(self) -> str:
        return (
            f"{self.number:6} {self.at_s:10.3f} {self.event:18} {self.about} {self.text}".rstrip()
        )
