"""A session ends soon after its client has gone, and stays while its client works elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from langchain_weftline import ChatWeftline
from tests.integrations.conftest import served
from tests.waits import WAIT_S
from weftline import AsyncClient, Client
from weftline.errors import UnknownSession
from weftline.sdk import aclient, heartbeat

GONE_S = 1.0  # without a heartbeat


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = tmp_path_factory.mktemp("beats") / "weftline.toml"
    config.write_text(f"[registry]\nheartbeat_s = {GONE_S}\n")
    with served("--config", str(config)) as url:
        yield url


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_S", GONE_S / 4)
    monkeypatch.setattr(heartbeat, "HEARTBEATS", heartbeat.Heartbeats())
    monkeypatch.setattr(aclient, "HEARTBEATS", heartbeat.HEARTBEATS)


def is_open(url: str, session: str) -> bool:
    rows = httpx2.get(f"{url}/v1/sessions").json()["sessions"]
    return any(row["session_id"] == session and row["state"] == "open" for row in rows)


def newest(url: str) -> str:
    return str(httpx2.get(f"{url}/v1/sessions").json()["sessions"][0]["session_id"])


def closed_within(url: str, session: str, seconds: float) -> bool:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if not is_open(url, session):
            return True
        time.sleep(0.05)
    return False


def test_a_session_of_a_live_client_stays(url: str, quick: None) -> None:
    """It is named by no request for three times as long as a client may be silent."""
    with Client(url) as client:
        session = client.session()
        assert not closed_within(url, session.id, 3 * GONE_S)
        session.close()
        assert not is_open(url, session.id)


async def test_a_busy_loop_keeps_its_sessions(url: str, quick: None) -> None:
    """Heartbeats do not need the program's own event loop."""
    async with AsyncClient(url) as client, client.session() as session:
        assert not closed_within(url, session.id, 3 * GONE_S)  # this blocks the loop


def test_a_session_that_nobody_holds_ends(url: str, quick: None) -> None:
    """Its object is gone, so nobody can use it."""
    with Client(url) as client:
        id = client.session().id
        assert closed_within(url, id, WAIT_S)


def test_a_client_that_promised_nothing_has_an_hour(url: str) -> None:
    """A program with another HTTP client knows of no heartbeats."""
    id = httpx2.post(f"{url}/v1/session").json()["session_id"]
    assert not closed_within(url, id, 3 * GONE_S)
    httpx2.post(f"{url}/v1/session/{id}/heartbeat").raise_for_status()
    assert closed_within(url, id, WAIT_S)


def test_detached_work_outlives_its_client(url: str) -> None:
    """It is there for whoever asks for it later."""
    calls = [
        {
            "name": "later",
            "prompt": "say {{output:x}}",
            "placeholders": [{"name": "x", "in_out": "out", "semantic_var_id": "x"}],
        }
    ]
    id = httpx2.post(f"{url}/v1/session", json={"beats": True}).json()["session_id"]
    body = {"session_id": id, "calls": calls, "detach": True}
    httpx2.post(f"{url}/v1/submit", json=body).raise_for_status()
    assert not closed_within(url, id, 3 * GONE_S)


SDK = """
from weftline import Client
session = Client({url!r}).session()
print(session.id, flush=True)
"""
LANGCHAIN = """
from langchain_core.runnables import RunnableLambda
from langchain_weftline import ChatWeftline
from weftline import Client
model = ChatWeftline(base_url={url!r})
def both(question):
    model.invoke(question)
    print(Client({url!r}).sessions()[0]["session_id"], flush=True)
    {then}
RunnableLambda(both).invoke("Is a heddle part of a loom?")
"""
WAIT = "import time; time.sleep(60)"


def started(program: str) -> tuple[subprocess.Popen[str], str]:
    """A process of its own, and the session that it has opened."""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@pytest.mark.parametrize("program", [SDK + WAIT, LANGCHAIN.replace("{then}", WAIT)])
def test_a_client_that_is_killed_leaves_no_session(url: str, program: str) -> None:
    """The server hears nothing of it any more."""
    process, id = started(program.format(url=url))
    assert is_open(url, id)
    process.kill()
    process.communicate()
    assert closed_within(url, id, WAIT_S)


def test_a_program_that_ends_closes_its_sessions(url: str) -> None:
    """Also one that leaves in the middle of a run, at once and not after a minute."""
    process, id = started(LANGCHAIN.format(url=url, then="raise SystemExit"))
    process.communicate()
    assert not is_open(url, id)


@pytest.mark.skipif(os.name != "posix", reason="signals stop a process")
def test_a_process_that_a_debugger_stops_is_told_why(url: str) -> None:
    """All its threads stand still. Its next request names the cause."""
    asks = "input()\nsession.set('x', 1)\n"
    program = SDK.format(url=url) + asks
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    id = process.stdout.readline().strip()
    process.send_signal(signal.SIGSTOP)
    assert closed_within(url, id, WAIT_S)
    process.send_signal(signal.SIGCONT)
    said = process.communicate("\n", timeout=30)[1]
    assert UnknownSession.__name__ in said and "debugger" in said and "heartbeat_s" in said


def test_a_run_of_an_adapter_has_its_session_again(url: str) -> None:
    """A chain that a debugger stopped goes on: its next request opens the session of the run."""
    from langchain_core.runnables import RunnableLambda

    model = ChatWeftline(base_url=url)
    seen: list[str] = []

    def both(question: str) -> str:
        said = model.invoke(question).content
        id = newest(url)
        seen.append(id)
        httpx2.delete(f"{url}/v1/session/{id}").raise_for_status()  # as the server does
        return str(model.invoke(f"Again: {said}").content)

    chain: Callable[[str], Any] = RunnableLambda(both).invoke
    assert "Again" in chain("Is a heddle part of a loom?")
    assert newest(url) != seen[0]


def test_a_heartbeat_of_an_unknown_session(url: str) -> None:
    """It is refused, and opens nothing."""
    answer = httpx2.post(f"{url}/v1/session/nothing/heartbeat")
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "UnknownSession")


def test_the_server_is_asked_a_third_of_its_minute() -> None:
    """Two heartbeats may be lost."""
    from weftline_server.runtime.registry import RegistryConfig

    assert RegistryConfig().heartbeat_s == 3 * heartbeat.BEAT_S
    assert Path(heartbeat.__file__).exists()
