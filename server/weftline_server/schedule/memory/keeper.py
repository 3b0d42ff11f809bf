"""What stays in the engines' KV caches, and which applications may fill them: decided here, from
what the graph knows and from habits, and performed by the dispatcher.

A finished call's context that a call of the graph will continue is kept, up to a share of the
cache; one that its session may continue later is left to the engine with the time at which that is
expected; every other one is freed. What had been kept is freed when what continued it has ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from weftline_engine.api import Op, Retention, Usage
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.schedule.memory.admission import MOST_RECOMPUTED, Pool, admit
from weftline_server.schedule.memory.applications import (
    Application,
    Applications,
    Busy,
    Kept,
    Recomputed,
    prefix_hash,
)

# Of an engine's pool, what may be pinned: the rest is for the calls that run.
MOST_PINNED = 0.5
# When what waits outside for its turn will be read again, in seconds: after all that is inside.
LONG_S = 3600.0
# Contexts of one application that nobody is known to continue; the newest are the likeliest.
MOST_GUESSED = 4


@dataclass(frozen=True, slots=True)
class Want:
    """A context's future: its first `tokens` (None: all) will be read in `pause_s` seconds; None
    where no call of the graph does, but the session may send one."""

    tokens: int | None = None
    pause_s: float | None = None


class Outlook(Protocol):
    """What the sessions know about the future of contexts and applications."""

    def want(self, id: PrimitiveId) -> Want | None:
        """Return who will read the context that primitive `id` left, or None if nobody will."""
        ...

    def goes_on(self, application: str) -> bool:
        """Return whether a call of the application is on an engine or on its way to one."""
        ...


@dataclass(frozen=True, slots=True)
class Advise:
    """Tell `engine` when `context` will be read, and how much of it."""

    engine: str
    context: str
    pause_s: float
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Retain:
    engine: str
    context: str
    retention: Retention


@dataclass(frozen=True, slots=True)
class Free:
    engine: str
    context: str


Verb = Advise | Retain | Free


@dataclass(slots=True)
class _Use:
    """How a model's KV cache has fared, and when an application was last let in beyond what fits
    or sent out, and when one for its age."""

    recomputed: Recomputed = field(default_factory=Recomputed)
    busy: Busy = field(default_factory=Busy)
    changed: float = -1e9
    forced: float = -1e9


class Memory:
    """One for all engines. `without` may name `retention` and `admission`."""

    def __init__(self, outlook: Outlook, without: frozenset[str] = frozenset()) -> None:
        self._outlook = outlook
        self._retains = "retention" not in without
        self._admits = "admission" not in without
        self._applications = Applications()
        self._waiting: dict[str, Application] = {}  # in the order of arrival
        self._inside: dict[str, Application] = {}
        self._uses: dict[str, _Use] = {}
        self._pools: dict[str, int] = {}  # tokens, by engine
        self._counting: set[str] = set()  # engines
        self._pinned: dict[str, int] = {}
        self._made: dict[str, PrimitiveId] = {}  # context → the primitive that left it

    def has_pool(self, engine: str, kv_tokens: int | None, counts: bool = True) -> None:
        """An engine takes work; whether it `counts` what of a prompt it found in its cache may be
        seen only later, of a vLLM that others have started."""
        if kv_tokens is not None:
            self._pools[engine] = kv_tokens
        self._counting.discard(engine)
        if counts:
            self._counting.add(engine)

    def lost(self, engine: str) -> None:
        """An engine is gone with all its contexts."""
        self._pools.pop(engine, None)
        self._pinned.pop(engine, None)
        self._counting.discard(engine)
        for one in self._applications:
            for context in [c for c, kept in one.kept.items() if kept.engine == engine]:
                del one.kept[context]
                self._made.pop(context, None)

    def queued(self, op: Op, model: str, stays: bool, now: float) -> list[Verb]:
        """A primitive waits from now on. What it continues is pinned until it has ended."""
        tokens = len(op.tokens or ()) + (op.sampling.max_tokens if op.sampling else 0)
        one = self._applications.enter(op.hints.application, model, op.salt, stays, now, tokens)
        if not one.busy:
            one.since = now
            if one.is_dormant(now):
                self._inside.pop(one.id, None)
        one.queued(tokens, now)
        gated = self._admits and stays and self._pools and op.tokens is not None
        if gated and one.id not in self._inside:
            self._waiting.setdefault(one.id, one)
            return [Advise(k.engine, c, LONG_S, None) for c, k in one.kept.items() if not k.pinned]
        return self._pin_for(one, op)

    def _pin_for(self, one: Application, op: Op) -> list[Verb]:
        """Pin what `op` will continue."""
        found: list[Verb] = []
        for context, kept in one.kept.items():
            if not kept.pinned and kept.begins(op.tokens or ()) and self._pin(kept):
                found.append(Retain(kept.engine, context, Retention.KEEP))
        return found

    def may_start(self, application: str) -> bool:
        return application not in self._waiting

    def admit(self, model: str, pool: int | None, now: float) -> None:
        """Let applications in, as far as the `pool` tokens of the model's engines go; and out where
        those inside have grown until they evict each other, whether or not anybody waits."""
        waiting = [one for one in self._waiting.values() if one.model == model]
        use = self._use(model)
        share = use.recomputed.share
        if not waiting and (share is None or share < MOST_RECOMPUTED):
            return
        if pool is None:
            for one in waiting:
                del self._waiting[one.id]
            return
        for one in [one for one in self._inside.values() if one.is_dormant(now)]:
            del self._inside[one.id]
        state = Pool(
            tokens=pool,
            recomputed=share,
            busy=use.busy.share,
            changed=now - use.changed,
            forced=now - use.forced,
        )
        inside = (one for one in self._inside.values() if one.model == model)
        decided = admit(waiting, inside, state, now)
        for one in decided.enter:
            self._inside[one.id] = self._waiting.pop(one.id)
        for one in decided.out:
            del self._inside[one.id]
        if decided.beyond or decided.out:
            use.changed = now
        if decided.forced:
            use.forced = now

    def ran(self, model: str, busy: float, now: float) -> None:
        """From now on such a share of the model's engines has something to do."""
        self._use(model).busy.note(busy, now)

    def finished(
        self, engine: str, id: PrimitiveId, op: Op, usage: Usage, now: float
    ) -> list[Verb]:
        """A primitive has ended well and left its context."""
        one = self._applications.find(op.hints.application)
        if one is None:
            return [Free(engine, op.context)]
        one.ended(now, self._outlook.goes_on(one.id))
        tokens = usage.prompt_tokens + usage.output_tokens
        if op.tokens is not None:
            self._learn(one, engine, op, usage)
        want = self._outlook.want(id) if self._retains and op.tokens is not None else None
        found = self._demote(one, op)
        if want is None:
            return [*found, Free(engine, op.context)]
        kept = Kept(
            engine=engine,
            prompt=len(op.tokens or ()),
            hash=prefix_hash(op.tokens or (), len(op.tokens or ())),
            tokens=tokens if want.tokens is None else want.tokens,
            sure=want.pause_s is not None,
        )
        one.kept[op.context] = kept
        self._made[op.context] = id
        pause = one.expected_pause_s if want.pause_s is None else want.pause_s
        found.append(Advise(engine, op.context, pause, want.tokens))
        if not kept.sure or not self._pin(kept):
            found.append(Retain(engine, op.context, Retention.EVICTABLE))
        return [*found, *self._bound(one)]

    def dropped(self, engine: str | None, op: Op, now: float) -> list[Verb]:
        """A primitive has failed or was taken back, from `engine` if it had one."""
        one = self._applications.find(op.hints.application)
        if one is not None:
            one.ended(now, self._outlook.goes_on(one.id))
        return [] if engine is None else [Free(engine, op.context)]

    def closed(self, application: str) -> list[Verb]:
        """The application has ended, and nothing of it will be read again."""
        one = self._applications.leave(application)
        self._waiting.pop(application, None)
        self._inside.pop(application, None)
        return [] if one is None else self._free(one, list(one.kept))

    def _use(self, model: str) -> _Use:
        return self._uses.setdefault(model, _Use())

    def _learn(self, one: Application, engine: str, op: Op, usage: Usage) -> None:
        """Note what the call has shown: sizes, and how much was computed again."""
        assert op.tokens is not None
        known = 0
        if one.prompt is None:
            if one.stays:
                one.habits.learn_shared(usage.cached_tokens)
        elif prefix_hash(op.tokens, one.prompt[0]) == one.prompt[1]:
            known = one.prompt[0]
        one.prompt = len(op.tokens), prefix_hash(op.tokens, len(op.tokens))
        one.size = max(one.size, usage.prompt_tokens + usage.output_tokens)
        if usage.cached_tokens:
            self._counting.add(engine)
        horizon = self._pools.get(engine)
        if horizon and engine in self._counting:
            self._use(one.model).recomputed.add(usage, known, horizon)

    def _demote(self, one: Application, op: Op) -> list[Verb]:
        """Free what this call has continued, and what no call of the graph needs any more."""
        ended = []
        for context, kept in one.kept.items():
            want = self._outlook.want(self._made[context])
            if want is not None and want.pause_s is not None:
                continue
            if kept.sure or (op.tokens is not None and kept.begins(op.tokens)):
                ended.append(context)
        return self._free(one, ended)

    def _bound(self, one: Application) -> list[Verb]:
        guessed = [context for context, kept in one.kept.items() if not kept.sure]
        return self._free(one, guessed[: max(0, len(guessed) - MOST_GUESSED)])

    def _free(self, one: Application, contexts: list[str]) -> list[Verb]:
        found: list[Verb] = []
        for context in contexts:
            kept = one.kept.pop(context)
            self._made.pop(context, None)
            if kept.pinned:
                self._pinned[kept.engine] -= kept.tokens
            found.append(Free(kept.engine, context))
        return found

    def _pin(self, kept: Kept) -> bool:
        """Take the context's room from what may be pinned; False if there is not so much."""
        pool, pinned = self._pools.get(kept.engine, 0), self._pinned.get(kept.engine, 0)
        if pinned + kept.tokens > MOST_PINNED * pool:
            return False
        self._pinned[kept.engine] = pinned + kept.tokens
        kept.pinned = True
        return True
