"""What one engine does at this moment: its batch, what waits for it, its KV pool and its tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weftline_server.schedule.engines.member import EngineState, Member


@dataclass(frozen=True, slots=True)
class CacheUse:
    """A KV cache, in tokens. What calls run with bounds their prompts and outputs.

    `kept` is for calls to come, and `evictable` are prefixes that no call runs with or waits for.
    `host` of `host_size` tokens were copied to the memory of the host.
    """

    size: int
    running: int
    kept: int
    evictable: int
    host: int
    host_size: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of prompts that were computed and read from the cache, and generated tokens."""

    computed: int
    cached: int
    output: int


@dataclass(frozen=True, slots=True)
class EngineActivity:
    """One engine. Of a single tenant's view, `running` and `waiting` count its own calls here. Of
    the whole, `running` has those of other servers that use the engine.

    `tokens` and `pool` are made by all tenants, so they are None in such a view. `waiting` counts
    the queue of the engine's model, which all engines of the model share.
    """

    name: str
    state: EngineState
    model: str | None
    running: int
    max_running: int | None
    waiting: int
    tokens: Tokens | None
    pool: CacheUse | None

    @staticmethod
    def of(
        member: Member, salt: str | None, queued_of: Callable[[str | None, str], int], kept: int
    ) -> EngineActivity:
        """Return what the engine does for the tenant with this salt, or for all tenants."""
        described, works = member.description, member.ops.works.values()
        totals = member.ops.totals
        model = None if described is None else described.model
        whole = salt is None
        elsewhere = member.others.running if whole else 0
        return EngineActivity(
            name=member.name,
            state=member.state,
            model=model,
            running=sum(salt in (None, work.op.salt) for work in works) + elsewhere,
            max_running=described.max_running if described is not None and whole else None,
            waiting=0 if model is None else queued_of(salt, model),
            tokens=Tokens(totals.computed, totals.cached, totals.output) if whole else None,
            pool=_pool(member, kept) if whole else None,
        )


def _pool(member: Member, kept: int) -> CacheUse | None:
    """The engine's KV cache; None where the engine does not say how large it is."""
    described = member.description
    if described is None or described.kv_tokens is None or member.state is EngineState.DOWN:
        return None
    load, size, costs = member.load(), described.kv_tokens, described.kv_costs
    # Caches hold whole blocks and estimates round up, so parts are cut to what the pool has.
    running = min(load.held + load.early, size)
    kept = min(kept, size - running)
    device, host = member.prefixes.held(load.shared)
    return CacheUse(
        size=size,
        running=running,
        kept=kept,
        evictable=max(0, min(device - kept, size - running - kept)),
        host=host,
        host_size=0 if costs is None else costs.host_tokens,
    )
