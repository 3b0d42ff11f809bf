"""MCP servers as tools: over standard input and output, and over streamable HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.null.asgi import Serve
from tests.null.tools.conftest import FOLDER, Calls
from tests.null.tools.test_tool_engine import children_of, gone
from tests.null.tools.test_tool_runs import ask, called, told, until
from weftline.errors import InvalidRequest
from weftline_engine import api
from weftline_engine.pretend.null import NullConfig, NullMode
from weftline_engine.services.tools.mcp.config import McpConfig
from weftline_engine.transport.process import ProcessEngine
from weftline_server.commands.tool_tables import factories, from_tables
from weftline_server.config import ServerConfig

COMMAND = (sys.executable, str(FOLDER / "some_mcp.py"))


def config(**more: Any) -> McpConfig:
    made: dict[str, Any] = {"command": COMMAND, "prefix": "some_", **more}
    return McpConfig(name="some", **made)


async def running(**more: Any) -> Calls:
    engine = ProcessEngine(config(**more))
    return Calls(engine, await engine.start())


async def test_an_mcp_server_has_tools(tmp_path: Path) -> None:
    """Its tools are announced with a prefix. What it says of their effects counts, unless the
    operator says something else. A call has its texts as a result, and errors are observations.
    A call can be cancelled. The MCP server is killed with the process that speaks to it."""
    calls = await running(timeout_s=20, effects={"fail": "once"})
    found: dict[Any, Any] = {one["name"]: one for one in calls.description.tools}
    assert {name: one["effects"] for name, one in found.items()} == {
        "some_price": "none",
        "some_rows": "none",
        "some_put": "idempotent",
        "some_note": "once",
        "some_fail": "once",
        "some_wait": "none",
        "some_flood": "none",
        "some_environment": "none",
    }
    assert found["some_price"]["description"] == "The price of an article."
    assert found["some_price"]["parameters"]["required"] == ["article"]
    price, rows = await asyncio.gather(
        calls.call("some_price", article="kettle"), calls.call("some_rows", count=3)
    )
    assert price == {"content": "kettle costs 12 EUR", "is_error": False, "rejected": False}
    assert rows["content"] == "0\n1\n2"
    assert (await calls.call("some_put", path=str(tmp_path / "a"), text="b"))["content"]
    assert (tmp_path / "a").read_text() == "b"
    assert await calls.error("some_fail") == "Error executing tool fail: nothing is here"
    assert "Field required" in await calls.error("some_price")
    assert await calls.error("some_gone") == "there is no such tool"
    for text in ("[1]", '{"article": 1', '{"article": "a", "article": "b"}'):
        id = f"s/{text}"
        calls.ended[id] = asyncio.get_running_loop().create_future()
        inputs = {"tool": "some_price"}
        calls.engine.submit(api.Op(id=id, kind="tool", context=id, inputs=inputs, text=text))
        said = (await calls.value(id))["content"]
        assert said == "ValueError: the arguments are no JSON object"
    id = calls.begin("some_wait", {"path": str(tmp_path / "begun")})
    await until(tmp_path / "begun")
    calls.engine.cancel(id)
    ended = await calls.ended[id]
    assert isinstance(ended, api.Failed) and ended.error == "Cancelled"
    assert (await calls.call("some_price", article="a"))["content"] == "a costs 12 EUR"
    assert isinstance(calls.engine, ProcessEngine) and calls.engine.pid is not None
    [server] = children_of(calls.engine.pid)
    os.kill(calls.engine.pid, signal.SIGKILL)
    await gone(server)
    await calls.reading
    await calls.engine.close()


async def test_annotations_of_an_mcp_server_may_be_refused() -> None:
    """Then every tool has effects, but for those that the operator names."""
    calls = await running(annotations=False, effects={"price": "none"})
    effects = {str(one["name"]): one["effects"] for one in calls.description.tools}
    assert effects.pop("some_price") == "none"
    assert set(effects.values()) == {"once"} and len(effects) == 7
    await calls.engine.close()
    [spec] = from_tables([], [{"name": "some", "command": ["x"], "annotations": False}])
    engine = spec.factory()()
    assert isinstance(engine, ProcessEngine)
    assert engine._config.annotations is False  # type: ignore[attr-defined]


async def test_calls_of_an_mcp_server_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that takes too long is an error. The command sees none of the server's secrets. One
    that writes 100 MB ends the MCP server, and the call in hand is an error. Nothing is left."""
    monkeypatch.setenv("WEFTLINE_API_KEY", "canary-1")
    monkeypatch.setenv("SHOP_KEY", "given")
    calls = await running(timeout_s=1.0, env=("SHOP_KEY",))
    engine = calls.engine
    assert isinstance(engine, ProcessEngine) and engine.pid is not None
    [server] = children_of(engine.pid)
    seen = (await calls.call("some_environment"))["content"]
    assert "SHOP_KEY=given" in seen and "canary-1" not in seen and "WEFTLINE_MCP" not in seen
    said = await calls.error("some_wait", path=str(tmp_path / "begun"))
    assert said == "the tool ran for more than 1 s and was stopped."
    await engine.close()
    await gone(server)
    calls = await running(tools=("flood", "price"))
    assert {one["name"] for one in calls.description.tools} == {"some_flood", "some_price"}
    said = await calls.error("some_flood")
    assert (
        said
        == "the MCP server wrote a line of more than 8,388,608 bytes before the tool had a result."
    )
    await calls.reading  # the engine has died: it is started again
    await calls.engine.close()


