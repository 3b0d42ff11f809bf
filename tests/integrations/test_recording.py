"""The recording proxy is silent when a client leaves, and not when the server fails."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.integrations.recording import recorded

REQUEST = b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 12\r\n\r\n"
RESET = struct.pack("ii", 1, 0)  # SO_LINGER of no seconds: close sends a reset
END_S = 20


@contextmanager
def threads_that_end() -> Iterator[None]:
    """Wait for the threads that start inside the block."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(END_S)
        assert not thread.is_alive()


class Server:
    """A server of one connection, whose answer the test writes."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"

    def asked(self) -> socket.socket:
        """The connection, after the request."""
        connection, _ = self.listening.accept()
        assert connection.recv(4096).startswith(b"GET /health")
        return connection


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that answers what a test says."""
    server = Server()
    with server.listening:
        yield server


def asking(url: str) -> socket.socket:
    """A client that has sent a request."""
    client = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=END_S)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.sendall(REQUEST)
    return client


def read_until(client: socket.socket, end: bytes) -> None:
    """Read an answer as far as `end`."""
    seen = b""
    while end not in seen:
        part = client.recv(4096)
        assert part, seen
        seen += part


def test_a_client_that_leaves_after_its_answer(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """The proxy waits for the client's next request then."""
    with threads_that_end(), recorded(server.url) as proxy:
        client = asking(proxy.url)
        with server.asked() as connection:
            connection.sendall(HEAD + b"Hello again.")
            read_until(client, b"0\r\n\r\n")
            client.close()
    assert capsys.readouterr().err == ""


def test_a_client_that_leaves_in_the_middle(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer's second part finds nobody."""
    with threads_that_end(), recorded(server.url) as proxy:
        client = asking(proxy.url)
        with server.asked() as connection:
            connection.sendall(HEAD + b"Hello ")
            read_until(client, b"Hello ")
            client.close()
            connection.sendall(b"again.")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("sent", [b"", HEAD + b"Hello "])
def test_a_block_that_ends_before_the_answer(
    server: Server, sent: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """A client left without its answer, and the server answers after the block's end."""
    with threads_that_end():
        with recorded(server.url) as proxy:
            client = asking(proxy.url)
            connection = server.asked()
            if sent:
                connection.sendall(sent)
                read_until(client, b"Hello ")
            client.close()
        connection.sendall((HEAD + b"Hello again.")[len(sent) :])
        connection.close()
    assert capsys.readouterr().err == ""


def test_a_server_that_fails_is_told(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """An answer that the server breaks off is no client's leaving."""
    with threads_that_end(), recorded(server.url) as proxy, asking(proxy.url) as client:
        connection = server.asked()
        connection.sendall(HEAD + b"Hello ")
        read_until(client, b"Hello ")
        connection.close()
    assert "httpx2.RemoteProtocolError" in capsys.readouterr().err
