"""Python code that a client sends: it runs in the sandbox of a function, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.null.asgi import Serve, Server, call
from tests.null.steps.conftest import Listen
from tests.null.steps.wire import run
from tests.null.tools.test_tool_sandbox import bubblewrap_works
from weftline import Output, semantic_function
from weftline.errors import EngineFailed, InvalidRequest
from weftline_engine import api
from weftline_engine.services.functions.config import FunctionConfig
from weftline_engine.services.functions.engine import FunctionEngine
from weftline_server.commands.retrieval_tables import factories, from_tables

NATIVE = "weftline_engine.services.functions.native:run"
TABLE = {"name": "python", "call": NATIVE, "sandbox": True, "timeout_s": 20.0,
         "limits": {"memory_mb": 1024, "cpu_s": 4, "processes": 8, "file_mb": 16}}  # fmt: skip


def native(out: str, code: str, **args: Any) -> dict[str, Any]:
    """The step; `text="v"` reads variable v."""
    sources = {name: {"var": one} for name, one in args.items()}
    return {"kind": "function", "name": out, "function": "python", "out": out, "effects": "none",
            "args": {"code": {"value": code}, **sources}}  # fmt: skip


@pytest.fixture
def sandbox() -> None:
    """Skips the test where the machine allows no sandbox."""
    if not bubblewrap_works():
        pytest.skip("bubblewrap 0.8 is not here, or may not be used")


@pytest.mark.usefixtures("sandbox")
async def test_code_of_a_client_runs_between_calls(listen: Listen) -> None:
    """A function of the program, sent by its source. Two steps have a process each."""
    socket = await listen(also=factories(from_tables({"function": [TABLE]})))

    @semantic_function
    def draft(topic, text=Output(max_tokens=64)):  # noqa: B008
        """On {{input:topic}} {{output:text}}"""

    def count(text: str) -> dict[str, int]:
        import os

        os.environ["LEFT"] = text
        return {"words": len(text.split())}

    async with socket.aclient() as made, made.session() as session:
        counted = session.native(count, text=draft("tea and milk"))
        assert await counted.get() == {"words": 4}
        left = "import os\ndef left():\n    return os.environ.get('LEFT', 'nothing')\n"
        assert await session.native(left).get() == "nothing"
        with pytest.raises(EngineFailed, match="KeyError: 'no'"):
            await session.native("def fails(): return {}['no']").get()
        with pytest.raises(InvalidRequest, match="rename the argument"):
            session.native(count, code="x")


@pytest.fixture
async def server(serve: Serve) -> Server:
    return await serve(also=factories(from_tables({"function": [TABLE]})))


@pytest.mark.usefixtures("sandbox")
async def test_what_code_of_a_client_cannot_do(server: Server, tmp_path: Path) -> None:
    """No network, no file of the machine, no process of it, no more memory, processes or output
    than its table says. Each attempt fails alone, and the next run works.
    """
    (tmp_path / "secret").write_text("reached")
    attempts = {
        "outside": "import os, socket\n"
        "def f():\n"
        f"    process = os.path.exists('/proc/{os.getpid()}/status')\n"
        "    return [n for _, n in socket.if_nameindex() if n != 'lo'], process, os.getuid() == 0",
        "files": f"def f():\n    return open({str(tmp_path / 'secret')!r}).read()",
        "memory": "def f(): return len(bytearray(4 << 30))",
        "forks": "import subprocess\ndef f():\n"
        "    return len([subprocess.Popen(['sleep', '9']) for _ in range(500)])",
        "output": "def f(): return 'x' * (2 << 20)",
        "cpu": "def f():\n    while True: pass",
        "no function": "x = 1",
    }
    found: dict[str, Any] = {}
    for name, code in attempts.items():
        answer = await run(server, native("out", code), get=["out"])
        found[name] = answer["values"]["out"] if "values" in answer else answer["error"]["message"]
    assert found.pop("outside") == [[], False, False]
    expected = {
        "files": "FileNotFoundError",
        "memory": "MemoryError",
        "forks": "BlockingIOError",
        "output": "has more than 1,048,576 bytes",
        "cpu": "ended its process",
        "no function": "the code defines no function: write one with def",
    }
    assert {name: expected[name] in said for name, said in found.items()} == dict.fromkeys(
        expected, True
    ), found
    first = call("first", "a b{{output:o}}", o="v")
    code = "def f(text): return text.upper()"
    answer = await run(server, native("out", code, text="v"), calls=[first], get=["out"])
    assert answer["values"]["out"] == "A B"


async def test_it_is_off_by_default_and_never_runs_without_a_sandbox(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server without the table refuses the submit. A table without a sandbox does not start, and
    nor does one on a machine without bubblewrap.
    """
    bare = await serve()
    code = "def f(): return 1"
    assert "table [[function]]" in (await run(bare, native("out", code)))["error"]["message"]
    open_ = FunctionEngine(FunctionConfig(name="python", call=NATIVE))
    with pytest.raises(api.EngineDied, match="runs code of clients: set sandbox = true"):
        await open_.start()
    monkeypatch.setenv("PATH", "/nowhere")
    closed = FunctionEngine(FunctionConfig(name="python", call=NATIVE, sandbox=True))
    with pytest.raises(api.EngineDied, match="has no sandbox: there is no bwrap on the path"):
        await closed.start()
