"""Engines that join, leave, hang and return, tested on the dispatcher alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container, Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.null.asgi import running
from tests.waits import until
from weftline.errors import EngineUnavailable, InvalidRequest, UnknownModel
from weftline_engine import api
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.observe import engine_metrics
from weftline_server.schedule import dispatcher
from weftline_server.schedule.delivery import MAX_DEATHS
from weftline_server.schedule.dispatcher import Dispatcher
from weftline_server.schedule.engines.member import EngineState, Work
from weftline_server.schedule.memory.keeper import Want
from weftline_server.schedule.memory.pauses import UNKNOWN_PAUSE_S
from weftline_server.schedule.queue import UNAVAILABLE_S
from weftline_server.schedule.session_protocol import Outcome, Sent


class Puppet:
    """An engine whose every event is sent by the test."""

    def __init__(self, model: str = "m", **options: Any) -> None:
        self.description = api.Description(model=model, chat_template="{{ messages }}", **options)
        self.ops: list[api.Op] = []
        self.told: list[tuple[str, Any]] = []  # the verbs about contexts that it was told
        self.closed = False
        self._said: asyncio.Queue[list[api.Event] | api.EngineDied | None] = asyncio.Queue()

    async def start(self) -> api.Description:
        return self.description

    def submit(self, op: api.Op) -> None:
        self.ops.append(op)

    def feed(self, op: str, offset: int, part: api.Fed, last: bool) -> None: ...
    def cancel(self, op: str) -> None: ...

    def update(self, op: str, hints: api.Hints) -> None:
        self.told.append(("update", hints.expected_pause))

    def retain(self, context: str, retention: api.Retention) -> None:
        self.told.append(("retain", retention))

    def free(self, context: str) -> None:
        self.told.append(("free", context))

    async def events(self) -> AsyncIterator[list[api.Event]]:
        while (said := await self._said.get()) is not None:
            if isinstance(said, api.EngineDied):
                raise said
            yield said

    async def close(self) -> None:
        self.closed = True
        self._said.put_nowait(None)

    def claim(self, claim: api.Claim) -> None:
        self.told.append(("claim", claim))

    async def say(self, *events: api.Event) -> None:
        self._said.put_nowait(list(events))
        await settle()

    async def die(self, reason: str = "hung") -> None:
        self._said.put_nowait(api.EngineDied(reason))
        await settle()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def part(op: api.Op, text: str) -> api.Part:
    return api.Part(
        op=op.id, attempt=op.attempt, sequence=1, time=0, offset=0, tokens=(), text=text
    )


def finished(op: api.Op) -> api.Finished:
    usage = api.Usage(prompt_tokens=1, cached_tokens=0, output_tokens=1, started=0, filled=0)
    reason = api.FinishReason.STOP
    return api.Finished(
        op=op.id, attempt=op.attempt, sequence=1, time=0, reason=reason, usage=usage
    )


def paused(op: api.Op) -> api.Paused:
    usage = finished(op).usage
    return api.Paused(op=op.id, attempt=op.attempt, sequence=1, time=0, reason="x", usage=usage)


def moved(op: api.Op, residency: api.Residency, tokens: int) -> api.ContextMoved:
    return api.ContextMoved(
        op=op.id,
        attempt=op.attempt,
        sequence=1,
        time=0,
        context=op.context,
        residency=residency,
        tokens=tokens,
    )


def available(yes: bool, reason: str = "", leaving: bool = False) -> api.Availability:
    return api.Availability(
        op="", attempt=0, sequence=1, time=0, available=yes, reason=reason, leaving=leaving
    )


class Bench:
    """A dispatcher, its clock, and sessions that record what they are told."""

    def __init__(self, **engines: Puppet) -> None:
        self.now = 0.0
        self.told: list[tuple[str, Outcome]] = []
        self.read: set[str] = set()  # primitives whose text a client has
        makers = {name: (lambda one=one: one) for name, one in engines.items()}
        self.dispatcher = Dispatcher(makers, "app", lambda: self.now)

    def outcome(self, id: PrimitiveId, outcome: Outcome) -> None:
        self.told.append((id.primitive, outcome))

    @property
    def states(self) -> dict[str, EngineState]:
        """The state of each engine by name."""
        return {member.name: member.state for member in self.dispatcher.members}

    @property
    def outlook(self) -> Bench:
        return self

    def want(self, id: PrimitiveId) -> Want | None:
        return None

    def goes_on(self, application: str) -> bool:
        return False

    def called_tools(self, id: PrimitiveId) -> tuple[str, ...] | None:
        return None

    def restarts(self, id: PrimitiveId) -> bool:
        return id.primitive not in self.read

    def replanned(self, known: Container[str]) -> Iterable[tuple[PrimitiveId, api.Hints]]:
        return ()

    async def call(
        self, name: str, model: str = "m", kind: Any = api.Kind.GENERATE, **more: Any
    ) -> None:
        id = PrimitiveId("s", name)
        op = api.Op(
            id=str(id),
            kind=kind,
            context=str(id),
            tokens=(1, 2),
            sampling=api.SamplingParams(max_tokens=1),
            hints=api.Hints(application="s"),
        )
        self.dispatcher.enqueue(Work(id, model, op, self.now, 2, **more))
        await settle()

    def outcomes(self, name: str) -> list[Outcome]:
        return [outcome for call, outcome in self.told if call == name]


@pytest.fixture
async def benches() -> AsyncIterator[list[Bench]]:
    made: list[Bench] = []
    yield made
    for bench in made:
        await bench.dispatcher.close()


async def started(benches: list[Bench], **engines: Puppet) -> Bench:
    bench = Bench(**engines)
    benches.append(bench)
    await bench.dispatcher.start(bench)
    return bench


async def test_a_hung_engine_is_fenced_and_may_come_back(benches: list[Bench]) -> None:
    """Its call goes to the other replica, its late events are dropped, and its successor works."""
    bench = await started(benches)
    first, second = Puppet(node="a"), Puppet(node="b")
    await bench.dispatcher.join("one", first, first.description)
    await bench.call("c")
    await bench.dispatcher.join("two", second, second.description)
    (op,) = first.ops
    await first.die("no heartbeat for 5 s")
    assert bench.states == {"one": EngineState.DOWN, "two": EngineState.READY}
    assert first.closed and bench.dispatcher.catalogue.healthy
    (again,) = second.ops
    assert (again.id, again.attempt) == (op.id, 1)
    await first.say(part(op, "late"), finished(op))
    await second.say(part(again, "right"), finished(again))
    sent, resent, text, end = bench.outcomes("c")
    assert isinstance(sent, Sent) and isinstance(resent, Sent)
    assert (sent.engine, sent.node, resent.engine, resent.node) == ("one", "a", "two", "b")
    assert isinstance(text, api.Part) and text.text == "right" and isinstance(end, api.Finished)
    back = Puppet(node="a")
    await bench.dispatcher.join("one", back, back.description)
    assert set(bench.states.values()) == {EngineState.READY}


async def test_a_call_that_kills_its_engines_is_given_up(benches: list[Bench]) -> None:
    """Four engines die under it before its first token. The call fails with the last engine's
    reason.
    """
    bench = await started(benches)
    for number in range(MAX_DEATHS):
        engine = Puppet()
        await bench.dispatcher.join(f"e{number}", engine, engine.description)
        if number == 0:
            await bench.call("c")
        await settle()
        (op,) = engine.ops
        assert (op.id, op.attempt) == ("s/c", number)
        await engine.die(f"signal {number}")
    (*_, failed) = bench.outcomes("c")
    assert isinstance(failed, api.Failed) and failed.error == "EngineFailed"
    assert failed.message == "engine e3 died while it ran this call: signal 3"
    spare = Puppet()
    await bench.dispatcher.join("spare", spare, spare.description)
    await bench.call("next")
    assert [op.id for op in spare.ops] == ["s/next"]


async def test_a_partly_read_call_is_not_run_again(benches: list[Bench]) -> None:
    """A reader has seen the beginning, and another attempt could give another text."""
    bench = await started(benches)
    first, second = Puppet(), Puppet()
    await bench.dispatcher.join("one", first, first.description)
    await bench.call("c")
    await bench.dispatcher.join("two", second, second.description)
    await first.say(part(first.ops[0], "Once"))
    bench.read.add("c")
    await first.die("signal 9")
    (*_, failed) = bench.outcomes("c")
    assert isinstance(failed, api.Failed) and "signal 9" in failed.message
    assert second.ops == []


async def test_joining_again_fences_the_former_self(benches: list[Bench]) -> None:
    """A host restarts before its death was noticed. Its former ops run again on the new
    incarnation.
    """
    bench = await started(benches)
    former, back = Puppet(), Puppet()
    await bench.dispatcher.join("one", former, former.description)
    await bench.call("c")
    await bench.dispatcher.join("one", back, back.description)
    await settle()
    assert [op.attempt for op in (*former.ops, *back.ops)] == [0, 1]
    await former.say(part(former.ops[0], "late"), finished(former.ops[0]))
    assert all(isinstance(one, Sent) for one in bench.outcomes("c"))


async def test_a_leaving_engine_finishes_its_ops(benches: list[Bench]) -> None:
    """It gets no new ops, and leaves without an error when it closes."""
    bench = await started(benches)
    leaver, stayer = Puppet(), Puppet()
    await bench.dispatcher.join("leaver", leaver, leaver.description)
    await bench.call("a")
    await bench.dispatcher.join("stayer", stayer, stayer.description)
    await leaver.say(available(False, leaving=True))
    await bench.call("b")
    assert [len(one.ops) for one in (leaver, stayer)] == [1, 1]
    await leaver.say(part(leaver.ops[0], "x"), finished(leaver.ops[0]))
    await leaver.close()
    await settle()
    assert isinstance(bench.outcomes("a")[-1], api.Finished)
    assert bench.states == {"stayer": EngineState.READY}


async def test_a_call_goes_to_replicas_of_its_model_only(benches: list[Bench]) -> None:
    """The first configured model is the default, whatever other models join."""
    a, b = Puppet("a"), Puppet("b")
    bench = await started(benches, first=a, other=b)
    assert (
        bench.dispatcher.catalogue.model("default") == bench.dispatcher.catalogue.model(None) == "a"
    )
    with pytest.raises(UnknownModel, match="use one of a, b"):
        bench.dispatcher.catalogue.model("c")
    for i in range(8):
        await bench.call(f"c{i}", "b")
    assert (len(a.ops), len(b.ops)) == (0, 8)


async def test_a_mismatched_engine_may_not_join(benches: list[Bench]) -> None:
    """Another template under the same name, or the name of one of the server's own engines."""
    bench = await started(benches, own=Puppet())
    stranger = Puppet(bos_token="<s>")
    with pytest.raises(InvalidRequest, match="give it a name of its own"):
        await bench.dispatcher.join("stranger", stranger, stranger.description)
    with pytest.raises(InvalidRequest, match="join by another name"):
        await bench.dispatcher.join("own", Puppet(), Puppet().description)
    assert bench.states == {"own": EngineState.READY}


