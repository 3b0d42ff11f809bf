"""What a client can do with its connection, and a web page with a server without keys."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from tests.null.asgi import call
from tests.waits import WAIT_S, wait_until

PROGRAM = """
import sys
from weftline_server.commands import bounded_connection
for name in sys.argv[1:]:
    setattr(bounded_connection, name, 0.5)
from weftline_server.cli import main
sys.argv = ["weftline", "serve", "--engine", "null", "--port", "0", "--null-step-s", "0.05"]
sys.exit(main())
"""


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server in a process of its own, and its port. The limits of time that a test names are
    short, so that the test is. The others stay: a busy machine may take long to send.
    """
    command = [sys.executable, "-c", PROGRAM, *getattr(request, "param", ())]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline().strip().rpartition(":")[2])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def said(port: int, *sent: bytes, then_wait: bool = True) -> bytes:
    """The server's bytes until it closes the connection, after `sent`."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        for data in sent:
            try:
                connection.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                break
        found = b""
        while then_wait:
            try:
                data = connection.recv(1 << 16)
            except ConnectionResetError:
                break
            if not data:
                break
            found += data
        return found


@pytest.mark.parametrize("server", [("HEADERS_S", "BODY_S")], indirect=True)
def test_connections_have_limits(server: tuple[subprocess.Popen[str], int]) -> None:
    """Headers of 201 MB were taken in, and a client could take as long as it liked for all of it.

    The server answers others meanwhile, and its memory does not grow.
    """
    process, port = server
    line = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n"
    big = [line, *(b"x-%d: " % i + b"y" * 60_000 + b"\r\n" for i in range(200))]
    assert said(port, *big).startswith(b"HTTP/1.1 431 ") or said(port, *big) == b""
    many = [line + b"".join(b"x-%d: y\r\n" % i for i in range(20_000)) + b"\r\n"]
    assert b" 431 " in said(port, *many)[:16] or said(port, *many) == b""
    assert said(port, b"GET /health").startswith(b"HTTP/1.1 408 ")
    assert said(port).startswith(b"HTTP/1.1 408 ")
    head = b"POST /v1/session HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\n"
    body = b"POST /v1/submit HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{"
    assert said(port, head.replace(b"5\r\n", b"0\r\n") + body).rpartition(b"HTTP/1.1 ")[2][:3] in (
        b"408",
        b"400",
    )
    with open(f"/proc/{process.pid}/status") as status:
        resident = next(one for one in status if one.startswith("VmRSS"))
    assert int(resident.split()[1]) < 400_000


def test_an_idle_connection_outlives_its_clients_patience(
    server: tuple[subprocess.Popen[str], int],
) -> None:
    """The server closed idle connections after 5 s, as the client does: a request that came at that
    time was lost with a ReadError."""
    _, port = server
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        for wait in (0.0, 5.5):
            time.sleep(wait)
            connection.request("GET", "/health/live")
            held, response = connection.sock, connection.getresponse()
            response.read()
            assert response.status == 200
            assert connection.sock is held is not None
    finally:
        connection.close()


@pytest.mark.parametrize("server", [("UNREAD_S",)], indirect=True)
def test_an_answer_that_nobody_reads_is_dropped(
    server: tuple[subprocess.Popen[str], int],
) -> None:
    """20 answers of 7 MB were held as long as their clients stayed."""
    process, port = server
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
        session = client.post("/v1/session").json()["session_id"]
        path = f"/v1/session/{session}/variable/v"
        # Five answers of 12 MB, which hold the text twice, have room in the 64 MB of a tenant.
        client.put(path, json={"value": "y" * 6_000_000})
        request = f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        stuck = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        try:
            for one in stuck:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                one.sendall(request)
            wait_until(lambda: _open(process.pid, port) <= 1)  # the client's own
        finally:
            for one in stuck:
                one.close()


def _open(pid: int, port: int) -> int:
    """How many connections to `port` the server has that are established."""
    found = 0
    with open(f"/proc/{pid}/net/tcp") as lines:
        for line in list(lines)[1:]:
            fields = line.split()
            local = int(fields[1].rpartition(":")[2], 16)
            found += local == port and fields[3] == "01"
    return found


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "[::1]:8600"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Type": "text/plain"}, 403),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 403),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 403),
        ({"Content-Type": "application/json"}, 200),
    ],
)
async def test_a_server_without_keys_answers_no_web_page(
    headers: dict[str, str], status: int
) -> None:
    """A page of any site could open sessions and read answers, by its own name for 127.0.0.1."""
    from weftline_engine.pretend.null import NullConfig, NullEngine
    from weftline_server.app import create_app
    from weftline_server.config import ServerConfig
    from weftline_server.http.guard import LoopbackOnly

    app = create_app(ServerConfig(), {"null": lambda: NullEngine(NullConfig())})
    async with app.router.lifespan_context(app):
        guarded = httpx2.ASGITransport(LoopbackOnly(app, "127.0.0.1"))
        async with httpx2.AsyncClient(transport=guarded, base_url="http://127.0.0.1") as client:
            answer = await client.post("/v1/session", headers=headers)
    assert answer.status_code == status
    if status == 403:
        assert answer.json()["error"]["type"] == "Forbidden"


def test_a_second_signal_answers_what_waits(server: tuple[subprocess.Popen[str], int]) -> None:
    """While the server drains, answers close their connection: 11 of 40 clients were reset. The
    second signal gave texts instead of errors.
    """
    process, port = server
    words = " ".join(["word"] * 400)  # 20 s
    body = {"calls": [call("c", words + "{{output:o}}", o="o")], "get": ["o"], "close": True}
    with (
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
        ThreadPoolExecutor(4) as threads,
    ):
        waiting = [threads.submit(client.post, "/v1/submit", json=body) for _ in range(4)]
        count = 'weftline_running_calls{engine="null"} 4.0'
        wait_until(lambda: count in client.get("/metrics").text)
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: client.get("/health/ready").status_code == 503)
        assert client.get("/health/ready").headers["connection"] == "close"
        refused = client.post("/v1/session")
        assert (refused.status_code, refused.headers["connection"]) == (503, "close")
        process.send_signal(signal.SIGTERM)
        answers = [one.result() for one in waiting]
    assert [one.status_code for one in answers] == [409] * 4
    assert {json.loads(one.text)["error"]["type"] for one in answers} == {"Cancelled"}
    assert process.wait(WAIT_S) == 0


def test_two_host_headers_are_refused(server: tuple[subprocess.Popen[str], int]) -> None:
    """A proxy may have looked at the other one. One header in any case is fine."""
    _, port = server
    request = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n%bconnection: close\r\n\r\n"
    found = said(port, request % b"Host: elsewhere\r\n")
    assert found.startswith(b"HTTP/1.1 400 ") and b"more than one Host header" in found
    assert said(port, request % b"").startswith(b"HTTP/1.1 200 ")
