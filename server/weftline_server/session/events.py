"""Everything a session can be told, and everything it can ask to be done; all of it plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weftline.errors import WeftlineError
from weftline.protocol import Criterion
from weftline_engine.api import FinishReason, Usage
from weftline_server.graph.graph import Node
from weftline_server.session.call import TokenLogprob


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEvent:
    """What happened; `now` is the monotonic clock in seconds, the only clock a session knows."""

    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsSubmitted(SessionEvent):
    nodes: tuple[Node, ...]
    detach: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableSet(SessionEvent):
    variable: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOpened(SessionEvent):
    """A get or a stream waits for `variable` from now on."""

    variable: str
    criteria: Criterion | None = None
    wait: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderClosed(SessionEvent):
    """A get or a stream ended; `served` if it got what it waited for."""

    variable: str
    served: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimitiveEvent(SessionEvent):
    call: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimitiveSent(PrimitiveEvent):
    engine: str
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextGenerated(PrimitiveEvent):
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimitiveFinished(PrimitiveEvent):
    """The engine is done with an output; its transforms made `value` of the text, or `error`."""

    reason: FinishReason
    usage: Usage
    value: Any
    error: WeftlineError | None = None
    transform_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimitiveFailed(PrimitiveEvent):
    error: WeftlineError


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCancelled(SessionEvent):
    call: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableCancelled(SessionEvent):
    variable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionClosed(SessionEvent):
    reason: str = "the session was closed"


@dataclass(frozen=True, slots=True)
class Run:
    """Render, tokenise and queue output `index` of `call`."""

    call: str
    index: int


@dataclass(frozen=True, slots=True)
class Fill:
    """More of the prompt before output `index` of `call` is known, though not yet all of it."""

    call: str
    index: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Take output `index` of `call` back from wherever it is."""

    call: str
    index: int


@dataclass(frozen=True, slots=True)
class Notify:
    """Wake whoever waits for `variable`: it has a new part, a value or an error."""

    variable: str


Action = Run | Fill | Stop | Notify
