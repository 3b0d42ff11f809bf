"""Steps that the client computes: over the wire, from both clients, and when the client leaves."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx2
import pytest

from tests.null.asgi import Serve, Server, call
from tests.null.steps.conftest import Listen
from tests.waits import until
from weftline import Output, client_step, semantic_function
from weftline.errors import ClientGone, ClientStepFailed, ConnectionFailed, InvalidRequest
from weftline.sdk.client_steps import SentSteps
from weftline.sdk.own_functions import on_the_loop
from weftline.sdk.step_tasks import StepTasks
from weftline_server.session.variable import VariableState


@semantic_function
def draft(topic, text=Output(max_tokens=64)):  # noqa: B008
    """On {{input:topic}} {{output:text}}"""


@semantic_function
def answer(context, said=Output(max_tokens=64)):  # noqa: B008
    """By {{input:context}} say {{output:said}}"""


@client_step
def shout(text: str, times: int = 1) -> str:
    return text.upper() + "!" * times


def client(name: str, reads: list[str], out: str, **more: Any) -> dict[str, Any]:
    return {"kind": "client", "name": name, "reads": reads, "out": out, **more}


async def submit(server: Server, *steps: Any, calls: Any = (), **more: Any) -> dict[str, Any]:
    """Submit into a new session, and return the answer with its id."""
    body = {"session_id": await server.session(), "steps": steps, "calls": calls, **more}
    answer = await server.http.post("/v1/submit", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def put(server: Server, session: str, variable: str, **body: Any) -> httpx2.Response:
    return await server.http.put(f"/v1/session/{session}/variable/{variable}", json=body)


READ = call("answer", "say {{input:c}} {{output:said}}", c="context", said="said")


async def test_the_output_of_a_client_step_is_set_by_the_client(serve: Serve) -> None:
    """A call waits for the step, and the step for a variable. The graph has an edge through it."""
    server = await serve()
    session = (await submit(server, client("format", ["top"], "context"), calls=[READ]))[
        "session_id"
    ]
    early = await put(server, session, "context", value="too early")
    assert early.status_code == 400
    assert "inputs of 'format', which makes 'context', are not ready" in early.text
    await put(server, session, "top", value=["a", "b"])
    assert (await put(server, session, "context", value="a, b")).json()["status"] == "ready"
    assert (await server.get(session, "said")).json()["value"] == "say a, b "
    again = await put(server, session, "context", value="other")
    assert (again.status_code, again.json()["error"]["type"]) == (409, "AlreadySet")
    graph = await server.graph(session)
    [step] = graph["steps"]
    assert (step["kind"], step["name"], step["state"]) == ("client", "format", "done")
    assert (step["engine"], step["effects"]) == ("client", "none")
    assert (step["depth"], step["objective"]) == (1, "latency")
    assert step["queued_s"] <= step["finished_s"]
    [edge] = [edge for edge in graph["edges"] if edge["to"] != step["step_id"]]
    assert (edge["from"], edge["semantic_var_id"]) == (step["step_id"], "context")
    metrics = (await server.http.get("/metrics")).text
    assert 'weftline_steps_total{engine="client",kind="client",state="done"} 1.0' in metrics


async def test_a_criterion_goes_up_through_a_client_step(serve: Serve) -> None:
    """A reader of the last call wants throughput, and so the call above the step runs for it."""
    server = await serve()
    first = call("first", "x {{output:top}}", top="top")
    body = await submit(
        server,
        client("format", ["top"], "context"),
        calls=[first, {**READ, "criteria": "throughput"}],
    )
    graph = await server.graph(body["session_id"])
    found = {one["name"]: one["objective"] for one in (*graph["calls"], *graph["steps"])}
    assert found == {"first": "throughput", "format": "throughput", "answer": "throughput"}


async def test_the_failure_of_a_client_step_goes_down_the_graph(serve: Serve) -> None:
    """A call that reads the failed step's output fails with the client's code and message."""
    server = await serve()
    session = (await submit(server, client("format", [], "context"), calls=[READ]))["session_id"]
    failed = await put(
        server, session, "context", error={"code": "KeyError", "message": "no such key: 'x'"}
    )
    assert failed.json()["status"] == "failed"
    error = (await server.get(session, "said")).json()["error"]
    assert error == {
        "message": "no such key: 'x'",
        "type": "ClientStepFailed",
        "code": "KeyError",
        "param": "context",
        "call": "format",
    }


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "value must not be null"),
        ({"value": 1, "error": {"code": "a", "message": "b"}}, "either a value or an error"),
        ({"error": {"code": "", "message": "b"}}, "a code of 1 to 128 characters"),
        ({"error": {"code": "a", "message": "b" * 5000}}, "a message of at most 4,096"),
        ({"error": {"code": "a"}}, "message"),
    ],
)
async def test_a_wrong_answer_of_the_client_is_refused(
    serve: Serve, body: dict[str, Any], message: str
) -> None:
    """The step stays open, so that the client can send a correct answer."""
    server = await serve()
    session = (await submit(server, client("format", [], "context")))["session_id"]
    refused = await put(server, session, "context", **body)
    assert refused.status_code == 400 and message in refused.text
    assert (await put(server, session, "context", value=1)).status_code == 200


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (client("f", ["a b"], "out"), "reads 'a b' is not an id"),
        (client("f", [], "out", lease_s=0), "lease_s must be above 0"),
        (client("f", [], "out", lease_s=1e9), "lease_s must be above 0 and at most 3,600"),
        (client("f", [], "out", effects="twice"), "effects"),
        (client("f", ["out"], "out"), "waits for its own output"),
        (client("f", [], "out", code="import os"), "code"),
    ],
)
async def test_a_wrong_client_step_is_refused(serve: Serve, step: Any, message: str) -> None:
    """Each mistake is a sentence. Code is no field, so none can be sent."""
    server = await serve()
    body = {"session_id": await server.session(), "steps": [step]}
    refused = await server.http.post("/v1/submit", json=body)
    assert refused.status_code in (400, 422) and message in refused.text


async def test_a_client_without_an_open_request_is_gone(serve: Serve) -> None:
    """`detach` does not help: nobody else can compute the step."""
    server = await serve()
    step = client("format", [], "context", lease_s=0.05)
    session = (await submit(server, step, calls=[READ], detach=True))["session_id"]
    driver = server.driver
    found = driver.registry.find("local", session)
    while found.variables["said"].state is not VariableState.FAILED:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    error = (await server.get(session, "said")).json()["error"]
    assert (error["type"], error["call"]) == ("ClientGone", "format")
    assert "waited 0.05 s for its client" in error["message"]
    found.validate()


async def test_an_open_get_keeps_the_lease(serve: Serve) -> None:
    """The client waits for the answer while it computes for longer than its lease. Its get comes
    first, so that however slow the machine is, the lease never begins without it.
    """
    server = await serve()
    session = await server.session()
    waiting = asyncio.create_task(server.get(session, "said", wait=True))
    await until(lambda: server.waiting)
    step = client("format", [], "context", lease_s=0.05)
    assert (await server.submit(session, READ, steps=[step])).status_code == 200
    await asyncio.sleep(0.2)
    assert not waiting.done()
    assert (await put(server, session, "context", value="x")).status_code == 200
    assert (await waiting).json()["value"] == "say x "


async def test_a_cancelled_step_takes_no_value(serve: Serve) -> None:
    """Setting its output is refused, and its readers are cancelled."""
    server = await serve()
    body = await submit(server, client("format", [], "context"), calls=[READ])
    session, step = body["session_id"], body["steps"][0]["step_id"]
    assert (await server.http.delete(f"/v1/session/{session}/call/{step}")).json()["state"] == (
        "cancelled"
    )
    assert (await put(server, session, "context", value=1)).status_code == 409
    assert (await server.get(session, "said")).json()["error"]["type"] == "Cancelled"


async def test_a_plain_variable_can_be_failed(serve: Serve) -> None:
    """A client can also fail a variable that no step writes."""
    server = await serve()
    session = (await submit(server, calls=[READ]))["session_id"]
    await put(server, session, "context", error={"code": "gone", "message": "no document"})
    assert (await server.get(session, "said")).json()["error"]["message"] == "no document"


async def test_a_function_between_two_calls_is_one_submit(listen: Listen) -> None:
    """With the asynchronous client: a function in a thread, a coroutine, and their chain."""
    socket = await listen()

    @client_step(name="twice", effects="once", lease_s=5)
    async def twice(text: str) -> list[str]:
        await asyncio.sleep(0)
        return [text, text]

    async with socket.aclient() as made, made.session() as session:
        said = answer(twice(shout(draft("tea"), times=2)))
        assert await said.get() == 'By ["ON TEA !!", "ON TEA !!"] say '
        graph = await session.graph()
        assert [(one["name"], one["effects"]) for one in graph["steps"]] == [
            ("shout", "none"),
            ("twice", "once"),
        ]
        events = [line["event"] for line in await session.events()]
        assert events.count("TasksSubmitted") == 1


async def test_a_function_between_two_calls_in_threads(listen: Listen) -> None:
    """With the synchronous client, twice in one session, and without a variable it just runs."""
    socket = await listen()

    def program() -> list[Any]:
        with socket.client() as made, made.session() as session:
            first = answer(shout(draft("tea")))
            found = [first.get(), answer(shout(first)).get(), shout("plain")]
            states = [one["state"] for one in session.graph()["steps"]]
            return [*found, states]

    first = "By ON TEA ! say "
    assert await asyncio.to_thread(program) == [
        first,
        f"By {first.upper()}! say ",
        "PLAIN!",
        ["done", "done"],
    ]


async def test_a_step_with_effects_waits_for_the_decision(listen: Listen) -> None:
    """Both sides have their input before the branch is decided. Only the side taken is computed."""
    socket = await listen()
    sent: list[str] = []

    @client_step(effects="once")
    def send(text: str) -> str:
        sent.append(text)
        return f"sent {text}"

    def route(session: Any) -> tuple[Any, Any, Any]:
        kind, sides = session.variable(), [session.variable(), session.variable()]
        number, word = (send(side) for side in sides)
        when = {"op": "contains", "value": "number"}
        return kind, sides, session.branch(kind, [(when, number)], word)

    async with socket.aclient() as made, made.session() as session:
        kind, sides, done = route(session)
        await session.flush()
        for side, text in zip(sides, ("one", "two"), strict=True):
            await side.set(text)
            assert await side.get() == text
        graph = await session.graph()
        waiting = [one["state"] for one in graph["steps"] if one["kind"] == "client"]
        assert (waiting, sent) == (["waiting", "waiting"], [])
        await kind.set("a number")
        assert await done.get() == "sent one"
        assert sent == ["one"]

    def program() -> str:
        with socket.client() as made, made.session() as session:
            kind, sides, done = route(session)
            session.flush()
            for side, text in zip(sides, ("three", "four"), strict=True):
                side.set(text)
            kind.set("a word")
            return str(done.get())

    assert await asyncio.to_thread(program) == "sent four"
    assert sent == ["one", "four"]


@client_step
def broken(text: str) -> str:
    raise KeyError(text)


@client_step
def nothing(text: str) -> None:
    """A step has to return something."""


@client_step
def no_json(text: str) -> Any:
    return {1, 2}


@pytest.mark.parametrize(
    ("step", "code", "message"),
    [
        (broken, "KeyError", "'On tea '"),
        (nothing, "InvalidRequest", "client step 'nothing' returned None: return JSON"),
        (no_json, "TypeError", "Object of type set is not JSON serializable"),
    ],
    ids=["raises", "none", "no json"],
)
async def test_an_exception_of_the_function_is_the_cause(
    listen: Listen, step: Any, code: str, message: str
) -> None:
    """Both clients raise the server's error from the function's own exception."""
    socket = await listen()
    async with socket.aclient() as made, made.session():
        with pytest.raises(ClientStepFailed) as caught:
            await answer(step(draft("tea"))).get()
    assert (caught.value.code, caught.value.message) == (code, message)
    assert type(caught.value.__cause__).__name__ == code

    def program() -> BaseException | None:
        with socket.client() as made, made.session():
            with pytest.raises(ClientStepFailed) as caught:
                answer(step(draft("tea"))).get()
            return caught.value.__cause__

    assert type(await asyncio.to_thread(program)).__name__ == code


async def test_a_refused_submit_is_raised_and_nothing_runs(listen: Listen) -> None:
    """An unknown engine, and a variable of another session."""
    socket = await listen()
    async with socket.aclient() as made, made.session() as session:
        session.embed("x", engine="none such")
        shout(draft("tea"))
        with pytest.raises(Exception, match="this server has no embedder"):
            await session.flush()
    async with socket.aclient() as made, made.session() as session:
        other = made.session()
        await other.open()
        with pytest.raises(InvalidRequest, match="a variable of another session"):
            shout(other.variable())


async def test_a_step_can_wait_for_a_variable_that_is_set_later(listen: Listen) -> None:
    """The client sets the step's input after the submit, computes the step, and gets the answer."""
    socket = await listen()
    async with socket.aclient() as made, made.session() as session:
        topic = session.variable()
        said = answer(shout(topic))
        await session.flush()
        await topic.set("tea")
        assert await said.get() == "By TEA! say "


