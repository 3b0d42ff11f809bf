"""Three servers with one database: any of them answers, and each may die, stop or end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.cluster.database import Databases
from tests.cluster.servers import POISON, ClusterServer
from tests.null.asgi import call
from tests.waits import WAIT_S

SLOW = ("--null-step-s", "0.3")


@asynccontextmanager
async def running(
    stores: Databases, folder: Path, *arguments: str, count: int = 3, poisoned: bool = False
) -> AsyncIterator[list[ClusterServer]]:
    """Servers that have joined each other."""
    servers = [
        ClusterServer(stores.address(), folder / f"{at}.log", *arguments, poisoned=poisoned)
        for at in range(count)
    ]
    try:
        await asyncio.gather(*(one.start() for one in servers))
        yield servers
    finally:
        await asyncio.gather(*(one.http.aclose() for one in servers))
        await asyncio.gather(*(one.kill() for one in servers))


async def opened(http: httpx2.AsyncClient, *calls: Any, **more: Any) -> str:
    """The id of a session with these calls."""
    answer = await http.post("/v1/submit", json={"calls": list(calls), **more})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["session_id"])


async def value(http: httpx2.AsyncClient, session: str, variable: str) -> Any:
    """The value, as a client that comes back for it gets it."""
    async with asyncio.timeout(WAIT_S):
        while True:
            body = {"session_id": session, "semantic_var_id": variable}
            answer = await http.post("/v1/get", json=body)
            if answer.status_code != 503:
                assert answer.status_code == 200, answer.text
                return answer.json()["value"]
            assert "retry-after" in answer.headers
            await asyncio.sleep(0.1)


async def test_any_server_answers_for_any_session(stores: Databases, tmp_path: Path) -> None:
    """A session that the first server owns takes a submit, a value, a get, a stream and a close
    through the others. When it is closed, each shows it from the store.
    """
    async with running(stores, tmp_path) as (first, second, third):
        id = await opened(first.http, call("one", "one {{output:x}}", x="a"))
        assert await value(second.http, id, "a") == "one "
        more = [call("two", "{{input:x}}{{input:s}}two {{output:y}}", x="a", s="s", y="b")]
        answer = await third.http.post("/v1/submit", json={"session_id": id, "calls": more})
        assert answer.status_code == 200, answer.text
        url = f"/v1/session/{id}/variable"
        assert (await second.http.put(f"{url}/s", json={"value": "set "})).status_code == 200
        body = {"session_id": id, "semantic_var_id": "b", "stream": True}
        async with third.http.stream("POST", "/v1/get", json=body) as stream:
            text = "".join([part async for part in stream.aiter_text()])
        assert "event: value" in text and '"one set two "' in text
        unknown = await second.http.post("/v1/get", json={**body, "session_id": "s_none"})
        assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "UnknownSession")
        other = await opened(second.http, call("one", "one {{output:x}}", x="a"))
        for one in (first, second, third):
            listed = await known(one, 2)
            assert [row["session_id"] for row in listed["sessions"]] == [other, id]
            assert (listed["total"], listed["found"]) == (2, 2)
        assert (await third.http.delete(f"/v1/session/{id}")).status_code == 200
        shown = await second.http.get(f"{url}/a")
        assert (shown.status_code, shown.json()["value"]) == (200, "one ")
        gone = await second.http.post("/v1/get", json=body | {"stream": False})
        assert gone.status_code == 404


async def known(server: ClusterServer, count: int) -> dict[str, Any]:
    """The list of sessions, once the server knows the others, and so so many of them. Each server
    hears of one that has just joined when it renews its own lease.
    """
    async with asyncio.timeout(WAIT_S):
        while True:
            listed: dict[str, Any] = (await server.http.get("/v1/sessions")).json()
            if listed["total"] >= count:
                return listed
            await asyncio.sleep(0.05)


async def test_ids_that_no_server_has_are_unknown_at_once(
    stores: Databases, tmp_path: Path
) -> None:
    """Of a session that a client has named, at its owner and at another server: a get takes only
    our ids, and says so as one server does. Ids with a NUL character are unknown or refused, and
    the store goes on. The metrics name the route of each request.
    """
    async with running(stores, tmp_path, count=2) as servers:
        calls = [call("a", "a{{output:x}}", x="a")]
        chosen = {"session_id": "chosen", "open": True, "calls": calls}
        assert (await servers[0].http.post("/v1/submit", json=chosen)).status_code == 200
        # A request that waits for a session to move is answered with 503.
        for one in servers:
            for id in ("chosen", "never", "nul\0"):
                body = {"session_id": id, "semantic_var_id": "a"}
                answer = await one.http.post("/v1/get", json=body)
                assert answer.status_code == 404, (id, answer.text)
            shown = await one.http.get("/v1/session/chosen/graph")
            assert shown.status_code == 200, shown.text
            for method, path in (("GET", "/graph"), ("DELETE", "")):
                answer = await one.http.request(method, f"/v1/session/nul%00{path}")
                assert answer.status_code == 404, answer.text
            refused = await one.http.post("/v1/submit", json={**chosen, "session_id": "nul\0"})
            assert refused.status_code == 400 and "is not an id" in refused.text
            id = await opened(one.http, call("one", "one {{output:x}}", x="a"))
            assert await value(one.http, id, "a") == "one "
            metrics = (await one.http.get("/metrics")).text
            counted = [line for line in metrics.splitlines() if "http_requests_total{" in line]
            assert any('route="/v1/get",status="404"' in line for line in counted), counted
            assert any('route="/v1/session/{session_id}/graph"' in line for line in counted)
            assert not any('route="none"' in line for line in counted), counted


MODULE = """
import os, time

