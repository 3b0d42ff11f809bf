"""One engine as the dispatcher holds it: its state, what it has in hand, what its cache holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from weftline_engine import api
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.schedule.engines.capacity import latency_tokens
from weftline_server.schedule.placement import EngineLoad, Queued, common, is_bounded

MAX_PREFIXES = 4096  # of one engine: hashes of what its cache should hold
UNKNOWN_POOL = 1 << 20  # tokens, of an engine that does not say what its KV cache holds


class EngineState(StrEnum):
    """Where an engine stands, as seen by the dispatcher."""

    STARTING = "starting"
    READY = "ready"
    SUSPENDED = "suspended"  # it asks for no work for a while: its breaker is open
    LEAVING = "leaving"  # it finishes what it has, and takes no more
    DOWN = "down"
    CLOSED = "closed"


_S = EngineState
ALLOWED: Mapping[EngineState, frozenset[EngineState]] = MappingProxyType(
    {
        _S.STARTING: frozenset({_S.READY, _S.DOWN, _S.CLOSED}),
        _S.READY: frozenset({_S.SUSPENDED, _S.LEAVING, _S.DOWN, _S.CLOSED}),
        _S.SUSPENDED: frozenset({_S.READY, _S.LEAVING, _S.DOWN, _S.CLOSED}),
        _S.LEAVING: frozenset({_S.DOWN, _S.CLOSED}),
        _S.DOWN: frozenset({_S.READY, _S.CLOSED}),
        _S.CLOSED: frozenset(),
    }
)


@dataclass(frozen=True, slots=True)
class Work:
    """A primitive on its way: who it belongs to, the op to send, and when it was queued."""

    primitive: PrimitiveId
    model: str
    op: api.Op
    queued: float
    tokens: int
    prefixes: tuple[tuple[str, int], ...] = ()  # hash and length of the prompt's beginnings
    stays: bool = False  # its session may send calls that nobody knows yet
    item: Queued = field(init=False)  # what the policy sees of it: made once, and not each round

    def __post_init__(self) -> None:
        item = Queued(
            id=self.op.id,
            model=self.model,
            kind=str(self.op.kind),
            queued=self.queued,
            tokens=self.tokens,
            hints=self.op.hints,
            prefixes=self.prefixes,
            open=self.op.open,
        )
        object.__setattr__(self, "item", item)

    def op_beside(self, latency_tokens: int | None) -> api.Op:
        """The op for an engine that may have so many tokens in flight while each of its own tokens
        is waited for: the engine lets others pause."""
        if latency_tokens is None or not is_bounded(self.op.hints):
            return self.op
        bound = max(0, latency_tokens - self.tokens)
        return replace(self.op, hints=replace(self.op.hints, token_bound=bound))

    def fed(self, part: tuple[int, ...], last: bool) -> Work:
        """The same with more of its prompt: what another attempt would start with."""
        assert self.op.open and self.op.tokens is not None
        op = replace(self.op, tokens=self.op.tokens + part, open=not last)
        return replace(self, op=op, tokens=self.tokens + len(part))


@dataclass(slots=True)
class Slot:
    """One engine under supervision; `delivered` are ops whose text a consumer may have seen.

    Only `hold` and `release` change `running`, of which `load` remembers the sum.
    """

    name: str
    make: Callable[[], api.Engine] | None  # None: it joined, and comes back by joining again
    engine: api.Engine | None = None
    state: EngineState = EngineState.STARTING
    description: api.Description | None = None
    running: dict[str, Work] = field(default_factory=dict)
    found: dict[str, int] = field(default_factory=dict)  # op → its tokens that lay there
    delivered: set[str] = field(default_factory=set)
    prefixes: dict[str, int] = field(default_factory=dict)  # hash → its tokens; oldest use first
    prefix_tokens: int = 0  # of all of them
    last_error: str = ""
    task: asyncio.Task[None] | None = None
    _load: EngineLoad | None = None
    _summed: api.Description | None = None  # that `_load` speaks of

    def move_to(self, state: EngineState) -> None:
        assert state in ALLOWED[self.state], f"engine {self.name}: {self.state} to {state}"
        self.state = state

    @property
    def closed(self) -> bool:
        return self.state is EngineState.CLOSED

    @property
    def node(self) -> str:
        """The machine that the engine runs on, "" for this one."""
        return self.description.node if self.description else ""

    def hold(self, work: Work) -> None:
        """It has this op in hand, or now has more of it."""
        if work.op.id not in self.running:
            self.found[work.op.id] = common(work.prefixes, self.prefixes)
        self.running[work.op.id] = work
        self._load = None

    def release(self, op: str) -> Work | None:
        """It has this op in hand no more; None where it never had."""
        work = self.running.pop(op, None)
        if work is not None:
            del self.found[op]
            self._load = None
        return work

    def remember(self, work: Work) -> None:
        """Its cache will hold the beginnings of this prompt; those not used for longest it drops
        when they are more than its pool holds, the longer ones of a prompt first."""
        lengths = (0, *(length for _, length in work.prefixes))
        for (hash, length), before in zip(work.prefixes[::-1], lengths[-2::-1], strict=True):
            self.prefix_tokens -= self.prefixes.pop(hash, 0)
            self.prefixes[hash] = length - before
            self.prefix_tokens += length - before
        assert self.description is not None
        room = self.description.kv_tokens or UNKNOWN_POOL
        while self.prefix_tokens > room or len(self.prefixes) > MAX_PREFIXES:
            self.prefix_tokens -= self.prefixes.pop(next(iter(self.prefixes)))

    def forget(self) -> None:
        """It begins again with an empty cache."""
        self.prefixes.clear()
        self.prefix_tokens = 0

    @property
    def latency_tokens(self) -> int | None:
        """What may be in flight beside a call whose tokens somebody waits for."""
        return latency_tokens(self.description.step_profile) if self.description else None

    def load(self) -> EngineLoad:
        """What the policy sees of it. Of 256 engines few change from round to round."""
        if self._load is None or self._summed is not self.description:
            self._load, self._summed = self._sum(), self.description
        return self._load

    def _sum(self) -> EngineLoad:
        assert self.description is not None, "a ready engine has described itself"
        groups: dict[str, int] = {}
        tokens = {True: 0, False: 0}
        held = early = bounded = strict = 0
        shared: set[str] = set()
        # What early fills share with calls that can go on is these calls'.
        for work in sorted(self.running.values(), key=lambda work: work.op.open):
            hints = work.op.hints
            own = work.tokens - common(work.prefixes, shared)
            shared.update(hash for hash, _ in work.prefixes)
            tokens[hints.criterion == "throughput"] += work.tokens - self.found[work.op.id]
            if work.op.open:
                early += own
            else:
                held += own
                bounded += own if work.item.bounded else 0
                strict += own if work.item.strict else 0
            if hints.group:
                groups[hints.group] = groups.get(hints.group, 0) + 1
        return EngineLoad(
            name=self.name,
            model=self.description.model,
            kinds=frozenset(map(str, self.description.kinds)),
            running=len(self.running),
            max_running=self.description.max_running,
            held=held,
            early=early,
            latency=tokens[False],
            throughput=tokens[True],
            bounded=bounded,
            strict=strict,
            kv_tokens=self.description.kv_tokens,
            latency_tokens=self.latency_tokens,
            groups=groups,
            prefixes=self.prefixes,
            shared=shared,
        )
