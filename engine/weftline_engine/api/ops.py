"""The content of the server's verbs: ops and how to decode them, advice, and retention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Any, TypeAlias

from weftline_engine.api.record import record


class Kind(StrEnum):
    """The kinds of ops that work on prompts. Engines may announce others, by names of their own."""

    FILL = "fill"  # compute the KV cache of given tokens
    GENERATE = "generate"  # the same, and then decode


class Retention(StrEnum):
    """The treatment of a context's KV cache between its ops."""

    KEEP = "keep"
    EVICTABLE = "evictable"
    SWAP = "swap"
    DROP = "drop"


# What `feed` appends to an open op: token ids, text, or items, which are JSON values or vectors.
Fed: TypeAlias = "tuple[int, ...] | str | list[Any]"

# Seconds of waiting that one unit of the client's priority is worth.
PRIORITY_S = 10.0
# Seconds after which a throughput call shares the steps of latency calls.
PATIENCE_S = 60.0
# The limit on the seconds between two tokens of an answer that is read (inter-token latency, ITL).
# Parrot's experiments allow 40 ms, which is faster than people read.
ITL_S = 0.040
# That limit for prompts beside such answers. 12 coding agents on a simulated H100 had 95 % of their
# first tokens within 4.0 s, 7.3 s with 40 ms, and 3.8 s without a limit.
PROMPT_ITL_S = 0.080
# Where even the smallest step is slow, other calls may make it this many times longer.
SLOWER = 2.0
# The share of task groups in the steps of latency calls. Their members may hold this many tokens
# for each token of latency calls, and compute this many times as many prompt tokens as other calls.
GROUP_WEIGHT = 4.0

# The most contexts that an op may name as references.
MOST_REFERENCES = 8


@record
class SamplingParams:
    """How to decode. The server has filled in all defaults.

    `temperature` 0 is greedy decoding. `top_k` 0 is off. The text ends before the first of the
    `stop` strings. A token of `stop_token_ids` ends it, too, and has no text; like the end token it
    is banned before `min_tokens`. Without a `seed` the engine chooses one. `min_p` excludes tokens
    that are less likely than this share of the likeliest. The presence and frequency penalties
    count the tokens of the output, as OpenAI's do. The repetition penalty also counts those of the
    prompt, and divides logits (Keskar et al. 2019); 1 is off. `logprobs` asks for the log
    probability of each token and for this many alternatives, at most 20; None is off.

    `logit_bias` has pairs of a token's id and a number of -100 to 100, which is added to the
    token's logit. Tokens with -100 are banned. If tokens have 100, all others are banned. A ban
    that would leave no token does nothing, so the constraint and `min_tokens` go before it.

    `constraint` is the JSON text of the form that the output must have, an object with one of the
    names of `Constraint`: {"json_schema": {...}}, {"regex": "..."}, {"choice": ["...", ...]},
    {"grammar": "..."} in EBNF or Lark, or {"structural_tag": {...}}, which is a `format` of
    xgrammar's structural tags. A constraint overrides `min_tokens` and `ignore_eos`.

    If an output ends by itself and its text contains one of `pause_on`, the op ends with `Paused`
    instead of `Finished`. Its text is the same. Only engines with RETENTION pause.

    `marks` are special tokens that the server has to see. An engine leaves them in the text, or
    else tells the ids of all tokens.

    `block` are the texts that open and close a block of thoughts at the beginning of the output,
    the first one empty if the prompt has opened it. `stop` strings in the block end nothing.

    `effort` says how much the model is to think, for an engine that renders messages itself.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    constraint: str | None = None
    pause_on: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    effort: str | None = None


@record
class Footprint:
    """What an op adds to the load of an engine that several servers use, as its server has counted.

    `held` bounds the tokens of KV cache that the op will hold, and `computed` counts those of its
    prompt that were not in the cache. `throughput` and `grouped` say what sort of load they are,
    `bounded` whether steps beside the op must stay short. `strict` names the tenant that holds all
    of its own calls to this; None where the op's tenant does not. `prefixes` are the hashes and the
    lengths of the prompt's beginnings.
    """

    held: int
    computed: int
    throughput: bool = False
    grouped: bool = False
    bounded: bool = False
    strict: str | None = None
    prefixes: tuple[tuple[str, int], ...] = ()


@record
class Claim:
    """What the applications of one server need of an engine's KV cache, in tokens.

    The admitted applications will hold `used` tokens at most at once, as far as is predicted. The
    waiting ones need `wanted` more. `seen` is the number of the last grant that the server knows.
    """

    used: int
    wanted: int
    seen: int


@record
class Hints:
    """Advice about an op. The op's result does not depend on it.

    `group` names the calls that should finish together. `depth` is the longest distance to a sink;
    0 is an answer that a user waits for. `arrival` is the time at which the application came, in
    seconds of the monotonic clock. `work_left` counts the tokens that the application must still
    compute, as far as its graph is known. `priority` is the client's number: lower goes first, and
    one unit counts as much as ten seconds of waiting.

    `turn` is the order of applications in the server's queue and in every engine: the earliest goes
    first. It is a time of the monotonic clock, and the same for all calls of an application that
    have the same criterion and priority.

    `token_bound` limits the tokens in flight beside this op, if any op beside it has no bound.
    `expected_pause` is the seconds between the op's end and the next op that continues its context,
    or the first `kept_tokens` of it. `waited` is the seconds that the op was in the server's queue.
    `traceparent` is the op's span (W3C Trace Context), for engines that pass it on. `unread` says
    that nobody reads the text before it is complete, so it may be sent in long parts. A `footprint`
    is for an engine that several servers use. The output will likely have `expected_output` tokens,
    if that is known.
    """

    application: str = ""
    group: str = ""
    depth: int = 0
    arrival: float = 0.0
    work_left: int = 0
    turn: float = 0.0
    criterion: str = "latency"
    priority: int = 0
    token_bound: int | None = None
    expected_pause: float | None = None
    kept_tokens: int | None = None
    waited: float = 0.0
    traceparent: str = ""
    unread: bool = False
    footprint: Footprint | None = None
    expected_output: int | None = None


THOUGHTS = "reasoning_content"  # of an assistant's message, in servers with more than OpenAI's API


@record
class Chat:
    """A chat for an engine that renders chats itself, in the JSON of OpenAI's API.

    `tools`, `choice` and `parallel` are the fields tools, tool_choice and parallel_tool_calls of a
    request. None is a field that the client has not set.

    `words` are the messages for an engine without tools, in which tools, calls and results are
    text. Then `constraint` is in place of that of the op's sampling. None is a chat without any.
    """

    messages: tuple[Mapping[str, object], ...]
    tools: tuple[Mapping[str, object], ...] = ()
    choice: str | Mapping[str, object] | None = None
    parallel: bool | None = None
    words: tuple[Mapping[str, object], ...] | None = None
    constraint: str | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """All that it says, as texts."""
        shown = self.messages if self.words is None else self.words
        return tuple([str(message["content"]) for message in shown])


class Return(StrEnum):
    """How likely a prompt is continued after its context was freed.

    The context of a client that names no session is freed after each call. An agent, whose prompts
    offer tools, then sends its next turn. A session keeps its contexts until it ends.
    """

    NEVER = "never"
    SELDOM = "seldom"
    OFTEN = "often"


@record
class Guesses:
    """What the server expects of an op's tokens. The op's result does not depend on it.

    `references` name contexts of the same salt whose tokens the output may repeat, such as those of
    calls with the same template. An engine that announces `drafts` may take guesses from at most
    MOST_REFERENCES of them. Other prompts are likely to part from this one behind so many of its
    tokens as `borders` say, the likeliest first. Engines that announce `wants_borders` get them.
    `returns` says how likely another prompt begins with this one after its context was freed.
    """

    references: tuple[str, ...] = ()
    borders: tuple[int, ...] = ()
    returns: Return = Return.SELDOM

    def moved(self, tokens: int) -> Guesses:
        """The same guesses where so many more tokens stand before the op's own."""
        borders = (one + tokens for one in self.borders)
        return replace(self, borders=tuple(one for one in borders if one > 0))


