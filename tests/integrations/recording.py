"""A proxy on loopback that records every request to a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from urllib.parse import urlsplit

import httpx2

POLL_S = 0.005  # how long the proxy's end may take; the default is half a second for each one


@dataclass
class Recording:
    """The requests: method, path and JSON body, in order. `url` is the proxy's address.

    `headers` has those of each request. Heartbeats are passed on and not recorded, because they
    come by the clock. The path of a request that asks for any other server, as
    of a proxy, is a whole address.
    """

    url: str
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def bodies(self, path: str) -> list[Any]:
        """The bodies that were sent to `path`."""
        return [body for _, where, body in self.requests if where == path]


class _Proxy(ThreadingHTTPServer):
    """Passes requests on to `target`, and records them."""

    daemon_threads = True

    def __init__(self, target: str, client: httpx2.Client, refused: str, broken: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target, self.client = target, client
        self.refused, self.broken = refused, broken
        self.recording = Recording(f"http://127.0.0.1:{self.server_address[1]}")


class _Handler(BaseHTTPRequestHandler):
    """One connection of the proxy."""

    protocol_version = "HTTP/1.1"
    server: _Proxy

    def handle(self) -> None:
        """Take requests until the client leaves.

        A client that leaves with an answer unread resets its connection: the next read or write
        fails, wherever the handler is.
        """
        with suppress(ConnectionError):
            super().handle()

    def _pass_on(self) -> None:
        proxy = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.path.endswith("/heartbeat"):
            sent = json.loads(body) if body else None
            with proxy.recording.lock:
                proxy.recording.requests.append((self.command, self.path, sent))
                proxy.recording.headers.append({k.lower(): v for k, v in self.headers.items()})
        asked = urlsplit(self.path)._replace(scheme="", netloc="").geturl()
        where = "/nowhere" if self.path == proxy.refused else asked
        if proxy.client.is_closed:  # an open connection may outlive the block
            self.close_connection = True
            return
        try:
            self._relay(where, body)
        except httpx2.TransportError:
            # The block's end closes the connections to the server, and a client that left before
            # may have left an answer under way. While the block runs, the server has failed.
            if not proxy.client.is_closed:
                raise
            self.close_connection = True

    def _relay(self, where: str, body: bytes) -> None:
        proxy = self.server
        headers = {"Content-Type": "application/json"}
        with proxy.client.stream(
            self.command, proxy.target + where, content=body, headers=headers
        ) as answer:
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            if self.path == proxy.broken:
                self._break_off(answer.read())
            else:
                self._answer(answer)

    def _break_off(self, whole: bytes) -> None:
        self.send_header("Content-Length", str(len(whole)))
        self.end_headers()
        self.wfile.write(whole[: len(whole) // 2])
        self.close_connection = True

    def _answer(self, answer: httpx2.Response) -> None:
        """Pass an answer on as it comes: a client may send more before its end."""
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in answer.iter_bytes():
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_PUT = do_DELETE = _pass_on

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def recorded(target: str, refused: str = "", broken: str = "") -> Iterator[Recording]:
    """A proxy to `target` that runs inside the block.

    It answers the path `refused` with 404, and the path `broken` with half an answer.
    """

    with httpx2.Client(timeout=60) as client, _Proxy(target, client, refused, broken) as proxy:
        thread = Thread(target=proxy.serve_forever, args=(POLL_S,))
        thread.start()
        try:
            yield proxy.recording
        finally:
            proxy.shutdown()
            thread.join()