async def test_an_mcp_server_that_dies_is_started_again(serve: Serve, tmp_path: Path) -> None:
    """It ends in the middle of a call with effects: the model is told that it may have run, and it
    has run once. The next request has its tools again."""
    script = (
        ("It may have run", "I check."),
        ("costs 12", "It costs 12."),
        ("#note", called("some_note", path=str(tmp_path / "notes"))),
        ("#price", called("some_price", article="kettle")),
    )
    engine = NullConfig(mode=NullMode.SCRIPT, script=script)
    also: dict[str, Callable[[], api.Engine]] = {"mcp:some": lambda: ProcessEngine(config())}
    server = await serve(engine, ServerConfig(), None, also)
    answer = await ask(server, "#note")
    assert answer["choices"][0]["message"]["content"] == "I check."
    assert told(answer)[0].startswith("the MCP server ended before the tool had a result.")
    assert (tmp_path / "notes").read_text() == "noted\n"
    answer = await ask(server, "#price")
    assert answer["choices"][0]["message"]["content"] == "It costs 12."
    assert told(answer) == ["kettle costs 12 EUR"]


async def test_what_an_mcp_server_prints_is_in_the_log_under_its_name(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each line is one of the log's, whatever is in it."""
    [make] = factories(from_tables((), [{"name": "some", "command": COMMAND}])).values()
    engine = make()
    assert isinstance(engine, ProcessEngine)
    calls = Calls(engine, await engine.start())
    with caplog.at_level(logging.INFO, "weftline.printed"):
        assert (await calls.call("some_price", article="kettle"))[
            "content"
        ] == "kettle costs 12 EUR"
        await engine.close()
    assert [one.getMessage() for one in caplog.records if one.name == "weftline.printed"] == [
        "MCP server some printed 'looks for the kettle'",
        "MCP server some printed '2026 ERROR weftline.app: forged'",
    ]
    assert "forged" not in "".join(capfd.readouterr())


async def test_an_mcp_server_over_http(tmp_path: Path) -> None:
    """It has the same tools. When it ends, the call in hand is an error, and so is the engine's
    start as long as nobody listens."""
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(*COMMAND, "http", stdout=pipe)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{(await server.stdout.readline()).decode().strip()}/mcp"
        calls = await running(command=(), url=url, headers={"Authorization": "Bearer a"})
        assert (await calls.call("some_price", article="a"))["content"] == "a costs 12 EUR"
        said = await calls.error("some_note", path=str(tmp_path / "notes"))
        assert said == (
            "the connection to the MCP server was lost before the tool had a result. It may have "
            "run: check before you call it again."
        )
        assert (tmp_path / "notes").read_text() == "noted\n"
        await calls.reading
        await calls.engine.close()
        with pytest.raises(api.EngineDied, match=f"the MCP server 'some' .{url}.: ConnectError"):
            await running(command=(), url=url)
    finally:
        with suppress(ProcessLookupError):
            server.kill()
        await server.wait()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"command": ("/nowhere/mcp",)}, "FileNotFoundError"),
        ({"command": (sys.executable, "-c", "")}, "'some' .*: MCPError: Connection closed"),
        ({"tools": ("prize",)}, "it has no tool 'prize', only environment, fail"),
    ],
)
async def test_an_mcp_server_that_does_not_start_says_why(more: dict[str, Any], said: str) -> None:
    """The operator reads the reason."""
    with pytest.raises(api.EngineDied, match=said):
        await running(**more)


def test_tables_of_mcp_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table has a name, and a command or a url. Headers take keys from the environment."""
    monkeypatch.setenv("SHOP_KEY", "k1")
    url = "https://shop.example/mcp"
    headers = {"Authorization": "Bearer $SHOP_KEY"}
    [spec] = from_tables([], [{"name": "shop", "url": url, "headers": headers}])
    [(name, make)] = factories([spec]).items()
    engine = make()
    assert name == "mcp:shop" and isinstance(engine, ProcessEngine)
    made = engine._config
    assert isinstance(made, McpConfig)
    assert (made.prefix, made.headers) == ("shop_", {"Authorization": "Bearer k1"})
    assert "k1" not in repr(made)
    for table, param in (
        ({"url": url}, "mcp.name"),
        ({"name": "a b", "url": url}, "mcp.name"),
        ({"name": "a"}, "mcp"),
        ({"name": "a", "url": url, "command": ["b"]}, "mcp"),
        ({"name": "a", "url": "file:///b"}, "mcp.url"),
        ({"name": "a", "command": ["b"], "timeout_s": 0.0}, "mcp.timeout_s"),
        ({"name": "a", "command": ["b"], "effects": {"c": "twice"}}, "mcp.effects.c"),
        ({"name": "a", "url": url, "headers": {"b": "$NOT_SET"}}, "mcp.headers"),
        ({"name": "a", "command": ["b"], "arg": 1}, "mcp.arg"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            factories(from_tables([], [table]))
        assert refused.value.param == param
