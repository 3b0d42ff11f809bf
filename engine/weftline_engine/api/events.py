"""What an engine tells the server: the events of its ops and of itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Residency(StrEnum):
    """Where a context's KV cache is."""

    RESIDENT = "resident"
    HOST = "host"
    DROPPED = "dropped"


class FinishReason(StrEnum):
    """Why an op ended well: `FILLED` for a fill, the other two for a generate."""

    FILLED = "filled"
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What an op took, in tokens, and when, in seconds of the monotonic clock.

    `started` is the op's first step, `filled` the end of its prompt. `cached_tokens` of the prompt
    came out of the KV cache, the others were computed.
    """

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    started: float
    filled: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What every event says: the op and its attempt, a number, the time.

    `sequence` counts the events of the whole engine, of all its ops, by one from 1. A cancelled op
    ends with `Failed`, whose error is "Cancelled"; an op that had ended says nothing more.
    """

    op: str
    attempt: int
    sequence: int
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted(Event):
    """The op is in the engine's queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Event):
    """Generated tokens from `offset` on, and the text that they complete (perhaps none yet).

    Where the op asks for them: the natural log of each token's probability by the model alone, and
    the likeliest tokens with theirs, best first, those of the first token before the second's.
    """

    offset: int
    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...] = ()
    top_tokens: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(Event):
    """A generate ended by itself with a text that contains `reason`, one of its `pause_on`.

    Its context stays, as after `Finished`, for an op that continues it with the tool's answer.
    """

    reason: str
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Event):
    """The op ended well; its context stays until it is freed. `value` is the JSON result of an op
    whose kind is not about prompts."""

    reason: FinishReason
    usage: Usage
    value: object | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Event):
    """The op ended badly: `error` names a type of weftline.errors; a retryable one may be tried."""

    error: str
    message: str
    retryable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextMoved(Event):
    """The KV cache of `context` is now elsewhere; `tokens` of it are left."""

    context: str
    residency: Residency
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability(Event):
    """Whether the engine wants work now (an open breaker says no, and why); `op` is "". One that is
    `leaving` finishes what it has and ends."""

    available: bool
    reason: str = ""
    leaving: bool = False
