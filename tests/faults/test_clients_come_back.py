"""Programs that use a server with a store do not notice that it was killed and started again."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from langchain_weftline import ChatWeftline, accelerate
from tests.faults.killed import Killed
from tests.waits import WAIT_S, until
from weftline import AsyncClient, Client
from weftline.contract.protocol import Call, InOut, Placeholder, Segment, SubmitBody
from weftline.errors import ConnectionFailed
from weftline.sdk.client import Session
from weftline.watching import Part, Value

WORDS = " ".join(f"word{number}" for number in range(20)) + " "


def call(name: str, reads: str, writes: str, text: str = "") -> Call:
    holders = (
        Placeholder(name="x", in_out=InOut.IN, semantic_var_id=reads or "none"),
        Placeholder(name="y", in_out=InOut.OUT, semantic_var_id=writes),
    )
    prompt = (Segment(text=text), Segment(input="x"), Segment(output="y"))
    if not reads:
        return Call(name=name, prompt=(prompt[0], prompt[2]), placeholders=holders[1:])
    return Call(name=name, prompt=prompt, placeholders=holders)


CHAIN = (call("a", "", "a", "short "), call("b", "a", "b", WORDS), call("c", "b", "c", "end "))


QUICK = ("--null-step-s", "0.005")


@pytest.fixture
async def server(tmp_path: Path) -> Any:
    """A call of twenty words takes four seconds, so that it runs when the server is killed, on a
    busy machine and with a slow disk. What is started anew is `QUICK`.
    """
    killed = Killed(tmp_path, "--null-step-s", "0.2", "--drain-s", "0.1")
    await killed.start()
    yield killed
    await killed.kill()


@pytest.mark.parametrize("way", ["kill", "stop"])
async def test_a_watch_gets_each_value_once(server: Killed, way: str) -> None:
    """The first value has come, the others have not. The server is killed, or ended with SIGTERM
    and no time to drain.
    """
    found: list[tuple[str, str]] = []
    async with AsyncClient(server.url) as client:
        submit = SubmitBody(calls=CHAIN, watch=("a", "b", "c"), close=True)
        async for event in client.watch(submit):
            if isinstance(event, Value):
                found.append((event.variable, event.value))
                if event.variable == "a":
                    await (server.kill() if way == "kill" else server.stop())
                    await server.start(*QUICK)
    b = f"{WORDS}short "
    assert found == [("a", "short "), ("b", b), ("c", f"end {b}")]


async def test_a_text_that_had_ended_is_not_given_twice(server: Killed) -> None:
    """Of `b` a part had come, which another run makes anew: two halves of different texts are not
    joined. Then the parts of `a` have come, and nothing of `c`: what follows is what was missing.
    """
    async with AsyncClient(server.url) as client:
        with pytest.raises(ConnectionFailed):
            async for event in client.watch(SubmitBody(calls=CHAIN, watch=("b",), parts=True)):
                if isinstance(event, Part):
                    await server.kill()
                    await server.start(*QUICK)
        await server.kill()
        await server.start()
        parts: list[tuple[str, str]] = []
        submit = SubmitBody(calls=CHAIN, watch=("a", "c"), parts=True, close=True)
        async for event in client.watch(submit):
            if isinstance(event, Part):
                parts.append((event.variable, event.text))
            elif isinstance(event, Value) and event.variable == "a":
                await server.kill()
                await server.start(*QUICK)
        assert "".join(text for variable, text in parts if variable == "a") == "short "
        assert "".join(text for name, text in parts if name == "c") == f"end {WORDS}short "


async def test_gets_of_both_clients_wait_for_the_server(server: Killed) -> None:
    """The server is killed while both clients wait for a value, and started again. Both gets return
    the value, and the program sees no error."""
    async with AsyncClient(server.url) as client:
        session = await client.session().open()
        await session.submit(CHAIN)
        first = asyncio.create_task(session.get("c"))

        learnt = threading.Event()

        def blocking() -> str:
            with Client(server.url) as other:
                same = Session(other, session.id)
                same.get("a")  # the client learns what the server does
                learnt.set()
                return str(same.get("c"))

        second = asyncio.create_task(asyncio.to_thread(blocking))
        assert await asyncio.to_thread(learnt.wait, WAIT_S)
        await server.kill()
        await asyncio.sleep(0.3)  # it is refused for a while
        await server.start(*QUICK)
        assert await first == f"end {WORDS}short "
        assert await second == f"end {WORDS}short "


async def test_a_stream_after_a_restart_says_that_its_text_is_new(server: Killed) -> None:
    """`Last-Event-ID` names the attempt, too. A text that had ended is resumed where it was."""
    async with AsyncClient(server.url) as client:
        session = await client.session().open()
        await session.submit(CHAIN)
        http, body = client.connection._http, {"session_id": session.id, "stream": True}
        async with http.stream("POST", "/v1/get", json={**body, "semantic_var_id": "b"}) as parts:
            await session.get("a")
            await anext(parts.aiter_text())  # of twenty words the first has come
            await server.kill()
        await server.start(*QUICK)
        ended = await http.post(
            "/v1/get", json={**body, "semantic_var_id": "a"}, headers={"Last-Event-ID": "3"}
        )
        assert '"offset": 3, "text": "rt "' in ended.text and "restarted" not in ended.text
        anew = await http.post(
            "/v1/get", json={**body, "semantic_var_id": "b"}, headers={"Last-Event-ID": "6"}
        )
        events = [line for line in anew.text.splitlines() if line.startswith("event: ")]
        assert events[0] == "event: restarted" and '"offset": 0' in anew.text
        id = next(line for line in anew.text.splitlines() if line.startswith("id: "))
        assert id == f"id: {2 << 20}.0"


async def test_a_langchain_run_in_flight_finishes(server: Killed) -> None:
    """An accelerated chain of two prompts; the server is killed while the first is answered."""
    model = ChatWeftline(base_url=f"{server.url}/v1")
    first = ChatPromptTemplate.from_messages([("human", WORDS + "{topic}")])
    second = ChatPromptTemplate.from_messages([("human", "after {text}")])

    def chain_of(llm: Any) -> Any:
        text, again = StrOutputParser(), lambda text: {"text": text}
        return accelerate(first | llm | text | again | second | llm | text)

    # The client learns that the server goes on with its sessions.
    await chain_of(model.bind(max_tokens=1)).ainvoke({"topic": "one"})
    chain = chain_of(model)
    running = asyncio.create_task(chain.ainvoke({"topic": "one"}))
    count = 'weftline_running_calls{engine="null"} 1.0'
    await until(lambda: count in httpx2.get(f"{server.url}/metrics").text)
    assert not running.done()
    await server.kill()
    await server.start(*QUICK)
    assert await running == await chain.ainvoke({"topic": "one"})
