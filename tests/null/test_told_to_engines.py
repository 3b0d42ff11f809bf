"""What engines are sent, in simulated time: prompts as they become known, contexts, salts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.null.asgi import Serve, call, running
from tests.null.test_switches import step, words
from tests.simulator.world import World, world
from weftline.contract.protocol import (
    Call,
    Criterion,
    InOut,
    Placeholder,
    Sampling,
    Segment,
    SubmitBody,
)
from weftline_engine.api import Description, Hints, Op, Retention, Return
from weftline_engine.pretend.null import NullConfig, NullEngine
from weftline_engine.pretend.simulation import SimulatedConfig, SimulatedEngine, StepCost
from weftline_engine.pretend.virtual_time import VirtualLoop, run
from weftline_server.prompt.prompter import Prompter
from weftline_server.prompt.render import PromptBefore
from weftline_server.runtime.prompt_runner import prefixes
from weftline_server.schedule.memory.pauses import UNKNOWN_PAUSE_S
from weftline_server.session.origin import trace_of
from weftline_server.session.variable import PIECE_CHARS

# A step takes 10 ms and a prompt token 1 ms.
CONFIG = SimulatedConfig(cost=StepCost(step_s=0.010, fill_s=0.001, sequence_s=0.0))
VERBS = ("submit", "feed", "update", "cancel", "retain", "free")

Said = list[tuple[str, tuple[Any, ...]]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    """Records every verb that any engine gets, with its arguments. The engine still obeys it."""
    heard: Said = []

    def listened(name: str) -> Callable[..., None]:
        told = getattr(SimulatedEngine, name)

        def verb(engine: SimulatedEngine, *arguments: Any) -> None:
            heard.append((name, arguments))
            told(engine, *arguments)

        return verb

    for name in VERBS:
        monkeypatch.setattr(SimulatedEngine, name, listened(name))
    return heard


def played(story: Callable[[World], Awaitable[None]], config: SimulatedConfig = CONFIG) -> None:
    """Run `story` on a server with two engines."""

    async def main(loop: VirtualLoop) -> None:
        async with world(loop, config, config) as made:
            await story(made)

    run(main)


CHAIN = (
    step((words(0, 20),), "draft", tokens=200),
    step((words(500, 60), Segment(input="draft")), "final", "draft"),
)


def test_an_input_is_filled_as_it_streams(said: Said) -> None:
    """The prompt has 60 words, then the 200 tokens of the draft, sent 50 at a time as they are
    generated. When the draft is ready little is left to fill. No token was sent twice or too early.
    """
    graphs: list[dict[str, Any]] = []

    async def story(made: World) -> None:
        session = made.driver.open("t")
        await made.driver.submit(session, SubmitBody(calls=CHAIN))
        await made.driver.readers.get(session, "final")
        (last,) = (run for run in session.tasks.values() if run.task.name == "final")
        graphs.append({"phases": last.steps[0].phases, "prompt": last.steps[0].usage})

    played(story)
    (opened,) = (op for name, (op, *_) in said if name == "submit" and op.open)
    feeds = [arguments[1:] for name, arguments in said if name == "feed"]
    ends = [len(opened.tokens), *(offset + len(part) for offset, part, _ in feeds)]
    assert [offset for offset, _, _ in feeds] == ends[:-1]
    assert len(feeds) == 5 and [last for _, _, last in feeds] == [False] * (len(feeds) - 1) + [True]
    assert ends[-1] == graphs[0]["prompt"].prompt_tokens == 260
    piece = PIECE_CHARS // len("w000 ")
    assert len(feeds[-1][1]) < piece and graphs[0]["phases"]["fill"] < 0.010 + piece * 0.001


def test_an_engine_with_large_blocks_is_fed_less_often(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fills whole blocks of 128 tokens. After a piece of 50 tokens the prompt is not even
    tokenised. The prompt that is complete closes the op all the same.
    """
    tokenised: list[int] = []
    stable = Prompter.stable_prefix

    def counted(self: Prompter, prompt: PromptBefore, hole: str, session: str) -> tuple[int, ...]:
        tokenised.append(len(stable(self, prompt, hole, session)))
        return stable(self, prompt, hole, session)

    async def story(made: World) -> None:
        session = made.driver.open("t")
        await made.driver.submit(session, SubmitBody(calls=CHAIN))
        await made.driver.readers.get(session, "final")

    monkeypatch.setattr(Prompter, "stable_prefix", counted)
    played(story, replace(CONFIG, block_size=128))
    feeds = [arguments[1:] for name, arguments in said if name == "feed"]
    assert len(tokenised) == 2 and tokenised[1] - tokenised[0] >= 100
    assert feeds[-1][0] + len(feeds[-1][1]) == 260


