"""The dispatcher's record of one engine: its state, its running ops, and its prefixes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from enum import StrEnum
from operator import itemgetter
from types import MappingProxyType

from weftline_engine import api
from weftline_engine.api.record import short_record
from weftline_server.graph.engine_score import EngineScore
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.schedule.engines.capacity import latency_tokens, most_at_once
from weftline_server.schedule.engines.on_demand import OnDemand
from weftline_server.schedule.engines.other_use import OtherUse
from weftline_server.schedule.engines.prefix_index import KnownPrefixes, known_prefixes
from weftline_server.schedule.engines.totals import Totals
from weftline_server.schedule.lengths import Clues
from weftline_server.schedule.placement.round_data import (
    PROMPT_KINDS,
    EngineLoad,
    Queued,
    common,
    is_bounded,
)


class EngineState(StrEnum):
    """Where an engine stands, as seen by the dispatcher."""

    ASLEEP = "asleep"  # it starts when it is first used
    STARTING = "starting"
    READY = "ready"
    SUSPENDED = "suspended"  # it asks for no work for a while: its breaker is open
    LEAVING = "leaving"  # it finishes what it has, and takes no more
    DOWN = "down"
    CLOSED = "closed"


_S = EngineState
ALLOWED: Mapping[EngineState, frozenset[EngineState]] = MappingProxyType(
    {
        _S.ASLEEP: frozenset({_S.STARTING, _S.CLOSED}),
        _S.STARTING: frozenset({_S.READY, _S.DOWN, _S.CLOSED}),
        _S.READY: frozenset({_S.SUSPENDED, _S.LEAVING, _S.DOWN, _S.CLOSED}),
        _S.SUSPENDED: frozenset({_S.READY, _S.LEAVING, _S.DOWN, _S.CLOSED}),
        _S.LEAVING: frozenset({_S.DOWN, _S.CLOSED}),
        _S.DOWN: frozenset({_S.READY, _S.ASLEEP, _S.CLOSED}),
        _S.CLOSED: frozenset(),
    }
)


@short_record
class Work:
    """A primitive on its way to an engine: whose it is, the op to send, and when it was queued.

    `tokens` bounds the KV cache that the op will hold. For an op without a prompt it estimates its
    work. `prefixes` and `meanings` are the hashes and lengths of the prompt's prefixes, by token
    ids and by variables. `stays` says that its session may send more calls later, and `guessed`
    that nobody tells when the session ends. Work to do `once` gets no second attempt. `deaths`
    counts the engines that died while they ran it. Its `clues` tell how many tokens
    its output is `expected` to have.
    """

    primitive: PrimitiveId
    model: str
    op: api.Op
    queued: float
    tokens: int
    prefixes: tuple[tuple[str, int], ...] = ()
    meanings: tuple[tuple[str, int], ...] = ()
    stays: bool = False
    guessed: bool = False
    once: bool = False
    deaths: int = 0
    why: tuple[EngineScore, ...] = ()  # of an open op that was placed
    clues: Clues | None = None  # None where nothing is learned
    expected: int | None = None
    item: Queued = field(init=False)  # placement's view of it, made once and not in each round

    def __post_init__(self) -> None:
        item = Queued(
            id=self.op.id,
            model=self.model,
            kind=str(self.op.kind),
            queued=self.queued,
            tokens=self.tokens,
            hints=self.op.hints,
            prefixes=self.prefixes,
            meanings=self.meanings,
            open=self.op.open,
            tenant=self.op.salt,
        )
        object.__setattr__(self, "item", item)

    def op_beside(self, latency_tokens: int | None, now: float) -> api.Op:
        """Return the op for an engine that keeps its steps short up to this many tokens in flight.

        The token bound of a bounded call tells the engine when to pause other calls. Its order goes
        on from the seconds that the call has waited here.
        """
        hints, waited = self.op.hints, now - self.queued
        if waited >= 1.0:  # a shorter wait changes no order worth another copy
            hints = replace(hints, waited=waited)
        if latency_tokens is not None and is_bounded(hints):
            hints = replace(hints, token_bound=max(0, latency_tokens - self.tokens))
        return self.op if hints is self.op.hints else replace(self.op, hints=hints)

    @property
    def fed_so_far(self) -> int:
        """The tokens, the characters or the items that the op has."""
        items = self.op.inputs.get("items")
        if self.op.streams and isinstance(items, list):
            return len(items)
        return len(self.op.tokens or self.op.text or "")

    def delivered(self, items: int) -> Work:
        """Return the work as another attempt would do it after `items` results were delivered."""
        return replace(self, op=replace(self.op, delivered=items))

    def fed(self, part: api.Fed, last: bool) -> Work:
        """Return the work with `part` added, as another attempt would start with."""
        assert self.op.open
        if isinstance(part, list):
            held = self.op.inputs["items"]
            assert isinstance(held, list)
            inputs = {**self.op.inputs, "items": [*held, *part]}
            return replace(self, op=replace(self.op, inputs=inputs, open=not last))
        if isinstance(part, str):
            text = (self.op.text or "") + part
            return replace(self, op=replace(self.op, text=text, open=not last))
        assert self.op.tokens is not None
        op = replace(self.op, tokens=self.op.tokens + part, open=not last)
        return replace(self, op=op, tokens=self.tokens + len(part))


class InHand:
    """The running ops of an engine, and their load."""

    def __init__(self) -> None:
        self.works: dict[str, Work] = {}
        self._cached: dict[str, int] = {}  # op → the tokens that were in the cache when it came
        self._answered: set[str] = set()
        self._written: dict[str, list[int]] = {}  # the output of each op that may pause
        self.totals = Totals()

    def hold(self, work: Work, known: KnownPrefixes) -> None:
        """Add an op to an engine that holds the `known` prefixes, or replace it by a
        longer form.
        """
        if work.op.id not in self.works:
            self._cached[work.op.id] = common(work.prefixes, known.hashes, known.barred)
        self.works[work.op.id] = work

    def footprint(self, work: Work) -> api.Footprint:
        """What an op that is here adds to the load."""
        item = work.item
        has_prompt = item.has_prompt
        return api.Footprint(
            held=work.tokens if has_prompt else 0,
            computed=max(0, work.tokens - self._cached[work.op.id]),
            throughput=item.throughput,
            grouped=item.grouped,
            bounded=has_prompt and item.bounded,
            strict=item.tenant if has_prompt and item.strict else None,
            prefixes=work.prefixes,
        )

    def release(self, op: str) -> Work | None:
        """Remove an op and return its work; None if the engine does not have it."""
        work = self.works.pop(op, None)
        if work is not None:
            del self._cached[op]
            self._answered.discard(op)
            self._written.pop(op, None)
            self.totals.left(op)
        return work

    def answer(self, op: str, tokens: tuple[int, ...] = ()) -> None:
        """Note that a consumer may have seen text of this op, and these tokens of its output."""
        self._answered.add(op)
        self.totals.part(op, len(tokens))
        sampling = self.works[op].op.sampling
        if sampling is not None and sampling.pause_on:
            self._written.setdefault(op, []).extend(tokens)

    def written(self, op: str) -> tuple[int, ...]:
        """Return the output so far of an op that may pause."""
        return tuple(self._written.get(op, ()))

    def is_answered(self, op: str) -> bool:
        """Return whether a consumer may have seen text, so that another attempt could differ."""
        return op in self._answered

    def _left(self, work: Work) -> int:
        """The most tokens that an op may still generate; 0 where its progress is not known."""
        if work.op.tokens is None or work.op.open:
            return 0
        return max(0, work.tokens - len(work.op.tokens) - self.totals.so_far(work.op.id))

    def left(self) -> dict[str, int]:
        """By application: the most tokens that its call here may still generate."""
        return {work.op.hints.application: self._left(work) for work in self.works.values()}

    def writing(self) -> set[str]:
        """The applications whose calls here have generated a token."""
        works = self.works.values()
        return {one.op.hints.application for one in works if self.totals.so_far(one.op.id)}

    def load(self, name: str, description: api.Description, known: KnownPrefixes) -> EngineLoad:
        """Sum up the ops for placement. `known` are the engine's prefixes."""
        groups: dict[str, int] = {}
        latency = grouped = throughput = 0
        held = early = bounded = 0
        strict: set[str] = set()
        shared: set[str] = set()
        sizes: list[tuple[int, int]] = []
        # Tokens that early fills share with other calls count for the other calls, so these come
        # first. Of these the last to end comes first: the prefix stays until then.
        left = {op: self._left(work) for op, work in self.works.items()}
        for work in sorted(self.works.values(), key=lambda work: (work.op.open, -left[work.op.id])):
            hints = work.op.hints
            missing = work.tokens - self._cached[work.op.id]
            if work.item.throughput:
                throughput += missing
            elif work.item.grouped:
                grouped += missing
            else:
                latency += missing
            if hints.group:
                groups[hints.group] = groups.get(hints.group, 0) + 1
            if not work.item.has_prompt:
                continue  # it holds no KV cache
            own = work.tokens - common(work.prefixes, shared)
            shared.update(hash for hash, _ in (*work.prefixes, *work.meanings))
            if work.op.open:
                early += own
            else:
                held += own
                sizes.append((own, min(own, left[work.op.id])))
                bounded += own if work.item.bounded else 0
                if work.item.strict:
                    strict.add(work.item.tenant)
        return EngineLoad(
            name=name,
            model=description.model,
            kinds=frozenset(map(str, description.kinds)),
            running=len(self.works),
            max_running=description.max_running,
            held=held,
            apart=held - most_at_once(sizes),
            early=early,
            latency=latency,
            grouped=grouped,
            throughput=throughput,
            bounded=bounded,
            strict=strict,
            kv_tokens=description.kv_tokens,
            latency_tokens=latency_tokens(description.step_profile),
            groups=groups,
            prefixes=known.hashes,
            barred=known.barred,
            shared=shared,
        )


