"""The content blocks of Anthropic's messages, and the messages of a chat that they become.

A block that is not text is a call, a result or thoughts. A block of another type, such as an image,
is a 400 that names its place and its type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Tag

from weftline.contract.bodies import LooseBody
from weftline.contract.errors import InvalidRequest
from weftline.contract.tools import CalledFunction, ToolCall
from weftline_server.http.openai.requests import ChatMessage
from weftline_server.http.typed_objects import by_type


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheControl(LooseBody):
    """The client's advice to keep the prompt up to here."""

    type: str = "ephemeral"
    ttl: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBlock(LooseBody):
    """A text."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedThoughts(LooseBody):
    """The thoughts of an earlier answer, whoever signed them."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenThoughts(LooseBody):
    """Encrypted thoughts, in which a model of this server could read nothing."""

    type: Literal["redacted_thinking"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUseBlock(LooseBody):
    """A call that the assistant made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None

    def called(self) -> ToolCall:
        """The same call of a chat. The arguments keep their order."""
        arguments = json.dumps(self.input, ensure_ascii=False)
        return ToolCall(id=self.id, function=CalledFunction(name=self.name, arguments=arguments))


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSource(LooseBody):
    """Where a document is. Only one that is a text is served."""

    type: str
    data: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentBlock(LooseBody):
    """A document."""

    type: Literal["document"]
    source: DocumentSource
    title: str | None = None
    context: str | None = None
    cache_control: CacheControl | None = None

    def text(self, where: str) -> str:
        """The document behind its title. Raises InvalidRequest for one that is no text."""
        if self.source.type != "text":
            place = f"{where}.source"
            raise InvalidRequest(
                f"{place}: a document of type {self.source.type[:40]!r} is not served: send its "
                "text",
                param=place,
            )
        return "\n".join(part for part in (self.title, self.context, self.source.data) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherBlock(LooseBody):
    """A block of another type, which is refused."""

    type: str


ResultPart = Annotated[
    Annotated[TextBlock, Tag("Text")]
    | Annotated[DocumentBlock, Tag("Document")]
    | Annotated[OtherBlock, Tag("Other")],
    by_type({"text": "Text", "document": "Document"}),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResultBlock(LooseBody):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | tuple[ResultPart, ...] | None = None
    is_error: bool = False
    cache_control: CacheControl | None = None


_TAGS = {
    "text": "Text",
    "thinking": "Thinking",
    "redacted_thinking": "Hidden",
    "tool_use": "Use",
    "tool_result": "Result",
    "document": "Document",
}


AnyBlock = Annotated[
    Annotated[TextBlock, Tag("Text")]
    | Annotated[SignedThoughts, Tag("Thinking")]
    | Annotated[HiddenThoughts, Tag("Hidden")]
    | Annotated[ToolUseBlock, Tag("Use")]
    | Annotated[ToolResultBlock, Tag("Result")]
    | Annotated[DocumentBlock, Tag("Document")]
    | Annotated[OtherBlock, Tag("Other")],
    by_type(_TAGS),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnthropicMessage(LooseBody):
    """A message of the user or the assistant."""

    role: Literal["user", "assistant", "system"]
    content: str | tuple[AnyBlock, ...]

    @property
    def is_kept(self) -> bool:
        """Whether the client advises to keep the prompt up to some block."""
        return not isinstance(self.content, str) and any(
            getattr(block, "cache_control", None) is not None for block in self.content
        )

    def chat(self, where: str) -> Iterator[ChatMessage]:
        """The messages of a chat. Raises InvalidRequest for a block that is not served there."""
        if isinstance(self.content, str):
            yield ChatMessage(role=self.role, content=self.content)
        elif self.role == "assistant":
            yield _answer(self.content, f"{where}.content")
        else:
            yield from _told(self.role, self.content, f"{where}.content")


def _answer(blocks: tuple[AnyBlock, ...], where: str) -> ChatMessage:
    """An answer of the assistant: thoughts, text and calls."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for index, block in enumerate(blocks):
        match block:
            case TextBlock():
                texts.append(block.text)
            case SignedThoughts():
                thoughts.append(block.thinking)
            case HiddenThoughts():
                pass
            case ToolUseBlock():
                calls.append(block.called())
            case _:
                raise _refusal(block.type, f"{where}.{index}", "the assistant")
    return ChatMessage(
        role="assistant",
        content="".join(texts),
        tool_calls=tuple(calls) or None,
        reasoning_content="\n\n".join(thoughts) or None,
    )


def _told(role: str, blocks: tuple[AnyBlock, ...], where: str) -> Iterator[ChatMessage]:
    """What the user says. Each result of a call is a message, and so is the text between two."""
    texts: list[str] = []
    for index, block in enumerate(blocks):
        place = f"{where}.{index}"
        match block:
            case TextBlock():
                texts.append(block.text)
            case DocumentBlock():
                texts.append(block.text(place))
            case ToolResultBlock():
                if texts:
                    yield ChatMessage(role=role, content="\n\n".join(texts))
                    texts = []
                text = _result(block, f"{place}.content")
                yield ChatMessage(role="tool", content=text, tool_call_id=block.tool_use_id)
            case _:
                raise _refusal(block.type, place, f"the {role}")
    if texts:
        yield ChatMessage(role=role, content="\n\n".join(texts))


def _result(block: ToolResultBlock, where: str) -> str:
    if block.content is None or isinstance(block.content, str):
        return block.content or ""
    texts: list[str] = []
    for index, part in enumerate(block.content):
        match part:
            case TextBlock():
                texts.append(part.text)
            case DocumentBlock():
                texts.append(part.text(f"{where}.{index}"))
            case OtherBlock():
                raise _refusal(part.type, f"{where}.{index}", "a tool")
    return "\n\n".join(texts)


def _refusal(kind: str, where: str, by: str) -> InvalidRequest:
    return InvalidRequest(
        f"{where}: a block of type {kind[:40]!r} of {by} is not served: send text", param=where
    )
