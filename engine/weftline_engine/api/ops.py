"""What the server tells an engine: ops and how to decode them, advice, and retention."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What a primitive does."""

    FILL = "fill"  # compute the KV cache of given tokens
    GENERATE = "generate"  # the same, and then decode


class Retention(StrEnum):
    """What should become of a context between its ops."""

    KEEP = "keep"
    EVICTABLE = "evictable"
    SWAP = "swap"
    DROP = "drop"


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
    An output that ends by itself and contains a string of `pause_on` ends with `Paused` instead of
    `Finished`; its text is the same.
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
    pause_on: tuple[str, ...] = ()


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
