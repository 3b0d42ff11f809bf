"""An answer of a model as far as it was read: its text, and the calls of tools in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from weftline_server.prompt.answer_parser import AnswerParser
from weftline_server.prompt.tool_parser import (
    Arguments,
    Called,
    Delta,
    Said,
    Sealed,
    Thought,
    ToolParser,
    Unfinished,
)


class CallState(StrEnum):
    """How far a tool call is written. Only the first state is left."""

    OPEN = "open"  # the model writes it
    SEALED = "sealed"  # it is complete
    ENDED = "ended"  # the answer went on, or ended, without the call's closing mark
    CUT = "cut"  # the answer ended in it
    REFUSED = "refused"  # its tool ended before the call was complete
    GONE = "gone"  # it is not in the answer, which was written again


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A tool call in an answer. An open one has the arguments as far as they are written."""

    id: str
    name: str
    arguments: str
    state: CallState

    @staticmethod
    def of(item: Mapping[str, str]) -> WrittenCall:
        """The call that `to_item` has made JSON of."""
        return WrittenCall(
            item["id"], item["name"], item["arguments"], CallState(item.get("state", "sealed"))
        )

    def to_item(self) -> dict[str, str]:
        item = {"id": self.id, "name": self.name, "arguments": self.arguments}
        return item if self.state is CallState.SEALED else {**item, "state": self.state.value}

    def to_message(self) -> dict[str, Any]:
        """The call in a message of OpenAI's API."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(slots=True)
class _Writing:
    """A call, and the pieces of its arguments."""

    id: str
    name: str
    pieces: list[str] = field(default_factory=list)
    state: CallState = CallState.OPEN


class AnswerBuilder:
    """Puts the deltas of an answer together."""

    def __init__(self) -> None:
        self._said: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[_Writing] = []

    def add(self, delta: Delta) -> None:
        """Add what a parser has read."""
        match delta:
            case Said(text):
                self._said.append(text)
            case Thought(text):
                self._thoughts.append(text)
            case Called(_, id, name):
                self._calls.append(_Writing(id, name))
            case Arguments(index, text):
                self._calls[index].pieces.append(text)
            case Sealed(index):
                self._calls[index].state = CallState.SEALED
            case Unfinished(index):
                self._calls[index].state = CallState.CUT

    @property
    def said(self) -> str:
        """The answer's text, without the calls."""
        return "".join(self._said)

    def call(self, index: int) -> WrittenCall:
        """Call number `index` as far as it was read."""
        one = self._calls[index]
        return WrittenCall(one.id, one.name, "".join(one.pieces), one.state)

    def calls(self) -> Iterator[WrittenCall]:
        """The answer's calls, in the order in which they were written."""
        return map(self.call, range(len(self._calls)))

    def message(self) -> dict[str, Any]:
        """The answer as OpenAI's assistant message: its text, and its thoughts and whole calls if
        any."""
        message: dict[str, Any] = {"role": "assistant", "content": self.said}
        if self._thoughts:
            message["reasoning_content"] = "".join(self._thoughts)
        calls = [one.to_message() for one in self.calls() if one.state is not CallState.CUT]
        if calls:
            message |= {"content": self.said or None, "tool_calls": calls}
        return message


def message_of(parser: AnswerParser | ToolParser, text: str) -> dict[str, Any]:
    """A complete answer as OpenAI's assistant message."""
    answer = AnswerBuilder()
    for delta in (*parser.feed(text), *parser.end()):
        answer.add(delta)
    return answer.message()


def deltas_of(value: Any) -> Iterable[Delta]:
    """The value of an answer, which is a message or a text, as the deltas of a stream."""
    if isinstance(value, str):
        yield Said(value)
        return
    if value.get("reasoning_content"):
        yield Thought(value["reasoning_content"])
    if value["content"]:
        yield Said(value["content"])
    for index, call in enumerate(value.get("tool_calls", ())):
        yield Called(index, call["id"], call["function"]["name"])
        yield Arguments(index, call["function"]["arguments"])
