"""Chat completions whose tools the server runs, between the turns and during them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from tests import waits
from tests.null.asgi import Serve, Server
from tests.null.test_disconnect import posting
from tests.null.tools.conftest import config
from tests.null.tools.test_tool_engine import children_of, gone
from weftline_engine import api
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullEngine, NullMode
from weftline_engine.services.tools.engine import ToolEngine
from weftline_engine.services.tools.tool_calls import BegunCalls
from weftline_server.config import ServerConfig
from weftline_server.observe.cost import Price
from weftline_server.schedule.engines import fleet

PACE = LatencyProfile(step_s=0.002)  # 500 words a second


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>\n"


def script(notes: str) -> tuple[tuple[str, str], ...]:
    long = called("add", a=1, b=2) + called("look_up", query="x " * 40)
    forecast = called("forecast", location="Rome", days=3, why="because " * 2000)
    return (
        ("waited", "I waited."),
        ("It may have run", "I check."),
        ("#forever", called("add", a=7, b=0)),
        ("city, state'", "I ask for the state."),
        ("noted", "It is noted."),
        ('"found": "x', "Three, and found."),
        ("#add", long),
        ("#weather", "Let me see. " + forecast),
        ("#note", called("note", path=notes) + called("look_up", query="y " * 30)),
        ("#die", called("die")),
        ("#mine", called("mine", x=1)),
        ("#ask", called("note", path=notes) + called("mine", x=1)),
        ("#wait", called("wait_for", path=f"{notes}.end")),
        ("#slow", called("note", path=notes, wait_s=60.0)),
    )


@pytest.fixture
async def server(serve: Serve, tmp_path: Path) -> Server:
    return await serving(serve, tmp_path)


async def serving(
    serve: Serve, folder: Path, *without: str, price: dict[str, Price] | None = None
) -> Server:
    begun, rules = BegunCalls(), script(str(folder / "notes"))
    engine = NullConfig(mode=NullMode.SCRIPT, script=rules, latency=PACE)
    also = {"tool:some": lambda: ToolEngine(config(), begun)}
    settings = ServerConfig(without=frozenset(without), price=price or {})
    return await serve(engine, settings, None, also)


async def ask(server: Server, text: str, **more: Any) -> dict[str, Any]:
    body = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 4000,
        "weftline": {"run_tools": True},
        **more,
    }
    answer = await server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def streamed(server: Server, text: str, **more: Any) -> list[dict[str, Any]]:
    """The chunks of a streamed response. The last one may be an error."""
    body = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 4000,
        "stream": True,
        "weftline": {"run_tools": True},
        **more,
    }
    answer = await server.http.post("/v1/chat/completions", json=body)
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n")]
    return [json.loads(line) for line in lines if line and line != "[DONE]"]


def told(answer: dict[str, Any]) -> list[Any]:
    """What the tools of a run said."""
    return [one["content"] for one in answer["weftline"]["messages"] if one["role"] == "tool"]


async def test_the_server_runs_its_tools(server: Server) -> None:
    """The response is the last answer. The messages before it are there, in the order of the
    calls, and the usage is that of all turns."""
    answer = await ask(server, "#add")
    [choice] = answer["choices"]
    assert choice["message"]["content"] == "Three, and found."
    assert choice["finish_reason"] == "stop"
    first, *results = answer["weftline"]["messages"]
    assert [call["function"]["name"] for call in first["tool_calls"]] == ["add", "look_up"]
    ids = [call["id"] for call in first["tool_calls"]]
    assert [one["tool_call_id"] for one in results] == ids
    assert told(answer)[0] == "3" and "x x x" in told(answer)[1]
    assert answer["usage"]["completion_tokens"] > 50


async def test_a_call_that_a_stop_string_cuts_runs_nothing(server: Server) -> None:
    """It is no call, so the turn is the answer."""
    answer = await ask(server, "#weather", stop=[', "days"'])
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Let me see.", "refusal": None}
    assert (choice["finish_reason"], told(answer)) == ("stop", [])


async def test_a_run_has_a_price(serve: Serve, tmp_path: Path) -> None:
    """That of all turns together, whole and streamed."""
    price = {"null": Price(prompt=1_000_000.0, output=3_000_000.0)}
    server = await serving(serve, tmp_path, price=price)
    usage = (await ask(server, "#add"))["usage"]
    paid = usage["prompt_tokens"] + 3.0 * usage["completion_tokens"]
    assert usage["cost"] == paid and usage["saved"] == 0.0
    body = {
        "messages": [{"role": "user", "content": "#add"}],
        "max_tokens": 4000,
        "stream": True,
        "stream_options": {"include_usage": True},
        "weftline": {"run_tools": True},
    }
    lines = (await server.http.post("/v1/chat/completions", json=body)).text.split("\n\n")
    last = [json.loads(line[6:]) for line in lines if line.startswith("data: {")][-1]
    assert last["usage"]["cost"] == paid


async def test_a_stream_has_the_same_text(server: Server) -> None:
    """Chunks come as the model writes, and the last one has the messages."""
    chunks = await streamed(server, "#weather")
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == "Let me see.I ask for the state."
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert told(chunks[-1]) == ["location has to be 'city, state'"]


@pytest.mark.parametrize("continuous", [True, False])
async def test_a_stream_counts_all_turns_so_far(server: Server, continuous: bool) -> None:
    """Each chunk has the usage of the turns before it, where the request asks for that."""
    options = {"include_usage": True, "continuous_usage_stats": continuous}
    *chunks, last = await streamed(server, "#add", stream_options=options)
    assert not last["choices"]
    if not continuous:
        assert not any("usage" in chunk for chunk in chunks)
        return
    usages = [one["usage"] for one in chunks]
    made = [one["completion_tokens"] for one in usages]
    assert made == sorted(made) and len(set(made)) > 2
    assert made[-1] == last["usage"]["completion_tokens"]
    assert usages[-1]["prompt_tokens"] == last["usage"]["prompt_tokens"] > 0
    for usage in usages:
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_a_tool_runs_while_the_model_writes(serve: Serve, tmp_path: Path) -> None:
    """The first call's tool has begun and ended before the turn ends. With effects it waits."""
    for without, overlaps in (((), True), (("early_tools",), False)):
        server = await serving(serve, tmp_path, *without)
        session = server.driver.open("local")
        answer = await ask(server, "#add", session_id=session.id)
        assert answer["choices"][0]["message"]["content"] == "Three, and found."
        ended: dict[str, list[float]] = {}
        for task in session.graph.tasks.values():
            step = session.primitives[task.primitives[0].id].step
            assert step is not None and step.finished is not None
            ended.setdefault(task.name, []).append(step.finished)
        assert (ended["add"][0] < min(ended["chat"])) is overlaps


