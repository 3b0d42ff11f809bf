"""Tools run in processes of their own: what a call gives, and what each fault ends in."""

from __future__ import annotations

import asyncio
import json
import os
import random
import select
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.null.tools.conftest import Calls, running
from tests.waits import until
from weftline.errors import InvalidRequest
from weftline_engine import api
from weftline_engine.services.tools.engine import ToolEngine
from weftline_engine.services.tools.tool_calls import BegunCalls
from weftline_server.commands.tool_tables import from_tables


async def gone(pid: int) -> None:
    """Wait until the process has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(descriptor, ended.set)
    await ended.wait()
    asyncio.get_running_loop().remove_reader(descriptor)
    os.close(descriptor)


def children_of(pid: int) -> list[int]:
    """The processes that `pid` has started."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def opened(path: Path) -> Path:
    """A file in a folder of pytest's that every user may write."""
    path.chmod(0o777)
    for folder in path.parents:
        if folder == Path(tempfile.gettempdir()):
            break
        folder.chmod(0o755)
    return path / "forks"


async def test_tools_describe_themselves(calls: Calls) -> None:
    """The engine announces what models see of its tools: names, docstrings, types of arguments."""
    assert calls.description.kinds == ("tool",) and calls.description.model == "some"
    tools: dict[Any, Any] = {one["name"]: one for one in calls.description.tools}
    assert tools["add"]["description"] == "Add two numbers."
    assert tools["add"]["parameters"] == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a"],
    }
    assert tools["look_up"]["parameters"]["properties"]["kind"] == {"enum": ["web", "news"]}
    assert tools["forecast"]["parameters"]["required"] == ["location"]
    assert tools["forecast"]["streams"] and not tools["add"]["streams"]
    assert (tools["note"]["effects"], tools["die"]["effects"]) == ("once", "idempotent")


async def test_a_call_has_a_result(calls: Calls) -> None:
    """Calls run beside each other. A result is JSON, and a text stays text."""
    made = await asyncio.gather(
        calls.call("add", a=2), calls.call("add", a=2, b=3), calls.call("look_up", query="é")
    )
    assert [one["content"] for one in made[:2]] == ["3", "5"]
    assert json.loads(made[2]["content"]) == {"found": "é", "kind": "web"}
    assert not any(one["is_error"] for one in made)


