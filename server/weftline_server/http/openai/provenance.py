"""The `weftline` object of an OpenAI request: its run, and where its text comes from.

All of it is advice. The pieces of a message count only if they add up to that message. A variable
counts as the source of a text only if the text lies inside the variable's value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from weftline.contract.bodies import StrictBody
from weftline.contract.errors import InvalidRequest
from weftline.contract.protocol import (
    MAX_ITEMS,
    InOut,
    Message,
    Placeholder,
    Segment,
    check_id,
    check_run_name,
)
from weftline.contract.tools import ClientTool
from weftline_server.lowering.provenance_check import Sources
from weftline_server.session.session import ServerSession

MAX_CLOSED = 64
UNNAMED = "text"  # the placeholder of a text that has a variable but no name


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenancePart(StrictBody):
    """A part of a message: constant text, with `name` an input of the template, with `from_var`
    text of that variable. A piece without text says that the tool calls of its message came from
    that variable."""

    text: str
    name: str | None = None
    from_var: str | None = None

    def __post_init__(self) -> None:
        if self.from_var is not None:
            check_id(self.from_var, "from_var")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance(StrictBody):
    """The `weftline` object of a request.

    `session_id` is a session of the server, or with `open` any id that the client chose for its
    run, of which it may promise heartbeats with `beats`. The first request with such an id opens a
    session, and later ones join it without waiting for the first answer. `close` names sessions
    that the client no longer needs. `messages` has the pieces of each message, or null for a plain
    one. `run_name` names the run; the list of sessions shows it. With `run_tools` the server runs
    its own tools when the model calls them, and the model goes on. `client_tools` are those that
    the client computes: the stream tells it of each call, and it sets the variable of the result.
    With `code_tool` the blocks of Python in the answer are calls of that tool, and there are no
    others. `compacts_to` is that of the call.
    """

    session_id: str | None = None
    open: bool = False
    beats: bool = False
    close: tuple[str, ...] = ()
    name: str = "chat"
    run_name: str = ""
    messages: tuple[tuple[ProvenancePart, ...] | None, ...] = ()
    run_tools: bool = False
    client_tools: tuple[ClientTool, ...] = ()
    code_tool: str | None = None
    compacts_to: tuple[Message, ...] = ()

    def __post_init__(self) -> None:
        check_run_name(self.run_name)
        if self.session_id is not None:
            check_id(self.session_id, "session_id")
        elif self.open:
            raise InvalidRequest("'open' needs a session_id", param="open")
        if sum(len(pieces or ()) for pieces in self.messages) > MAX_ITEMS:
            raise InvalidRequest(
                f"messages of 'weftline' have at most {MAX_ITEMS:,} pieces", param="messages"
            )
        if (self.client_tools or self.code_tool is not None) and not self.run_tools:
            name = "client_tools go" if self.client_tools else "code_tool goes"
            raise InvalidRequest(f"{name} with run_tools", param=name.split()[0])
        if self.client_tools and self.code_tool is not None:
            raise InvalidRequest("a run has client_tools or a code_tool", param="code_tool")
        if len(self.close) > MAX_CLOSED:
            raise InvalidRequest(f"close may name at most {MAX_CLOSED} sessions", param="close")

    def pieces(self, index: int, text: str) -> tuple[ProvenancePart, ...]:
        """The pieces of message number `index` if they add up to `text`, else `text` as one."""
        given = self.messages[index] if index < len(self.messages) else None
        if given is not None and "".join(piece.text for piece in given) == text:
            return given
        return (ProvenancePart(text=text),)


@dataclass
class PieceInputs:
    """Collects the placeholders of one call's named pieces; equal pieces share one placeholder.

    Without a session no text has come from a variable.
    """

    session: ServerSession | None
    taken: set[str]
    _names: dict[tuple[str, str, str | None], str] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)  # the last number of each base name
    _sources: Sources | None = field(init=False)
    placeholders: list[Placeholder] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._sources = None if self.session is None else Sources(self.session)

    def segments(self, pieces: Iterable[ProvenancePart]) -> tuple[Segment, ...]:
        return tuple(self._segment(piece) for piece in pieces)

    def _segment(self, piece: ProvenancePart) -> Segment:
        var = piece.from_var
        if self._sources is None or (var and not self._sources.came_from(var, piece.text)):
            var = None
        if piece.name is None and var is None:
            return Segment(text=piece.text)
        base = piece.name or UNNAMED
        key = (base, piece.text, var)
        if key not in self._names:
            number, name = self._numbers.get(base, 1), base
            while name in self.taken:
                number += 1
                name = f"{base}_{number}"
            self._numbers[base] = number
            self.taken.add(name)
            self._names[key] = name
            self.placeholders.append(
                Placeholder(name=name, in_out=InOut.IN, value=piece.text, from_var=var)
            )
        return Segment(input=self._names[key])