class _Model(NullEngine):
    """A null engine that records its parts, and when it is cancelled.

    With `silent` it writes nothing between the location's end and the cancellation.
    """

    def __init__(self, config: NullConfig, seen: list[str], silent: bool) -> None:
        super().__init__(config)
        self._seen = seen
        self._silent = silent

    def cancel(self, op: str) -> None:
        self._seen.append("cancel")
        super().cancel(op)

    def _emit(self, event: api.Event) -> None:
        if isinstance(event, api.Part):
            if self._silent and "Rome" in "".join(self._seen) and "cancel" not in self._seen:
                return
            self._seen.append(event.text)
        super()._emit(event)


class _Tools(ToolEngine):
    """A tool engine that records when the server takes the end of a call."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__(config(), BegunCalls())
        self._seen = seen

    async def events(self) -> AsyncIterator[list[api.Event]]:
        async for events in super().events():
            self._seen += ["end" for event in events if isinstance(event, api.Finished)]
            yield events


@pytest.mark.parametrize("silent", [False, True])
async def test_a_tool_stops_a_turn(serve: Serve, tmp_path: Path, silent: bool) -> None:
    """It refuses the first argument. At most two words later the engine is told to stop, also if it
    writes none. The rest of the call has 2,000 words. The model goes on with the error."""
    seen: list[str] = []
    model = NullConfig(
        mode=NullMode.SCRIPT, model="m", script=script(str(tmp_path / "notes")), latency=PACE
    )
    also: dict[str, Callable[[], api.Engine]] = {
        "m": lambda: _Model(model, seen, silent),
        "tool:some": lambda: _Tools(seen),
    }
    server = await serve(also=also)
    session = server.driver.open("local")
    answer = await ask(server, "#weather", session_id=session.id, model="m")
    assert seen.count("end") == 1
    assert seen.index("cancel") - seen.index("end") - 1 <= (0 if silent else 2)
    assert answer["choices"][0]["message"]["content"] == "I ask for the state."
    said, _ = answer["weftline"]["messages"]
    assert said["content"] == "Let me see."
    [call] = said["tool_calls"]
    assert call["function"]["arguments"].startswith('{"location": "Rome"')
    assert call["function"]["arguments"].count("because") < 2000
    assert told(answer) == ["location has to be 'city, state'"]


async def test_faults_of_tools_are_answers(server: Server) -> None:
    """A tool that dies, and one that is not there: the request finishes."""
    answer = await ask(server, "#die")
    assert answer["choices"][0]["message"]["content"] == "I check."
    assert told(answer)[0].endswith("It may have run: check before you call it again.")


async def test_a_call_with_effects_runs_once_after_the_turn(server: Server, tmp_path: Path) -> None:
    """The file has one line."""
    answer = await ask(server, "#note")
    assert answer["choices"][0]["message"]["content"] == "It is noted."
    assert (tmp_path / "notes").read_text() == "noted\n"


def zygote_of(server: Server) -> int:
    """The process id of the zygote."""
    member = server.driver.dispatcher._fleet.members["tool:some"]
    assert isinstance(member.engine, ToolEngine) and member.engine._zygote is not None
    return member.engine._zygote.pid


async def until(path: Path) -> None:
    """Wait until a tool has written to the file. It is created before the text is in it."""
    while not os.access(path, os.F_OK) or not os.stat(path).st_size:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_the_tools_die_in_the_middle_of_a_call(server: Server, tmp_path: Path) -> None:
    """A tool without effects runs again on the next zygote. One that runs once does not: the model
    is told that it may have run."""
    waiting = asyncio.create_task(ask(server, "#wait"))
    await until(tmp_path / "notes.end.begun")
    os.kill(zygote_of(server), signal.SIGKILL)
    begun = tmp_path / "notes.end.begun"
    while begun.read_text() != "begun\n" * 2:  # noqa: ASYNC110 - another process writes it
        await asyncio.sleep(0.01)
    (tmp_path / "notes.end").touch()
    answer = await waiting
    assert answer["choices"][0]["message"]["content"] == "I waited."
    slow = asyncio.create_task(ask(server, "#slow"))
    await until(tmp_path / "notes")
    os.kill(zygote_of(server), signal.SIGKILL)
    answer = await slow
    assert answer["choices"][0]["message"]["content"] == "I check."
    assert told(answer)[0].startswith("the tool did not finish: engine tool:some died")
    assert (tmp_path / "notes").read_text() == "noted\n"


class _Dies(NullEngine):
    """A null engine that dies when it has written the first of the `deadly` words, and not before
    it is `due`.
    """

    def __init__(
        self, config: NullConfig, deadly: list[str], due: Callable[[], object] = lambda: True
    ) -> None:
        super().__init__(config)
        self._deadly, self._due = deadly, due

    async def events(self) -> AsyncIterator[list[api.Event]]:
        texts: dict[str, str] = {}
        async for events in super().events():
            yield events
            for one in events:
                if isinstance(one, api.Part):
                    texts[one.op] = texts.get(one.op, "") + one.text
                else:
                    texts.pop(one.op, None)
            if self._deadly and any(self._deadly[0] in text for text in texts.values()):
                self._deadly.clear()
                await waits.until(self._due)
                raise api.EngineDied("killed by signal 9")


@pytest.mark.parametrize("same", [True, False], ids=["written again", "another call"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_the_model_dies_in_the_middle_of_a_turn(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, same: bool, stream: bool
) -> None:
    """It has written a call, which runs, and a part of the next one. The client has nothing of it,
    so another attempt is made. It uses the result if it writes the same call, and drops it
    otherwise. A stream tells the same as a response that is not streamed."""
    monkeypatch.setattr(fleet, "RESTART_PAUSES_S", (0.0,))
    deadly = ["x x x"]

    def model() -> NullEngine:
        first = called("add", a=1, b=2 if deadly or same else 3)
        rules = ('"found": "x', "Found."), ("#add", first + called("look_up", query="x " * 40))
        config = NullConfig(mode=NullMode.SCRIPT, model="m", script=rules, latency=PACE)
        return _Dies(config, deadly)

    also = {"m": model, "tool:some": lambda: ToolEngine(config(), BegunCalls())}
    server = await serve(also=also)
    session = server.driver.open("local")
    more = {"session_id": session.id, "model": "m"}
    if stream:
        chunks = await streamed(server, "#add", **more)
        text = "".join(one["choices"][0]["delta"].get("content", "") for one in chunks)
        answer = chunks[-1]
    else:
        answer = await ask(server, "#add", **more)
        text = answer["choices"][0]["message"]["content"]
    assert (text, told(answer)[0]) == ("Found.", "3" if same else "4")
    names = [task.name for task in session.graph.tasks.values()]
    assert [names.count(name) for name in ("chat", "add")] == [3, 1 if same else 2]


async def test_a_stream_whose_model_dies_after_some_words_fails(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has a part of the text, so the turn cannot be written again. The stream ends with
    the error. The same request without a stream gets its response."""
    monkeypatch.setattr(fleet, "RESTART_PAUSES_S", (0.0,))
    rules = ('"found": "x', "Found."), ("#say", "I look. " + called("look_up", query="x " * 40))
    deadly: list[str] = []
    made = NullConfig(mode=NullMode.SCRIPT, model="m", script=rules, latency=PACE)
    also = {
        "m": lambda: _Dies(made, deadly),
        "tool:some": lambda: ToolEngine(config(), BegunCalls()),
    }
    server = await serve(also=also)
    for stream in (True, False):
        deadly.append("x x x")
        if not stream:
            answer = await ask(server, "#say", model="m")
            assert answer["choices"][0]["message"]["content"] == "Found."
            continue
        *chunks, last = await streamed(server, "#say", model="m")
        text = "".join(one["choices"][0]["delta"].get("content", "") for one in chunks)
        assert text == "I look."
        assert "died while it ran this call" in last["error"]["message"]


