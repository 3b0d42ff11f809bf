"""One engine during a placement round: its room for a call, and the score of a call there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import inf
from operator import attrgetter
from types import MappingProxyType

from weftline_server.schedule.placement.items import (
    AGING_S,
    PROMPT_KINDS,
    Class,
    EngineLoad,
    Queued,
    common,
)

# After this many seconds in the queue, a call may lengthen the steps of others, and it no longer
# waits for the engine that has its prefix. This was measured with 200 users at
# 0.8 requests a second on two slow simulated engines. A token took
# 0.10 s with a wait of up to 30 s or 60 s, 0.28 s with 10 s, and 0.33 s without.
PATIENCE_S = 60.0

# A group member on an engine is worth this many tokens of load there. It is about one short answer:
# a group stays together where it fits, and splits where staying together would queue it.
GROUP_TOKENS = 256

# Computing a prompt token that another engine already has is worth this many tokens of load. It is
# done for this call alone while all others there wait, and it evicts blocks that other calls will
# miss. Load is computed for many calls at once, and about half of it is done by the time that it is
# counted. At 4 requests a second, the engines of `make bench-affinity` computed 0.47, 0.31 and 0.29
# of 100 requests' prompts with weights 1, 2 and 4, and 0.21 and 0.20 of 200 requests' with 4 and 8.
# On two real engines 8 was slower than 4, in one run.
PREFIX_WEIGHT = 4


class Candidate:
    """An engine while a placement round adds calls to it."""

    __slots__ = (
        "bounded",
        "early",
        "fresh",
        "groups",
        "held",
        "latency",
        "load",
        "running",
        "strict",
        "throughput",
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
        # These belong to the load until something is added: most of many engines get nothing.
        self.groups: Mapping[str, int] = load.groups
        self.fresh: Collection[str] = load.shared  # hashes of the prefixes in flight

    def room(self, of: Class, late: bool) -> float:
        """Return how many tokens a call of this class may add; -inf where no place is free.

        `late` calls have waited longer than PATIENCE_S.
        """
        kind, is_open, bounded, strict = of
        load = self.load
        if self.running >= (load.max_running // 2 if is_open else load.max_running):
            return -inf
        if kind not in PROMPT_KINDS:
            return inf  # it holds no KV cache
        # An early fill must not hold up the call that it waits for. So early fills get half of the
        # places and the rest of the cache, and other calls are placed as if there were none.
        held = self.held + self.early if is_open else self.held
        if held == 0:
            return inf  # a call that is too large for every engine must still run: it runs alone
        left = inf if load.kv_tokens is None else load.kv_tokens - held
        bound = load.latency_tokens
        if bound is None or late:
            return left
        # The engine pauses calls that are not bounded. Bounded calls end sooner in one large batch
        # than one after the other, unless one of them is strict and wants each token in time.
        if not bounded:
            return min(left, bound - held) if self.bounded else left
        if strict or self.strict:
            return min(left, bound - min(held, self.bounded))
        return left

    def place(self, item: Queued) -> None:
        """Add a call that was placed here."""
        self.running += 1
        missing = self.missing(item)
        if item.throughput:
            self.throughput += missing
        else:
            self.latency += missing
        if item.has_prompt:
            self._hold(item)
        if item.hints.group:
            members = self.groups.get(item.hints.group, 0) + 1
            self.groups = {**self.groups, item.hints.group: members}
        if item.prefixes:
            self.fresh = {*self.fresh, *(hash for hash, _ in item.prefixes)}

    def _hold(self, item: Queued) -> None:
        own = item.tokens - common(item.prefixes, self.fresh)
        if item.open:
            self.early += own
        else:
            self.held += own
        if item.bounded:
            self.bounded += own
            self.strict += own if item.strict else 0

    def missing(self, item: Queued) -> int:
        """Return the call's tokens without a prefix that is there or will be."""
        shared, there = 0, self.load.prefixes
        for hash, tokens in item.prefixes:
            if hash not in self.fresh and hash not in there:
                break
            shared = tokens
        return item.tokens - shared

    def cost(self, item: Queued, throughput: bool) -> float:
        """Return the tokens computed here before the call ends, plus those it puts before others.

        `throughput` is the call's own, passed in because this runs for every call and engine.
        """
        # Tokens of the other criterion count twice: as load, and for the cost of mixing to both.
        mixed = self.latency if throughput else self.throughput
        cost = self.latency + self.throughput + mixed + PREFIX_WEIGHT * self.missing(item)
        if item.hints.group in self.groups:
            cost -= GROUP_TOKENS
        return cost


Cost = Callable[[Candidate, Queued, bool], float]


def _first_come(item: Queued) -> tuple[float, ...]:
    return item.open, item.queued + AGING_S * item.hints.priority


def _least_loaded(engine: Candidate, item: Queued, throughput: bool) -> float:
    return engine.held + engine.early


ORDER: Mapping[str, Callable[[Queued], tuple[float, ...]]] = {
    "app": attrgetter("turn"),
    "request": _first_come,
}
COST: Mapping[str, Cost] = {
    "app": Candidate.cost,
    "request": _least_loaded,
}
POLICIES: Mapping[str, str] = MappingProxyType(
    {"app": "applications as a whole", "request": "each request by itself"}
)
