"""The criterion of a get: it goes with the calls that the get sends, and reaches those that run."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.null.asgi import Serve, Server, call
from tests.null.test_session import Play
from tests.null.test_session import call as node
from tests.simulator.world import asking, world
from weftline import AsyncClient, Output, semantic_function
from weftline.contract.protocol import Criterion, SubmitBody
from weftline_engine.api import Capability, Description, Hints
from weftline_engine.bookkeeping.schedule.sequence import Rank
from weftline_engine.bookkeeping.schedule.step_order import rank
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullEngine, NullMode
from weftline_engine.pretend.simulation import SimulatedConfig, SimulatedEngine, StepCost
from weftline_engine.pretend.virtual_time import VirtualLoop, run
from weftline_server.schedule.turns import STAND_BACK_S, turn
from weftline_server.session import events as ev

# A word takes 2 ms, and an answer of 48 words a tenth of a second.
SLOW = NullConfig(latency=LatencyProfile(step_s=0.002), mode=NullMode.FIXED)


@semantic_function
def shorten(text, line=Output(max_tokens=48)):  # noqa: B008
    """Shorten {{input:text}}: {{output:line}}"""


def test_the_get_that_sends_calls_speaks_for_all_of_them() -> None:
    """Its criterion holds for each output that nothing reads, until a reader asks for that one. A
    reader that asks for nothing wants what it would have without: latency.
    """
    tasks = (node("a", writes="x"), node("b", "x", "y"), node("c", writes="z"))
    play = Play()
    play.tell(ev.TasksSubmitted(now=0.0, tasks=tasks, criteria=Criterion.THROUGHPUT))
    objective = play.session.plan.objective
    assert set(objective.values()) == {Criterion.THROUGHPUT}
    play.tell(ev.ReaderOpened(now=0.0, variable="y", criteria=Criterion.THROUGHPUT))
    play.tell(ev.ReaderOpened(now=0.0, variable="z"))
    found = [objective[f"{name}/0"] for name in "abc"]
    assert found == [Criterion.THROUGHPUT, Criterion.THROUGHPUT, Criterion.LATENCY]
    play.submit(node("d", "y", "w"))
    assert [objective[f"{name}/0"] for name in "abd"] == [Criterion.LATENCY] * 3


def test_a_reader_that_begins_to_stream_is_told_to_the_engine() -> None:
    """The text was to come in long parts, because only a prompt reads it. A second stream changes
    nothing, and so does one of what has not begun.
    """
    play = Play(node("a", writes="x"), node("b", "x", "y"), node("c", "y", "z"))
    play.send("a")
    streams = ev.ReaderOpened(now=0.0, variable="x", streams=True)
    assert play.session.handle(streams) == [ev.Replan(("a/0",))]
    assert play.session.handle(streams) == []
    assert play.session.handle(replace(streams, variable="y")) == []


async def of_four(serve: Serve, criteria: str | None) -> list[int]:
    """Eight calls of one program on four engines, and then a get of each: the calls by engine."""
    others = {f"null{n}": lambda: NullEngine(SLOW) for n in range(3)}
    server = await serve(SLOW, also=others)
    transport = httpx2.ASGITransport(server.app)
    async with AsyncClient("http://t", transport=transport) as client, client.session() as session:
        lines = [shorten(f"text {n}") for n in range(8)]
        await asyncio.gather(*(line.get(criteria) for line in lines))
        engines = [call["engine"] for call in (await session.graph())["calls"]]
    return sorted((engines.count(one) for one in set(engines)), reverse=True)


@pytest.mark.parametrize(
    ("criteria", "engines"), [(None, [2, 2, 2, 2]), ("latency", [2, 2, 2, 2]), ("throughput", [8])]
)
async def test_a_get_for_throughput_gathers_the_calls_that_it_sends(
    serve: Serve, criteria: str | None, engines: list[int]
) -> None:
    """Parrot's Figure 7: the calls are submitted first, and the gets say what matters."""
    assert await of_four(serve, criteria) == engines