async def test_a_stream_whose_model_dies_after_a_call_of_the_client_fails(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has been told to compute a call, which another attempt might not write. So the
    turn is not written again."""
    monkeypatch.setattr(fleet, "RESTART_PAUSES_S", (0.0,))
    rules = (("#both", called("mine", x=1) + called("look_up", query="x " * 40)),)
    made = NullConfig(mode=NullMode.SCRIPT, model="m", script=rules, latency=PACE)
    deadly = ["x x x"]
    also = {
        "m": lambda: _Dies(made, deadly),
        "tool:some": lambda: ToolEngine(config(), BegunCalls()),
    }
    server = await serve(also=also)
    own = {"run_tools": True, "client_tools": [{"name": "mine", "effects": "none"}]}
    mine = {"type": "function", "function": {"name": "mine", "parameters": {"type": "object"}}}
    *_, due, last = await streamed(server, "#both", model="m", tools=[mine], weftline=own)
    assert due["weftline"]["tool_call"]["name"] == "mine"
    assert "died while it ran this call" in last["error"]["message"]


async def test_a_session_that_is_closed_ends_its_tools(server: Server, tmp_path: Path) -> None:
    """The request fails, and the tool's process is killed."""
    session = await server.session()
    body = {
        "messages": [{"role": "user", "content": "#wait"}],
        "weftline": {"run_tools": True, "session_id": session},
    }
    waiting = asyncio.create_task(server.http.post("/v1/chat/completions", json=body))
    await until(tmp_path / "notes.end.begun")
    children = children_of(zygote_of(server))
    await server.http.delete(f"/v1/session/{session}")
    answer = await waiting
    assert answer.json()["error"]["type"] in ("Cancelled", "SessionClosed")
    for child in children:
        await gone(child)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("text", "begun"), [("#wait", "notes.end.begun"), ("#slow", "notes")])
