"""An answer in the form of Anthropic's messages: the same events build a whole and a streamed one.

A stream begins with `message_start` when the prompt has been computed. Each block of the content
has a start, deltas and a stop. `message_delta` has the reason of the end and the usage.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from weftline_engine.api import FinishReason
from weftline_server.prompt.tool_parser import (
    Arguments,
    Called,
    Delta,
    Said,
    Thought,
    Unfinished,
)

Event = dict[str, Any]
# Clients send thoughts back only with a signature. The server reads thoughts of any signature.
SIGNATURE = "weftline"
_DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking"),
           "tool_use": ("input_json_delta", "partial_json")}  # fmt: skip


_NOT_ENDED = {"stop_reason": None, "stop_sequence": None}


class AnswerEnding(NamedTuple):
    """Why an answer ended, and the stop string that ended it, if the engine told one."""

    reason: FinishReason
    stopped_by: str


@dataclass(slots=True)
class _Block:
    """A block of the content while it grows. A call in which the answer ended is cut."""

    index: int
    head: Mapping[str, Any]  # as its start says it
    text: str = ""
    is_cut: bool = False

    @property
    def type(self) -> str:
        kind: str = self.head["type"]
        return kind

    def event(self, what: str, **body: Any) -> Event:
        return {"type": f"content_block_{what}", "index": self.index, **body}

    def grow(self, text: str) -> Event:
        self.text += text
        kind, name = _DELTAS[self.type]
        return self.event("delta", delta={"type": kind, name: text})

    def whole(self) -> dict[str, Any]:
        match self.type:
            case "text":
                return {**self.head, "text": self.text}
            case "thinking":
                return {**self.head, "thinking": self.text, "signature": SIGNATURE}
        return {**self.head, "input": json.loads(self.text or "{}")}


@dataclass(slots=True)
class MessageReply:
    """The message as it grows."""

    model: str
    id: str = field(default_factory=lambda: f"msg_{uuid.uuid4().hex}")
    blocks: list[_Block] = field(default_factory=list)
    open: _Block | None = None

    def start(self, prompt: int) -> Event:
        """The first event, when the prompt of so many tokens has been computed."""
        return {"type": "message_start", "message": self._body([], _NOT_ENDED, usage_form(prompt))}

    def whole(self, ending: AnswerEnding, usage: Mapping[str, Any]) -> dict[str, Any]:
        """The message at its end. A call in which the answer ended is no content."""
        content = [one.whole() for one in self.blocks if not one.is_cut]
        return self._body(content, self._ended(ending), _usage_of(usage))

    def end(self, ending: AnswerEnding, usage: Mapping[str, Any]) -> Iterator[Event]:
        """The last events of a stream."""
        yield from self._close()
        yield {
            "type": "message_delta",
            "delta": self._ended(ending),
            "usage": _usage_of(usage),
        }
        yield {"type": "message_stop"}

    def read(self, deltas: Iterable[Delta]) -> Iterator[Event]:
        """Take new parts of the answer, and yield the events that tell of them."""
        for delta in deltas:
            match delta:
                case Said(text) if text:
                    yield from self._within({"type": "text", "text": ""})
                    yield self._grown(text)
                case Thought(text) if text:
                    head = {"type": "thinking", "thinking": "", "signature": ""}
                    yield from self._within(head)
                    yield self._grown(text)
                case Called(_, id, name):
                    yield from self._close()
                    call = {"type": "tool_use", "id": id, "name": name, "input": {}}
                    yield from self._within(call)
                case Arguments(_, text) if text:
                    yield self._grown(text)
                case Unfinished() if self.open is not None:
                    self.open.is_cut = True
                case _:
                    pass  # parts that only early tools read, and empty ones

    def _within(self, head: Mapping[str, Any]) -> Iterator[Event]:
        """Begin a block, unless one of the type is open."""
        if self.open is not None and self.open.type == head["type"]:
            return
        yield from self._close()
        self.open = block = _Block(len(self.blocks), head)
        self.blocks.append(block)
        yield block.event("start", content_block=head)

    def _grown(self, text: str) -> Event:
        assert self.open is not None, "a delta has a block"
        return self.open.grow(text)

    def _close(self) -> Iterator[Event]:
        block, self.open = self.open, None
        if block is None:
            return
        if block.type == "thinking":
            signed = {"type": "signature_delta", "signature": SIGNATURE}
            yield block.event("delta", delta=signed)
        yield block.event("stop")

    def _ended(self, ending: AnswerEnding) -> dict[str, Any]:
        """Why the message ended, and the stop string that ended it."""
        reason, by = "end_turn", None
        if ending.reason is FinishReason.LENGTH:
            reason = "max_tokens"
        elif any(one.type == "tool_use" and not one.is_cut for one in self.blocks):
            reason = "tool_use"
        elif ending.stopped_by:
            reason, by = "stop_sequence", ending.stopped_by
        return {"stop_reason": reason, "stop_sequence": by}

    def _body(
        self, content: list[dict[str, Any]], ended: dict[str, Any], usage: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            **ended,
            "usage": usage,
        }


def usage_form(prompt: int, cached: int = 0, output: int = 0) -> dict[str, Any]:
    """The usage of a message. As in Anthropic's API, what was cached is no input."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }


def _usage_of(usage: Mapping[str, Any]) -> dict[str, Any]:
    """The same of the usage of a chat, with its cost where the server has prices."""
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    form = usage_form(usage["prompt_tokens"], cached, usage["completion_tokens"])
    return {**form, **{name: usage[name] for name in ("cost", "saved") if name in usage}}