class Deaf(NullEngine):
    """A null engine that takes no new hints for a call that it has."""

    async def start(self) -> Description:
        return replace(await super().start(), capabilities=(Capability.SAMPLING,))


def words(name: str, prompt: str, tokens: int = 48, **variables: str) -> dict[str, Any]:
    """A call that generates `tokens` words to the variable of its own name."""
    out = {"in_out": "out", "semantic_var_id": name, "sampling": {"max_tokens": tokens}}
    return call(name, f"{prompt}{{{{output:o}}}}", o=out, **variables)


async def runs(server: Server, session: str) -> None:
    """Wait until an engine runs a call of the session."""
    members = server.driver.dispatcher.members
    while not any(session in op for one in members for op in one.ops.works):  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def parts(answer: httpx2.Response) -> list[int]:
    """How many words each part of a stream has."""
    events = [one.split("\n") for one in answer.text.strip().split("\n\n")]
    bodies = [json.loads(one[-1].removeprefix("data: ")) for one in events if "event: part" in one]
    return [len(body["text"].split()) for body in bodies]


async def test_a_reader_that_comes_later_gets_word_for_word(serve: Serve) -> None:
    """Only a prompt reads the draft, so it comes in parts of 16 words. A client begins to stream it
    while it is generated: the part that is under way comes as a whole, and then each word.
    """
    server = await serve(replace(SLOW, latency=LatencyProfile(step_s=0.01)))
    session = await server.session()
    final = words("final", "{{input:draft}}", 1, draft="draft")
    await server.submit(session, words("draft", "x"), final)
    await runs(server, session)
    found = parts(await server.get(session, "draft", stream=True))
    assert found == [16] + [1] * 32


async def reached(server: Server, criteria: str, first: str | None = None) -> dict[str, str]:
    """What a get of variable `v` says about its criterion in a session with one call, which came
    with the `first` criterion.
    """
    session = await server.session()
    await server.submit(session, {**words("v", "x"), "criteria": first})
    await runs(server, session)
    found: dict[str, str] = (await server.get(session, "v", criteria=criteria)).json()["criterion"]
    return found


async def test_the_answer_says_what_a_criterion_did(serve: Serve) -> None:
    """It reaches a call that waits for its input, is queued or runs. An engine that takes no new
    hints is no reason to fail, and the answer says so. The stricter of two holds.
    """
    server = await serve(replace(SLOW, max_running=1))
    assert await reached(server, "throughput") == {"holds": "throughput", "reached": "running"}
    assert await reached(server, "tpot", "ttft") == {"holds": "ttft", "reached": "running"}
    session = await server.session()
    await server.submit(session, words("a", "x"), words("b", "{{input:a}}", a="a"), words("c", "x"))
    await runs(server, session)

    async def asks(variable: str) -> dict[str, str]:
        answer = await server.get(session, variable, criteria="throughput")
        found: dict[str, str] = answer.json()["criterion"]
        return found

    answers = await asyncio.gather(*map(asks, "abc"))
    assert [one["reached"] for one in answers] == ["running", "planned", "queued"]
    assert [one["holds"] for one in answers] == ["throughput"] * 3
    assert await asks("a") == {"holds": "throughput", "reached": "ended"}
    deaf = await serve(SLOW, also={"null": lambda: Deaf(SLOW)})
    assert await reached(deaf, "throughput") == {"holds": "throughput", "reached": "refused"}


async def test_a_stream_says_what_its_criterion_did(serve: Serve) -> None:
    """The last event but one, because the stricter of all that came until then holds."""
    server = await serve(SLOW)
    session = await server.session()
    await server.submit(session, words("v", "x"))
    await runs(server, session)
    answer = await server.get(session, "v", criteria="throughput", stream=True)
    events = [line for line in answer.text.split("\n") if line.startswith(("event", "data"))]
    assert events[-4:-2] == [
        "event: criterion",
        'data: {"holds": "throughput", "reached": "running"}',
    ]
    assert events[-2] == "event: value"