async def test_a_client_that_leaves_ends_its_tools(
    server: Server, tmp_path: Path, text: str, begun: str, stream: bool
) -> None:
    """Its connection is dropped in the middle of a tool: the process is killed, the session ends,
    and a tool with effects has run once."""
    body = {"messages": [{"role": "user", "content": text}], "stream": stream}
    data = json.dumps({**body, "weftline": {"run_tools": True}}).encode()
    requests = iter([{"type": "http.request", "body": data, "more_body": False}])
    children: list[int] = []

    async def receive() -> dict[str, Any]:
        for request in requests:
            return request
        await until(tmp_path / begun)
        children.extend(children_of(zygote_of(server)))
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        assert b"I waited" not in message.get("body", b"")

    await server.app(posting("/v1/chat/completions"), receive, send)
    assert server.service.engines.status().sessions == 0
    assert len(children) == 1
    await gone(children[0])
    assert len((tmp_path / begun).read_text().splitlines()) == 1


async def test_a_tool_of_the_client_ends_the_run(server: Server) -> None:
    """The response has its call, as without run_tools. The client goes on."""
    mine = {"type": "function", "function": {"name": "mine", "parameters": {"type": "object"}}}
    answer = await ask(server, "#mine", tools=[mine])
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "mine"
    assert answer["weftline"]["messages"] == []


