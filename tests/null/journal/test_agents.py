"""A server that keeps its sessions goes on with an agent that it was killed in."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests import waits
from tests.null.asgi import Server
from tests.null.journal.test_replay import lasting
from tests.null.journal.test_restart import cut, running
from tests.null.tools.conftest import config
from tests.null.tools.test_agent_graph import agent, names
from tests.null.tools.test_tool_runs import _Dies, called, streamed, until
from weftline.contract.tools import ServedTool
from weftline_engine.api import Engine, Event, Part
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullEngine, NullMode
from weftline_engine.services.tools.config import ToolsConfig
from weftline_engine.services.tools.engine import ToolEngine
from weftline_engine.services.tools.tool_calls import BegunCalls
from weftline_server.journal import journal
from weftline_server.journal.records import Clock, decode
from weftline_server.journal.store import Change, JournalStore
from weftline_server.journal.writer import Item, Writer
from weftline_server.lowering.kinds.turn import AgentSetup, turn_body
from weftline_server.schedule.engines import fleet
from weftline_server.session import events as ev
from weftline_server.session.session import ServerSession

FAST = LatencyProfile(step_s=0.001)


ADDS = called("add", a=1, b=2) + called("look_up", query="x " * 100)


class _Stalls(NullEngine):
    """A null engine that says nothing more behind certain words. So a turn is cut off there,
    however long the disk takes to write what came before.
    """

    def __init__(self, config: NullConfig, words: str) -> None:
        super().__init__(config)
        self._words = words

    async def events(self) -> AsyncIterator[list[Event]]:
        said = ""
        async for events in super().events():
            if self._words not in said:
                yield events
            said += "".join(one.text for one in events if isinstance(one, Part))


def engine(folder: Path, adds: str = ADDS) -> NullConfig:
    """A model that follows a script, in which it `adds`."""
    path, end = str(folder / "notes"), str(folder / "end")
    forecast = called("forecast", location="Bonn, NRW", days=3)
    rules = (
        ("It may have run", "I check."),
        ("noted", "It is noted."),
        ("waited", "I waited."),
        ('warm"', "Sun."),
        ('"found": "x', "Found."),
        ("#add", adds),
        ("#once", called("note", path=path, wait_s=60.0)),
        ("#both", called("add", a=1, b=2) + called("note", path=path)),
        ("#wait", called("wait_for", path=end)),
        ("#stream", forecast + called("look_up", query="y " * 100)),
    )
    return NullConfig(mode=NullMode.SCRIPT, script=rules, latency=FAST)


def tools() -> Mapping[str, Callable[[], Engine]]:
    begun = BegunCalls()
    return {"tool:some": lambda: ToolEngine(config(), begun)}


@asynccontextmanager
async def serving(
    folder: Path, stalls: str = "no such words", adds: str = ADDS
) -> AsyncIterator[Server]:
    also = {"null": lambda: _Stalls(engine(folder, adds), stalls), **tools()}
    async with running(folder / "store", also=also) as server:
        yield server


async def began(server: Server, text: str) -> str:
    """Submit an agent in a session of its own. Return the session."""
    session = await server.session()
    answer = await server.submit(session, steps=[agent({"text": text})])
    assert answer.status_code == 200, answer.text
    return session


def _states(session: ServerSession) -> set[tuple[str, str]]:
    return {(one.task.name, str(one.state)) for one in session.tasks.values()}


async def task_named(server: Server, session: str, name: str, *states: str) -> None:
    """Wait until a task with this name has one of these states."""
    found = server.service.registry.find("local", session)
    await waits.until(lambda: _states(found) & {(name, state) for state in states})


def kept(server: Server, session: str) -> dict[str, Any]:
    """What the session is, without times: each run of the server has a clock of its own."""
    found = lasting(server.service.registry.find("local", session))
    return {name: part for name, part in found.items() if name != "steps"}


async def test_a_replay_has_the_same_turns_and_tools(tmp_path: Path) -> None:
    """An agent has ended. The next run has its tasks, edges and values, and runs nothing."""
    async with serving(tmp_path) as server:
        session = await began(server, "#add")
        assert (await server.get(session, "a")).json()["value"] == "Found."
        before = kept(server, session)
        graph = await server.graph(session)
    async with serving(tmp_path) as server:
        again = server.service.registry.find("local", session)
        assert kept(server, session) == before
        again.validate()
        assert names(await server.graph(session)) == names(graph)
        assert again.execution.under_way == 0


@pytest.mark.parametrize(
    ("adds", "said", "results"),
    [
        (ADDS, "Found.", ["3"]),
        (ADDS.replace("2", "3", 1), "Found.", ["3", "4"]),
        ("I can do that alone.", "I can do that alone.", ["3"]),
    ],
    ids=["written again", "another call", "no call"],
)
async def test_a_turn_that_was_being_written_is_written_again(
    tmp_path: Path, adds: str, said: str, results: list[str]
) -> None:
    """Its first call has ended when the server does. The turn takes over the result of the call if
    it is written again. If another one is written, that one runs, and its result counts."""
    async with serving(tmp_path, "x x x") as server:
        session = await began(server, "#add")
        await task_named(server, session, "add", "done")
        await server.service.registry.kept(server.service.registry.find("local", session))
        await cut(server)
    async with serving(tmp_path, adds=adds) as server:
        assert (await server.get(session, "a")).json()["value"] == said
        graph = await server.graph(session)
        found = server.service.registry.find("local", session)
        found.validate()
        added = [one["outputs"][0] for one in graph["steps"] if one["name"] == "add"]
        assert [found.variable(one).value for one in added] == results
        assert len(graph["calls"]) == (2 if said == "Found." else 1)
        if said == "Found.":
            assert graph["calls"][-1]["inputs"][0] == added[-1]


@pytest.mark.parametrize("stalls", ["Bonn", "y y y"], ids=["amid the call", "behind it"])
async def test_a_tool_that_takes_its_call_as_it_is_written_is_fed_again(
    tmp_path: Path, stalls: str
) -> None:
    """The server ends while the model still writes. If the call was complete, the tool has its
    arguments from the disk."""
    async with serving(tmp_path, stalls) as server:
        session = await began(server, "#stream")
        await task_named(server, session, "forecast", "running", "done")
        await server.service.registry.kept(server.service.registry.find("local", session))
        await cut(server)
    async with serving(tmp_path) as server:
        assert (await server.get(session, "a")).json()["value"] == "Sun."
        graph = await server.graph(session)
        assert names(graph)["forecast"] == 1


SLOW_TOOL = """
import time
from pathlib import Path
from weftline.toolkit import StreamingTool