async def test_a_client_that_misses_its_values_says_so(listen: Listen) -> None:
    """The stream of values breaks for good. The client fails its steps, those that wait too."""
    socket = await listen()

    class Broken(StepTasks):
        async def _watch(self, submit: Any, waiting: SentSteps, accepted: Any) -> None:
            waiting.take_ready = cut
            await super()._watch(submit, waiting, accepted)

    def cut() -> Any:
        raise ConnectionFailed("the stream broke")

    async with socket.aclient() as made, made.session() as session:
        session._steps = Broken(session.state, made.connection, on_the_loop)
        with pytest.raises(ClientStepFailed, match="the stream broke") as caught:
            await answer(shout(session.variable())).get()
        assert caught.value.code == "ConnectionFailed"


async def test_a_client_that_leaves_ends_its_steps(listen: Listen) -> None:
    """The connection breaks while the function runs. After the lease the graph fails.

    A request with an idempotency key goes on for a second after its client has left.
    """
    socket = await listen()
    started = asyncio.Event()

    @client_step(lease_s=0.05)
    async def endless(text: str) -> str:
        started.set()
        await asyncio.Event().wait()
        return text

    made = socket.aclient()
    session = made.session()
    await session.open()
    session._enter()
    said = answer(endless(draft("tea")))
    session._exit()
    await session.flush()
    await started.wait()
    await session._steps.close()
    found = socket.server.driver.registry.find("local", session.id)
    while not found.variables[said.id].settled:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    with pytest.raises(ClientGone, match=r"waited 0\.05 s for its client"):
        await said.get()
    await session.close()
    await made.close()


async def test_a_client_that_is_closed_ends_its_threads_quietly(listen: Listen) -> None:
    """A function ends after its session and its client were closed. Its result is nobody's, and its
    thread raises nothing: pytest would report that."""
    socket = await listen()
    begun, closed = threading.Event(), threading.Event()
    ended: list[threading.Thread] = []

    @client_step
    def slow(text: str) -> str:
        ended.append(threading.current_thread())
        begun.set()
        assert closed.wait(30)
        return text

    def program() -> None:
        with socket.client() as made, made.session() as session:
            given = session.variable()
            slow(given)
            session.flush()
            given.set("x")
            assert begun.wait(30)
        closed.set()
        ended[0].join(30)
        assert not ended[0].is_alive()

    await asyncio.to_thread(program)
