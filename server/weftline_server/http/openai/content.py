"""The content of messages in chats and responses: a text, or parts of text and of thoughts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Tag

from weftline.contract.bodies import LooseBody
from weftline.contract.errors import InvalidRequest
from weftline_server.http.typed_objects import OTHER, by_type


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart(LooseBody):
    """A part of text, which the client or the model wrote."""

    type: Literal["text", "input_text", "output_text"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalPart(LooseBody):
    """A part in which the model says that it does not answer. It is text of the answer here."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """What the model said."""
        return self.refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtPart(LooseBody):
    """Thoughts before an answer, as Anthropic, Mistral, LangChain and OpenRouter write them. One
    that is encrypted has nothing that a model of this server would read."""

    type: str = ""
    thinking: str | tuple[TextPart, ...] | None = None
    reasoning: str | None = None
    text: str | None = None
    summary: str | None = None

    @property
    def thoughts(self) -> str:
        """The text, under whichever name it came."""
        if isinstance(self.thinking, tuple):
            return "".join(part.text for part in self.thinking)
        return self.thinking or self.reasoning or self.text or self.summary or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherPart(LooseBody):
    """A part of another type, such as an image. It is refused."""

    type: str


_PARTS = {
    **dict.fromkeys(("text", "input_text", "output_text"), "TextPart"),
    "refusal": "RefusalPart",
    **dict.fromkeys(("thinking", "reasoning", "redacted_thinking"), "ThoughtPart"),
}
AnyPart = Annotated[
    Annotated[TextPart, Tag("TextPart")]
    | Annotated[RefusalPart, Tag("RefusalPart")]
    | Annotated[ThoughtPart, Tag("ThoughtPart")]
    | Annotated[OtherPart, Tag(OTHER)],
    by_type(_PARTS),
]
Content = str | tuple[AnyPart, ...]


def text_of(content: Content | None, where: str = "content") -> str:
    """The text of all parts. Raises InvalidRequest for a part that is no text, with its place."""
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for index, part in enumerate(content):
        if isinstance(part, OtherPart):
            where = f"{where}.{index}"
            raise InvalidRequest(
                f"{where}: a part of type {part.type[:40]!r} is not served: send text", param=where
            )
        if not isinstance(part, ThoughtPart):
            texts.append(part.text)
    return "".join(texts)


def thoughts_of(parts: Content | Iterable[ThoughtPart] | None) -> str:
    """The thoughts among the parts of a content, or in a list of nothing else."""
    if parts is None or isinstance(parts, str):
        return ""
    return "\n\n".join(
        part.thoughts for part in parts if isinstance(part, ThoughtPart) and part.thoughts
    )
