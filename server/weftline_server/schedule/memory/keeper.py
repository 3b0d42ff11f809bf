"""Memory decides which contexts stay in the KV caches, from the graph and from learned habits.

A finished call leaves its context. A context that a call of the graph will continue is pinned, up
to a share of the cache. A context that the session may continue later may be evicted by the engine,
which is told when the next call is expected. Every other context is freed. A kept context is freed
when the call that continued it has ended. Memory returns verbs, and the dispatcher performs them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from weftline_engine.api import KvCosts, Op, Retention, Usage
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.schedule.memory.applications import (
    Application,
    Applications,
    KeptContext,
    prefix_hash,
)
from weftline_server.schedule.memory.early_prompts import EarlyPrompts
from weftline_server.schedule.memory.gate import Gate
from weftline_server.schedule.memory.own_memory import OwnMemory
from weftline_server.schedule.memory.paused_contexts import LONG_S, PausedContext, PausedContexts
from weftline_server.schedule.memory.rank import token_seconds
from weftline_server.schedule.memory.verbs import AdviseContext, FreeContext, RetainContext, Verb
from weftline_server.schedule.memory.waste import Load
from weftline_server.schedule.placement.round_data import PROMPT_KINDS

# At most this share of an engine's pool is pinned. The rest is for the calls that run.
MOST_PINNED = 0.5
# At most this many contexts of one application are kept on a guess. The newest are the likeliest.
MOST_GUESSED = 4


@dataclass(frozen=True, slots=True)
class Want:
    """The future of a context: its first `tokens` (None: all) will be read in `pause_s` seconds.

    `pause_s` is None where no call of the graph will read it, but the session may send one.
    """

    tokens: int | None = None
    pause_s: float | None = None


class Outlook(Protocol):
    """The sessions' knowledge about the future of contexts and applications."""

    def want(self, id: PrimitiveId) -> Want | None:
        """Return who will read the context of primitive `id`, or None without a future reader."""
        ...

    def goes_on(self, application: str) -> bool:
        """Return whether a call of the application is on an engine or on its way to one."""
        ...

    def called_tools(self, id: PrimitiveId) -> tuple[str, ...] | None:
        """Return the names of the tools that the output of primitive `id` calls; None if it was
        offered none."""
        ...


