"""Simulates many servers that place calls on the same engines, without a master.

The servers are the production code of placement: the record of each engine, the ledger that an
engine keeps of its servers, and the placement round. A report of an engine reaches the servers
within REPORT_S. An engine here is a queue of prompts with a cache of prefixes: its calls take the
time of a prompt's computed tokens, one after the other, and then that of their output. With one
server it is a master, which knows the load of each engine at once.
"""

from __future__ import annotations

import heapq
import random
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from weftline_engine import api
from weftline_engine.transport.tcp.share_ledger import EngineLedger
from weftline_engine.transport.tcp.shared_engine import REPORT_S
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.runtime.prompt_runner import PREFIX_TOKENS
from weftline_server.schedule.engines.member import Member, Work
from weftline_server.schedule.placement.round import place

FILL_S = 0.0001  # seconds of a computed prompt token
STEP_S = 0.02  # seconds of a token of an output
KV_TOKENS = 131_072
MODEL = "simulated"
APPLICATIONS = 2048  # with prompts of their own; the nth is used 1/n as often as the first
SYSTEM_TOKENS = (256, 512, 1024, 2048, 4096)
USER_TOKENS, OUTPUT_TOKENS = (32, 320), (32, 256)
MOST_CALLS, GOES_ON = 8, 0.6  # a session sends another call with this chance
PAUSE_S = 5.0  # mean seconds between two calls of a session


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyServers:
    """What is simulated. What happens in the first `warm_s` seconds is not counted."""

    servers: int = 64
    engines: int = 1024
    sessions_per_hour: float = 1_000_000.0
    warm_s: float = 30.0
    counted_s: float = 30.0
    applications: int = APPLICATIONS
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Placed:
    """The tokens of all prompts, and of these those that were cached. `servers` and `engines` are
    the largest loads over the mean: calls of a server, and busy seconds of an engine. `waited_s` is
    the mean time until the first token.
    """

    calls: int
    prompts: int
    cached: int
    servers: float
    engines: float
    waited_s: float

    @property
    def hits(self) -> float:
        """The share of prompt tokens that were cached."""
        return self.cached / self.prompts


@dataclass(slots=True)
class _Turns:
    """A session: its prompt so far is the application's and then its own. It draws numbers of its
    own, so that the sessions are the same whatever the servers do.
    """

    draw: random.Random
    number: int
    server: int
    application: int
    system: int
    tokens: int
    left: int


class _Cache:
    """The prefixes that an engine has, the least recently used first."""

    def __init__(self) -> None:
        self.hashes: OrderedDict[str, int] = OrderedDict()  # each with its own tokens
        self.changes: list[tuple[str, bool]] = []  # since the last report, with what came
        self._tokens = 0

    def take(self, prefixes: tuple[tuple[str, int], ...]) -> int:
        """A prompt is computed. Return its tokens that were there."""
        cached = 0
        for hash, length in prefixes:
            if hash not in self.hashes:
                break
            cached = length
        shorter = 0
        for hash, length in prefixes:
            if hash not in self.hashes:
                self.hashes[hash] = length - shorter
                self._tokens += length - shorter
                self.changes.append((hash, True))
            shorter = length
        for hash, _ in reversed(prefixes):  # so that the longest is dropped first
            self.hashes.move_to_end(hash)
        while self._tokens > KV_TOKENS:
            hash, own = self.hashes.popitem(last=False)
            self._tokens -= own
            self.changes.append((hash, False))
        return cached


