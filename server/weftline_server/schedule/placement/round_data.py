"""The data of a placement round: calls that could start, engines and their loads, decisions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from weftline_engine.api import Hints, Kind
from weftline_engine.api.record import record, short_record
from weftline_server.graph.engine_score import EngineScore

__all__ = [
    "PROMPT_KINDS",
    "Class",
    "EngineLoad",
    "Placement",
    "Queued",
    "common",
    "is_bounded",
]

# Kinds whose ops have a prompt and hold KV cache. Any other kind may exist beside them. The
# `tokens` of an op of another kind only estimate its work.
PROMPT_KINDS: frozenset[str] = frozenset({Kind.FILL, Kind.GENERATE})


# Decides how much of an engine a call may use: the kind of its op, whether it is an early fill,
# whether it is bounded, whether it is strict, and whether it is a member of a group.
Class = tuple[str, bool, bool, bool, bool]


@record
class Queued:
    """A primitive that could start.

    For a kind with a prompt, `tokens` bounds the KV cache that it will hold (prompt and output).
    For any other kind it estimates the work in tokens. `prefixes` are hashes of the prompt's
    beginnings, short to long, each with the length of its beginning in tokens. `meanings` are those
    of the beginnings that hold a variable: the hash is of the variable and not of its value, which
    need not exist, and the length is estimated.
    """

    id: str
    model: str
    kind: str
    queued: float  # seconds, monotonic
    tokens: int
    hints: Hints
    prefixes: tuple[tuple[str, int], ...] = ()
    meanings: tuple[tuple[str, int], ...] = ()
    open: bool = False  # an early fill: the rest of its prompt does not exist yet
    tenant: str = ""  # who shares engines with whom: each tenant gets as much as any other
    turn: tuple[float | str, ...] = field(init=False)  # the sort key of `app`: the least goes first
    of: Class = field(init=False)
    throughput: bool = field(init=False)
    grouped: bool = field(init=False)  # a member of a task group that a reader waits for

    def __post_init__(self) -> None:
        # The key is computed once instead of in every round.
        hints = self.hints
        turn = (
            self.open,
            hints.turn,
            hints.arrival,
            hints.application,
            -hints.depth,
            self.queued,
        )
        throughput = hints.criterion == "throughput"
        bounded = is_bounded(hints)
        strict = bounded and hints.criterion == "tpot"
        group = bool(hints.group) and not throughput
        set_field = object.__setattr__  # mypy refuses assignments to a record
        set_field(self, "turn", turn)
        set_field(self, "throughput", throughput)
        set_field(self, "grouped", group)
        set_field(self, "of", (self.kind, self.open, bounded, strict, group))

    @property
    def has_prompt(self) -> bool:
        return self.kind in PROMPT_KINDS

    @property
    def bounded(self) -> bool:
        return is_bounded(self.hints) and not self.open

    @property
    def strict(self) -> bool:
        return self.bounded and self.hints.criterion == "tpot"


def is_bounded(hints: Hints) -> bool:
    """Return whether a user waits for this very call, so that its steps must stay short.

    The answer is False for throughput, where only the end of all results counts. The answer is
    False in a task group too: the group is done when its last member is.
    """
    return hints.criterion != "throughput" and not hints.group


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """An engine that is ready, and its present load. All counts are in tokens.

    `kinds` are the kinds of op that it takes. `kv_tokens` limits what runs there at all, and
    `latency_tokens` limits what runs beside a call that a user waits for (Parrot's Figure 10);
    None means unlimited. `held` counts the tokens in flight, with all that the calls may generate;
    `apart` of them are never held at once, because calls end before others have grown. `bounded` of
    them belong to calls that hold throughput calls and groups to `latency_tokens`. The tenants in
    `strict` have calls there that hold every call of the same tenant to it. Early fills hold
    `early` tokens more. A prefix that several calls share counts once; the hashes of such prefixes
    are in `shared`. `latency`, `grouped` and `throughput` count the tokens that calls of each kind
    had to compute; `grouped` are those of task groups that a reader waits for. They leave out the
    tokens that the engine's cache had when the call came. `servers` use the engine, and the load
    has the calls of them all.
    """

    name: str
    model: str
    kinds: frozenset[str] = PROMPT_KINDS
    running: int = 0
    max_running: int = 64
    held: int = 0
    apart: int = 0
    early: int = 0
    latency: int = 0
    grouped: int = 0
    throughput: int = 0
    bounded: int = 0
    strict: Collection[str] = frozenset()
    kv_tokens: int | None = None
    latency_tokens: int | None = None
    groups: Mapping[str, int] = field(default_factory=dict)  # group → members there
    prefixes: Collection[str] = frozenset()  # hashes of the prefixes that its cache should hold
    barred: Collection[str] = frozenset()  # of these, where it has no state to go on with
    shared: Collection[str] = frozenset()  # hashes of the prefixes of its calls in flight
    servers: int = 1


@short_record
class Placement:
    """Start primitive `id` on `engine`, for the reasons in `why`: that engine's first."""

    id: str
    engine: str
    why: tuple[EngineScore, ...] = field(default=(), compare=False)


def common(
    prefixes: Sequence[tuple[str, int]],
    known: Collection[str],
    barred: Collection[str] = frozenset(),
) -> int:
    """Return the tokens of the longest prefix that is known together with all shorter ones, and is
    not barred."""
    found = 0
    for hash, tokens in prefixes:
        if hash not in known:
            break
        if hash not in barred:
            found = tokens
    return found
