"""The ledger of an engine that several servers use: what each of them has on it.

The ledger decides over what it is told, and does nothing. Servers are numbers here, contexts are
ids that no two servers share.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from weftline_engine import api
from weftline_engine.transport.tcp.kv_grants import KvGrants

# A report of contexts counts as many as a server's index of prefixes holds.
MOST_CONTEXTS = 8192

Prefixes = tuple[tuple[str, int], ...]
_Moved = tuple[api.Residency, int, tuple[int, ...] | None]  # as in `api.ContextMoved`


@dataclass(slots=True)
class _Load:
    """The ops of one server, as `api.Footprint` counts them."""

    running: int = 0
    held: int = 0
    latency: int = 0
    grouped: int = 0
    throughput: int = 0
    bounded: int = 0
    strict: Counter[str] = field(default_factory=Counter)  # by tenant, how many ops

    def add(self, op: api.Footprint, sign: int) -> None:
        self.running += sign
        self.held += sign * op.held
        computed = sign * op.computed
        if op.throughput:
            self.throughput += computed
        elif op.grouped:
            self.grouped += computed
        else:
            self.latency += computed
        self.bounded += sign * op.held if op.bounded else 0
        if op.strict is not None:
            self.strict[op.strict] += sign


@dataclass(slots=True)
class _News:
    """What a server has not been told of the others' contexts."""

    came: dict[str, Prefixes] = field(default_factory=dict)
    moved: dict[str, _Moved] = field(default_factory=dict)


_NOTHING = api.Footprint(held=0, computed=0)


class EngineLedger:
    """What is on the engine. `pool` is the size of its KV cache in tokens, None if unknown."""

    def __init__(self, pool: int | None) -> None:
        self.grants = None if pool is None else KvGrants(pool)
        self._ops: dict[tuple[int, str], tuple[str, api.Footprint]] = {}  # with its context
        self._loads: dict[int, _Load] = {}
        self._all = _Load()
        self._news: dict[int, _News] = {}
        self._contexts: dict[str, Prefixes] = {}  # the last that came last
        self._moved: dict[str, _Moved] = {}  # of these

    def enter(self, server: int) -> None:
        """A server uses the engine from now on. It is told of all contexts."""
        self._loads[server] = _Load()
        self._news[server] = _News(dict(self._contexts), dict(self._moved))
        if self.grants is not None:
            self.grants.enter(server)

    def leave(self, server: int) -> None:
        """A server is gone, with all its ops. Its contexts move by the engine's reports."""
        for of, op in [key for key in self._ops if key[0] == server]:
            self.ended(of, op, is_lost=True)
        del self._loads[server], self._news[server]
        if self.grants is not None:
            self.grants.leave(server)

    def came(self, server: int, op: str, context: str, footprint: api.Footprint | None) -> None:
        """An op was submitted, which makes the context."""
        self.ended(server, op, is_lost=False)  # an earlier attempt
        found = footprint or _NOTHING
        self._ops[server, op] = context, found
        self._loads[server].add(found, 1)
        self._all.add(found, 1)
        if not found.prefixes:
            return
        self._contexts.pop(context, None)
        self._moved.pop(context, None)
        self._contexts[context] = found.prefixes
        if len(self._contexts) > MOST_CONTEXTS:
            self._tell(0, next(iter(self._contexts)), (api.Residency.DROPPED, 0, None))
        for other, news in self._news.items():
            if other != server:
                news.came[context] = found.prefixes
                news.moved.pop(context, None)

    def ended(self, server: int, op: str, *, is_lost: bool) -> None:
        """An op has ended. It is lost if it failed or was cancelled."""
        context, found = self._ops.pop((server, op), ("", None))
        if found is None:
            return
        self._loads[server].add(found, -1)
        self._all.add(found, -1)
        if is_lost and context in self._contexts:
            # Until the engine says what was computed of it.
            self._tell(server, context, (api.Residency.RESIDENT, 0, None))

    def moved(
        self,
        server: int,
        context: str,
        residency: api.Residency,
        tokens: int,
        places: tuple[int, ...] | None = None,
    ) -> None:
        """The engine has so much of a context of this server."""
        if context in self._contexts:
            self._tell(server, context, (residency, tokens, places))

    def _tell(self, server: int, context: str, moved: _Moved) -> None:
        """Tell all servers but this one what has become of a context."""
        if moved[0] is api.Residency.DROPPED:
            del self._contexts[context]
            self._moved.pop(context, None)
        else:
            self._moved[context] = moved
        for other, news in self._news.items():
            if other != server:
                news.moved[context] = moved

    def report(self, server: int, before: api.Elsewhere | None) -> api.Elsewhere | None:
        """What this server has to be told, after it was told `before`; None where that is nothing.

        What it returns counts as told.
        """
        mine, whole, news = self._loads[server], self._all, self._news[server]
        grant = None if self.grants is None else self.grants.offer(server)
        found = api.Elsewhere(
            op="",
            attempt=0,
            sequence=0,
            time=0.0,
            servers=len(self._loads),
            running=whole.running - mine.running,
            held=whole.held - mine.held,
            latency=whole.latency - mine.latency,
            grouped=whole.grouped - mine.grouped,
            throughput=whole.throughput - mine.throughput,
            bounded=whole.bounded - mine.bounded,
            strict=tuple(sorted(whole.strict - mine.strict)),
            room=None if grant is None else grant.tokens,
            grant=0 if grant is None else grant.number,
        )
        if news.came or news.moved:
            self._news[server] = _News()
            moved = tuple((context, *what) for context, what in news.moved.items())
            return replace(found, came=tuple(news.came.items()), moved=moved)
        return None if before is not None and found == _without_news(before) else found


def _without_news(report: api.Elsewhere) -> api.Elsewhere:
    bare = replace(report, sequence=0, time=0.0)
    return replace(bare, came=(), moved=()) if report.came or report.moved else bare