class Sleep(StreamingTool):
    "Wait for a file."
    name = "sleep"
    effects = "none"
    parameters = {"path": str}

    def finish(self):
        path = Path(self.arguments["path"])
        path.with_suffix(".begun").touch()
        while not path.exists():
            time.sleep(0.01)
        return "slept"
"""


async def test_a_tool_has_its_arguments_from_the_disk(tmp_path: Path) -> None:
    """It took its call as it was written, and ran on when the turn had ended. The next run gives it
    the call again, though the model does not write it again."""
    (tmp_path / "sleeping.py").write_text(SLOW_TOOL)
    made, begun = ToolsConfig(name="some", module="sleeping", path=tmp_path), BegunCalls()
    rules = ("slept", "I slept."), ("#sleep", called("sleep", path=str(tmp_path / "end")))
    model = NullConfig(mode=NullMode.SCRIPT, script=rules, latency=FAST)
    also = {"tool:some": lambda: ToolEngine(made, begun)}
    async with running(tmp_path / "store", model, also) as server:
        session = await began(server, "#sleep")
        await task_named(server, session, "ask", "done")
        while not (tmp_path / "end.begun").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)
        await server.service.registry.kept(server.service.registry.find("local", session))
        await cut(server)
    (tmp_path / "end").touch()
    async with running(tmp_path / "store", model, also) as server:
        assert (await server.get(session, "a", timeout_s=20)).json()["value"] == "I slept."


async def test_a_tool_that_runs_once_is_not_repeated(tmp_path: Path) -> None:
    """The model reads that it may have run, and goes on."""
    async with serving(tmp_path) as server:
        session = await began(server, "#once")
        await until(tmp_path / "notes")
        await cut(server)
    async with serving(tmp_path) as server:
        assert (await server.get(session, "a")).json()["value"] == "I check."
    assert (tmp_path / "notes").read_text() == "noted\n"


async def test_a_tool_without_effects_runs_again(tmp_path: Path) -> None:
    """It had not ended, so its second run gives the result."""
    async with serving(tmp_path) as server:
        session = await began(server, "#wait")
        await until(tmp_path / "end.begun")
        await cut(server)
    (tmp_path / "end").touch()
    async with serving(tmp_path) as server:
        assert (await server.get(session, "a")).json()["value"] == "I waited."
    assert (tmp_path / "end.begun").read_text() == "begun\n" * 2


async def test_a_request_in_a_session_that_is_kept_goes_on(tmp_path: Path) -> None:
    """A chat completion's client and server are gone in the middle of a tool. The next run ends
    the turns; the last of them has the answer."""
    async with serving(tmp_path) as server:
        session = await server.session()
        body = {
            "messages": [{"role": "user", "content": "#wait"}],
            "weftline": {"run_tools": True, "session_id": session},
        }
        asked = asyncio.create_task(server.http.post("/v1/chat/completions", json=body))
        await until(tmp_path / "end.begun")
        await cut(server)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    (tmp_path / "end").touch()
    async with serving(tmp_path) as server:
        graph = await server.graph(session)
        [first, last] = graph["calls"]
        value = (await server.get(session, last["outputs"][0])).json()["value"]
        assert value["content"] == "I waited."
        assert first["state"] == "done" and names(graph)["wait_for"] == 1


async def test_a_turn_that_a_client_has_seen_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its engine died after a stream had sent a part of it, so the turn failed. The next run has it
    so, and adds no attempt."""
    monkeypatch.setattr(fleet, "RESTART_PAUSES_S", (0.0,))
    text = "I look. " + called("add", a=1, b=2) + called("look_up", query="x " * 40)
    model = NullConfig(mode=NullMode.SCRIPT, model="m", script=(("#say", text),), latency=FAST)
    deadly = ["x x x"]
    server: Server

    def is_seen() -> bool:
        """Whether the stream has sent a part, which waits for the disk."""
        sessions = server.service.registry
        return any(one.taken for session in sessions for one in session.variables.values())

    also = {"m": lambda: _Dies(model, deadly, is_seen), **tools()}
    async with running(tmp_path / "store", engine(tmp_path), also) as server:
        session = await server.session()
        *_, last = await streamed(server, "#say", model="m", session_id=session)
        assert "died while it ran this call" in last["error"]["message"]
        found = server.service.registry.find("local", session)
        assert [one.task.name for one in found.tasks.values()] == ["agent", "chat", "add"]
    async with running(tmp_path / "store", engine(tmp_path), also) as server:
        found = server.service.registry.find("local", session)
        agent, turn, add = found.tasks.values()
        assert (agent.state, turn.state, add.live) == ("failed", "failed", False)