@record
class Op:
    """One attempt of a primitive. It makes `context` from `parent` (None: the empty context) and
    the payload. The server chooses the ids of contexts, which are valid for one incarnation of the
    engine.

    The payload is one of three. `tokens` are the ids that follow the parent's. Engines that
    announce no tokenizer take `text`, or a `chat` if they render chats. An `open` op waits for more
    payload by feed. Ops of other kinds get JSON values and vectors as `inputs`. Ops with different
    `salt` share no cache.

    The inputs of an op that `streams` contain its first `items`, and more may be fed. The engine
    reports the results of items as soon as they are computed, and Finished has no value. The
    results of the first `delivered` items are known from an earlier attempt, so the engine does not
    compute them again.
    """

    id: str
    kind: str
    context: str
    attempt: int = 0
    parent: str | None = None
    tokens: tuple[int, ...] | None = None
    text: str | None = None
    chat: Chat | None = None
    sampling: SamplingParams | None = None
    inputs: Mapping[str, object] = field(default_factory=dict, hash=False)
    salt: str = ""
    open: bool = False
    streams: bool = False
    delivered: int = 0
    guesses: Guesses = field(default_factory=Guesses)
    hints: Hints = field(default_factory=Hints)

    def continuing(self, parent: str, tokens: int) -> Op:
        """The same op behind a context that has the first `tokens` of its own."""
        assert self.tokens is not None, "only tokens continue a context"
        guesses = self.guesses.moved(-tokens)
        return replace(self, parent=parent, tokens=self.tokens[tokens:], guesses=guesses)

    def behind(self, tokens: tuple[int, ...]) -> Op:
        """The same op with the tokens of its parent before its own."""
        guesses = self.guesses.moved(len(tokens))
        return replace(self, tokens=(*tokens, *(self.tokens or ())), guesses=guesses)