def test_prompts_that_begin_alike_are_tokenised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six reviewers read a draft behind the same words, in two sessions. Each tokenises each
    known beginning once: none learns from the time what another has sent.
    """
    made_ids: list[str] = []
    ids = Prompter._stable_ids

    def counted(self: Prompter, known: str, plain: bool) -> tuple[int, ...]:
        made_ids.append(known)
        return ids(self, known, plain)

    async def story(made: World) -> None:
        reviews = [
            step((words(500, 60), Segment(input="draft"), words(900 + i, 1)), f"r{i}", "draft")
            for i in range(6)
        ]
        for _ in range(2):
            session = made.driver.open("t")
            await made.driver.submit(session, SubmitBody(calls=(CHAIN[0], *reviews)))
            for i in range(6):
                await made.driver.readers.get(session, f"r{i}")

    monkeypatch.setattr(Prompter, "_stable_ids", counted)
    played(story)
    assert len(made_ids) == 2 * len(set(made_ids)) and len(set(made_ids)) > 3


def test_a_cancelled_early_fill_is_cancelled_on_its_engine(said: Said) -> None:
    """The producer is cancelled, and the early fill of its reader with it."""

    async def story(made: World) -> None:
        session = made.driver.open("t")
        first, _ = await made.driver.submit(session, SubmitBody(calls=CHAIN))
        await asyncio.sleep(1.0)  # a hundred tokens of the draft
        made.driver.cancel(session, first.id)
        assert running(made.driver.dispatcher) == {"e0": (0, 0), "e1": (0, 0)}
        await asyncio.sleep(1.0)
        assert [engine.book.contexts.named for engine in made.engines] == [{}, {}]
        assert not made.driver._prompts._early and not made.driver._starts._prepared

    played(story)
    assert sum(name == "cancel" for name, _ in said) == 2


def test_nothing_is_kept_of_a_call_that_ends_at_once() -> None:
    """The call could begin, but a later input has already failed. It is not run, and the tokens
    made of its beginning are forgotten.
    """

    async def story(made: World) -> None:
        session = made.driver.open("t")
        first, _ = await made.driver.submit(session, SubmitBody(calls=CHAIN))
        made.driver.cancel(session, first.id)
        late = Call(
            name="late",
            prompt=(words(0, 9), Segment(output="x"), Segment(input="final"), Segment(output="y")),
            placeholders=(
                Placeholder(name="final", in_out=InOut.IN, semantic_var_id="final"),
                *(Placeholder(name=n, in_out=InOut.OUT, semantic_var_id=n) for n in "xy"),
            ),
        )
        await made.driver.submit(session, SubmitBody(calls=(late,)))
        assert session.variable("x").error is session.variable("draft").error
        await asyncio.sleep(1.0)
        assert not made.driver._starts._prepared

    played(story)


def test_contexts_are_kept_advised_and_freed(said: Said) -> None:
    """Of two outputs in one prompt, the first one's context is kept for the second. It is freed
    when the second has a context of its own. That one is evictable, with the time at which its
    session is expected. It is freed with the session.
    """

    async def story(made: World) -> None:
        session = made.driver.open("t")
        outs = (
            Placeholder(
                name=n, in_out=InOut.OUT, semantic_var_id=n, sampling=Sampling(max_tokens=9)
            )
            for n in "xy"
        )
        prompt = (words(0, 40), Segment(output="x"), words(90, 9), Segment(output="y"))
        call = Call(name="two", prompt=prompt, placeholders=tuple(outs))
        await made.driver.submit(session, SubmitBody(calls=(call,)))
        await made.driver.readers.get(session, "y")
        made.driver.close(session)

    played(story)
    first, second = (op.context for name, (op, *_) in said if name == "submit")
    about = [(name, *arguments) for name, arguments in said if name in ("update", "retain", "free")]
    assert about == [
        ("update", first, Hints(expected_pause=0.0)),
        ("free", first),
        ("update", second, Hints(expected_pause=UNKNOWN_PAUSE_S)),
        ("retain", second, Retention.EVICTABLE),
        ("free", second),
    ]


def test_hints_carry_the_findings_of_the_passes(said: Said) -> None:
    """The hints of both calls of a chain, the second filled early: the session and its start, the
    work left in all, the distance to the sink, and the objective. The turn comes 30 s later for
    throughput; nobody knows yet how fast the model is. Each call is a span of one trace.
    """
    known: list[tuple[str, float, int]] = []

    async def story(made: World) -> None:
        await asyncio.sleep(7.0)
        session = made.driver.open("t")
        chain = (CHAIN[0], replace(CHAIN[1], criteria=Criterion.THROUGHPUT, priority=3))
        await made.driver.submit(session, SubmitBody(calls=chain))
        known.append((session.id, session.opened, session.execution.work_left))
        await asyncio.sleep(1.0)

    played(story)
    [(application, arrival, work_left)] = known
    assert arrival == 7.0 and work_left == 302
    turn = 7.0 + 30.0
    both: dict[str, Any] = {"application": application, "arrival": 7.0, "work_left": work_left}
    both |= {"criterion": Criterion.THROUGHPUT}
    ops: list[Op] = [op for name, (op, *_) in said if name == "submit"]
    assert [replace(op.hints, traceparent="") for op in ops] == [
        Hints(depth=1, unread=True, turn=turn, **both),  # only the next prompt reads its text
        Hints(depth=0, priority=3, turn=turn + 30.0, **both),
    ]
    traces, spans = zip(*(op.hints.traceparent.split("-")[1:3] for op in ops), strict=True)
    assert set(traces) == {f"{trace_of(application):032x}"} and len(set(spans)) == 2


def test_tenants_are_parted_by_their_salts(said: Said) -> None:
    """Every op carries its tenant's salt. Equal prompts of two tenants share no block of any cache,
    and neither is sent to the engine because it holds the other's.
    """

    async def story(made: World) -> None:
        for tenant in "aab":
            session = made.driver.open(tenant)
            await made.driver.submit(session, SubmitBody(calls=(step((words(0, 40),), "v"),)))
            await made.driver.readers.get(session, "v")

    played(story)
    ops: list[Op] = [op for name, (op, *_) in said if name == "submit"]
    one, same, other = (op.salt for op in ops)
    assert one == same != other and len(one) == 16
    tokens = ops[0].tokens
    assert prefixes(tokens, one) == prefixes(tokens, same) != prefixes(tokens, other)


def test_how_busy_engines_are_is_measured() -> None:
    """Admission admits more when engines are idle. After a minute of one engine's work, half of the
    two is busy. After a minute without work, almost nothing is.
    """

    async def story(made: World) -> None:
        session = made.driver.open("t")
        await made.driver.submit(
            session, SubmitBody(calls=(step((words(0, 9),), "v", tokens=6000),))
        )
        await made.driver.readers.get(session, "v")
        assert made.now > 60.0
        await asyncio.sleep(0.01)
        shares = [made.driver.dispatcher.memory.gate.use("simulated").busy.share]
        await asyncio.sleep(60.0)
        again = step((words(0, 9),), "w", tokens=1)
        await made.driver.submit(session, SubmitBody(calls=(again,)))
        await made.driver.readers.get(session, "w")
        await asyncio.sleep(0.01)
        shares.append(made.driver.dispatcher.memory.gate.use("simulated").busy.share)
        assert shares == [pytest.approx(0.5, abs=0.01), pytest.approx(0.0, abs=0.01)]

    played(story)


@pytest.mark.parametrize("drafts", [False, True])
def test_an_engine_that_drafts_is_told_what_ran_before(
    drafts: bool, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten siblings run one after the other. Each names the contexts of those before it, the newest
    first and at most eight. An engine that does not draft gets no names."""
    start = SimulatedEngine.start

    async def started(engine: SimulatedEngine) -> Description:
        return replace(await start(engine), drafts=drafts)

    monkeypatch.setattr(SimulatedEngine, "start", started)

    async def story(made: World) -> None:
        session = made.driver.open("t")
        for i in range(10):
            call = step((words(100 * i, 20),), f"part{i}", tokens=5)
            await made.driver.submit(session, SubmitBody(calls=(call,)))
            await made.driver.readers.get(session, f"part{i}")

    played(story)
    ops = [op for name, (op, *_) in said if name == "submit"]
    contexts = [op.context for op in ops]
    assert len(ops) == 10
    for i, op in enumerate(ops):
        assert op.guesses.references == (
            tuple(reversed(contexts[max(0, i - 8) : i])) if drafts else ()
        )


