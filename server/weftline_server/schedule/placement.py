"""Placement: from the queue and the engines' loads to what starts where, as a pure function.

`request` is what an ordinary server does: first come, first served, to the engine with the least in
hand, whoever the calls belong to. It is the control of every experiment.

`app` is Parrot's Algorithm 1 with one score in place of its cases (section 5.4). Whose turn it is:
the application with the least work left, as far as its graph is known, and in it the call furthest
from the answer; the longer a call has waited, the less its application's size counts, so that
nothing starves. Where it goes: to the engine where it adds the fewest tokens to what must be
computed before it is done, and hurts the others least. Tokens of a prefix that is there already
cost nothing, and others more than load does, which brings sharers together, those of the queue too;
members of one task group attract each other; latency calls and throughput calls repel each other.
Where the best engine is full and has the prefix, the call waits for it: going elsewhere would
compute the prefix again and push out what others come back to, so that they go elsewhere too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log2
from operator import attrgetter
from types import MappingProxyType

from weftline_engine.api import Hints

# Each so many seconds in the queue halve the weight of how much work an application has left. A
# step of priority is worth as much.
AGING_S = 10.0

# After so many seconds in the queue a call may make the steps of others longer, and waits no longer
# for the engine that has its prefix. With 200 users at 0.8 a second on two slow simulated engines a
# token took 0.10 s where calls wait 30 s or 60 s for it, 0.28 where 10 s, 0.33 where not at all.
PATIENCE_S = 60.0

# A member of its group on an engine is worth so many tokens of load there: a short answer's worth,
# so that a group stays together where it fits and splits where that would queue it.
GROUP_TOKENS = 256

# Computing a token of a prompt that another engine has is worth so many tokens of load: it is done
# for this call alone while all others there wait, and pushes out what somebody else will miss, but
# load is done for many at once, and half done when it is seen. At 4 requests a second engines of
# `make bench-affinity` compute 0.47, 0.31 and 0.29 of 100 requests' prompts with 1, 2 and 4, and
# 0.21 and 0.20 of 200 requests' with 4 and 8. On two real engines 8 was slower than 4, in one run.
PREFIX_WEIGHT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A primitive that could start.

    `tokens` of prompt and output bound what it will hold, in tokens; `prefixes` are the hashes of
    its beginnings, short to long, with the tokens up to there.
    """

    id: str
    model: str
    queued: float  # seconds, monotonic
    tokens: int
    hints: Hints
    prefixes: tuple[tuple[str, int], ...] = ()
    open: bool = False  # an early fill: the rest of its prompt does not exist yet
    turn: tuple[float, ...] = field(init=False)  # by which `app` orders: the least goes first

    def __post_init__(self) -> None:
        # What is left of an application halves with each AGING_S in the queue. That it does so for
        # all alike makes the order one that lasts: it is computed once, not in every round.
        left = log2(self.hints.work_left) if self.hints.work_left > 0 else -inf
        aged = left + self.hints.priority + self.queued / AGING_S
        kind = 2 * self.open + self.throughput
        turn = (kind, aged, self.hints.arrival, -self.hints.depth, self.queued)
        object.__setattr__(self, "turn", turn)

    @property
    def throughput(self) -> bool:
        return self.hints.criterion == "throughput"

    @property
    def bounded(self) -> bool:
        return is_bounded(self.hints) and not self.open

    @property
    def strict(self) -> bool:
        return self.bounded and self.hints.criterion == "tpot"


def is_bounded(hints: Hints) -> bool:
    """Whether somebody waits for this very call, so that its steps must stay short: not where only
    the end of all the results counts, nor in a task group, which is done when its last member is.
    """
    return hints.criterion != "throughput" and not hints.group


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """An engine that is ready, and what it has in hand.

    `kv_tokens` bounds what may run there at all, `latency_tokens` what may run beside a call that
    somebody waits for (Parrot's Figure 10), both in tokens and None where unbounded. `held` are the
    tokens in flight, `bounded` those of them that keep throughput and groups within
    `latency_tokens`, `strict` those that keep all within, and `early` what early fills hold beside
    them; a beginning that several have in common, one of the hashes `shared`, counts once.
    `latency` and `throughput` are the tokens of either kind that it was given to compute: what lay
    in its cache when their calls came is not among them.
    """

    name: str
    model: str
    running: int = 0
    max_running: int = 64
    held: int = 0
    early: int = 0
    latency: int = 0
    throughput: int = 0
    bounded: int = 0
    strict: int = 0
    kv_tokens: int | None = None
    latency_tokens: int | None = None
    groups: Mapping[str, int] = field(default_factory=dict)  # group → members there
    prefixes: Collection[str] = frozenset()  # hashes of what its cache should hold
    shared: Collection[str] = frozenset()  # of these, what its calls in flight begin with


