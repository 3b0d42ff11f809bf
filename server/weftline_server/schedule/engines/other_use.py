"""What others have on an engine: clients that are not ours, and other servers of ours."""

from __future__ import annotations

from dataclasses import replace

from weftline_engine import api
from weftline_server.schedule.placement.round_data import EngineLoad


class OtherUse:
    """The use of one engine by others, whose KV cache has `pool` tokens; None if nobody knows.

    `report` is what the engine's ledger has said of other servers; None if there is no ledger.
    """

    def __init__(self, pool: int | None = None) -> None:
        self.report: api.Elsewhere | None = None
        self._pool = pool
        self._tokens = 0  # of the KV cache, held by other clients
        self._claim: api.Claim | None = None  # what this server has said that it needs
        self._made: tuple[EngineLoad, EngineLoad] | None = None  # our load, and that with others

    def occupy(self, tokens: int) -> bool:
        """Note how much of the KV cache other clients hold. Return whether that is less than
        before.

        The tokens of others count for half of the cache at most: the calls of this server never
        wait for them all.
        """
        before, self._tokens = self._tokens, min(tokens, (self._pool or 0) // 2)
        self._made = None
        return self._tokens < before

    def hear(self, report: api.Elsewhere) -> None:
        """Note what other servers have on the engine."""
        self.report = report
        self._made = None

    def needs(self, used: int, wanted: int) -> api.Claim | None:
        """What to tell the engine's ledger that this server's applications need; None where it
        knows, or no other server uses the engine.
        """
        if self.report is None or self.report.servers < 2:
            return None
        claim = api.Claim(used=used, wanted=wanted, seen=self.report.grant)
        if claim == self._claim:
            return None
        self._claim = claim
        return claim

    @property
    def running(self) -> int:
        """How many calls of other servers the engine runs."""
        return 0 if self.report is None else self.report.running

    @property
    def room(self) -> int | None:
        """The tokens of the KV cache that this server may fill; None if its size is unknown.

        Where other servers use the engine, its own ledger has the say.
        """
        pool = self._pool
        if pool is None:
            return None
        if self.report is not None and self.report.room is not None:
            pool = self.report.room
        return pool - self._tokens

    def added(self, load: EngineLoad) -> EngineLoad:
        """The engine's load with that of others. It is kept until either changes."""
        if self.report is None and not self._tokens:
            return load
        if self._made is None or self._made[0] is not load:
            whole = replace(load, held=load.held + self._tokens) if self._tokens else load
            self._made = load, whole if self.report is None else with_others(whole, self.report)
        return self._made[1]


def with_others(load: EngineLoad, others: api.Elsewhere) -> EngineLoad:
    """The load of an engine with the ops of other servers, which are as good as calls of ours."""
    if others.servers < 2:
        return load
    return replace(
        load,
        servers=others.servers,
        running=load.running + others.running,
        held=load.held + others.held,
        latency=load.latency + others.latency,
        grouped=load.grouped + others.grouped,
        throughput=load.throughput + others.throughput,
        bounded=load.bounded + others.bounded,
        strict={*load.strict, *others.strict},
    )
