"""One engine during a placement round: its room for a call, and the score of a call there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum, auto
from math import inf
from operator import attrgetter
from types import MappingProxyType

from weftline_engine.api import GROUP_WEIGHT, PRIORITY_S
from weftline_server.graph.engine_score import EngineScore
from weftline_server.schedule.placement.round_data import (
    PROMPT_KINDS,
    Class,
    EngineLoad,
    Queued,
    common,
)

# After PATIENCE_S in the queue, a call may lengthen the steps of others, and it no longer waits for
# the engine that has its prefix. This was measured with 200 users at 0.8 requests a second on two
# slow simulated engines. A token took 0.10 s with a wait of up to 30 s or 60 s, 0.28 s with 10 s,
# and 0.33 s without.

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

# Throughput calls gather on an engine that runs some, up to this many tokens to compute there.
# No reader waits for one of them, and the other engines stay free for calls with a reader.
# A larger job gets one more engine for each further share of this size, and in the end all.
GATHER_TOKENS = 8192
# Of the engines of a model, one in four is kept free of throughput calls and groups while there
# are calls with a step bound, unless the others have KEPT_TOKENS more to compute.
KEPT_FREE = 4
KEPT_TOKENS = 16_384


class KeptFree(Enum):
    """What an engine is kept free of in this round.

    The last two are for a call that has waited too long, so that it finds room there.
    """

    NOTHING = auto()
    BATCHES = auto()  # of throughput calls and groups, for calls that a reader waits for
    SHARE = auto()  # of any more of both
    ALL = auto()


class Candidate:
    """An engine while a placement round adds calls to it."""

    __slots__ = (
        "_loads",
        "batches",
        "bounded",
        "early",
        "fresh",
        "groups",
        "held",
        "kept",
        "load",
        "running",
        "strict",
        "throughput",
    )

    def __init__(self, load: EngineLoad) -> None:
        self.load = load
        self.running = load.running
        self.throughput = load.throughput
        self.held = load.held
        self.early = load.early
        self.bounded = load.bounded
        self.strict: Collection[str] = load.strict  # tenants
        self.kept = KeptFree.NOTHING
        self.batches = bool(load.throughput or load.grouped)
        # The load that a call finds, for each value of `batches` in `cost`. Tokens of the other
        # sort count twice: as load, and for the cost of mixing to both.
        batch = load.throughput + load.grouped
        self._loads = [load.latency + 2 * batch, 2 * load.latency + batch]
        # Both belong to the load until something is added: most of many engines get nothing.
        self.groups: Mapping[str, int] = load.groups
        self.fresh: Collection[str] = load.shared  # hashes of the prefixes in flight

    def room(self, of: Class, late: bool, tenant: str | None) -> float:
        """Return how many tokens a call of this class may add; -inf where no place is free.

        `late` calls have waited longer than PATIENCE_S. The `tenant` may be None where the call's
        tenant has no strict call.
        """
        kind, is_open, bounded, strict, group = of
        load = self.load
        if self.running >= (load.max_running // 2 if is_open else load.max_running):
            return -inf
        if self.kept is KeptFree.ALL or (self.kept is KeptFree.SHARE and not bounded):
            return -inf
        if kind not in PROMPT_KINDS:
            return inf  # it holds no KV cache
        # An early fill must not hold up the call that it waits for. So early fills get half of the
        # places and the rest of the cache, and other calls are placed as if there were none.
        held = self.held + self.early if is_open else self.held
        if held == 0:
            return inf  # a call that is too large for every engine must still run: it runs alone
        left = inf if load.kv_tokens is None else load.kv_tokens - held + load.apart
        bound = load.latency_tokens
        if bound is None:
            return left
        # Bounded calls end sooner in one large batch than one after the other, unless one of them
        # is strict and wants each token in time. It holds calls of its own tenant alone.
        strict_here = tenant in self.strict and not late
        if bounded:
            if strict_here or (strict and not late):
                return min(left, bound - min(held, self.bounded))
            return left
        if not self.bounded:
            return left
        # The engine pauses calls that are not bounded. A reader waits for the members of a group,
        # though, so these share the step. So do throughput calls that have waited long.
        others = held - self.bounded
        if not (group or late) or strict_here:
            return min(left, bound - held)
        share = GROUP_WEIGHT * self.bounded - others if others else left
        return min(left, max(bound - held, share))

    def keep_for(self, item: Queued) -> None:
        """Take nothing in this round that would use the room that `item` waits for."""
        kv_tokens = self.load.kv_tokens
        full = (
            kv_tokens is not None and self.missing(item) > kv_tokens - self.held + self.load.apart
        )
        self.keep(KeptFree.ALL if full else KeptFree.SHARE)

    def keep(self, kept: KeptFree) -> None:
        """Keep the engine free of something from now on."""
        was, now = self.kept is KeptFree.BATCHES, kept is KeptFree.BATCHES
        self._loads[True] += KEPT_TOKENS * (now - was)
        self.kept = kept

    def place(self, item: Queued) -> None:
        """Add a call that was placed here."""
        self.running += 1
        missing = max(0, self.missing(item))
        batches = item.throughput or item.grouped
        self._loads[batches] += missing
        self._loads[not batches] += 2 * missing
        if batches and missing:
            self.batches = True
            if item.throughput:
                self.throughput += missing
        if item.has_prompt:
            self._hold(item)
        if group := item.hints.group:
            groups = self.groups
            if groups is self.load.groups or not isinstance(groups, dict):
                self.groups = groups = dict(groups)
            groups[group] = groups.get(group, 0) + 1
        if item.prefixes or item.meanings:
            fresh = self.fresh
            if fresh is self.load.shared or not isinstance(fresh, set):
                self.fresh = fresh = set(fresh)
            fresh.update([hash for hash, _ in item.prefixes])
            fresh.update([hash for hash, _ in item.meanings])

    def _hold(self, item: Queued) -> None:
        own = item.tokens - common(item.prefixes, self.fresh)
        if item.open:
            self.early += own
        else:
            self.held += own
        if item.bounded:
            self.bounded += own
            if item.strict and item.tenant not in self.strict:
                self.strict = {*self.strict, item.tenant}

    def missing(self, item: Queued) -> int:
        """Return the call's tokens without a prefix that is there or will be.

        The result is negative where an early fill, of which few tokens are known yet, will share
        more.
        """
        # The loop runs for every call and engine, so the loop calls nothing.
        fresh, there, barred = self.fresh, self.load.prefixes, self.load.barred
        shared = 0
        for hash, tokens in item.prefixes:
            if hash not in fresh and hash not in there:
                break
            if hash not in barred or hash in fresh:
                shared = tokens
        if not item.meanings:
            return item.tokens - shared
        for hash, tokens in item.meanings:
            if hash not in fresh and hash not in there:
                break
            if tokens > shared and (hash not in barred or hash in fresh):
                shared = tokens
        return item.tokens - shared

    def first_missing(self, item: Queued) -> str | None:
        """The shortest of the call's prefixes that is not there, and will not be."""
        fresh, there = self.fresh, self.load.prefixes
        missing = (hash for hash, _ in item.prefixes if hash not in fresh and hash not in there)
        return next(missing, None)

    def cost(self, item: Queued, batches: bool) -> float:
        """Return the tokens computed here before the call ends, plus those it puts before others.

        `batches` says that the call is for throughput or in a group. It is passed in because this
        runs for every call and engine.
        """
        cost = self._loads[batches] + PREFIX_WEIGHT * self.missing(item)
        if batches:
            if item.hints.group in self.groups:
                cost -= GROUP_TOKENS
            if self.throughput and item.throughput:
                cost -= GATHER_TOKENS
        return cost

    def terms(self, item: Queued, cost: float, room: bool) -> EngineScore:
        """The terms of a `cost`, to be shown."""
        batches = item.throughput or item.grouped
        load = self._loads[batches]
        group = gather = 0
        if batches:
            group = -GROUP_TOKENS if item.hints.group in self.groups else 0
            gather = -GATHER_TOKENS if item.throughput and self.throughput else 0
        prefix = cost - load - group - gather
        missing = int(prefix) // PREFIX_WEIGHT
        return EngineScore(self.load.name, room, load, missing, prefix, group, gather)


Cost = Callable[[Candidate, Queued, bool], float]


def _first_come(item: Queued) -> tuple[float, ...]:
    return item.open, item.queued + PRIORITY_S * item.hints.priority


def _least_loaded(engine: Candidate, item: Queued, batches: bool) -> float:
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