def work(mark, go):
    with open(mark, "a") as file:
        file.write("ran\\n")
    while not os.path.exists(go):
        time.sleep(0.01)
    return "done"
"""


def with_function(folder: Path) -> tuple[str, ...]:
    """The arguments of a server with a function which leaves a mark, and waits for another file."""
    (folder / "ours.py").write_text(MODULE)
    config = folder / "weftline.toml"
    config.write_text(f'[[function]]\nname = "work"\ncall = "ours:work"\npath = "{folder}"\n')
    return ("--config", str(config))


def function(out: str, **args: Any) -> dict[str, Any]:
    """A step that calls the function once at most."""
    sources = {name: {"value": value} for name, value in args.items()}
    return {"kind": "function", "function": "work", "args": sources, "out": out, "effects": "once"}


async def seen(path: Path) -> None:
    """Wait until the file is there."""
    async with asyncio.timeout(WAIT_S):
        while not path.exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
            await asyncio.sleep(0.02)


async def test_the_others_adopt_the_sessions_of_a_server_that_is_killed(
    stores: Databases, tmp_path: Path
) -> None:
    """The first call has its value, the second runs again, and a function with effects `once` that
    had begun is interrupted.
    """
    mark, go = tmp_path / "mark", tmp_path / "go"
    async with running(stores, tmp_path, *SLOW, *with_function(tmp_path)) as (first, second, third):
        id = await opened(
            first.http,
            call("one", "one {{output:x}}", x="a"),
            call("two", "{{input:x}}two and some more words {{output:y}}", x="a", y="b"),
            steps=[function("f", mark=str(mark), go=str(go))],
        )
        assert await value(first.http, id, "a") == "one "
        await seen(mark)
        await first.kill()
        assert await value(second.http, id, "b") == "one two and some more words "
        body = {"session_id": id, "semantic_var_id": "f"}
        failed = await third.http.post("/v1/get", json=body)
        assert failed.json()["error"]["type"] == "Interrupted"
        assert mark.read_text() == "ran\n"
        assert await value(third.http, id, "a") == "one "
    go.touch()  # the function of the killed server ends
    assert stores.run("SELECT epoch, deaths, trial FROM weftline.sessions") == [(2, 0, None)]


async def test_a_server_that_was_stopped_writes_nothing_more(
    stores: Databases, tmp_path: Path
) -> None:
    """The owner is stopped until another server has taken over. When it goes on, what it had made
    meanwhile is refused, and it passes requests on.
    """
    async with running(stores, tmp_path, *SLOW, count=2) as (first, second):
        id = await opened(first.http, call("one", "one two three {{output:x}}", x="a"))
        [(owner,)] = stores.run("SELECT owner FROM weftline.sessions")
        first.freeze()
        assert await value(second.http, id, "a") == "one two three "
        [(other,)] = stores.run("SELECT owner FROM weftline.sessions")
        assert other != owner
        before = stores.run("SELECT count(*) FROM weftline.records")
        first.thaw()
        assert await value(first.http, id, "a") == "one two three "
        more = [call("two", "{{input:x}}four {{output:y}}", x="a", y="b")]
        answer = await first.http.post("/v1/submit", json={"session_id": id, "calls": more})
        assert answer.status_code == 200, answer.text
        assert await value(first.http, id, "b") == "one two three four "
        await until_in(first.log, "another server has taken over the sessions of this one")
        assert stores.run("SELECT owner FROM weftline.sessions") == [(other,)]
        assert stores.run("SELECT count(*) FROM weftline.records") == [(before[0][0] + 2,)]
        fresh = await opened(first.http, call("one", "fresh {{output:x}}", x="a"))
        assert await value(second.http, fresh, "a") == "fresh "


async def until_in(log: Path, text: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while text not in log.read_text():  # noqa: ASYNC110, ASYNC240 - another process writes it
            await asyncio.sleep(0.05)


async def test_a_server_that_ends_hands_its_sessions_over(
    stores: Databases, tmp_path: Path
) -> None:
    """Nobody waits for its lease, which is a minute."""
    long = ("--lease-s", "60", "--drain-s", "0.1", "--null-step-s", "0.1")
    async with running(stores, tmp_path, *long, count=2) as (first, second):
        id = await opened(first.http, call("one", "one two three four five {{output:x}}", x="a"))
        assert await first.stop() == 0
        started = time.monotonic()
        assert await value(second.http, id, "a") == "one two three four five "
        assert time.monotonic() - started < 30


async def test_a_session_that_kills_its_servers_rests(stores: Databases, tmp_path: Path) -> None:
    """Of three other servers two die of it, one after the other. The last keeps it away, and has
    all other sessions.
    """
    async with running(stores, tmp_path, *SLOW, count=4, poisoned=True) as servers:
        words = "one two three {{output:x}}"
        others = [await opened(servers[0].http, call("one", words, x="a")) for _ in range(4)]
        id = await opened(servers[0].http, call("bad", "{{input:y}}{{output:x}}", y="s", x=POISON))
        await servers[0].kill()
        async with asyncio.timeout(WAIT_S):
            while sum(one.is_alive for one in servers) > 1:  # noqa: ASYNC110 - they are processes
                await asyncio.sleep(0.05)
        [last] = [one for one in servers if one.is_alive]
        for other in others:
            assert await value(last.http, other, "a") == "one two three "
        body = {"session_id": id, "semantic_var_id": POISON}
        await until_in(last.log, "which rest")
        answer = await last.http.post("/v1/get", json=body)
        assert answer.status_code == 503 and "rests" in answer.text
        assert last.is_alive


async def test_a_submit_that_is_sent_again_to_another_server(
    stores: Databases, tmp_path: Path
) -> None:
    """With its key it is one submit: while the first server runs, and when that one is dead. With
    another body it is refused.
    """
    body = {"calls": [call("one", "one {{output:x}}", x="a")], "get": ["a"]}
    key = {"Idempotency-Key": "k"}
    async with running(stores, tmp_path, *SLOW) as (first, second, third):
        both = await asyncio.gather(
            *(one.http.post("/v1/submit", json=body, headers=key) for one in (first, second))
        )
        assert both[0].json() == both[1].json() and both[0].json()["values"] == {"a": "one "}
        other = {**body, "get": []}
        refused = await third.http.post("/v1/submit", json=other, headers=key)
        assert refused.json()["error"]["type"] == "KeyReused"
        [(owner,)] = stores.run(
            "SELECT address FROM weftline.sessions JOIN weftline.servers v ON v.number = owner"
        )
        for one in (first, second):
            if one.url == owner:
                await one.kill()
        again = await third.http.post("/v1/submit", json=body, headers=key)
        assert again.json() == both[0].json()
    assert stores.run("SELECT count(*) FROM weftline.sessions") == [(1,)]


async def test_servers_share_the_sessions_that_clients_name(
    stores: Databases, tmp_path: Path
) -> None:
    """Three servers get the first request of one run at once: they make one session. It keeps its
    name when its server dies.
    """

    def chat(word: str) -> dict[str, Any]:
        return {
            "model": "null",
            "messages": [{"role": "user", "content": word}],
            "weftline": {"session_id": "run-7", "open": True},
        }

    async with running(stores, tmp_path) as servers:
        answers = await asyncio.gather(
            *(one.http.post("/v1/chat/completions", json=chat("hello")) for one in servers)
        )
        assert [one.status_code for one in answers] == [200] * 3, [one.text for one in answers]
        [(owner,)] = stores.run(
            "SELECT address FROM weftline.sessions JOIN weftline.servers v ON v.number = owner"
        )
        [dying] = [one for one in servers if one.url == owner]
        await dying.kill()
        left = [one for one in servers if one is not dying]
        answers = [await one.http.post("/v1/chat/completions", json=chat("more")) for one in left]
        assert [one.status_code for one in answers] == [200] * 2, [one.text for one in answers]
    assert stores.run("SELECT alias, epoch FROM weftline.sessions") == [("run-7", 2)]


async def test_a_server_that_does_not_fit_is_refused(stores: Databases, tmp_path: Path) -> None:
    """It has other API keys than the first one. It says so, and ends."""
    (tmp_path / "key").write_text("other")
    async with running(stores, tmp_path, count=1):
        arguments = ("--api-key-file", str(tmp_path / "key"))
        other = ClusterServer(stores.address(), tmp_path / "other.log", *arguments)
        await other.begin()
        assert await other.ended() == 1
        assert "other API keys or tenants" in other.log.read_text()
