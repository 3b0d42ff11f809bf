"""The engine contract (Parrot section 7): six verbs down, a stream of events up.

    submit(op)   feed(op, offset, part, last)   update(op, hints)   cancel(op)
    retain(context, keep|evictable|swap|drop)   free(context)

Parrot's Fill, Generate and FreeContext are submit of kind fill, submit of kind generate, and free.
Verbs never block and never fail: what goes wrong comes back as an event. Hints are advice; the
engine keeps its own queue and never waits for the server inside a step. This module knows neither
torch nor the server, so that every engine and both ends of every transport can share it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol, runtime_checkable


class Kind(StrEnum):
    """What a primitive does."""

    FILL = "fill"  # compute the KV cache of given tokens
    GENERATE = "generate"  # the same, and then decode


class Capability(StrEnum):
    """What an engine may be able to do beyond taking a prompt and streaming text back."""

    TOKENS = "tokens"
    CONTEXTS = "contexts"
    FEED = "feed"
    RETENTION = "retention"
    PRIORITY = "priority"
    SALT = "salt"
    USAGE = "usage"
    SAMPLING = "sampling"
    CONSTRAINTS = "constraints"
    LOGPROBS = "logprobs"


# What it means for a user that an engine lacks one: told at start and in the graph.
LACKING: Mapping[Capability, str] = MappingProxyType(
    {
        Capability.TOKENS: "takes text, which its endpoint tokenises anew for every call",
        Capability.CONTEXTS: "keeps no contexts: every call sends its whole prompt again",
        Capability.FEED: "starts no prompt before the whole of it is known",
        Capability.RETENTION: "decides alone what its KV cache keeps: keep and free are advice",
        Capability.PRIORITY: "runs calls as it likes: the plan orders only what waits here",
        Capability.SALT: "does not part the KV caches of tenants",
        Capability.USAGE: "does not say how much of a prompt came out of a cache",
        Capability.SAMPLING: "leaves top_k, min_p, min_tokens, ignore_eos and the penalty of"
        " repetition out",
        Capability.CONSTRAINTS: "holds outputs to a JSON schema at most, to no regex or choice",
        Capability.LOGPROBS: "returns no log probabilities",
    }
)


class Retention(StrEnum):
    """What should become of a context between its ops."""

    KEEP = "keep"
    EVICTABLE = "evictable"
    SWAP = "swap"
    DROP = "drop"


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


# Alternatives that a request may see for each token, as in OpenAI's API.
MOST_LOGPROBS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to decode, every value decided (the server has filled in the defaults).

    `temperature` 0 is greedy; `top_k` 0 is off. `stop` strings end the text before them. `seed`
    None lets the engine choose one. `min_p` leaves out what is less likely than this share of the
    likeliest. The penalties of presence and frequency count the output (OpenAI's), that of
    repetition the prompt too, and divides (Keskar et al. 2019; 1 is off). `logprobs` asks for the
    log probability of each token and for so many alternatives, at most MOST_LOGPROBS; None is off.
    `constraint` is the JSON text of what the output must be: {"json_schema": {...}},
    {"regex": "..."} or {"choice": ["...", ...]}, or what the server makes of tools,
    {"structural_tag": {"tags": [{"begin", "schema", "end"}, ...], "trigger" or "separator",
    "otherwise", "stop_after_first"}}; it goes before `min_tokens` and `ignore_eos`.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int | None = None
    constraint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """Advice about an op: never needed for a right result.

    `group` names the calls that should finish together; `depth` is the longest distance to a sink
    (0 for an answer that a user waits for); `arrival` is the application's, in seconds of the
    monotonic clock; `work_left` the tokens that the application has still to compute, as far as its
    graph is known; `token_bound` those that may be in flight beside this op where an op without a
    bound is among them; `priority`
    the client's, lower first, a step as much as ten seconds of waiting. After the op's end the
    context that it made will be continued in `expected_pause` seconds, or `kept_tokens` of it.
    """

    application: str = ""
    group: str = ""
    depth: int = 0
    arrival: float = 0.0
    work_left: int = 0
    criterion: str = "latency"
    priority: int = 0
    token_bound: int | None = None
    expected_output: int | None = None
    expected_pause: float | None = None
    kept_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One primitive. `context` is the id of the context that it makes out of `parent` (None: the
    empty one) and the payload; both ids are the server's, for one incarnation of the engine.

    The payload is `tokens`, the ids that follow the parent's, or `text` where the engine announces
    no tokenizer, or `messages`, pairs of role and content, where it renders chats by itself. An
    `open` op waits for more by feed. `salt` parts the caches of tenants.
    """

    id: str
    kind: Kind
    context: str
    attempt: int = 0
    parent: str | None = None
    tokens: tuple[int, ...] | None = None
    text: str | None = None
    messages: tuple[tuple[str, str], ...] | None = None
    sampling: SamplingParams | None = None
    salt: str = ""
    open: bool = False
    hints: Hints = field(default_factory=Hints)


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
    """A generate stopped for a tool or more input; its context is alive."""

    reason: str
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Event):
    """The op ended well; its context stays until it is freed."""

    reason: FinishReason
    usage: Usage


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What an engine runs, announced once when it is ready.

    `tokenizer` is the path of a tokenizer.json, None where the engine takes text. `chat_template`
    is Jinja text of the model's publisher (never of a request). `context_limit` and `kv_tokens`
    count tokens; `kv_bytes_per_token` bytes. `node` names the machine of an engine elsewhere. An
    engine that `takes_messages` renders chats itself, by a template that only it knows.
    `step_profile` was measured at start (Parrot's Figure 10): pairs of the tokens in flight and the
    seconds of a step in which all their sequences decode, ascending; empty where it is not known.
    """

    model: str
    kinds: tuple[Kind, ...] = (Kind.FILL, Kind.GENERATE)
    tokenizer: str | None = None
    chat_template: str | None = None
    bos_token: str = ""
    eos_token: str = ""
    context_limit: int = 8192
    kv_tokens: int | None = None
    kv_bytes_per_token: int | None = None
    max_running: int = 64
    dtype: str | None = None
    device: str | None = None
    node: str = ""
    takes_messages: bool = False
    capabilities: tuple[Capability, ...] = tuple(Capability)
    default_sampling: dict[str, float] = field(default_factory=dict)
    step_profile: tuple[tuple[int, float], ...] = ()

    @property
    def lacking(self) -> tuple[str, ...]:
        """What the engine cannot do, a clause each that reads on from its name."""
        return tuple(text for one, text in LACKING.items() if one not in self.capabilities)


class EngineDied(Exception):
    """The engine is gone, with every op it had; raised by `Engine.events`."""


class Engine(Protocol):
    """An engine as the server sees it. All verbs return at once; results are events."""

    async def start(self) -> Description:
        """Load what it takes, and describe it. Raises EngineDied with a reason for the user."""
        ...

    def submit(self, op: Op) -> None: ...

    def feed(self, op: str, offset: int, part: tuple[int, ...] | str, last: bool) -> None: ...

    def update(self, op: str, hints: Hints) -> None: ...

    def cancel(self, op: str) -> None: ...

    def retain(self, context: str, retention: Retention) -> None: ...

    def free(self, context: str) -> None: ...

    def events(self) -> AsyncIterator[list[Event]]:
        """The events of one step at a time, until `close`. Raises EngineDied if it ends else."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class HasMetrics(Protocol):
    """An engine with metrics of its own, which the server passes on under their own names."""

    async def metrics(self) -> bytes:
        """Prometheus's text format; nothing where they are not to be had now."""
        ...