class Member:
    """One engine under supervision.

    `make` starts it again after it has died. It is None for an engine that joined: that one comes
    back by joining again. An engine on demand is asleep until it is used.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], api.Engine] | None,
        engine: api.Engine | None = None,
        description: api.Description | None = None,
    ) -> None:
        self.name = name
        self.make = make
        self.engine = engine
        self.state = EngineState.STARTING
        self.last_error = ""
        self.task: asyncio.Task[None] | None = None
        self.ops = InHand()
        self.fills: set[str] = set()  # ops of prefixes that are computed for later prompts
        self.description: api.Description | None = None
        self.kinds: frozenset[str] = frozenset()  # of op that it takes; set by `describe`
        self.prefixes: KnownPrefixes  # set by `describe`
        self.others = OtherUse()
        self._load: EngineLoad | None = None
        if isinstance(make, OnDemand):
            self.state, description = EngineState.ASLEEP, make.says
        if description is not None:
            self.describe(description)

    def describe(self, description: api.Description) -> None:
        """Take the description of an engine that has just started, with an empty cache."""
        self.description = description
        self.kinds = frozenset(map(str, description.kinds))
        self.prefixes = known_prefixes(description)
        self.others = OtherUse(description.kv_tokens)
        self._load = None

    def move_to(self, state: EngineState) -> None:
        """Change the state, as the table allows."""
        assert state in ALLOWED[self.state], f"engine {self.name}: {self.state} to {state}"
        self.state = state

    @property
    def closed(self) -> bool:
        return self.state is EngineState.CLOSED

    @property
    def on_demand(self) -> bool:
        """Whether the engine starts only when it is first used."""
        return isinstance(self.make, OnDemand)

    @property
    def node(self) -> str:
        """The machine that the engine runs on, "" for this one."""
        return self.description.node if self.description else ""

    @property
    def capabilities(self) -> tuple[api.Capability, ...]:
        return self.description.capabilities if self.description else ()

    @property
    def takes_prompts(self) -> bool:
        """Whether it takes a kind of op that has a prompt."""
        return not self.kinds.isdisjoint(PROMPT_KINDS)

    def op(self, work: Work, now: float) -> api.Op:
        """The op as this engine gets it. References are sent only to engines that draft, and its
        footprint only to engines that other servers use.
        """
        op, described = work.op_beside(self.latency_tokens, now), self.description
        if described is not None and described.is_shared:
            footprint = self.ops.footprint(work)
            op = replace(op, hints=replace(op.hints, footprint=footprint))
        drafts = described is not None and described.drafts
        if drafts or not op.guesses.references:
            return op
        return replace(op, guesses=replace(op.guesses, references=()))

    def hold(self, work: Work) -> None:
        """Note that the engine runs this op, or has got more of its prompt."""
        is_new = work.op.id not in self.ops.works
        self.ops.hold(work, self.prefixes)
        if is_new:
            both = sorted((*work.prefixes, *work.meanings), key=itemgetter(1))
            self.prefixes.expect(work.op.context, tuple(both))
        self._load = None

    def replan(self, op: str, hints: api.Hints) -> Work | None:
        """Note new hints of an op that the engine has. Return its work if they are of use there:
        a depth or a group says only where it begins.
        """
        work = self.ops.works[op]
        old = work.op.hints
        is_same = (old.criterion, old.unread) == (hints.criterion, hints.unread)
        if is_same or api.Capability.UPDATES not in self.capabilities:
            return None
        work = replace(work, op=replace(work.op, hints=hints))
        self.hold(work)
        return work

    def delivered(self, op: str, items: int) -> None:
        """Note that the engine has delivered the results of an op's first `items`."""
        self.ops.works[op] = self.ops.works[op].delivered(items)

    def used_elsewhere(self, report: api.Elsewhere) -> None:
        """Note what other servers have on the engine, and the prefixes of their calls."""
        for context, prefixes in report.came:
            self.prefixes.expect(_foreign(context), prefixes)
        for context, residency, tokens, places in report.moved:
            self.prefixes.moved(_foreign(context), residency, tokens, places)
        self.others.hear(report)
        self._load = None

    def release(self, op: str) -> Work | None:
        """Note that the engine no longer has this op. Return its work; None if it never had it."""
        work = self.ops.release(op)
        if work is not None:
            self._load = None
        return work

    @property
    def latency_tokens(self) -> int | None:
        """How many tokens may be in flight beside a call that a user waits for."""
        return latency_tokens(self.description.step_profile) if self.description else None

    @property
    def is_busy(self) -> bool:
        """Whether it runs calls, of this server or of another one."""
        return bool(self.ops.works) or self.others.running > 0

    def load(self) -> EngineLoad:
        """Return the engine's load. It is kept, since of 256 engines few change between rounds."""
        if self._load is None:
            assert self.description is not None, "a ready engine has described itself"
            self._load = self.ops.load(self.name, self.description, self.prefixes)
        return self.others.added(self._load)


def _foreign(context: str) -> str:
    """The name of another server's context among those of an engine's prefixes."""
    return f"other:{context}"


def efficient_batch(members: Iterable[Member], kind: str, resource: str) -> int | None:
    """Return the efficient number of items of an op of `kind`: the least of the engines that run it
    for `resource`, or None if one of them takes whole ops only.
    """
    described = [
        one
        for member in members
        if (one := member.description) is not None
        and one.model == resource
        and kind in member.kinds
    ]
    if not described or any(api.Capability.FEED not in one.capabilities for one in described):
        return None
    return min(one.efficient_items(kind) for one in described)
