"""What runs code of others has no descriptor of the server, whatever loop has started it."""

from __future__ import annotations

import ast
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.null.tools.conftest import running
from tests.null.tools.test_tool_sandbox import bubblewrap_works
from weftline_engine import api
from weftline_engine.services.functions.config import FunctionConfig
from weftline_engine.services.functions.engine import FunctionEngine

# Lists the descriptors of its own process and of the first one that it sees; writes into those that
# are neither the call's socket nor a pipe of its own; and says what there was.
ATTACK = """
def f():
    import os
    own = os.readlink('/proc/self/fd/2')
    found = []
    for process in ('self', '1'):
        try:
            names = os.listdir(f'/proc/{process}/fd')
        except OSError:
            continue
        for name in sorted(names, key=int):
            path = f'/proc/{process}/fd/{name}'
            try:
                what = os.readlink(path)
                found.append([int(name), what])
                if what.startswith('socket:') or what == own:
                    continue
                with open(path, 'ab', buffering=0) as one:
                    one.write(b'FORGED\\n')
                if process == 'self':
                    os.write(int(name), b'FORGED\\n')
            except OSError:
                continue
    return found
"""


@pytest.fixture
def inherited(tmp_path: Path) -> Iterator[int]:
    """A descriptor of the server that its children can inherit, as those of a shell are."""
    descriptor = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(descriptor, True)
    yield descriptor
    assert os.pread(descriptor, 1000, 0) == b"", "a child wrote into the server's file"
    os.close(descriptor)


async def of_function(**more: Any) -> api.Event:
    """The end of one run of the attack, as a client's function."""
    native = "weftline_engine.services.functions.native:run"
    engine = FunctionEngine(FunctionConfig(name="python", call=native, sandbox=True, **more))
    return await ended(engine, {"code": ATTACK})


async def ended(engine: FunctionEngine, arguments: dict[str, Any]) -> api.Event:
    await engine.start()
    inputs = {"arguments": arguments}
    engine.submit(api.Op(id="o", attempt=0, kind="function", context="o", inputs=inputs))
    async for [event] in engine.events():
        await engine.close()
        return event
    raise AssertionError("it ended without an event")


async def of_tool(*, sandbox: bool) -> list[Any]:
    """What the attack finds as a call of a tool."""
    calls = await running(module="some_code", sandbox=sandbox)
    try:
        said = await calls.call("python", code=f"{ATTACK}\nprint(f())")
        return list(ast.literal_eval(said["content"]))
    finally:
        await calls.engine.close()
        await calls.reading


@pytest.mark.parametrize("kind", ["tool", "tool in a sandbox", "function in a sandbox"])
def test_a_call_has_no_descriptor_of_the_server(
    kind: str, inherited: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """It has its socket, and nothing or a pipe of its own as output. The server's log and the files
    that the server has inherited are neither read nor written by it.
    """
    if "sandbox" in kind and not bubblewrap_works():
        pytest.skip("bubblewrap 0.8 is not here, or may not be used")
    log = os.readlink("/proc/self/fd/2")
    if kind == "function in a sandbox":
        event = uvloop.run(of_function())
        assert isinstance(event, api.Finished), event
        found = json.loads(json.dumps(event.value))
    else:
        found = uvloop.run(of_tool(sandbox="sandbox" in kind))
    targets = {what for _, what in found}
    assert log not in targets and os.readlink(f"/proc/self/fd/{inherited}") not in targets
    sockets = {what for what in targets if what.startswith("socket:")}
    assert len(sockets) == 1, found
    assert len({what for what in targets if what.startswith("pipe:")}) <= 1, found
    assert "FORGED" not in "".join(capfd.readouterr())


async def test_what_a_clients_function_prints_is_its_own(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The end of it is in the error of its own run, and nothing of it in the server's log."""
    if not bubblewrap_works():
        pytest.skip("bubblewrap 0.8 is not here, or may not be used")
    native = "weftline_engine.services.functions.native:run"
    engine = FunctionEngine(FunctionConfig(name="python", call=native, sandbox=True))
    code = "def f():\n    import os\n    print('x' * 9000 + 'the end', flush=True)\n    os._exit(3)"
    event = await ended(engine, {"code": code})
    assert isinstance(event, api.Failed)
    printed = "x" * (2000 - len("the end\n")) + "the end"
    assert event.message == f"function 'python' ended its process, and printed at last {printed!r}"
    assert "the end" not in "".join(capfd.readouterr()) + caplog.text


async def test_what_an_operators_function_prints_is_in_the_log_under_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each line is one of the log's, whatever is in it, and one process has at most 200."""
    lines = "print('2026 ERROR weftline.app: forged\\r\\x1b[2Kfor', 'ged'); print('y\\n' * 300)"
    (tmp_path / "ours.py").write_text(f"def work():\n    {lines}\n    return 1\n")
    engine = FunctionEngine(FunctionConfig(name="w", call="ours:work", path=str(tmp_path)))
    with caplog.at_level(logging.INFO, "weftline.printed"):
        event = await ended(engine, {})
    assert isinstance(event, api.Finished) and event.value == 1
    said = [one.getMessage() for one in caplog.records if one.name == "weftline.printed"]
    assert said[:3] == [
        "function w printed '2026 ERROR weftline.app: forged'",
        r"function w printed '\x1b[2Kfor ged'",
        "function w printed 'y'",
    ]
    assert said[-1] == "function w printed 200 lines: no more are shown" and len(said) == 201
    assert "forged" not in "".join(capfd.readouterr())