async def test_a_kill_at_any_commit_runs_a_tool_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each entry is committed alone, and the file is copied after each commit. On every copy a
    server ends the agent. Where `note` had begun and had not ended, the model reads that it may
    have run; it runs only where it had not begun.
    """
    copies: list[Path] = []
    write, notes = JournalStore.write, tmp_path / "notes"

    def copied(store: JournalStore, changes: Sequence[Change]) -> None:
        write(store, changes)
        path = tmp_path / f"copy{len(copies)}"
        with closing(sqlite3.connect(path)) as copy:
            store._db.backup(copy)
        copies.append(path)

    class OneByOne(Writer):
        """Commits each entry when it is put."""

        def put(self, items: tuple[Item, ...]) -> None:
            super().put(items)
            self._commit_all(True)

    with monkeypatch.context() as patched:
        patched.setattr(JournalStore, "write", copied)
        patched.setattr(journal, "Writer", OneByOne)
        async with serving(tmp_path) as server:
            session = await began(server, "#both")
            assert (await server.get(session, "a")).json()["value"] == "It is noted."
    assert notes.read_text() == "noted\n"
    ends: list[tuple[str, bool]] = []
    for copy in copies:
        notes.unlink(missing_ok=True)
        async with running(copy, engine(tmp_path), tools()) as server:
            found = await server.get(session, "a")
            if found.status_code == 404:
                continue  # it was not acknowledged
            ends.append((found.json()["value"], notes.exists()))
            assert names(await server.graph(session))["add"] == 1
            server.service.registry.find("local", session).validate()
    assert len(ends) >= 6
    # Before it began it runs, then it may have run, then its result is on disk.
    states = [("It is noted.", True), ("I check.", False), ("It is noted.", False)]
    assert [state for state, _ in groupby(ends)] == states


async def test_a_call_of_the_client_waits_for_it_after_a_restart(tmp_path: Path) -> None:
    """The server is killed while the client computes. The next run takes the result, and the agent
    goes on."""
    step = agent({"text": "#add"})
    step["call"]["tools"] = [{"type": "function", "function": {"name": "mine"}}]
    step["client_tools"] = [{"name": "mine"}]
    async with serving(tmp_path, adds=called("mine")) as server:
        session = await server.session()
        answer = await server.submit(session, steps=[step])
        assert answer.status_code == 200, answer.text
        await task_named(server, session, "mine", "running")
    async with serving(tmp_path, adds=called("mine")) as server:
        await task_named(server, session, "mine", "running")
        [due] = [one for one in (await server.graph(session))["steps"] if one["name"] == "mine"]
        path = f"/v1/session/{session}/variable/{due['outputs'][0]}"
        assert (await server.http.put(path, json={"value": "noted"})).status_code == 200
        assert (await server.get(session, "a")).json()["value"] == "It is noted."


def test_an_agent_of_an_old_journal_is_a_turn() -> None:
    """A chat with run_tools was once a call with the data of its agent, and no step."""
    call = {
        "name": "chat",
        "model": "m",
        "prompt": [
            {"role": "user", "content": [{"text": "#add"}]},
            {"role": "assistant", "content": [{"output": "answer"}]},
        ],
        "placeholders": [{"name": "answer", "in_out": "out", "semantic_var_id": "c.answer"}],
    }
    setup = {"id": "c", "served": [{"name": "add", "engine": "tool:some", "effects": "none"}]}
    submitted = {"tasks": [{"id": "c", "call": call, "agent": setup}], "detach": False}
    clock = Clock(0.0)
    data = json.dumps({"v": 1, "e": "submitted", "t": 0.0, **submitted}).encode()
    session = ServerSession("s", "", 0.0)
    for event in decode(data, clock):
        session.handle(event)
    item = {"id": "1", "name": "add", "arguments": "{}"}
    session.handle(ev.PrimitiveSent(now=0.0, primitive="c/0", engine="e"))
    session.handle(ev.ItemsCame(now=0.0, primitive="c/0", offset=0, items=(item,)))
    session.validate()
    assert list(session.tasks) == ["c", "c.t0"]
    assert turn_body(session.graph, "c").run == AgentSetup(
        id="c", served=(ServedTool(name="add", engine="tool:some", effects="none"),)
    )