async def test_calls_stand_back_behind_engines(calls: Calls) -> None:
    """Their processes are nicer than the server's."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    policy, process, *group = await calls.result("niceness")
    assert (policy, process) == (os.SCHED_OTHER, max(own, 10))
    if os.getuid() == 0:  # the kernel lets other users change ten groups a second, of all users
        assert group in ([], [10])


async def test_the_nicest_calls_run_where_nothing_else_does() -> None:
    """The kernel gives them a core that nobody else needs at the moment."""
    calls = await running(niceness=20)
    try:
        assert (await calls.result("niceness"))[:2] == [os.SCHED_IDLE, 19]
    finally:
        await calls.engine.close()
        await calls.reading


@pytest.mark.parametrize("niceness", [-1, 21])
def test_niceness_has_bounds(niceness: int) -> None:
    """No call may go before the engines."""
    with pytest.raises(InvalidRequest, match=f"equal to (0|20), not {niceness}"):
        from_tables([{"module": "shop", "niceness": niceness}])


async def test_a_streaming_tool_takes_its_call_as_it_is_written(calls: Calls) -> None:
    """It is warmed at its name, and told of lines and arguments as they close."""
    id = calls.begin("forecast")
    text = '{"location": "Rome,\\nItaly", "days": 3}'
    for start in range(0, len(text), 5):
        calls.engine.feed(id, start, text[start : start + 5], False)
    calls.engine.feed(id, len(text), "", True)
    value = await calls.value(id)
    location = "Rome,\nItaly"
    assert json.loads(value["content"]) == [
        "warm",
        "Rome,",
        "Italy",
        ["location", location],
        ["days", 3],
        {"location": location, "days": 3},
    ]


async def test_a_tool_rejects_a_call_before_it_is_complete(calls: Calls) -> None:
    """The value closes, and the reason is there. The rest of the call is not needed."""
    id = calls.begin("forecast")
    calls.engine.feed(id, 0, '{"location": "Rome"', False)
    value = await calls.value(id)
    assert value == {
        "content": "location has to be 'city, state'",
        "is_error": True,
        "rejected": True,
    }


async def test_a_call_with_effects_begins_with_its_last_part(calls: Calls, tmp_path: Path) -> None:
    """One of effects "once" that is cancelled before has not run."""
    for last in (False, True):
        path = tmp_path / str(last)
        id = calls.begin("note")
        calls.engine.feed(id, 0, json.dumps({"path": str(path)}), False)
        await calls.result("add", a=1)  # time in which it would have begun
        assert not path.exists()
        if last:
            calls.engine.feed(id, 0, "", True)
            assert (await calls.value(id))["content"] == "noted"
            assert path.read_text() == "noted\n"
        else:
            calls.engine.cancel(id)
            assert isinstance(await calls.ended[id], api.Failed)
    assert not (tmp_path / "False").exists()


TOO_LONG = "8,388,608 are the most"
FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("hang", {}, "the tool ran for more than 0.3 s and was stopped."),
    ("spin", {}, "the tool ran for more than 0.3 s and was stopped."),
    ("fail", {}, "LookupError: nothing is here"),
    ("leave", {}, "SystemExit: 3"),
    (
        "die",
        {},
        "the tool's process ended without a result (signal 9). It may have run: check before you"
        " call it again.",
    ),
    ("flood", {}, f"the tool's result cannot be sent: it has 20,000,014 bytes, and {TOO_LONG}"),
    ("fill_memory", {}, "MemoryError: "),
    (
        "strange",
        {},
        "the tool's result cannot be sent: it is not JSON: Object of type object is not JSON"
        " serializable",
    ),
    ("malformed", {"size": 10}, "the tool sent no result: it is no JSON."),
    ("malformed", {"size": 100}, "the tool's process ended without a result (exit code 0)."),
    (
        "malformed",
        {"size": 1 << 30},
        f"the tool sent no result: it says that it has 1,073,741,824 bytes, and {TOO_LONG}.",
    ),
    ("add", {"c": 1}, "TypeError: add() got an unexpected keyword argument 'c'"),
    ("gone", {}, "there is no such tool"),
]


async def test_each_fault_is_an_observation(calls: Calls) -> None:
    """Its op finishes, the model is told, and other calls run beside it and after it."""
    found = await asyncio.gather(
        *(calls.error(name, **arguments) for name, arguments, _ in FAULTS), calls.call("add", a=1)
    )
    assert found[:-1] == [said for *_, said in FAULTS]
    assert await calls.result("add", a=1) == 2


async def test_arguments_that_are_no_object_are_an_observation(calls: Calls) -> None:
    """The tool does not run."""
    for text in ("[1]", '{"a": 1', '{"a": 1, "a": 2}', "null"):
        id = calls.begin("add")
        calls.engine.feed(id, 0, text, True)
        value = await calls.value(id)
        assert value["content"] == "ValueError: the arguments are no JSON object"


async def test_a_call_begins_at_most_once(tmp_path: Path) -> None:
    """The same op again does not run again. One of "once" does not, even in another attempt of a
    new incarnation; one without effects does."""
    begun, path = BegunCalls(), tmp_path / "notes"
    arguments = {"path": str(path)}
    for attempt in (0, 1):
        calls = await running(begun)
        value = await calls.value(calls.begin("note", arguments, id="s/1", attempt=attempt))
        assert value["is_error"] == (attempt == 1)
        again = await calls.value(calls.begin("note", arguments, id="s/1", attempt=attempt))
        assert again["content"].startswith("the call has begun before")
        assert again["content"].endswith("It may have run: check before you call it again.")
        assert (await calls.value(calls.begin("add", {"a": 1}, id="s/2", attempt=attempt)))[
            "content"
        ] == "2"
        await calls.engine.close()
        await calls.reading
    assert path.read_text() == "noted\n"


async def test_a_call_that_is_killed_runs_once(calls: Calls, tmp_path: Path) -> None:
    """200 calls, a random one of which is killed at each of 200 random moments; each call gets a
    second attempt."""
    assert isinstance(calls.engine, ToolEngine)
    zygote, chance = calls.engine._zygote, random.Random(5)
    assert zygote is not None

    async def killed(number: int) -> None:
        path = tmp_path / str(number)
        arguments = {"path": str(path), "wait_s": 0.02, "first_s": 0.02}
        for attempt in (0, 1):
            ended = calls.begin("note", arguments, id=f"s/{number}", attempt=attempt)
            if attempt == 0:
                await asyncio.sleep(chance.uniform(0, 0.06))
                # One child of all: who kills every child leaves none alive on a slow machine.
                for child in chance.sample(alive := children_of(zygote.pid), min(1, len(alive))):
                    with suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
            value = await calls.value(ended)
            assert value["content"] == "noted" or "It may have run" in value["content"]
        lines = path.read_text().splitlines() if path.exists() else []
        assert len(lines) <= 1
        noted.append(len(lines))

    noted: list[int] = []
    for start in range(0, 200, 20):
        await asyncio.gather(*(killed(start + number) for number in range(20)))
    assert len(noted) == 200 and 0 < sum(noted) < 200, "some were killed before they wrote"


async def test_a_cancelled_call_ends_with_all_it_has_started(calls: Calls) -> None:
    """Its process group is killed, and so is a process that left the group."""
    await gone(await calls.result("leave_behind", seconds=60))
    id = calls.begin("note", {"path": os.devnull, "wait_s": 60})
    await calls.result("add", a=1)
    calls.engine.cancel(id)
    ended = await calls.ended[id]
    assert isinstance(ended, api.Failed) and ended.error == "Cancelled"


async def test_a_fork_bomb_is_stopped(tmp_path: Path) -> None:
    """A user's processes are limited, and all of them end with the call."""
    path = opened(tmp_path)
    calls = await running(user="nobody" if os.getuid() == 0 else None)
    try:
        said = await calls.error("multiply", path=str(path))
        assert said == "the tool ran for more than 1 s and was stopped."
        assert 0 < len(path.read_text()) <= 20
        assert await calls.result("add", a=1) == 2
    finally:
        await calls.engine.close()
        await calls.reading


