"""The process of one call. It receives the call in parts, as frames, and sends one frame back."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from weftline.sdk.toolkit import Found, Reject, StreamingTool
from weftline_engine.services.tools import json_frames
from weftline_engine.services.tools.statements import Statements


def serve_call(find: Callable[[], Found], connection: socket.socket) -> None:
    """Run a tool on the frames of `connection`, and send its result, error or rejection."""
    try:
        answer = {"result": _run(find(), connection)}
    except Reject as reason:
        answer = {"rejected": str(reason)}
    except EOFError:
        return  # the engine has cancelled the call
    except BaseException as error:  # whatever a tool raises is what the model is told
        answer = {"error": f"{type(error).__name__}: {error}"[:20_000]}
    try:
        data = json_frames.encode(answer)
    except json_frames.BadFrame as error:
        data = json_frames.encode({"error": f"the tool's result cannot be sent: {error}"})
    connection.sendall(data)
    # A rejection is sent in the middle of the call. If this end closed while further parts arrive,
    # the other end could lose the answer. So the other end closes first.
    with suppress(ConnectionError):
        while connection.recv(1 << 16):
            pass


def _run(found: Found, connection: socket.socket) -> Any:
    tool = found.make()
    lines = _Lines(tool)
    while True:
        frame = _receive(connection)
        match frame:
            case {"warm": _}:
                tool.warm()
            case {"text": [name, text]}:
                lines.feed(name, text)
            case {"argument": [name, value]}:
                lines.end(name)
                tool.arguments[name] = value
                tool.argument(name, value)
            case {"broken": _}:
                raise ValueError("the arguments are no JSON object")
            case {"finish": arguments}:
                tool.arguments = arguments
                return tool.finish()


class _Lines:
    """Calls a tool for each complete line of its arguments, and for each statement if it wants."""

    def __init__(self, tool: StreamingTool) -> None:
        self._tool = tool
        self._begun = ""
        asks = type(tool).statement is not StreamingTool.statement
        self._statements = Statements() if asks else None

    def feed(self, name: str, text: str) -> None:
        *complete, self._begun = (self._begun + text).split("\n")
        for line in complete:
            self._tool.line(name, line)
        for code in self._statements.feed(text) if self._statements is not None else ():
            self._tool.statement(name, code)

    def end(self, name: str) -> None:
        """Pass on the last line of an argument that is complete."""
        line, self._begun = self._begun, ""
        if line:
            self._tool.line(name, line)
        rest = "" if self._statements is None else self._statements.end()
        if rest.strip():
            self._tool.statement(name, rest)


def _receive(connection: socket.socket) -> dict[str, Any]:
    size = json_frames.length(_exactly(connection, json_frames.HEADER.size))
    return json_frames.decode(_exactly(connection, size))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = connection.recv(min(size - len(data), 1 << 16))
        if not more:
            raise EOFError
        data += more
    return bytes(data)