async def test_a_tool_that_needs_approval_is_the_clients(server: Server, tmp_path: Path) -> None:
    """A person decides in the client, before any tool with effects of the same turn has run."""
    mine = {"type": "function", "function": {"name": "mine", "parameters": {"type": "object"}}}
    note = {"type": "function", "function": {"name": "note", "parameters": {"type": "object"}}}
    answer = await ask(server, "#ask", tools=[mine, note])
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    calls = [call["function"]["name"] for call in choice["message"]["tool_calls"]]
    assert calls == ["note", "mine"]
    assert not (tmp_path / "notes").exists()


async def test_a_model_that_calls_for_ever_is_stopped(server: Server) -> None:
    """After 16 turns the response is the last call."""
    answer = await ask(server, "#forever")
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert len(told(answer)) == 15


async def test_what_is_not_served_is_refused(serve: Serve, server: Server) -> None:
    """Each error names the field."""
    for more, param in (({"n": 2}, "n"), ({"logprobs": True}, "logprobs")):
        body = {
            "messages": [{"role": "user", "content": "#add"}],
            "weftline": {"run_tools": True},
            **more,
        }
        answer = await server.http.post("/v1/chat/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    plain = await serve()
    answer = await plain.http.post(
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "x"}], "weftline": {"run_tools": True}},
    )
    assert answer.status_code == 400 and "[[tool]]" in answer.json()["error"]["message"]


async def test_a_prompt_that_is_too_long_is_refused_before_a_stream(serve: Serve) -> None:
    """The first turn is tokenised before the agent begins, so the response has the status."""
    also = {"tool:some": lambda: ToolEngine(config(), BegunCalls())}
    server = await serve(NullConfig(context_limit=2048), ServerConfig(), None, also)
    for words, status in ((200, 200), (6000, 400)):
        body = {
            "messages": [{"role": "user", "content": "x " * words}],
            "stream": True,
            "weftline": {"run_tools": True},
        }
        answer = await server.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == status, answer.text
    assert "2048" in answer.json()["error"]["message"]
    starts = server.driver._starts
    assert not starts._prepared  # the prompt of the first turn was used once
