"""What a program sees of the synchronous client, whose requests are sent on a loop of its own."""

from __future__ import annotations

import asyncio
import gc
import threading
import traceback
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import httpx2
import pytest

from tests.null.steps.conftest import Listen, Socket, listen  # noqa: F401 - a fixture
from tests.null.steps.test_client_steps import answer, draft
from tests.waits import until
from weftline import Client, client_step
from weftline.contract.protocol import Call, InOut, Placeholder, Segment
from weftline.sdk.background import BACKGROUND
from weftline_engine.pretend.null import LatencyProfile, NullConfig

USER: ContextVar[str] = ContextVar("user", default="nobody")
LONG = Call(
    name="long",
    prompt=(Segment(text="word " * 400), Segment(output="out")),
    placeholders=(Placeholder(name="out", in_out=InOut.OUT, semantic_var_id="x"),),
)


@pytest.fixture
async def served(listen: Listen) -> AsyncIterator[Socket]:  # noqa: F811
    yield await listen()


async def test_functions_of_the_program_run_in_its_threads(served: Socket) -> None:
    """A plain function and a coroutine function may block, wait for another value of the client,
    and see the context variables of the caller."""
    seen: list[tuple[str, str]] = []

    def program() -> list[str]:
        with served.client() as client, client.session() as session:

            @client_step
            def plain(text: str) -> str:
                seen.append((threading.current_thread().name, USER.get()))
                other = session.variable("other")
                other.set("tea")
                return f"{text}{other.get()}"

            @client_step
            async def awaited(text: str) -> str:
                seen.append((threading.current_thread().name, USER.get()))
                return str(session.variable("other").get())

            USER.set("ann")
            first = plain(draft("cup"))
            return [first.get(), awaited(first).get()]

    assert await asyncio.to_thread(program) == ["On cup tea", "tea"]
    assert seen == [("weftline-plain", "ann"), ("weftline-awaited", "ann")]


async def test_a_function_may_raise_what_no_future_can(served: Socket) -> None:
    """`next` of nothing: the step fails with the exception, and nobody waits for ever."""

    @client_step
    def first(text: str) -> str:
        return str(next(iter(())))

    def program() -> BaseException | None:
        with served.client() as client, client.session():
            with pytest.raises(Exception, match="StopIteration") as caught:
                answer(first(draft("tea"))).get()
            return caught.value.__cause__

    assert type(await asyncio.to_thread(program)) is StopIteration
    async with served.aclient() as client, client.session():
        with pytest.raises(Exception, match="StopIteration") as caught:
            await answer(first(draft("tea"))).get()
    assert type(caught.value.__cause__) is StopIteration


async def test_a_program_with_a_loop_of_its_own_may_block_it(served: Socket) -> None:
    """A coroutine of another loop uses the synchronous client, as in a notebook: no deadlock."""

    async def inside() -> tuple[str, str]:
        with served.client() as client, client.session():
            said = draft("tea")
            return said.get(), "".join(said.stream())

    assert await asyncio.to_thread(lambda: asyncio.run(inside())) == ("On tea ", "On tea ")


async def test_the_loop_of_the_client_does_not_wait_for_itself(served: Socket) -> None:
    """Code that runs on that loop is refused at once, with what to use instead."""
    client = served.client()

    async def inside() -> None:
        client.models()

    failed = asyncio.wrap_future(BACKGROUND.start(inside()))
    with pytest.raises(RuntimeError, match="cannot wait for itself: use AsyncClient"):
        await failed
    await asyncio.to_thread(client.close)


async def test_context_variables_reach_the_transport_and_its_errors_come_back() -> None:
    """A hook of the program sees the caller's context. Its exception is the same object, and its
    traceback shows where it was raised and where the program waited."""
    raised: list[BaseException] = []

    def hook(request: httpx2.Request) -> httpx2.Response:
        raised.append(LookupError(f"no room for {USER.get()}"))
        raise raised[-1]

    def program() -> list[str]:
        USER.set("ann")
        client = Client("http://t", transport=httpx2.MockTransport(hook))
        with pytest.raises(LookupError, match="no room for ann") as caught, client:
            client.models()
        assert caught.value is raised[0]
        return [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]

    frames = await asyncio.to_thread(program)
    assert (frames[0], frames[-1]) == ("program", "hook")


async def test_a_graph_is_given_to_the_reader(served: Socket) -> None:
    """`on_graph` runs in the thread that reads the text, after its end."""
    told: list[Any] = []

    def program() -> list[str]:
        with served.client() as client:

            def keep(graph: dict[str, Any]) -> None:
                told.append((threading.current_thread(), len(graph["calls"]), client.models()))

            texts = client.stream([LONG], "x", on_graph=keep)
            told.append(threading.current_thread())
            return list(texts)

    assert "".join(await asyncio.to_thread(program)) == "word " * 400
    assert told[1] == (told[0], 1, ["null"])


@pytest.mark.parametrize("way", ["dropped", "closed"])
async def test_a_reader_that_leaves_a_stream_ends_its_call(
    listen: Listen,  # noqa: F811
    way: str,
) -> None:
    """A stream that is closed, or that the garbage collector finds, is cancelled at the server."""
    socket = await listen(NullConfig(latency=LatencyProfile(step_s=0.01)))

    def program(client: Client) -> str:
        session = client.session()
        session.submit([LONG])
        texts = session.stream("x")
        next(texts)
        if way == "closed":
            texts.close()
        cycle: list[Any] = [texts]
        cycle.append(cycle)
        del texts, cycle
        gc.collect()
        return session.id

    client = socket.client()
    id = await asyncio.to_thread(program, client)
    session = socket.server.driver.registry.find("local", id)
    await until(lambda: session.variables["x"].settled)
    assert session.variable("x").error is not None
    await asyncio.to_thread(client.close)


class _Closes(httpx2.MockTransport):
    """Says when it is closed."""

    def __init__(self) -> None:
        super().__init__(lambda request: httpx2.Response(200, json={"session_id": "s"}))
        self.closed = threading.Event()

    async def aclose(self) -> None:
        self.closed.set()


def test_a_client_that_is_forgotten_closes_its_connections() -> None:
    """Nobody calls `close`. A session keeps the connections of its client, and not longer."""
    transport = _Closes()
    session = Client("http://t", transport=transport).session()
    gc.collect()
    assert not transport.closed.is_set()
    session.set("x", "y")
    del session
    gc.collect()
    assert transport.closed.wait(20)


def test_a_transport_without_a_loop_is_refused() -> None:
    """The error names what to give."""
    with pytest.raises(TypeError, match=r"give an httpx2\.AsyncBaseTransport"):
        Client("http://t", transport=httpx2.HTTPTransport())  # type: ignore[arg-type]