class Pools:
    """The KV pools of the engines: their sizes, and how much of each is pinned, in tokens."""

    def __init__(self) -> None:
        self.tokens: dict[str, int] = {}
        self._pinned: dict[str, int] = {}
        self._counting: set[str] = set()

    def add(self, engine: str, kv_tokens: int | None, counts: bool) -> None:
        """Add an engine; `counts` if it tells how much of a prompt it found in its cache."""
        if kv_tokens is not None:
            self.tokens[engine] = kv_tokens
        self._counting.discard(engine)
        if counts:
            self._counting.add(engine)

    def lose(self, engine: str) -> None:
        """Remove an engine, with everything that was pinned there."""
        self.tokens.pop(engine, None)
        self._pinned.pop(engine, None)
        self._counting.discard(engine)

    def saw(self, engine: str, usage: Usage) -> None:
        """Note that an engine does count, if it found anything in its cache."""
        if usage.cached_tokens:
            self._counting.add(engine)

    def counted(self, engine: str) -> int | None:
        """Return the pool size of an engine that counts its cached tokens; else None."""
        return self.tokens.get(engine) if engine in self._counting else None

    def pin(self, kept: KeptContext) -> bool:
        """Count a context's tokens as pinned. Return False if the bound on pins is reached."""
        pool, pinned = self.tokens.get(kept.engine, 0), self._pinned.get(kept.engine, 0)
        if pinned + kept.tokens > MOST_PINNED * pool:
            return False
        self._pinned[kept.engine] = pinned + kept.tokens
        kept.pinned = True
        return True

    def unpin(self, kept: KeptContext) -> None:
        """Give a context's tokens back, if it was pinned."""
        if kept.pinned:
            self._pinned[kept.engine] -= kept.tokens


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many applications are admitted to the KV caches, how many wait for that, and how many
    tokens each engine keeps for calls to come.
    """

    admitted: int = 0
    waiting: int = 0
    kept: Mapping[str, int] = field(default_factory=dict)


def _read_last(one: Application) -> list[Verb]:
    """Advice that the contexts of an application that is not admitted are read after the others."""
    return [AdviseContext(k.engine, c, LONG_S, None) for c, k in one.kept.items() if not k.pinned]


class Memory:
    """The memory of all engines. Ops without a prompt hold no KV cache, and are ignored.

    `without` names what is off: `retention`, `admission`, `memory_rank` or `tool_pauses`.
    """

    def __init__(self, outlook: Outlook, without: Collection[str] = frozenset()) -> None:
        self.gate = Gate()
        self._outlook = outlook
        self._retains = "retention" not in without
        self._admits = "admission" not in without
        self._ranks = "memory_rank" not in without
        self._applications = Applications()
        self._pools = Pools()
        self._pressed: set[str] = set()  # models whose applications wait for room
        self.paused_contexts = PausedContexts("tool_pauses" not in without, self._pressed)
        self._made: dict[str, PrimitiveId] = {}  # kept context → the primitive that left it
        self.own_memory = OwnMemory(self.gate, self.paused_contexts, self._keeping)
        self.early = EarlyPrompts(
            self._applications, self.gate, self.paused_contexts, self._pressed
        )

    def has_pool(
        self,
        engine: str,
        kv_tokens: int | None,
        counts: bool = True,
        costs: KvCosts | None = None,
        host_tokens: int = 0,
    ) -> None:
        """Take note of an engine that takes work, with what its KV cache `costs`, if measured.
        Without costs, copies of `host_tokens` fit into its host memory.

        `counts` says that it announces how much of a prompt it found in its cache. A vLLM that
        others have started does not announce this, and may show it only later.
        """
        self._pools.add(engine, kv_tokens, counts)
        self.paused_contexts.engines.add(engine, kv_tokens, costs, host_tokens)

    def occupancy(self) -> Occupancy:
        """What the KV caches hold at this moment."""
        found: dict[str, int] = {}
        for one in self._applications:
            for kept in one.kept.values():
                found[kept.engine] = found.get(kept.engine, 0) + kept.tokens
        return Occupancy(*self.gate.counts, found)

    def lost(self, engine: str) -> None:
        """Forget an engine that is gone with all its contexts."""
        self._pools.lose(engine)
        self.paused_contexts.lose(engine)
        for one in self._applications:
            for context in [c for c, kept in one.kept.items() if kept.engine == engine]:
                del one.kept[context]
                self._made.pop(context, None)
                self.paused_contexts.freed(engine, context)

    def queued(
        self,
        op: Op,
        model: str,
        stays: bool,
        now: float,
        expected: int | None = None,
        guessed: bool = False,
        placed: bool = False,
    ) -> list[Verb]:
        """Take note of a call that waits. The context that the call continues is pinned until the
        call ends. The output has `expected` tokens; without a prediction the output counts with its
        bound. Nobody tells when an application that is `guessed` ends.

        A call that is `placed` was an open op on an engine, and holds its context.
        """
        if op.kind not in PROMPT_KINDS:
            return []
        if self.early.begin(op):
            return []
        output = op.sampling.max_tokens if op.sampling and expected is None else expected or 0
        tokens = len(op.tokens or ()) + output
        one = self._applications.enter(op.hints.application, model, op.salt, stays, now, tokens)
        one.newest.end_unknown = guessed
        if not one.busy:
            one.since = now
        one.queued(tokens, now, output)
        if self._ranks:
            one.newest.need = self._need(one, op.salt, tokens - output, output)
        for context, kept in one.kept.items():
            if kept.paused and kept.begins(op.tokens or ()):
                self.paused_contexts.resumed(context, now, len(op.tokens or ()))
        gated = self._admits and stays and self._pools.tokens and op.tokens is not None
        if gated and not self.gate.is_admitted(one.id) and not self.gate.arrive(one, placed):
            return _read_last(one)
        return self._pin_for(one, op)

    def _need(self, one: Application, tenant: str, prompt: int, output: int) -> float | None:
        """The token-seconds of a call, of the pause behind it, and of coming back with a result.
        It is expected to call the tools that the application or its kind has called last.
        """
        paused_contexts, tools = self.paused_contexts, one.newest.tools or one.habits.tools
        pause_s = paused_contexts.expect(tenant, tools)
        later = max(1, round(paused_contexts.results.expect(tenant, tools)))
        expected_s = one.expected_pause_s if pause_s is None else pause_s
        need = paused_contexts.engines.need(one.model, prompt, output, expected_s, later)
        return None if need is None else token_seconds(need)

    def admit(self, model: str, pool: int | None, now: float, host: int = 0) -> list[Verb]:
        """Admit applications of a model, as Gate.admit, to the `pool` of its engines and to the
        `host` tokens that their host memory holds beside it.

        The contexts of applications that lose their place are evicted first. Where applications
        begin to wait for room, or enter and take the room of contexts of applications that are not
        admitted, decide anew about the paused contexts that stayed.
        """
        self.own_memory.resize(model, pool, host)
        decided = self.gate.admit(model, None if pool is None else pool + host, now)
        found = [verb for one in decided.out for verb in _read_last(one)]
        waited = model in self._pressed
        waits = self.gate.line.waits(model)
        (self._pressed.add if waits else self._pressed.discard)(model)
        if (waits and not waited) or (decided.enter and not self.own_memory.has_room(model)):
            kept = [context for one in self._keeping(model) for context in one.kept]
            found += self.paused_contexts.press(kept, now)
        return found

    def _keeping(self, model: str) -> list[Application]:
        """The applications of a model with a kept context. Most of those that wait have none."""
        sessions = dict.fromkeys(made.session for made in self._made.values())
        found = map(self._applications.find, sessions)
        return [one for one in found if one is not None and one.model == model]

    def _pin_for(self, one: Application, op: Op) -> list[Verb]:
        """Pin the contexts that `op` will continue, so that no context is evicted before `op`
        runs."""
        found: list[Verb] = []
        for context, kept in one.kept.items():
            if not kept.pinned and kept.begins(op.tokens or ()) and self._pools.pin(kept):
                found.append(RetainContext(kept.engine, context, Retention.KEEP))
        return found

    def finished(
        self, engine: str, id: PrimitiveId, op: Op, usage: Usage, now: float
    ) -> list[Verb]:
        """Decide about the context of a call that ended well."""
        if op.kind not in PROMPT_KINDS:
            return []
        one = self._applications.find(op.hints.application)
        if one is None:
            return [FreeContext(engine, op.context)]
        one.ended(now, self._outlook.goes_on(one.id))
        one.newest.calls_nothing = one.newest.end_unknown and self._outlook.called_tools(id) == ()
        if op.tokens is not None:
            self._learn(one, engine, op, usage, now)
        want = self._outlook.want(id) if self._retains and op.tokens is not None else None
        found = self._demote(one, op)
        if want is None:
            return [*found, FreeContext(engine, op.context)]
        tokens = usage.prompt_tokens + usage.output_tokens if want.tokens is None else want.tokens
        kept = self._keep(one, engine, id, op, tokens)
        kept.sure = want.pause_s is not None
        pause = one.expected_pause_s if want.pause_s is None else want.pause_s
        if self.gate.is_evicted(one.id) or one.is_read_last:
            pause = LONG_S
        elif not kept.sure and engine in self.paused_contexts.engines.hosts:
            return [*found, *self._left(one, engine, op, pause, now), *self._bound(one)]
        found.append(AdviseContext(engine, op.context, pause, want.tokens))
        if not kept.sure or not self._pools.pin(kept):
            found.append(RetainContext(engine, op.context, Retention.EVICTABLE))
        return [*found, *self._bound(one)]

    def _left(
        self, one: Application, engine: str, op: Op, pause_s: float, now: float
    ) -> list[Verb]:
        """Decide about the context of a call behind which its session may send another one."""
        paused = PausedContext(
            engine=engine,
            context=op.context,
            tokens=one.kept[op.context].tokens,
            tenant=op.salt,
            tools=(),
            pause_s=pause_s,
            since=now,
            load=self.paused_contexts.engines.load(one.model),
            stops=False,
        )
        return self.paused_contexts.begin(paused, self.own_memory.is_short(one.model))

    def paused(
        self,
        engine: str,
        id: PrimitiveId,
        op: Op,
        usage: Usage,
        now: float,
        written: tuple[int, ...] = (),
        load: Load | None = None,
    ) -> list[Verb]:
        """Keep the context of a call that stopped for a tool, after it had `written` these tokens.

        The tool's time counts as a pause of the application. `load` is what else runs there.
        """
        one = self._applications.find(op.hints.application)
        if one is None:
            return [FreeContext(engine, op.context)]
        one.ended(now)
        if op.tokens is not None:
            self._learn(one, engine, op, usage, now)
        found = self._demote(one, op)
        if not self._retains or op.tokens is None:
            return [*found, FreeContext(engine, op.context)]
        kept = self._keep(one, engine, id, op, usage.prompt_tokens + usage.output_tokens)
        kept.paused = True
        if len(op.tokens) + len(written) == kept.tokens:
            kept.ids = (*op.tokens, *written)
        tools = one.newest.tools = one.habits.tools = self._outlook.called_tools(id) or ()
        pause_s = self.paused_contexts.expect(op.salt, tools)
        paused = PausedContext(
            engine=engine,
            context=op.context,
            tokens=kept.tokens,
            tenant=op.salt,
            tools=tools,
            pause_s=one.expected_pause_s if pause_s is None else pause_s,
            since=now,
            load=load or Load(),
        )
        gives_up = self.paused_contexts.gives_up(paused)
        one.habits.learn_release(gives_up)
        if gives_up:
            self.gate.leave(one.id)
        found += self.paused_contexts.begin(paused, self.own_memory.is_short(one.model))
        return found

    def continuing(self, engine: str, op: Op) -> Op:
        """Return the op as `engine` gets it: after a paused context, with what follows it alone.

        The engine then pins that context, and copies it back where it was swapped out. An open op
        is sent whole, because it is fed by the count of all its tokens.
        """
        one = self._applications.find(op.hints.application)
        if one is None or op.open or op.tokens is None:
            return op
        for context, kept in reversed(one.kept.items()):  # a later one is longer
            count = len(kept.ids)
            is_longer = 0 < count < len(op.tokens)
            if is_longer and kept.engine == engine and op.tokens[:count] == kept.ids:
                return op.continuing(context, count)
        return op

    def restoring(self, engine: str, op: Op) -> list[Verb]:
        """Copy back the contexts whose prompts `op` begins with, before `engine` gets it.

        A client sends a call back as text, which may become other tokens than the model wrote. Then
        the op continues no context, and the engine looks for its prompt in the KV cache alone.
        """
        one = self._applications.find(op.hints.application)
        if one is None or op.parent is not None or op.tokens is None:
            return []
        return [
            RetainContext(engine, context, Retention.KEEP)
            for context, kept in one.kept.items()
            if kept.engine == engine
            and self.paused_contexts.is_copied(engine, context)
            and kept.begins(op.tokens)
        ]

    def abandoned(self, context: str) -> list[Verb]:
        """Free the context of a paused call that was cancelled; nothing if there is none."""
        made = self._made.get(context)
        one = None if made is None else self._applications.find(made.session)
        kept = None if one is None else one.kept.get(context)
        if one is None or kept is None or not kept.paused:
            return []
        return self._free(one, [context])

    def dropped(self, engine: str | None, op: Op, now: float) -> list[Verb]:
        """Take note of a call that failed or was cancelled, on `engine` if it was on one."""
        if op.kind not in PROMPT_KINDS:
            return []
        one = self._applications.find(op.hints.application)
        if not self.early.end(op) and one is not None:
            one.ended(now, self._outlook.goes_on(one.id))
        return [] if engine is None else [FreeContext(engine, op.context)]

    def closed(self, application: str) -> list[Verb]:
        """Free all contexts of an application that has ended."""
        one = self._applications.leave(application)
        self.gate.forget(application)
        return [] if one is None else self._free(one, list(one.kept))

    def _keep(
        self, one: Application, engine: str, id: PrimitiveId, op: Op, tokens: int
    ) -> KeptContext:
        prompt = op.tokens or ()
        kept = one.kept[op.context] = KeptContext(
            engine=engine,
            prompt=len(prompt),
            hash=prefix_hash(prompt, len(prompt)),
            tokens=tokens,
        )
        self._made[op.context] = id
        return kept

    def _learn(self, one: Application, engine: str, op: Op, usage: Usage, now: float) -> None:
        """Learn from a call's sizes, and from how much of the call was computed again."""
        assert op.tokens is not None
        known = 0
        if one.prompt is None:
            if one.stays:
                one.habits.learn_shared(usage.cached_tokens)
        elif prefix_hash(op.tokens, one.prompt[0]) == one.prompt[1]:
            known = one.prompt[0]
        one.prompt = len(op.tokens), prefix_hash(op.tokens, len(op.tokens))
        one.size = max(one.size, usage.prompt_tokens + usage.output_tokens)
        self._pools.saw(engine, usage)
        horizon = self._pools.counted(engine)
        if horizon:
            self.gate.computed(one.model, usage, known, horizon, one.id, now, engine)

    def _demote(self, one: Application, op: Op) -> list[Verb]:
        """Free the contexts that this call continued, and those that the graph no longer needs."""
        ended = []
        for context, kept in one.kept.items():
            want = self._outlook.want(self._made[context])
            if want is not None and want.pause_s is not None:
                continue
            if kept.sure or (op.tokens is not None and kept.begins(op.tokens)):
                ended.append(context)
        return self._free(one, ended)

    def _bound(self, one: Application) -> list[Verb]:
        guessed = [c for c, kept in one.kept.items() if not kept.sure and not kept.paused]
        return self._free(one, guessed[: max(0, len(guessed) - MOST_GUESSED)])

    def _free(self, one: Application, contexts: list[str]) -> list[Verb]:
        found: list[Verb] = []
        for context in contexts:
            kept = one.kept.pop(context)
            self._made.pop(context, None)
            self._pools.unpin(kept)
            self.paused_contexts.freed(kept.engine, context)
            found.append(FreeContext(kept.engine, context))
        return found
