"""Accepts runs of three steps, kills the server with signal 9, starts it again, counts the lost.

    python -m bench.durability --langgraph .venv-langgraph/bin/langgraph [--runs 40] [--kills 3]

The peer is made by `python -m venv .venv-langgraph` and
`.venv-langgraph/bin/pip install 'langgraph-cli[inmem]'`. Without --langgraph only weftline is
measured. A run counts as accepted when the server has answered its request, and as lost when it has
not ended well LOST_S seconds after the server's return.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import httpx

from bench.harness.results import dumps

LOST_S = 30.0  # ten times as long as a run takes
START_S = 90.0


class System(Protocol):
    """A server with runs of three steps."""

    command: Sequence[str]
    ready: str

    async def submit(self, http: httpx.AsyncClient, number: int) -> str:
        """Start a run, and return its id once the server has accepted it."""
        ...

    async def is_done(self, http: httpx.AsyncClient, id: str) -> bool:
        """Whether it has ended well."""
        ...


@dataclass
class Weftline:
    """Chains of three calls on the null engine, half a second each, with a store."""

    folder: Path
    port: int
    ready = "/health/ready"

    @property
    def command(self) -> Sequence[str]:
        store = str(self.folder / "sessions.db")
        serve = [sys.executable, "-m", "weftline_server", "serve", "--engine", "null"]
        return [*serve, "--null-step-s", "0.1", "--port", str(self.port), "--store", store]

    async def submit(self, http: httpx.AsyncClient, number: int) -> str:
        names = ["a", "b", "c"]
        calls = []
        for at, name in enumerate(names):
            holders = [{"name": "o", "in_out": "out", "semantic_var_id": name}]
            prompt = "five words of this step {{output:o}}"
            if at:
                before = {"name": "i", "in_out": "in", "semantic_var_id": names[at - 1]}
                holders.append(before)
                prompt = "{{input:i}}{{output:o}}"
            calls.append({"name": name, "prompt": prompt, "placeholders": holders})
        answer = await http.post("/v1/submit", json={"calls": calls, "detach": True})
        return str(answer.raise_for_status().json()["session_id"])

    async def is_done(self, http: httpx.AsyncClient, id: str) -> bool:
        answer = await http.get(f"/v1/session/{id}/variable/c")
        return answer.status_code == 200 and answer.json()["status"] == "ready"


@dataclass
class LangGraph:
    """`langgraph dev` with the graph beside this file."""

    folder: Path
    port: int
    program: str
    ready = "/ok"

    def __post_init__(self) -> None:
        shutil.copy(Path(__file__).with_name("graph.py"), self.folder / "chain.py")
        about = {"dependencies": ["."], "graphs": {"chain": "./chain.py:graph"}}
        (self.folder / "langgraph.json").write_text(json.dumps(about))

    @property
    def command(self) -> Sequence[str]:
        serve = [self.program, "dev", "--no-browser", "--no-reload", "--port", str(self.port)]
        return [*serve, "--n-jobs-per-worker", "40"]  # by default one run at a time

    async def submit(self, http: httpx.AsyncClient, number: int) -> str:
        made = await http.post("/threads", json={})
        thread = made.raise_for_status().json()["thread_id"]
        body = {"assistant_id": "chain", "input": {"text": str(number)}}
        (await http.post(f"/threads/{thread}/runs", json=body)).raise_for_status()
        return str(thread)

    async def is_done(self, http: httpx.AsyncClient, id: str) -> bool:
        answer = await http.get(f"/threads/{id}/runs")
        runs = answer.json() if answer.status_code == 200 else []
        return any(run["status"] == "success" for run in runs)


async def measure(system: System, port: int, folder: Path, runs: int, kills: int) -> dict[str, int]:
    """Half of the runs of each round are accepted a second before the kill, the others right
    before it.
    """
    accepted: list[str] = []
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
        server = await _started(system, http, folder)
        try:
            for turn in range(max(1, kills)):  # without a kill nothing may be lost
                for half in range(2):
                    numbers = range(runs // 2)
                    accepted += await asyncio.gather(*(system.submit(http, n) for n in numbers))
                    await asyncio.sleep(0.0 if half else 1.0)
                if turn < kills:
                    _kill(server)
                    server = await _started(system, http, folder)
            deadline = time.monotonic() + LOST_S
            left = list(accepted)
            while left and time.monotonic() < deadline:
                left = [id for id in left if not await system.is_done(http, id)]
                await asyncio.sleep(0.2)
        finally:
            _kill(server)
    return {"accepted": len(accepted), "kills": kills, "lost": len(left)}


async def _started(
    system: System, http: httpx.AsyncClient, folder: Path
) -> subprocess.Popen[bytes]:
    with (folder / "server.log").open("ab") as log:
        server = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs meanwhile
            system.command, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            if (await http.get(system.ready)).status_code == 200:
                return server
        except httpx.TransportError:
            pass
        await asyncio.sleep(0.2)
    _kill(server)
    raise SystemExit(f"{system.command[0]} did not start: see {folder / 'server.log'}")


def _kill(server: subprocess.Popen[bytes]) -> None:
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main() -> None:
    """Measure both, and print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--langgraph", help="the program langgraph of the peer's environment")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--kills", type=int, default=3)
    args = parser.parse_args()
    found = {}
    for name in ("weftline", "langgraph dev"):
        with TemporaryDirectory() as made:
            folder, port = Path(made), _free_port()
            if name == "weftline":
                system: System = Weftline(folder, port)
            elif args.langgraph:
                system = LangGraph(folder, port, str(Path(args.langgraph).absolute()))
            else:
                continue
            found[name] = asyncio.run(measure(system, port, folder, args.runs, args.kills))
            print(f"{name}: {dumps(found[name])}", flush=True)


if __name__ == "__main__":
    main()