class _Known(Collection[str]):
    """The prefixes that one server knows to be on an engine: all that the engine has reported, and
    those of the server's own calls since.
    """

    def __init__(self, reported: set[str]) -> None:
        self.own: set[str] = set()
        self._reported = reported

    def __contains__(self, hash: object) -> bool:
        return hash in self._reported or hash in self.own

    def __iter__(self) -> Iterator[str]:
        return iter(self._reported | self.own)

    def __len__(self) -> int:
        return len(self._reported | self.own)

    @property
    def hashes(self) -> Collection[str]:
        """`KnownPrefixes.hashes`"""
        return self

    @property
    def barred(self) -> Collection[str]:
        """`KnownPrefixes.barred`"""
        return ()

    def expect(self, context: str, prefixes: tuple[tuple[str, int], ...]) -> None:
        """`KnownPrefixes.expect`"""
        self.own.update(hash for hash, _ in prefixes)

    def moved(
        self,
        context: str,
        residency: api.Residency,
        tokens: int,
        places: tuple[int, ...] | None = None,
    ) -> None:
        """The reports are in the set that all servers share."""

    def lost(self, context: str) -> None:
        """No call fails."""

    def held(self, without: Collection[str]) -> tuple[int, int]:
        """`KnownPrefixes.held`"""
        return 0, 0

    def clear(self) -> None:
        """No engine ends."""


class _SimulatedEngine:
    """An engine, with its ledger. All servers hear of its prefixes at the same time."""

    def __init__(self, number: int, servers: int) -> None:
        self.name = f"e{number}"
        self.reported: set[str] = set()
        self.cache = _Cache()
        self.ledger = EngineLedger(None)
        self.told: list[api.Elsewhere | None] = [None] * servers
        self.free_at = 0.0  # when the prompts so far are computed
        self.busy_s = 0.0
        for server in range(servers):
            self.ledger.enter(server)


@dataclass(slots=True)
class _Server:
    members: list[Member]
    queue: dict[str, tuple[Work, _Turns]] = field(default_factory=dict)
    calls: int = 0


