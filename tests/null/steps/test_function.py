"""Functions of the operator: real worker processes, and what goes wrong in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.null.asgi import Serve, Server, call
from tests.null.steps.wire import each, run
from tests.null.tools.test_tool_engine import gone
from tests.waits import WAIT_S
from weftline.errors import InvalidRequest
from weftline_engine import api
from weftline_engine.services.functions.config import FunctionConfig
from weftline_engine.services.functions.engine import FunctionEngine
from weftline_server.cli import main
from weftline_server.commands.retrieval_tables import factories, from_tables

MODULE = """
import os, subprocess, sys, time

def work(text="", do="echo"):
    if do == "sleep":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        open(text, "w").write(str(child.pid))
        time.sleep(60)
    if do == "exit":
        os._exit(3)
    if do == "raise":
        raise KeyError(text)
    if do == "none":
        return None
    if do == "half":
        return {"text": text, "half": chr(0xD83D)}
    if do == "half error":
        raise ValueError(chr(0xD83D))
    if do == "nan":
        return float("nan")
    if do == "env":
        return sorted(name for name in os.environ if "SECRET" in name)
    print("printed, and no result")
    return {"text": text * 10 if do == "long" else text}
"""


def is_alive(mark: str) -> bool:
    """Whether the process runs whose id is in the file `mark`."""
    stat = Path(f"/proc/{Path(mark).read_text()}/stat")
    return stat.exists() and ") Z " not in stat.read_text()


@pytest.fixture
async def server(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Server]:
    """A server with the function `work` in one process."""
    monkeypatch.setenv("SECRET_KEY", "x")
    monkeypatch.setenv("SECRET_NAMED", "y")
    (tmp_path / "ours.py").write_text(MODULE)
    table = {"name": "work", "call": "ours:work", "path": str(tmp_path), "timeout_s": 1.5,
             "max_bytes": 2000, "env": ["SECRET_NAMED"]}  # fmt: skip
    yield await serve(also=factories(from_tables({"function": [table]})))


def function(out: str, **args: Any) -> dict[str, Any]:
    """The step; `text="v"` reads variable v."""
    sources = {n: {"var": a} if isinstance(a, str) else a for n, a in args.items()}
    return {"kind": "function", "name": out, "function": "work", "args": sources, "out": out}


def do(what: str) -> dict[str, Any]:
    return {"value": what}


async def test_a_function_runs_between_calls_and_in_bodies(server: Server) -> None:
    """A function reads a call's output, and runs for each item of a list."""
    first = call("first", "a{{output:o}}", o="v")
    items = each(["x", "y"], {"steps": [function("o", text="item")]}, {"o": "os"})
    answer = await run(server, function("out", text="v"), items, calls=[first], get=["out", "os"])
    assert answer["values"] == {"out": {"text": "a"}, "os": [{"text": "x"}, {"text": "y"}]}
    [step] = [one for one in answer["graph"]["steps"] if one["name"] == "out"]
    assert (step["kind"], step["resource"], step["effects"]) == ("function", "work", "once")


async def test_a_run_that_fails_leaves_the_next_one_alone(server: Server, tmp_path: Path) -> None:
    """Every fault is an error with its reason. A slow run ends with the processes it started."""
    mark = str(tmp_path / "pid")
    faults = {
        "raise": "function 'work' failed: KeyError: 'k'",
        "none": "function 'work' failed: ValueError: it returned None: return a JSON value",
        "nan": "Out of range float values are not JSON compliant",
        "half": "the result of function 'work' has half of a surrogate pair, which is no text",
        "half error": "the result of function 'work' has half of a surrogate pair",
        "exit": "function 'work' ended its process",
        "sleep": "function 'work' took longer than 1.5 s: it was stopped",
        "long": "the result of function 'work' has more than 2,000 bytes",
    }
    for what, message in faults.items():
        text = {"raise": "k", "sleep": mark, "long": "x" * 500}.get(what, "t")
        answer = await run(server, function("out", text=do(text), do=do(what)), get=["out"])
        assert (answer["error"]["type"], answer["error"]["call"]) == ("EngineFailed", "out"), what
        assert message in answer["error"]["message"]
    while is_alive(mark):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    answer = await run(server, function("out", do=do("env")), get=["out"])
    assert answer["values"]["out"] == ["SECRET_NAMED"]
    answer = await run(server, function("out", more=do("x")), get=["out"])
    assert "unexpected keyword argument 'more'" in answer["error"]["message"]


async def test_an_unknown_function_is_refused(server: Server, serve: Serve) -> None:
    """The message has the functions that are there, or the table that would add one."""
    answer = await run(server, {**function("out"), "function": "other"})
    assert answer["error"]["message"] == "there is no function 'other': use one of work"
    bare = await serve()
    assert "table [[function]]" in (await run(bare, function("out")))["error"]["message"]
    answer = await run(server, {**function("out"), "args": {"a b": do("x")}})
    assert "is not a parameter's name" in answer["error"]["message"]


async def test_a_cancelled_run_ends_its_process(tmp_path: Path) -> None:
    """Cancelling an op kills the worker in which the function sleeps."""
    (tmp_path / "ours.py").write_text(MODULE)
    engine = FunctionEngine(FunctionConfig(name="w", call="ours:work", path=str(tmp_path)))
    await engine.start()
    worker = engine._idle[0]
    arguments = {"do": "sleep", "text": str(tmp_path / "pid")}
    op = api.Op(id="o", attempt=0, kind="function", context="o", inputs={"arguments": arguments})
    engine.submit(op)
    while not (tmp_path / "pid").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    engine.cancel("o")
    await asyncio.wait_for(gone(worker.pid), WAIT_S)
    await engine.close()
    assert [events async for events in engine.events()] == []


async def test_a_function_that_is_not_there_does_not_start() -> None:
    """Its module cannot be imported: the engine ends, and does not fail at the first call."""
    engine = FunctionEngine(FunctionConfig(name="w", call="no_such_module:f"))
    with pytest.raises(api.EngineDied, match="function 'w' ended its process"):
        await engine.start()


@pytest.mark.parametrize("change", [{"call": "os.system"}, {"workers": 0}, {"timeout_s": 0}])
def test_wrong_settings_are_refused(change: dict[str, Any]) -> None:
    """A function without a module, no workers, and no time are refused before the start."""
    table = {"name": "w", "call": "a:b", **change}
    with pytest.raises(InvalidRequest):
        factories(from_tables({"function": [table]}))


def test_doctor_starts_each_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A function that cannot be imported is found before the server runs."""
    (tmp_path / "ours.py").write_text(MODULE)
    file = tmp_path / "weftline.toml"
    table = f'[[function]]\nname = "work"\ncall = "ours:work"\npath = "{tmp_path}"\n'
    file.write_text(table + '[[store]]\nstore = "memory"\nstart = "eager"\n')
    assert main(["doctor", "--config", str(file)]) == 0
    rows = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()[1:]]
    assert sorted(rows) == [
        ["function:work", "starts", "when it is first used"],
        ["store:default", "starts", "with the server"],
    ]
    file.write_text(table + table.replace("work", "gone"))
    assert main(["doctor", "--config", str(file)]) == 1
    _, works, fails = capsys.readouterr().out.splitlines()
    assert works.split()[:2] == ["function:work", "starts"]
    assert fails.startswith("function:gone  does not start  ") and "ended its process" in fails
    file.write_text("")
    assert main(["doctor", "--config", str(file)]) == 0
    assert "has no [[embedder]]" in capsys.readouterr().out