async def test_the_criterion_of_a_submit_holds_for_what_it_reads(serve: Serve) -> None:
    """A submit with `get` has the criterion of that get, and so has one with `stream`."""
    server = await serve(SLOW)
    for reads in ({"get": ["v"]}, {"stream": "v"}):
        session = await server.session()
        await server.submit(session, words("v", "x", 1), criteria="ttft", **reads)
        assert (await server.graph(session))["calls"][0]["objective"] == "ttft"
    bad = await server.submit(session, words("w", "x", 1), criteria="soon")
    assert bad.status_code == 400 and bad.json()["error"]["param"] == "criteria"


COST = StepCost(step_s=0.010, fill_s=0.001, sequence_s=0.0)


def updates(policy: str, monkeypatch: pytest.MonkeyPatch) -> list[Hints]:
    """The new hints that a simulated engine gets for a call that runs, of which two gets say later
    that it is for throughput.
    """
    heard: list[Hints] = []
    update = SimulatedEngine.update

    def listened(engine: SimulatedEngine, op: str, hints: Hints) -> None:
        if hints.expected_pause is None:  # this is not about a context
            heard.append(hints)
        update(engine, op, hints)

    async def main(loop: VirtualLoop) -> None:
        async with world(loop, SimulatedConfig(cost=COST), policy=policy) as made:
            session = made.driver.open("t")
            await made.driver.submit(session, SubmitBody(calls=(asking("w0 w1", "v", 40),)))
            await asyncio.sleep(0.1)
            wanted = Criterion.THROUGHPUT
            gets = [made.driver.readers.get(session, "v", criteria=wanted) for _ in range(2)]
            await asyncio.gather(*gets)

    monkeypatch.setattr(SimulatedEngine, "update", listened)
    run(main)
    return heard


def test_an_engine_gets_the_new_hints_of_a_call_that_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once, with a later turn. Under the policy `request` an engine is told only what an ordinary
    server knows, which is that nobody streams the text.
    """
    [hints] = updates("app", monkeypatch)
    assert (hints.criterion, hints.turn, hints.unread) == ("throughput", STAND_BACK_S, True)
    assert updates("request", monkeypatch) == [Hints(unread=True)]


@dataclass
class Ranked:
    """A sequence of an engine, as its order sees it."""

    hints: Hints
    arrival: int
    tokens: range = range(1)
    open: bool = False
    born: float = 0.0
    rank: Rank = field(default=())  # set by `rank`


CRITERIA = st.sampled_from(list(Criterion))
CALLS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 9), CRITERIA),
    max_size=9,
)


@given(CALLS, st.lists(CRITERIA, min_size=9, max_size=9))
def test_a_later_criterion_moves_no_call_before_that_of_another_tenant(
    calls: list[tuple[str, int, int, Criterion]], later: list[Criterion]
) -> None:
    """Tenant b asks for anything, for calls that run with none: what was first stays there."""

    def before(asked: list[Criterion]) -> set[tuple[int, int]]:
        """The pairs of a call of a and a later one of b, in the engine's order."""
        made = []
        for n, ((tenant, number, since, own), of_b) in enumerate(zip(calls, asked, strict=False)):
            wish = of_b if tenant == "b" else own
            at = turn(float(since), 1.0, wish, 0)
            hints = Hints(application=f"{tenant}{number}", turn=at, criterion=wish)
            made.append(Ranked(hints, n))
        rank(made)
        of: dict[str, list[Ranked]] = {"a": [], "b": []}
        for one in made:
            of[one.hints.application[0]].append(one)
        return {(a.arrival, b.arrival) for a in of["a"] for b in of["b"] if a.rank < b.rank}

    assert before([Criterion.LATENCY] * 9) <= before(later)