class Noting(NullEngine):
    """A null engine that keeps every op."""

    def __init__(self, told: list[Op]) -> None:
        super().__init__(NullConfig())
        self._told = told

    def submit(self, op: Op) -> None:
        self._told.append(op)
        super().submit(op)


async def test_an_engine_knows_whose_text_nobody_streams(serve: Serve) -> None:
    """A client that waits for the whole value says so with its request, before an engine has it."""
    told: list[Op] = []
    chat = {"model": "null", "messages": [{"role": "user", "content": "hi there"}]}
    out = {"in_out": "out", "semantic_var_id": "a"}
    calls = [call("c", "x {{output:o}}", o=out)]
    server = await serve(also={"null": lambda: Noting(told)})
    for path, body, unread in (
        ("/v1/chat/completions", chat, True),
        ("/v1/chat/completions", {**chat, "stream": True}, False),
        ("/v1/submit", {"calls": calls, "get": ["a"]}, True),
        ("/v1/submit", {"calls": calls, "stream": "a"}, False),
        ("/v1/submit", {"calls": calls, "watch": ["a"]}, True),
        ("/v1/submit", {"calls": calls, "watch": ["a"], "parts": True}, False),
    ):
        assert (await server.http.post(path, json=body)).status_code == 200
        assert told.pop().hints.unread is unread, (path, body)


async def test_an_engine_knows_which_prompts_are_an_agents(serve: Serve) -> None:
    """Those that offer tools, of clients that name no session. A session ends."""
    told: list[Op] = []
    chat = {"model": "null", "messages": [{"role": "user", "content": "hi there"}]}
    tools = [{"type": "function", "function": {"name": "clock"}}]
    server = await serve(also={"null": lambda: Noting(told)})
    for more, returns in (
        ({}, Return.SELDOM),
        ({"tools": tools}, Return.OFTEN),
        ({"tools": tools, "tool_choice": "none"}, Return.SELDOM),
        ({"tools": tools, "tool_choice": "required"}, Return.SELDOM),
        ({"tools": tools, "session_id": await server.session()}, Return.NEVER),
    ):
        answer = await server.http.post("/v1/chat/completions", json={**chat, **more})
        assert answer.status_code == 200
        assert told.pop().guesses.returns is returns, more
