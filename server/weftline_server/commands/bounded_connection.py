"""A client's connection with limits: headers, times to send and to read, and how many there are.

uvicorn bounds none of them. A client that sends its headers byte by byte, or never reads its
answer, would hold a connection and what the server keeps for it as long as it likes.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES = 64 << 10  # of a request's first line and headers, as in nginx's largest default
HEADERS_S = 15.0  # seconds from a request's first byte to the end of its headers
BODY_S = 120.0  # seconds from there to the end of its body: 8 MiB at 70 kB/s
UNREAD_S = 30.0  # seconds in which a client that has unread bytes of an answer reads some of them
# Seconds to keep an idle connection. Clients close theirs after 5 s (httpx2) to 60 s (load
# balancers of clouds). If the server is the first, a request on its way at that time is lost.
KEEP_S = 75
MAX_CONNECTIONS = 8192  # at once; each takes about 100 kB with a running request


class LimitedConnection(HttpToolsProtocol):
    """uvicorn's protocol, which ends a connection at each of these limits."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._in_headers = False
        self._received = 0  # bytes while the headers of a request come in
        self._deadline: asyncio.TimerHandle | None = None  # for what the client has to send
        self._unread: tuple[asyncio.TimerHandle, int] | None = None  # and the bytes to be read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(b"503 Service Unavailable", "too many connections: try again later")
            return
        self._await("the request's headers", HEADERS_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._done()
        if self._unread is not None:
            self._unread[0].cancel()
            self._unread = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.parser is None or self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_headers:
            self._received += len(data)
            if self._received > MAX_HEADER_BYTES:
                self._too_large()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers, self._received = True, 0
        self._await("the request's headers", HEADERS_S)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEADER_BYTES:
            self._too_large()
            return
        if sum(name == b"host" for name, _ in self.headers) > 1:
            # A proxy before this server may have looked at the other one.
            self._refuse(b"400 Bad Request", "the request has more than one Host header: send one")
            return
        self._await("the request's body", BODY_S)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._done()
        if not self.transport.is_closing():
            super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread[0].cancel()
            self._unread = None
        super().resume_writing()

    def _await(self, what: str, seconds: float) -> None:
        self._done()
        self._deadline = self.loop.call_later(seconds, self._timed_out, what, seconds)

    def _done(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _timed_out(self, what: str, seconds: float) -> None:
        self._refuse(b"408 Request Timeout", f"{what} did not come within {seconds:g} s")

    def _too_large(self) -> None:
        self._refuse(
            b"431 Request Header Fields Too Large",
            f"the headers have more than {MAX_HEADER_BYTES} bytes",
        )

    def _watch_reading(self) -> None:
        """Look again after UNREAD_S, and end the connection if nothing was read by then."""
        left = self.transport.get_write_buffer_size()
        timer = self.loop.call_later(UNREAD_S, self._look)
        self._unread = timer, left

    def _look(self) -> None:
        assert self._unread is not None
        if self.transport.get_write_buffer_size() >= self._unread[1]:
            self.transport.abort()
        else:
            self._watch_reading()

    def _refuse(self, status: bytes, message: str) -> None:
        """Answer outside of any application, and close."""
        if self.transport.is_closing():
            return
        kind = "Overloaded" if status.startswith(b"503") else "InvalidRequest"
        body = (
            f'{{"error":{{"message":"{message}","type":"{kind}","code":null,"param":null,'
            '"call":null}}'
        ).encode()
        head = (
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n"
        )
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(head % (status, len(body)) + body)
        self.transport.close()