@dataclass(frozen=True, slots=True)
class Placement:
    """Start primitive `id` on `engine`."""

    id: str
    engine: str


def common(prefixes: Sequence[tuple[str, int]], known: Collection[str]) -> int:
    """Of a prompt, the tokens up to the longest beginning that is known with all before it."""
    found = 0
    for hash, tokens in prefixes:
        if hash not in known:
            break
        found = tokens
    return found


# What tells how much of an engine a call may use: whether it is an early fill, bounded, strict, and
# whether it has waited for too long.
_Kind = tuple[bool, bool, bool, bool]


def _kind(item: Queued, now: float) -> _Kind:
    bounded = is_bounded(item.hints)
    strict = bounded and item.hints.criterion == "tpot"
    return item.open, bounded, strict, now - item.queued > PATIENCE_S


class _Engine:
    """An engine while a round of placements adds to it."""

    __slots__ = (
        *("bounded", "early", "fresh", "groups", "held", "latency", "load", "running"),
        *("strict", "throughput"),
    )

    def __init__(self, load: EngineLoad) -> None:
        self.load = load
        self.running = load.running
        self.latency = load.latency
        self.throughput = load.throughput
        self.held = load.held
        self.early = load.early
        self.bounded = load.bounded
        self.strict = load.strict
        # The load's own until something is added: of many engines most get nothing in a round.
        self.groups: Mapping[str, int] = load.groups
        self.fresh: Collection[str] = load.shared  # beginnings of what is in flight

    def room(self, kind: _Kind) -> float:
        """How many tokens a call of this kind may add; -inf where it may not run."""
        is_open, bounded, strict, patient = kind
        load = self.load
        # Early fills must not hold up the calls that they wait for: they get half of the places and
        # what is left of the cache, and for a call that can go on they are as good as not there.
        held = self.held + self.early if is_open else self.held
        if self.running >= (load.max_running // 2 if is_open else load.max_running):
            return -inf
        if held == 0:
            return inf  # alone it runs anywhere, or it could never run
        left = inf if load.kv_tokens is None else load.kv_tokens - held
        bound = load.latency_tokens
        if bound is None or patient:
            return left
        # The engine lets what is not bounded pause. Among themselves calls are sooner done in one
        # large batch than one after the other, but for those that want each token in time.
        if not bounded:
            return min(left, bound - held) if self.bounded else left
        if strict or self.strict:
            return min(left, bound - min(held, self.bounded))
        return left

    def take(self, item: Queued) -> None:
        self.running += 1
        own = item.tokens - common(item.prefixes, self.fresh)
        missing = self.missing(item)
        if item.open:
            self.early += own
        else:
            self.held += own
        if item.throughput:
            self.throughput += missing
        else:
            self.latency += missing
        if item.bounded:
            self.bounded += own
            self.strict += own if item.strict else 0
        if item.hints.group:
            members = self.groups.get(item.hints.group, 0) + 1
            self.groups = {**self.groups, item.hints.group: members}
        if item.prefixes:
            self.fresh = {*self.fresh, *(hash for hash, _ in item.prefixes)}

    def missing(self, item: Queued) -> int:
        """Its tokens but for those of a beginning that is there, or is coming."""
        shared, there = 0, self.load.prefixes
        for hash, tokens in item.prefixes:
            if hash not in self.fresh and hash not in there:
                break
            shared = tokens
        return item.tokens - shared

    def cost(self, item: Queued, throughput: bool) -> float:
        """Tokens that stand between the item and its end here, and those it puts before others."""
        # The other kind counts twice: once as load, once for what mixing costs both.
        mixed = self.latency if throughput else self.throughput
        cost = self.latency + self.throughput + mixed + PREFIX_WEIGHT * self.missing(item)
        if item.hints.group in self.groups:
            cost -= GROUP_TOKENS
        return cost


_Cost = Callable[[_Engine, Queued, bool], float]


class _Replicas:
    """The engines of one model while a round of placements adds to them."""

    def __init__(self) -> None:
        self.engines: list[_Engine] = []
        self.free = 0  # places
        self._fresh: set[str] = set()
        self._rooms: dict[_Kind, list[float]] = {}
        self._most: dict[_Kind, float] = {}

    def add(self, engine: _Engine) -> None:
        self.engines.append(engine)
        self.free += max(0, engine.load.max_running - engine.running)
        self._fresh.update(engine.fresh)

    def rooms(self, item: Queued, kind: _Kind) -> list[float]:
        """Each engine's room for a call of `kind`; nothing where `item` fits nowhere, so that not
        every engine need be asked for most of a long queue."""
        rooms = self._rooms.get(kind)
        if rooms is None:
            rooms = self._rooms[kind] = [engine.room(kind) for engine in self.engines]
        most = self._most.get(kind)
        if most is None:
            most = self._most[kind] = max(rooms)
        if item.tokens <= most:
            return rooms
        # As if all that is in flight were where there is most room.
        return rooms if item.tokens - common(item.prefixes, self._fresh) <= most else []

    def best(self, item: Queued, kind: _Kind, cost: _Cost, waits: bool) -> int:
        """Where `item` costs least of the engines with room for it, -1 where none has any; the
        same where it `waits` if one that has its prefix costs less, and only lacks the room."""
        best, least, running, throughput = -1, inf, 0, item.throughput
        full = []
        for at, room in enumerate(self.rooms(item, kind)):
            engine = self.engines[at]
            if item.tokens > room and item.tokens - common(item.prefixes, engine.fresh) > room:
                full.append(engine)
                continue
            score = cost(engine, item, throughput)
            # Of two the less busy wins a tie, then the first by name.
            if score < least or (score == least and engine.running < running):
                best, least, running = at, score, engine.running
        if best < 0 or not (waits and item.prefixes):
            return best
        missing = self.engines[best].missing(item)
        better = [one for one in full if cost(one, item, throughput) < least]
        return -1 if any(one.missing(item) < missing for one in better) else best

    def take(self, place: int, item: Queued) -> None:
        engine = self.engines[place]
        engine.take(item)
        self.free -= 1
        self._fresh.update(hash for hash, _ in item.prefixes)
        for kind, rooms in self._rooms.items():
            rooms[place] = engine.room(kind)
        self._most.clear()


def _first_come(item: Queued) -> tuple[float, ...]:
    return item.open, item.queued + AGING_S * item.hints.priority


def _least_loaded(engine: _Engine, item: Queued, throughput: bool) -> float:
    return engine.held + engine.early


_ORDER: Mapping[str, Callable[[Queued], tuple[float, ...]]] = {
    "app": attrgetter("turn"),
    "request": _first_come,
}
_COST: Mapping[str, _Cost] = {
    "app": _Engine.cost,
    "request": _least_loaded,
}
POLICIES: Mapping[str, str] = MappingProxyType(
    {"app": "applications as a whole", "request": "each request by itself"}
)


def place(
    queue: Iterable[Queued], engines: Sequence[EngineLoad], policy: str, now: float
) -> list[Placement]:
    """Place what fits now, most urgent first; what does not fit holds nobody up."""
    cost = _COST[policy]
    by_model: dict[str, _Replicas] = {}
    for load in sorted(engines, key=lambda load: load.name):
        if load.model not in by_model:
            by_model[load.model] = _Replicas()
        by_model[load.model].add(_Engine(load))
    placements = []
    for item in sorted(queue, key=_ORDER[policy]):
        replicas = by_model.get(item.model)
        if replicas is None or replicas.free <= 0:
            if not any(one.free > 0 for one in by_model.values()):
                break  # every engine is full: the rest of a long queue need not be looked at
            continue
        waits = policy == "app" and now - item.queued <= PATIENCE_S
        best = replicas.best(item, _kind(item, now), cost, waits)
        if best >= 0:
            replicas.take(best, item)
            placements.append(Placement(item.id, replicas.engines[best].load.name))
    return placements
