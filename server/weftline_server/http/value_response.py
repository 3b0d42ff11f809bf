"""Large values on the wire: a JSON response or a server-sent event, in pieces of one rendering."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import TYPE_CHECKING

from weftline_server.http.event_stream import JsonStream
from weftline_server.http.renderings import Held, Renderings
from weftline_server.session.session import ServerSession

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class ValueResponse(JsonStream):
    """A JSON object with large values, in pieces."""

    def __init__(self, held: Held, texts: Iterator[str], headers: Mapping[str, str]) -> None:
        super().__init__(_each(texts), headers)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._held.release()


async def value_event(
    renderings: Renderings, session: ServerSession, variable: str, fields: str, id: str
) -> AsyncGenerator[bytes, None]:
    """A server-sent event `value` with a large value, which comes after the other `fields`, a JSON
    object. Its pieces are parts of one event.
    """
    while not renderings.has_room(session, [variable]):
        await renderings.changed()
    held = renderings.enter(session, [variable])
    try:
        before = fields[:-1] + ("," if len(fields) > 2 else "")
        yield f'id: {id}\nevent: value\ndata: {before}"value":'.encode()
        for piece in held.pieces(variable):
            yield piece.encode()
        yield b"}\n\n"
    finally:
        held.release()


async def _each(texts: Iterator[str]) -> AsyncGenerator[str, None]:
    for text in texts:
        yield text
