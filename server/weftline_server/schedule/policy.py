"""Placement: from the queue and the engines' loads to what starts where, as a pure function.

`request` is what an ordinary server does: first come, first served, to the engine with the least in
hand, whoever the calls belong to. It is the control of every experiment.

`app` is Parrot's Algorithm 1 with one score in place of its cases (section 5.4). Whose turn it is:
the application with the least work left, as far as its graph is known, and in it the call furthest
from the answer; the longer a call has waited, the less its application's size counts, so that
nothing starves. Where it goes: to the engine where it adds the fewest tokens to what must be
computed before it is done, and hurts the others least. Tokens of a prefix that is there already
cost nothing, which brings sharers together, those of the queue too; members of one task group
attract each other; latency calls and throughput calls repel each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from weftline_engine.api import Hints

# Each so many seconds in the queue halve the weight of how much work an application has left. A
# step of priority is worth as much.
AGING_S = 10.0

# After so many seconds in the queue a call may make the steps of others longer.
PATIENCE_S = 60.0

# A member of its group on an engine is worth so many tokens of load there: a short answer's worth,
# so that a group stays together where it fits and splits where that would queue it.
GROUP_TOKENS = 256


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

    @property
    def throughput(self) -> bool:
        return self.hints.criterion == "throughput"

    @property
    def bounded(self) -> bool:
        return is_bounded(self.hints)

    @property
    def strict(self) -> bool:
        return is_bounded(self.hints) and self.hints.criterion == "tpot"


def is_bounded(hints: Hints) -> bool:
    """Whether somebody waits for this very call, so that its steps must stay short: not where only
    the end of all the results counts, nor in a task group, which is done when its last member is.
    """
    return hints.criterion != "throughput" and not hints.group


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """An engine that is ready, and what it has in hand.

    `kv_tokens` bounds what may run there at all, `latency_tokens` what may run beside a call that
    somebody waits for (Parrot's Figure 10), both in tokens and None where unbounded. `latency` and
    `throughput` are the tokens in flight of either kind, `bounded` those of `latency` that keep
    throughput and groups within `latency_tokens`, `strict` those that keep all within; a beginning
    that several have in common, one of the hashes `shared`, counts once.
    """

    name: str
    model: str
    running: int = 0
    max_running: int = 64
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


class _Engine:
    """An engine while a round of placements adds to it."""

    __slots__ = ("bounded", "fresh", "groups", "latency", "load", "running", "strict", "throughput")

    def __init__(self, load: EngineLoad) -> None:
        self.load = load
        self.running = load.running
        self.latency = load.latency
        self.throughput = load.throughput
        self.bounded = load.bounded
        self.strict = load.strict
        self.groups = dict(load.groups)
        self.fresh = set(load.shared)  # beginnings of what is in flight

    def has_room(self, item: Queued, now: float) -> bool:
        """An early fill gets half of the places: it must not hold up the calls it waits for."""
        load = self.load
        if self.running >= (load.max_running // 2 if item.open else load.max_running):
            return False
        in_flight = self.latency + self.throughput
        if in_flight == 0:
            return True  # alone it runs anywhere, or it could never run
        kv, bound = load.kv_tokens, load.latency_tokens
        tokens = in_flight + item.tokens
        if (kv is None or tokens <= kv) and (bound is None or tokens <= bound):
            return True
        longest = item.prefixes[-1][1] if item.prefixes else 0
        if kv is not None and tokens - longest > kv:
            return False  # whatever it shares; so ends the look at most of a long queue
        own = item.tokens - common(item.prefixes, self.fresh)
        tokens = in_flight + own
        if kv is not None and tokens > kv:
            return False
        if bound is None or tokens <= bound or now - item.queued > PATIENCE_S:
            return True
        if not item.bounded:
            return self.bounded == 0
        # The engine lets what is not bounded pause. Among themselves calls are sooner done in one
        # large batch than one after the other, but for those that want each token in time.
        if item.strict or self.strict:
            return self.bounded + own <= bound
        return True

    def take(self, item: Queued) -> None:
        self.running += 1
        own = item.tokens - common(item.prefixes, self.fresh)
        if item.throughput:
            self.throughput += own
        else:
            self.latency += own
        if item.bounded:
            self.bounded += own
            self.strict += own if item.strict else 0
        if item.hints.group:
            self.groups[item.hints.group] = self.groups.get(item.hints.group, 0) + 1
        self.fresh.update(hash for hash, _ in item.prefixes)

    def cost(self, item: Queued, throughput: bool) -> float:
        """Tokens that stand between the item and its end here, and those it puts before others."""
        shared, there = 0, self.load.prefixes
        for hash, tokens in item.prefixes:
            if hash not in self.fresh and hash not in there:
                break
            shared = tokens
        # The other kind counts twice: once as load, once for what mixing costs both.
        mixed = self.latency if throughput else self.throughput
        cost = self.latency + self.throughput + mixed + item.tokens - shared
        if item.hints.group in self.groups:
            cost -= GROUP_TOKENS
        return cost


def _by_application(now: float) -> Callable[[Queued], tuple[float, ...]]:
    def key(item: Queued) -> tuple[float, ...]:
        hints = item.hints
        left = hints.work_left * 2.0 ** (hints.priority - (now - item.queued) / AGING_S)
        return (item.open, item.throughput, left, hints.arrival, -hints.depth, item.queued)

    return key


def _first_come(now: float) -> Callable[[Queued], tuple[float, ...]]:
    return lambda item: (item.open, item.queued + AGING_S * item.hints.priority)


def _least_loaded(engine: _Engine, item: Queued, throughput: bool) -> float:
    return engine.latency + engine.throughput


_ORDER = {"app": _by_application, "request": _first_come}
_COST: Mapping[str, Callable[[_Engine, Queued, bool], float]] = {
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
    by_model: dict[str, list[_Engine]] = {}
    for load in engines:
        by_model.setdefault(load.model, []).append(_Engine(load))
    for found in by_model.values():
        found.sort(key=_busy)
    free = {model: _places(found) for model, found in by_model.items()}
    placements = []
    for item in sorted(queue, key=_ORDER[policy](now)):
        if free.get(item.model, 0) <= 0:
            if not any(count > 0 for count in free.values()):
                break  # every engine is full: the rest of a long queue need not be looked at
            continue
        best, least, throughput = None, float("inf"), item.throughput
        for engine in by_model[item.model]:  # the least busy first, which wins a tie
            if engine.has_room(item, now):
                score = cost(engine, item, throughput)
                if score < least:
                    best, least = engine, score
        if best is None:
            continue
        best.take(item)
        by_model[item.model].sort(key=_busy)
        free[item.model] -= 1
        placements.append(Placement(item.id, best.load.name))
    return placements


def _busy(engine: _Engine) -> tuple[int, str]:
    return engine.running, engine.load.name


def _places(engines: Iterable[_Engine]) -> int:
    return sum(max(0, engine.load.max_running - engine.running) for engine in engines)
