"""The events that an engine sends to the server, about its ops and about itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Residency(StrEnum):
    """Where a context's KV cache is."""

    RESIDENT = "resident"
    HOST = "host"
    DROPPED = "dropped"


class FinishReason(StrEnum):
    """Why an op ended well: `FILLED` for a fill, the next two for a generate.

    `LIMIT` is the server's own, of a loop that ran its most rounds; no engine says it.
    """

    FILLED = "filled"
    STOP = "stop"
    LENGTH = "length"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The tokens of an op, and its times in seconds of the monotonic clock.

    `started` is the time of the op's first step, `filled` the end of its prompt. `cached_tokens` of
    the prompt came out of the KV cache; the others were computed. Of `drafted_tokens`, which were
    guessed and verified, `accepted_tokens` are in the output.
    """

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    started: float
    filled: float
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The fields of every event: the op, its attempt, a number and the time.

    `sequence` counts all events of the engine from 1. A cancelled op ends with `Failed`, whose
    error is "Cancelled". After an op's end only `ContextMoved` events carry its id.
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
    """Generated tokens from `offset` on, and the text that they complete, which may be empty.

    If the op asks for log probabilities, `logprobs` holds the natural log of each token's
    probability by the model alone. `top_tokens` are the likeliest tokens, best first, with their
    `top_logprobs`; those of the first token come before those of the second.
    """

    offset: int
    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...] = ()
    top_tokens: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Items(Event):
    """The results of items from number `offset` on, as JSON values, of an op that streams."""

    offset: int
    values: tuple[object, ...]


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
    """The op ended badly. `error` names a type of weftline.errors; a `retryable` op may be tried
    again."""

    error: str
    message: str
    retryable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextMoved(Event):
    """How much of a context the engine still has, where that changed since the last such event.

    `tokens` is a number of leading tokens: whole KV blocks, or all that was computed. A resident
    context is found by every op with the same prefix. A freed context is reported until nothing of
    it is left, and then as dropped with 0 tokens. Do not rely on any token of a dropped one.
    `op` and `attempt` are those of the op that made the context.
    """

    context: str
    residency: Residency
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability(Event):
    """Whether the engine wants work now, and the `reason` if not, such as an open breaker. `op` is
    "". An engine that is `leaving` finishes its ops and ends."""

    available: bool
    reason: str = ""
    leaving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupied(Event):
    """How many tokens of the engine's KV cache are held by requests of others than this server.
    `op` is ""."""

    tokens: int
