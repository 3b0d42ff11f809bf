"""The events that an engine sends to the server, about its ops and about itself."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from weftline_engine.api.record import record


class Residency(StrEnum):
    """Where a context's KV cache is."""

    RESIDENT = "resident"
    HOST = "host"
    DROPPED = "dropped"


class FinishReason(StrEnum):
    """Why an op ended without an error: `FILLED` for a fill, the next two for a generate.

    No engine reports `LIMIT`. The server sets it for a loop that has run its last allowed round.
    """

    FILLED = "filled"
    STOP = "stop"
    LENGTH = "length"
    LIMIT = "limit"


@record
class Usage:
    """The tokens of an op, and its times in seconds of the monotonic clock.

    `started` is the time of the op's first step, and `filled` the time when its prompt was
    computed. `COUNTS` says what the tokens are. `stopped_by` is the stop string that ended the
    text, "" where the engine does not tell it.
    """

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    started: float
    filled: float
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    lost_tokens: int = 0
    stopped_by: str = ""


# What the graph of a session, the log and the reference show of each op, and what it means.
COUNTS: Mapping[str, str] = MappingProxyType(
    {
        "prompt_tokens": "Tokens of the prompt.",
        "cached_tokens": "Prompt tokens that were read from the KV cache.",
        "output_tokens": "Tokens that were generated.",
        "drafted_tokens": "Tokens that were guessed and verified.",
        "accepted_tokens": "Drafted tokens that were right.",
        "lost_tokens": "Prompt tokens that the engine held and computed again, because the model's "
        "state is kept at few places.",
    }
)


@record
class Event:
    """The fields of every event: the op, its attempt, a number and the time.

    `sequence` counts all events of the engine from 1. A cancelled op ends with `Failed`, whose
    error is "Cancelled". After an op's end only `ContextMoved` events carry its id.
    """

    op: str
    attempt: int
    sequence: int
    time: float


@record
class Accepted(Event):
    """The op is in the engine's queue."""


@record
class Part(Event):
    """Generated tokens from `offset` on, and the text that they complete, which may be empty.

    If the op asks for log probabilities, `logprobs` has the natural log of each token's
    probability, before sampling parameters apply. `top_tokens` has the likeliest tokens at each
    place, best first, and `top_logprobs` their log probabilities. Those of the first place come
    before those of the second.
    """

    offset: int
    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...] = ()
    top_tokens: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@record
class Items(Event):
    """The results of items from number `offset` on, as JSON values or vectors, of an op that
    streams."""

    offset: int
    values: tuple[object, ...]


@record
class Paused(Event):
    """A generate ended by itself, and its text contains `reason`, one of its `pause_on`.

    The op's context stays, as after `Finished`. Another op continues it with the tool's result.
    """

    reason: str
    usage: Usage


@record
class Finished(Event):
    """The op ended without an error. Its context stays until it is freed. `value` is the result of
    an op whose kind is not about prompts: JSON, or vectors."""

    reason: FinishReason
    usage: Usage
    value: object | None = None


@record
class Failed(Event):
    """The op failed. `error` names a type of weftline.errors, and `param` the field of the sampling
    that is at fault, if one is. A `retryable` op may be tried again."""

    error: str
    message: str
    retryable: bool = False
    param: str | None = None


@record
class ContextMoved(Event):
    """How much of a context the engine still has, where that changed since the last such event.

    `tokens` counts the first tokens that are left: whole KV blocks, or all that was computed. Every
    op with the same prefix finds a resident context. A freed context is reported until nothing of
    it is left, and then as dropped with 0 tokens. Any token of a dropped context may be gone.
    `op` and `attempt` are those of the op that made the context.

    `places` are given where the model has a state that is kept at few places. A prompt goes on only
    behind as many tokens as one of them says, the fewest first. None is behind any token.
    """

    context: str
    residency: Residency
    tokens: int
    places: tuple[int, ...] | None = None


@record
class Availability(Event):
    """Whether the engine wants work now, and the `reason` if not, such as an open breaker. `op` is
    "". An engine that is `leaving` finishes its ops and ends."""

    available: bool
    reason: str = ""
    leaving: bool = False


@record
class Occupied(Event):
    """How many tokens of the engine's KV cache are held by requests of others than this server.
    `op` is ""."""

    tokens: int


@record
class Elsewhere(Event):
    """What the other servers that use the engine have on it. `op` is "".

    `servers` counts all servers, this one included. The load is that of the others' ops: how many
    are `running`, and their tokens as in `Footprint`. `strict` names the tenants of
    strict ops. `room` is the part of the KV cache that the applications of this server may fill, as
    the engine's own ledger says, and `grant` numbers the changes of `room`. `came` has the contexts
    of ops that have come since the last report, each with its prefixes, and `moved` what has become
    of contexts since, as in `ContextMoved`.
    """

    servers: int
    running: int = 0
    held: int = 0
    latency: int = 0
    grouped: int = 0
    throughput: int = 0
    bounded: int = 0
    strict: tuple[str, ...] = ()
    room: int | None = None
    grant: int = 0
    came: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()
    moved: tuple[tuple[str, Residency, int, tuple[int, ...] | None], ...] = ()
