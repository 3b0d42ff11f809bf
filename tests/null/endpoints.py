"""A scripted HTTP endpoint, to test how engines handle its faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

Behaviour = Callable[[asyncio.StreamWriter, dict[str, Any]], Awaitable[None]]
MODELS = b'{"data": [{"id": "m", "max_model_len": 1000}]}'


class Endpoint:
    """Answers each POST with the next of `behaviours`. The last one repeats."""

    def __init__(self, *behaviours: Behaviour) -> None:
        self.behaviours = list(behaviours)
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.targets: list[str] = []
        self.metrics = b""
        self.pages: dict[str, bytes] = {}  # what it answers to other GETs
        self.tokens: list[int] | None = None  # what /tokenize makes of any text; None: has none

    @asynccontextmanager
    async def on(self, path: Path) -> AsyncIterator[str]:
        server = await asyncio.start_unix_server(self._serve, path)
        async with server:
            yield str(path)

    @asynccontextmanager
    async def on_port(self) -> AsyncIterator[int]:
        """Serve on a free port of the loopback interface."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.targets.append(lines[0].split(" ")[1])
                if lines[0].startswith("GET"):
                    is_metrics = lines[0].startswith("GET /metrics")
                    page = self.pages.get(self.targets[-1], MODELS)
                    writer.write(answer(200, self.metrics if is_metrics else page))
                    continue
                if self.targets[-1] == "/tokenize":
                    told = json.dumps({"tokens": self.tokens}).encode()
                    writer.write(answer(404 if self.tokens is None else 200, told))
                    continue
                self.requests.append(json.loads(body))
                self.keys.append(headers.get("authorization", ""))
                self.headers.append(headers)
                behave = self.behaviours[0]
                if len(self.behaviours) > 1:
                    del self.behaviours[0]
                await behave(writer, self.requests[-1])
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client closed the connection
        finally:
            writer.close()


def answer(status: int, body: bytes, *headers: str) -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status} X", f"content-length: {len(body)}", *headers])
    return head.encode() + b"\r\n\r\n" + body


def refuses(status: int, message: str = "no", *headers: str) -> Behaviour:
    async def behave(writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
        writer.write(answer(status, json.dumps({"error": {"message": message}}).encode(), *headers))

    return behave


def streams(*events: Any, cut: bool = False, pause_s: float = 0.0) -> Behaviour:
    """Stream `events`: text becomes a chat delta, bytes are sent unchanged. `cut` omits [DONE]."""

    async def behave(writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        for event in events:
            writer.write(event if isinstance(event, bytes) else b"data: " + _chunk(event))
            await writer.drain()
            await asyncio.sleep(pause_s)
        if not cut:
            writer.write(b"data: " + _chunk("", "stop") + b"data: [DONE]\n\n")
        writer.close()

    return behave


def _chunk(event: Any, reason: str | None = None) -> bytes:
    if isinstance(event, str):
        event = {"choices": [{"delta": {"content": event}, "finish_reason": reason}]}
    return json.dumps(event).encode() + b"\n\n"
