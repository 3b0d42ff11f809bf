"""The data beside the messages: sent with a model call, and read from its answer."""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol
from uuid import UUID

import openai
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.prompt_values import ChatPromptValue, PromptValue, StringPromptValue

from langchain_weftline.model.transport import httpx
from langchain_weftline.trace.prompt_origins import LISTENER, OpenRun, printable, running
from langchain_weftline.trace.session_trace import TracedSession
from langchain_weftline.trace.template_pieces import strings_in
from weftline.kit import Closers, Pieces, Request
from weftline.kit.pieces import names_any, to_wire
from weftline.kit.run_sessions import OURS, said_of

# The most bytes of pieces in a request. They repeat the messages, and the server accepts 8 MiB.
MAX_TOLD = 1 << 20

_CLOSERS = Closers()
atexit.register(_CLOSERS.end)


@dataclass(frozen=True, slots=True)
class Summary:
    """A call that summarises a conversation in a session: what replaces the conversation then."""

    compacts_to: list[dict[str, Any]]
    session: TracedSession


# The run around such a call may have ended, so the call does not find its session by the run.
SUMMARY: ContextVar[Summary | None] = ContextVar("weftline_summary", default=None)


class Sending(Request):
    """One request of a ChatWeftline. It reads the field `weftline` of the responses."""

    def join(self, options: dict[str, Any], default: Mapping[str, Any] | None) -> None:
        """Add the field `weftline` to the extra body in a request's `options`, or to `default`."""
        if self.said is not None:
            given = options.get("extra_body", default)
            options["extra_body"] = {OURS: self.said, **(given or {})}

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)
        if (
            isinstance(error, openai.APIConnectionError)
            # Some versions of the client raise it for whatever its HTTP client raises.
            and any(isinstance(one, httpx.TransportError) for one in _causes(error))
            and not isinstance(error, openai.APITimeoutError)
        ):
            # The openai client's message is "Connection error.", without an address.
            url = error.request.url
            error.add_note(
                f"no weftline server answers at {url.scheme}://{url.netloc.decode()}: start one "
                "with `weftline serve`, or set WEFTLINE_BASE_URL"
            )

    def was_answered(self, error: BaseException) -> bool:
        """An answer that langchain-openai cannot read raises an error of another kind."""
        return isinstance(error, Exception) and not isinstance(error, openai.APIError)

    def take_result(self, result: ChatResult) -> None:
        """Note a complete answer."""
        ids = (result.llm_output or {}).pop(OURS, None)
        message = result.generations[0].message
        called = message.tool_calls if isinstance(message, AIMessage) else ()
        self.hear(ids, result.generations[0].text, (call["id"] for call in called))
        self.finish()

    def take_chunk(self, chunk: ChatGenerationChunk) -> None:
        """Note a chunk of an answer."""
        ids = None
        if chunk.generation_info is not None and OURS in chunk.generation_info:
            ids = chunk.generation_info.pop(OURS)
            chunk.generation_info = chunk.generation_info or None
        message = chunk.message
        called = message.tool_call_chunks if isinstance(message, AIMessageChunk) else ()
        self.hear(ids, chunk.text, (call["id"] for call in called))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exceptions behind an error. LangChain raises one of its own from that of the client."""
    cause = error.__cause__
    while cause is not None:
        yield cause
        cause = cause.__cause__


class ModelFields(Protocol):
    """The part of a ChatWeftline that this module uses."""

    @property
    def openai_api_base(self) -> str | None: ...

    @property
    def openai_api_key(self) -> object: ...

    provenance: bool

    def delete_session(self, id: str) -> None:
        """Close a session of the server."""

    def beat_session(self, id: str) -> None:
        """Send a heartbeat of a session."""


def sending(model: ModelFields, messages: Sequence[BaseMessage], parent: UUID | None) -> Sending:
    """A request of `model` inside the run `parent`."""
    if (asked := SUMMARY.get()) is not None:
        said = said_of(asked.session, "summary", [None] * len(messages))
        return Sending({**said, "compacts_to": asked.compacts_to}, asked.session)
    run = LISTENER.run_of(parent or running()) if model.provenance else None
    if model.provenance and sum(len(message.content) for message in messages) <= MAX_TOLD:
        pieces = [_pieces(message, run) for message in messages]
    else:
        pieces = [None] * len(messages)
    if run is None:
        return Sending({"messages": to_wire(pieces)} if names_any(pieces) else None)
    session = _session(run, model)
    traced = [
        _traced(message, found, session) for message, found in zip(messages, pieces, strict=True)
    ]
    session.see(p.text for found in traced if found for p in found if p.from_var is None)
    return Sending(said_of(session, _call_name(run), traced), session)


def _traced(message: BaseMessage, pieces: Pieces | None, session: TracedSession) -> Pieces | None:
    """The pieces with their sources. None for a message that is one constant, or no text."""
    traced = None if pieces is None else session.trace(pieces)
    if not isinstance(message, AIMessage) or not message.tool_calls or traced is None:
        return traced
    return session.trace_calls(traced, (call["id"] or "" for call in message.tool_calls))


def _pieces(message: BaseMessage, run: OpenRun | None) -> Pieces | None:
    """The pieces of a message, or None if its content is not plain text."""
    return LISTENER.pieces_of(message, run) if isinstance(message.content, str) else None


def session_within(model: ModelFields, parent: UUID | None) -> TracedSession | None:
    """The session of the run that `parent` belongs to, if the server is told of runs."""
    run = LISTENER.run_of(parent) if model.provenance else None
    return None if run is None else _session(run, model)


def _session(run: OpenRun, model: ModelFields) -> TracedSession:
    server = model.openai_api_base, model.openai_api_key
    closer = _CLOSERS.find(server, model.delete_session, model.beat_session)

    def make() -> TracedSession:
        *_, top = run.ancestry()
        session = TracedSession(closer, name=run.application)
        session.see(text for _, text in strings_in(top.inputs))
        return session

    return run.root.sessions.find(server, make)


def _call_name(run: OpenRun) -> str:
    names = [above.name for above in run.ancestry() if above.name is not None]
    name = ".".join(name for name, _ in groupby(reversed(names))) or "chat"
    return printable(name)


def keep_pieces(made: PromptValue) -> PromptValue:
    """A string prompt as the chat prompt that a chat model makes of it, with its pieces kept.

    `to_messages` of a string prompt makes a new message each time, which the listener cannot know.
    """
    if not isinstance(made, StringPromptValue) or (pieces := LISTENER.pieces.find(made)) is None:
        return made
    messages = made.to_messages()
    LISTENER.pieces.put(messages[0], pieces)
    return ChatPromptValue(messages=messages)