async def test_no_secret_is_in_a_tools_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool sees only the variables that its table names, also in its parent's /proc entry."""
    monkeypatch.setenv("WEFTLINE_API_KEY", "canary-1")
    monkeypatch.setenv("SEARCH_KEY", "given")
    calls = await running(env=("SEARCH_KEY",))
    try:
        seen = await calls.result("environment")
        for text in seen.values():
            assert "canary-1" not in text and "SEARCH_KEY=given" in text
        assert "WEFTLINE_TOOLS" not in seen["own"]
    finally:
        await calls.engine.close()
        await calls.reading


async def test_calls_end_with_the_engine(calls: Calls) -> None:
    """The zygote is killed: the engine says that it died, and the calls' processes end."""
    assert isinstance(calls.engine, ToolEngine)
    zygote = calls.engine._zygote
    assert zygote is not None
    id = calls.begin("note", {"path": os.devnull, "wait_s": 60})
    await calls.result("add", a=1)
    children = children_of(zygote.pid)
    assert children
    os.kill(zygote.pid, signal.SIGKILL)
    with pytest.raises(asyncio.CancelledError):
        await calls.ended[id]
    for child in children:
        await gone(child)


async def test_calls_end_with_an_engine_that_has_not_read_all(calls: Calls) -> None:
    """The zygote has told of the end of a call, and the engine closes before it reads that. The
    socket breaks then instead of ending, and the zygote ends in order all the same.
    """
    engine = calls.engine
    assert isinstance(engine, ToolEngine)
    zygote, control = engine._zygote, engine._control
    assert zygote is not None and control is not None
    asyncio.get_running_loop().remove_reader(control)
    assert await calls.result("add", a=1) == 2
    await until(lambda: select.select([control], [], [], 0)[0])
    await engine.close()
    assert zygote.returncode == 0


async def test_a_module_that_does_not_load_says_why() -> None:
    """The operator reads the module's own error."""
    for module, said in (
        ("nowhere_tools", "ModuleNotFoundError: No module named 'nowhere_tools'"),
        ("json", "LookupError: json defines no tool: mark functions with @tool"),
    ):
        with pytest.raises(api.EngineDied, match=f"the tools 'some' did not start: {said}"):
            await running(module=module)