async def test_a_suspended_engine_gets_no_ops_until_it_is_available(benches: list[Bench]) -> None:
    """An engine says that its endpoint fails. A call waits, and is sent when the endpoint is
    back."""
    bench = await started(benches, own=(own := Puppet()))
    await own.say(available(False, "it answered 500"))
    await bench.call("c")
    assert own.ops == [] and not bench.dispatcher.catalogue.healthy
    assert bench.dispatcher.members[0].last_error == "it answered 500"
    await own.say(available(True))
    assert len(own.ops) == 1 and bench.dispatcher.catalogue.healthy


async def test_a_call_without_an_engine_fails_in_bounded_time(
    benches: list[Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for an engine to join, but no longer than the configured time."""
    monkeypatch.setattr(dispatcher, "EXPIRE_EVERY_S", 0.001)
    bench = await started(benches)
    gone = Puppet()
    await bench.dispatcher.join("one", gone, gone.description)
    await gone.die("the node is gone")
    await bench.call("c")
    bench.now += UNAVAILABLE_S - 1
    await asyncio.sleep(0.01)
    assert bench.outcomes("c") == []
    bench.now += 1
    await until(lambda: bench.outcomes("c"))
    (failed,) = bench.outcomes("c")
    assert isinstance(failed, api.Failed) and failed.error == "EngineUnavailable"
    assert "one: the node is gone" in failed.message and bench.dispatcher.queued == 0


async def test_a_dead_engine_holds_nothing_any_more(benches: list[Bench]) -> None:
    """Neither a prefix that would attract calls, nor room that would admit applications."""
    bench = await started(benches)
    one = Puppet(kv_tokens=1000)
    await bench.dispatcher.join("one", one, one.description)
    await bench.call("c", prefixes=(("beginning", 64),))
    (member,) = bench.dispatcher.members
    assert set(member.prefixes.hashes) == {"beginning"}
    assert bench.dispatcher.memory._pools.tokens == {"one": 1000}
    await one.die()
    assert set(member.prefixes.hashes) == set()
    assert bench.dispatcher.memory._pools.tokens == {}


SLEEPS: Any = ("sleep",)
REPORTS: Any = ("reports",)


async def test_an_engine_gets_the_kinds_that_it_announces(benches: list[Bench]) -> None:
    """One that only sleeps gets sleep ops and nothing else, and serves no model. Of an op
    without a prompt no engine is told to keep or free a context, and no application waits."""
    sleeper = Puppet("naps", kinds=SLEEPS)
    bench = await started(benches, sleeper=sleeper)
    assert bench.dispatcher.catalogue.models == [] and bench.dispatcher.catalogue.healthy
    with pytest.raises(EngineUnavailable):
        bench.dispatcher.catalogue.model("naps")
    fills, generates = Puppet("naps", kv_tokens=9), Puppet("naps", kinds=(api.Kind.GENERATE,))
    await bench.dispatcher.join("fills", fills, fills.description)
    await bench.dispatcher.join("generates", generates, generates.description)
    assert bench.dispatcher.catalogue.models == ["naps"] and bench.dispatcher.catalogue.healthy
    for number in range(3):
        await bench.call(f"nap{number}", "naps", "sleep", stays=True)
        await bench.call(f"fill{number}", "naps", api.Kind.FILL)
    for number in range(4):
        await bench.call(f"call{number}", "naps")
    assert [op.kind for op in sleeper.ops] == ["sleep"] * 3
    assert [op.kind for op in fills.ops].count(api.Kind.FILL) == 3
    assert generates.ops and {op.kind for op in generates.ops} == {api.Kind.GENERATE}
    await sleeper.say(finished(sleeper.ops[0]))
    bench.dispatcher.cancel(sleeper.ops[1].id)
    await sleeper.die()
    assert isinstance(bench.outcomes("nap0")[-1], api.Finished)
    assert sleeper.told == [] and len(bench.dispatcher.memory._applications) == 1
    assert bench.dispatcher.queued == 1  # the third op waits until the sleeper is back


@pytest.mark.parametrize("kind", ["sleep", "generate"])
async def test_an_op_that_no_engine_ever_took_fails_as_well(
    benches: list[Bench], kind: str
) -> None:
    """It fails UNAVAILABLE_S seconds after it was queued, and not before."""
    bench = await started(benches, own=Puppet())
    await bench.call("c", "other", kind)
    bench.now += UNAVAILABLE_S - 1
    bench.dispatcher.expire()
    assert bench.outcomes("c") == []
    bench.now += 1
    bench.dispatcher.expire()
    (failed,) = bench.outcomes("c")
    assert isinstance(failed, api.Failed) and failed.error == "EngineUnavailable"


async def test_reported_prefixes_attract_calls(benches: list[Bench]) -> None:
    """A prefix is known while its op runs, after its end, and after its context was freed, until
    the engine reports its eviction. A new incarnation of the engine holds nothing.
    """
    first, second = Puppet(capabilities=REPORTS), Puppet(capabilities=REPORTS)
    bench = await started(benches, first=first, second=second)
    members = {member.name: member for member in bench.dispatcher.members}
    shared: dict[str, Any] = {"prefixes": (("beginning", 64), ("more", 128))}

    def known() -> set[str]:
        return set(members["first"].prefixes.hashes)

    await bench.call("a", **shared)
    (op,) = first.ops
    assert known() == {"beginning", "more"}
    await first.say(finished(op), moved(op, api.Residency.RESIDENT, 130))
    assert first.told == [("free", op.context)] and known() == {"beginning", "more"}
    await first.say(moved(op, api.Residency.RESIDENT, 100))
    assert known() == {"beginning"}
    for number in range(3):
        await bench.call(f"b{number}", **shared)
    assert [len(first.ops), len(second.ops)] == [4, 0]
    for one in first.ops[1:]:
        await first.say(finished(one), moved(one, api.Residency.DROPPED, 0))
    assert known() == {"beginning"}
    await first.say(moved(op, api.Residency.HOST, 64))
    assert known() == {"beginning"}
    await first.say(moved(op, api.Residency.DROPPED, 0))
    assert known() == set()
    await bench.call("c", **shared)
    await first.die()
    assert known() == set()


async def test_a_failed_op_leaves_the_prefixes_that_the_engine_reports(
    benches: list[Bench],
) -> None:
    """What the engine reports later counts, although the op was cancelled."""
    bench = await started(benches, own=(own := Puppet(capabilities=REPORTS)))
    (member,) = bench.dispatcher.members
    await bench.call("a", prefixes=(("beginning", 64),))
    bench.dispatcher.cancel(own.ops[0].id)
    assert not member.prefixes.hashes
    await own.say(moved(own.ops[0], api.Residency.RESIDENT, 64))
    assert set(member.prefixes.hashes) == {"beginning"}


async def test_a_paused_call_frees_its_place_and_keeps_its_context(benches: list[Bench]) -> None:
    """The engine's place is free again. It keeps the context until the op that continues it has
    ended. If the paused call is cancelled, its context is freed.
    """
    bench = await started(benches, own=(own := Puppet(kv_tokens=100, max_running=1)))
    await bench.call("a", stays=True)
    await own.say(paused(own.ops[0]))
    assert isinstance(bench.outcomes("a")[-1], api.Paused)
    assert running(bench.dispatcher) == {"own": (0, 0)}
    assert own.told == [("update", UNKNOWN_PAUSE_S), ("retain", api.Retention.EVICTABLE)]
    await bench.call("b", stays=True)
    await own.say(paused(own.ops[1]))
    bench.dispatcher.cancel(own.ops[1].id)
    assert own.told[4:] == [("free", own.ops[1].context)]
    bench.dispatcher.cancel(own.ops[1].id)
    bench.dispatcher.forget("s")
    assert own.told[5:] == [("free", own.ops[0].context)]


def test_metrics_of_one_engine_are_unchanged_and_of_two_told_apart() -> None:
    """Two engines with equal names of metrics get a label each, and one heading together."""
    text = b'# HELP v:x Help\n# TYPE v:x counter\nv:x{model="m"} 1.0\n# TYPE v:y gauge\nv:y 2.0\n'
    assert engine_metrics.merge({"a": text}) == text
    assert engine_metrics.merge({"a": text, "b": text}).decode().splitlines() == [
        "# HELP v:x Help",
        "# TYPE v:x counter",
        'v:x{weftline_engine="a",model="m"} 1.0',
        'v:x{weftline_engine="b",model="m"} 1.0',
        "# TYPE v:y gauge",
        'v:y{weftline_engine="a"} 2.0',
        'v:y{weftline_engine="b"} 2.0',
    ]


async def test_the_tool_s_answer_alone_is_sent_after_a_paused_call(benches: list[Bench]) -> None:
    """Its engine has the prompt and the output, whose tokens were in its parts. Another attempt on
    that engine is sent the same."""
    bench = await started(benches, own=(own := Puppet(kv_tokens=100)))

    async def call(name: str, tokens: tuple[int, ...]) -> None:
        id = PrimitiveId("s", name)
        sampling = api.SamplingParams(max_tokens=3, pause_on=("x",))
        op = api.Op(
            id=str(id),
            kind=api.Kind.GENERATE,
            context=str(id),
            tokens=tokens,
            sampling=sampling,
            hints=api.Hints(application="s"),
        )
        bench.dispatcher.enqueue(Work(id, "m", op, bench.now, len(tokens) + 3, stays=True))
        await settle()

    await call("asks", (1, 2))
    first = own.ops[0]
    head: dict[str, Any] = {"op": first.id, "attempt": 0, "sequence": 1, "time": 0.0}
    await own.say(
        api.Part(**head, offset=0, tokens=(7,), text="x"),
        api.Part(**head, offset=1, tokens=(8, 9), text=""),
    )
    usage = api.Usage(prompt_tokens=2, cached_tokens=0, output_tokens=3, started=0.0, filled=0.0)
    await own.say(api.Paused(**head, reason="x", usage=usage))
    await call("goes on", (1, 2, 7, 8, 9, 5, 6))
    assert (own.ops[1].parent, own.ops[1].tokens) == (first.context, (5, 6))
    await call("says otherwise", (1, 2, 7, 8, 3, 5, 6))
    assert (own.ops[2].parent, own.ops[2].tokens) == (None, (1, 2, 7, 8, 3, 5, 6))
    failed = api.Failed(
        op=own.ops[1].id, attempt=0, sequence=1, time=0.0, error="x", message="", retryable=True
    )
    await own.say(failed)
    assert own.ops[3] == replace(own.ops[1], attempt=1)
    bench.dispatcher.forget("s")


async def test_what_others_hold_of_a_cache_is_not_ours(benches: list[Bench]) -> None:
    """Of a cache of four tokens another client holds two: a second call of two tokens waits until
    it holds less. Others count for half of the cache at most, so one call always runs.
    """
    puppet = Puppet(kv_tokens=4)
    bench = await started(benches, e=puppet)
    occupied = api.Occupied(op="", attempt=0, sequence=1, time=0, tokens=4)
    await puppet.say(occupied)
    await bench.call("a")
    await bench.call("b")
    assert [op.id for op in puppet.ops] == ["s/a"]
    await puppet.say(replace(occupied, tokens=0))
    assert [op.id for op in puppet.ops] == ["s/a", "s/b"]


async def test_the_engines_ledger_admits(benches: list[Bench]) -> None:
    """Of a cache of 1,000 tokens the engine has granted 40 to this server: the second application
    waits, and the engine is told what both need. It is admitted by the next grant, which is
    confirmed.
    """
    puppet = Puppet(kv_tokens=1000, is_shared=True)
    bench = await started(benches, e=puppet)
    told = api.Elsewhere(
        op="", attempt=0, sequence=1, time=0.0, servers=2, running=1, held=20, room=40, grant=3
    )
    await puppet.say(told)
    for name in ("a", "b"):
        hints = api.Hints(application=name)
        sampling = api.SamplingParams(max_tokens=20)
        op = api.Op(
            id=f"{name}/1",
            kind=api.Kind.GENERATE,
            context=name,
            tokens=(1,) * 10,
            sampling=sampling,
            hints=hints,
        )
        bench.dispatcher.enqueue(Work(PrimitiveId(name, "1"), "m", op, 0.0, 30, stays=True))
    await settle()
    assert [op.id for op in puppet.ops] == ["a/1"]
    claims = [said for verb, said in puppet.told if verb == "claim"]
    assert claims[-1].seen == 3 and claims[-1].wanted > 0
    await puppet.say(replace(told, room=900, grant=4))
    assert [op.id for op in puppet.ops] == ["a/1", "b/1"]
    claims = [said for verb, said in puppet.told if verb == "claim"]
    assert (claims[-1].seen, claims[-1].wanted) == (4, 0)
