"""What one model call says beside its messages, and what it learns from the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from threading import Lock
from typing import Any
from uuid import UUID

from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.prompt_values import ChatPromptValue, PromptValue, StringPromptValue
from langchain_core.runnables.config import var_child_runnable_config

from langchain_weftline.pieces import Pieces, strings_in
from langchain_weftline.provenance import LISTENER, Run
from langchain_weftline.sessions import Closer, Delete, RunSession

OURS = "weftline"
MAX_NAME = 128

_closers: dict[object, Closer] = {}
_lock = Lock()


@dataclass
class Sending:
    """One request: `said` goes with it, None where there is nothing to say.

    The `take` methods take in what comes back, and take our part of it out.
    """

    said: dict[str, Any] | None
    session: RunSession | None = None
    _variable: str | None = None
    _texts: list[str] = field(default_factory=list)

    @property
    def was_told(self) -> bool:
        """Whether the server has answered at all."""
        return self._variable is not None

    def join(self, options: dict[str, Any], default: Mapping[str, Any] | None) -> None:
        """Put `said` among the options of a request, beside the extra body that it would have."""
        if self.said is not None:
            given = options.get("extra_body", default)
            options["extra_body"] = {OURS: self.said, **(given or {})}

    def take_result(self, result: ChatResult) -> None:
        """A whole answer."""
        self._told((result.llm_output or {}).pop(OURS, None))
        self._texts.append(result.generations[0].text)
        self.finish()

    def take_chunk(self, chunk: ChatGenerationChunk) -> None:
        """A part of an answer."""
        if chunk.generation_info is not None and OURS in chunk.generation_info:
            self._told(chunk.generation_info.pop(OURS))
            chunk.generation_info = chunk.generation_info or None
        self._texts.append(chunk.text)

    def finish(self) -> None:
        """The answer is whole."""
        text = "".join(self._texts)
        if self.session is not None and self._variable is not None and text:
            self.session.answered(self._variable, text)

    def _told(self, ids: Mapping[str, str] | None) -> None:
        """The server has named the session, the call and its variable."""
        if ids is not None and self.session is not None:
            self._variable = ids["semantic_var_id"]
            self.session.opened(ids["session_id"])


@contextmanager
def silence() -> Iterator[Sending]:
    """A request that says nothing."""
    yield Sending(None)


@contextmanager
def sending(
    server: object, delete: Delete, messages: Sequence[BaseMessage], parent: UUID | None
) -> Iterator[Sending]:
    """A request to `server` inside the run `parent`."""
    run = LISTENER.run_of(parent or _running())
    pieces = [_pieces(message, run) for message in messages]
    if run is None:
        named = any(piece.name for found in pieces if found for piece in found)
        yield Sending({"messages": _to_wire(pieces)} if named else None)
        return
    session = _session(run, server, delete)
    traced = [None if found is None else session.trace(found) for found in pieces]
    session.see(p.text for found in traced if found for p in found if p.from_var is None)
    said = {
        "session_id": session.alias,
        "open": True,
        "name": _call_name(run),
        "messages": _to_wire(traced),
    }
    if closed := session.closer.take():
        said["close"] = closed
    request = Sending(said, session)
    session.begin()
    try:
        yield request
    finally:
        if not request.was_told:  # the server may never have read it
            session.closer.add(*closed)
        session.end()


def _running() -> UUID | None:
    """The run around a model that is streamed, which LangChain does not tell it."""
    callbacks = (var_child_runnable_config.get() or {}).get("callbacks")
    return getattr(callbacks, "parent_run_id", None)


def _pieces(message: BaseMessage, run: Run | None) -> Pieces | None:
    """None for a message that has more than a text."""
    return LISTENER.pieces_of(message, run) if isinstance(message.content, str) else None


def _to_wire(messages: list[Pieces | None]) -> list[list[dict[str, str]] | None]:
    """Pieces as JSON; null for a message that is one constant."""
    return [
        None if found is None or _is_constant(found) else [piece.to_wire() for piece in found]
        for found in messages
    ]


def _is_constant(pieces: Pieces) -> bool:
    return all(piece.name is None and piece.from_var is None for piece in pieces)


def _session(run: Run, server: object, delete: Delete) -> RunSession:
    root = run.root
    with _lock:
        closer = _closers.get(server)
        if closer is None:
            closer = _closers[server] = Closer(delete)
        closer.delete = delete  # of the newest model: the others may go
        session = root.sessions.get(server)
        if session is None:
            session = root.sessions[server] = RunSession(closer, over=root.over)
            *_, top = run.ancestry()
            session.see(text for _, text in strings_in(top.inputs))
    return session


def _call_name(run: Run) -> str:
    names = [above.name for above in run.ancestry() if above.name is not None]
    name = ".".join(name for name, _ in groupby(reversed(names))) or "chat"
    return "".join(char if char.isprintable() else " " for char in name)[:MAX_NAME]


def keep_pieces(made: PromptValue) -> PromptValue:
    """A string prompt as the chat prompt that a chat model makes of it, its pieces kept.

    `to_messages` of a string prompt makes a new message each time, which nobody has seen before.
    """
    if not isinstance(made, StringPromptValue) or (pieces := LISTENER.pieces.find(made)) is None:
        return made
    messages = made.to_messages()
    LISTENER.pieces.put(messages[0], pieces)
    return ChatPromptValue(messages=messages)
