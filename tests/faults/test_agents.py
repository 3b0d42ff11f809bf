"""A server is killed with signal 9 in the middle of a tool that an agent calls."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx2
import pytest

from tests.faults.killed import Killed
from tests.null.tools.test_tool_runs import called

MODULE = """
import os, time
from weftline.toolkit import tool

def work(mark, go):
    with open(mark, "a") as file:
        file.write("x")
    while not os.path.exists(go):
        time.sleep(0.01)
    return "it worked"

@tool(effects="once", timeout_s=60)
def once(mark: str, go: str) -> str:
    return work(mark, go)

@tool(effects="idempotent", timeout_s=60)
def idempotent(mark: str, go: str) -> str:
    return work(mark, go)

@tool(effects="none", timeout_s=60)
def none(mark: str, go: str) -> str:
    return work(mark, go)

@tool(effects="once")
def first(mark: str) -> str:
    with open(mark + ".first", "a") as file:
        file.write("x")
    return "the first has run"
"""
# What the agent says in the end, and how often the tool began.
ENDS = {"once": ("I check.", "x"), "idempotent": ("Done.", "xx"), "none": ("Done.", "xx")}


def server_of(folder: Path) -> Killed:
    """A server with the tools of the module, and a model that calls `first` and then another."""
    (folder / "work.py").write_text(MODULE)
    settings = f'[[tool]]\nmodule = "work"\npath = "{folder}"\n'
    (folder / "weftline.toml").write_text(settings)
    mark, go = str(folder / "mark"), str(folder / "go")
    rules = [
        ("It may have run", "I check."),
        ("it worked", "Done."),
        *(
            (f"#{name}", called("first", mark=mark) + called(name, mark=mark, go=go))
            for name in ENDS
        ),
    ]
    script = folder / "script.json"
    script.write_text(json.dumps([{"when": when, "reply": reply} for when, reply in rules]))
    options = ("--config", str(folder / "weftline.toml"), "--null-script", str(script))
    return Killed(folder, *options, "--null-mode", "script")


@pytest.mark.parametrize("effects", list(ENDS))
async def test_a_kill_in_the_middle_of_a_tool(tmp_path: Path, effects: str) -> None:
    """The tool before it has ended, and does not run again. The next run ends the agent: a tool
    with effects `once` has run once, and the model reads that it may have."""
    server = server_of(tmp_path)
    await server.start()
    call = {
        "name": "ask",
        "prompt": [
            {"role": "user", "content": [{"text": f"#{effects}"}]},
            {"role": "assistant", "content": [{"output": "answer"}]},
        ],
        "placeholders": [{"name": "answer", "in_out": "out"}],
    }
    mark = tmp_path / "mark"
    try:
        async with httpx2.AsyncClient(base_url=server.url, timeout=60) as http:
            body = {"steps": [{"kind": "agent", "call": call, "out": "a"}], "detach": True}
            answer = await http.post("/v1/submit", json=body)
            assert answer.status_code == 200, answer.text
            session = answer.json()["session_id"]
            while not mark.exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.01)
            await ended(http, session, "first")
            await server.kill()
            (tmp_path / "go").touch()
            await server.start()
            got = await http.post("/v1/get", json={"session_id": session, "semantic_var_id": "a"})
            said, runs = ENDS[effects]
            assert got.json()["value"] == said
            assert mark.read_text() == runs
            assert (tmp_path / "mark.first").read_text() == "x"
    finally:
        await server.kill()


async def ended(http: httpx2.AsyncClient, session: str, name: str) -> None:
    """Wait until the tool's result is on disk: a get gives no other values."""
    while True:
        graph = (await http.get(f"/v1/session/{session}/graph")).json()
        found = [one for one in graph["steps"] if one["name"] == name and one["state"] == "done"]
        if found:
            body = {"session_id": session, "semantic_var_id": found[0]["outputs"][0]}
            assert (await http.post("/v1/get", json=body)).status_code == 200
            return
        await asyncio.sleep(0.01)
