"""The items of the input of POST /v1/responses, and the messages of a chat that they become.

Thoughts are those of the answer that follows them. An item is passed over if it has nothing that a
model of this server would read: thoughts that are encrypted, and the tools that another service
listed, since a request's tools are those of `tools`. A reference is replaced by its item before. An
item of any other type that is not served is a 400 that names its place and its type.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Tag

from weftline.contract.bodies import LooseBody
from weftline.contract.errors import InvalidRequest
from weftline.contract.tools import CalledFunction, ToolCall
from weftline_server.http.openai.content import Content, ThoughtPart, text_of, thoughts_of
from weftline_server.http.openai.requests import ChatMessage
from weftline_server.http.openai.tool_types import INPUT, AnyResponseTool, Offer, grouped
from weftline_server.http.typed_objects import OTHER, by_type

REFERENCE = "item_reference"
PASSED_OVER = frozenset({"mcp_list_tools"})
_INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        REFERENCE: "a conversation gets the item itself",
        "compaction": "its text is encrypted: send the messages that it stands for",
        "compaction_trigger": "the server compacts no input: leave it out",
        "configuration_update": "set reasoning and text of the request",
    }
)
_NO_TOOL = "send a call as function_call, and its result as function_call_output"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputMessage(LooseBody):
    """A message of the client, or an earlier answer of the model."""

    role: str
    content: Content
    type: Literal["message"] = "message"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputCall(LooseBody):
    """A call that the assistant made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str = "{}"

    def called(self) -> ToolCall:
        """The same call of a chat."""
        name = grouped(self.namespace, self.name)
        function = CalledFunction(name=name, arguments=self.arguments)
        return ToolCall(id=self.call_id, function=function)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputCustomCall(LooseBody):
    """A call of a custom tool that the assistant made."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str

    def called(self) -> ToolCall:
        """The call of the function of a chat that the tool is."""
        arguments = json.dumps({INPUT: self.input}, ensure_ascii=False)
        return ToolCall(
            id=self.call_id, function=CalledFunction(name=self.name, arguments=arguments)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InputThoughts(LooseBody):
    """The thoughts of an earlier answer. The summary counts where the thoughts are not there."""

    type: Literal["reasoning"]
    content: tuple[ThoughtPart, ...] | None = None
    summary: tuple[ThoughtPart, ...] | None = None

    @property
    def thoughts(self) -> str:
        """The text of the thoughts, "" where it is encrypted."""
        return "\n\n".join(one.thoughts for one in self.content or self.summary or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class InputResult(LooseBody):
    """The result of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    output: Content
    call_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedTools(LooseBody):
    """Tools that are offered besides those of the request."""

    type: Literal["additional_tools"]
    tools: tuple[AnyResponseTool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherItem(LooseBody):
    """An item of another type. It is passed over, or else refused. One with an id alone refers."""

    type: str | None = None
    id: str | None = None


_ITEMS = {
    "message": "InputMessage",
    "function_call": "InputCall",
    "custom_tool_call": "InputCustomCall",
    **dict.fromkeys(("function_call_output", "custom_tool_call_output"), "InputResult"),
    "additional_tools": "AddedTools",
    "reasoning": "InputThoughts",
}
InputItem = Annotated[
    Annotated[InputMessage, Tag("InputMessage")]
    | Annotated[InputCall, Tag("InputCall")]
    | Annotated[InputCustomCall, Tag("InputCustomCall")]
    | Annotated[InputResult, Tag("InputResult")]
    | Annotated[AddedTools, Tag("AddedTools")]
    | Annotated[InputThoughts, Tag("InputThoughts")]
    | Annotated[OtherItem, Tag(OTHER)],
    by_type(_ITEMS, untyped={"role": "InputMessage"}),  # a message may leave out its type
]


@dataclass(slots=True)
class Conversation:
    """What the items of an input say: the messages of a chat, and tools that they `offer`."""

    offer: Offer
    messages: list[ChatMessage] = field(default_factory=list)
    _thoughts: list[str] = field(default_factory=list)  # of the answer that follows

    def read(self, items: Iterable[InputItem], field: str = "input", past: int = 0) -> None:
        """Take all items, of which the first `past` are no part of this field. Raises
        InvalidRequest, naming the item, for one that is not served."""
        calls: list[ToolCall] = []
        for index, item in enumerate(items, -past):
            where = f"{field}.{index}"
            match item:
                case InputCall() | InputCustomCall():
                    calls.append(item.called())
                case InputMessage() | InputResult():
                    self._called(calls)
                    calls = []
                    self.messages.append(self._with_thoughts(_message(item, where)))
                case InputThoughts():
                    self._thoughts.append(item.thoughts)
                case AddedTools():
                    self.offer.read(item.tools, f"{where}.tools")
                case OtherItem() if item.type not in PASSED_OVER:
                    raise _refusal(item, where)
        self._called(calls)

    def _called(self, calls: list[ToolCall]) -> None:
        """Calls that follow an answer or one another are of one message, as the model wrote it."""
        if not calls:
            return
        answer = ChatMessage(role="assistant")
        if self.messages and self.messages[-1].role == "assistant":
            answer = self.messages.pop()
        answer = self._with_thoughts(answer)
        self.messages.append(replace(answer, tool_calls=tuple(calls)))

    def _with_thoughts(self, answer: ChatMessage) -> ChatMessage:
        """The message with the thoughts that stand before it, if it is the assistant's."""
        if answer.role != "assistant" or not any(self._thoughts):
            return answer
        thoughts = "\n\n".join(filter(None, (answer.reasoning_content, *self._thoughts)))
        self._thoughts.clear()
        return replace(answer, reasoning_content=thoughts)


def _message(item: InputMessage | InputResult, where: str) -> ChatMessage:
    if isinstance(item, InputMessage):
        text, thoughts = text_of(item.content, f"{where}.content"), thoughts_of(item.content)
        return ChatMessage(role=item.role, content=text, reasoning_content=thoughts or None)
    text = text_of(item.output, f"{where}.output")
    return ChatMessage(role="tool", content=text, tool_call_id=item.call_id)


def referred(item: Mapping[str, Any]) -> str | None:
    """The id of the item that this one stands for; None for an item of its own."""
    kind, id = item.get("type"), item.get("id")
    is_reference = kind == REFERENCE or (kind is None and "role" not in item)
    return id if is_reference and isinstance(id, str) else None


def _refusal(item: OtherItem, where: str) -> InvalidRequest:
    kind = item.type or (REFERENCE if item.id is not None else None)
    if kind is None:
        return InvalidRequest(
            f"{where}: an item needs a type, and a message its role: give one", param=where
        )
    instead = _INSTEAD.get(kind, _NO_TOOL)
    return InvalidRequest(
        f"{where}: an item of type {kind[:40]!r} is not served: {instead}", param=where
    )