class Simulation:
    """Runs sessions on servers; `result` sums up."""

    def __init__(self, config: ManyServers) -> None:
        self._config = config
        self._random = random.Random(config.seed)
        self._engines = [_SimulatedEngine(n, config.servers) for n in range(config.engines)]
        self._by_name = {one.name: n for n, one in enumerate(self._engines)}
        self._servers = [self._server() for _ in range(config.servers)]
        self._events: list[tuple[float, int, object]] = []  # heap of what happens when
        self._numbers, self._sessions = count(), count()
        self._changed: set[int] = set()  # engines that have something to report
        self._fresh: deque[_Known] = deque()  # views with calls that are not reported yet
        weights = [1.0 / (n + 1) for n in range(config.applications)]
        self._weights = [sum(weights[: n + 1]) for n in range(len(weights))]
        self._calls = self._prompts = self._cached = 0
        self._waited = 0.0
        self._changed.update(range(config.engines))
        self._report(0.0)  # how many servers there are

    def _server(self) -> _Server:
        described = api.Description(model=MODEL, kv_tokens=KV_TOKENS, is_shared=True)
        members = []
        for engine in self._engines:
            member = Member(engine.name, None, description=described)
            member.prefixes = _Known(engine.reported)
            members.append(member)
        return _Server(members)

    def run(self) -> Placed:
        """All sessions that come in the time."""
        config = self._config
        rate, end = config.sessions_per_hour / 3600.0, config.warm_s + config.counted_s
        self._at(self._random.expovariate(rate), None)
        report = REPORT_S
        while self._events and self._events[0][0] < end:
            now, _, what = heapq.heappop(self._events)
            while report <= now:
                self._report(report)
                report += REPORT_S
            if what is None:
                self._send(now, self._opened())
                self._at(now + self._random.expovariate(rate), None)
            elif isinstance(what, _Turns):
                self._send(now, what)
            elif isinstance(what, tuple):
                self._ended(now, *what)
        return self._result()

    def _at(self, time: float, what: object) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), what))

    def _opened(self) -> _Turns:
        """A session. The balancer deals sessions out in turn."""
        config, number = self._config, next(self._sessions)
        draw = random.Random(config.seed << 32 | number)
        (application,) = draw.choices(range(config.applications), cum_weights=self._weights)
        system = SYSTEM_TOKENS[application % len(SYSTEM_TOKENS)]
        calls = 1
        while calls < MOST_CALLS and draw.random() < GOES_ON:
            calls += 1
        return _Turns(draw, number, number % config.servers, application, system, system, calls)

    def _send(self, now: float, turns: _Turns) -> None:
        draw, server = turns.draw, self._servers[turns.server]
        turns.tokens += draw.randint(*USER_TOKENS)
        turns.left -= 1
        output = draw.randint(*OUTPUT_TOKENS)
        id = f"{turns.number}/{turns.left}"
        op = api.Op(id=id, kind=api.Kind.GENERATE, context=id, tokens=(), salt="t")
        sizes = [n for n in PREFIX_TOKENS if n <= turns.tokens]
        prefixes = tuple(
            (f"a{turns.application}" if n <= turns.system else f"s{turns.number}", n) for n in sizes
        )
        work = Work(
            PrimitiveId(str(turns.number), str(turns.left)),
            MODEL,
            op,
            now,
            turns.tokens + output,
            tuple((f"{of}:{n}", n) for of, n in prefixes),
            expected=output,
        )
        server.queue[id] = work, turns
        server.calls += self._counts(now)
        self._round(now, turns.server)

    def _counts(self, now: float) -> bool:
        return now >= self._config.warm_s

    def _round(self, now: float, number: int) -> None:
        """Place what waits at a server, as its dispatcher does."""
        server = self._servers[number]
        if not server.queue:
            return
        loads = [member.load() for member in server.members]
        waiting = [work.item for work, _ in server.queue.values()]
        for one in place(waiting, loads, "app", now):
            work, turns = server.queue.pop(one.id)
            self._run(now, number, self._by_name[one.engine], work, turns)

    def _run(self, now: float, server: int, number: int, work: Work, turns: _Turns) -> None:
        """The engine takes the call."""
        engine, member = self._engines[number], self._servers[server].members[number]
        member.hold(work)
        known = member.prefixes
        assert isinstance(known, _Known)
        self._fresh.append(known)
        footprint = replace(member.ops.footprint(work), prefixes=())
        engine.ledger.came(server, work.op.id, work.op.context, footprint)
        self._changed.add(number)
        cached, output = engine.cache.take(work.prefixes), work.expected or 0
        prompt = work.tokens - output
        started = max(now, engine.free_at)
        engine.free_at = started + FILL_S * (prompt - cached)
        if self._counts(now):
            engine.busy_s += engine.free_at - started + STEP_S * output / 16
            self._calls += 1
            self._prompts += prompt
            self._cached += cached
            self._waited += engine.free_at - work.queued
        self._at(engine.free_at + STEP_S * output, (server, number, work.op.id, turns, output))

    def _ended(
        self, now: float, server: int, number: int, op: str, turns: _Turns, output: int
    ) -> None:
        self._servers[server].members[number].release(op)
        self._engines[number].ledger.ended(server, op, is_lost=False)
        self._changed.add(number)
        turns.tokens += output
        if turns.left:
            self._at(now + turns.draw.expovariate(1 / PAUSE_S), turns)
        self._round(now, server)

    def _report(self, now: float) -> None:
        """The engines that have changed report to all servers, which place what waits."""
        for number in sorted(self._changed):
            engine = self._engines[number]
            for hash, came in engine.cache.changes:
                (engine.reported.add if came else engine.reported.discard)(hash)
            engine.cache.changes.clear()
            for at, server in enumerate(self._servers):
                report = engine.ledger.report(at, engine.told[at])
                if report is not None:
                    engine.told[at] = report
                    server.members[number].used_elsewhere(report)
        self._changed.clear()
        while self._fresh:
            self._fresh.popleft().own.clear()
        for at in range(len(self._servers)):
            self._round(now, at)

    def _result(self) -> Placed:
        busy = [engine.busy_s for engine in self._engines]
        calls = [server.calls for server in self._servers]
        return Placed(
            calls=self._calls,
            prompts=self._prompts,
            cached=self._cached,
            servers=max(calls) * len(calls) / sum(calls),
            engines=max(busy) * len(busy) / sum(busy),
            waited_s=self._waited / max(1, self._calls),
        )
