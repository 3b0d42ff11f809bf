"""The content of messages in chats and responses: a text, or parts of which text is served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from weftline.contract.bodies import LooseBody
from weftline.contract.errors import InvalidRequest
from weftline_server.http.openai.tool_types import type_of


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
class OtherPart(LooseBody):
    """A part of another type, such as an image. It is refused."""

    type: str


# The discriminator is Python code. While it runs, other threads can: pydantic alone holds its lock
# for the whole body, which took 0.8 s for 200,000 messages.
def _part_of(value: Any) -> str:
    match type_of(value):
        case "text" | "input_text" | "output_text":
            return "TextPart"
        case "refusal":
            return "RefusalPart"
    return "OtherPart"


AnyPart = Annotated[
    Annotated[TextPart, Tag("TextPart")]
    | Annotated[RefusalPart, Tag("RefusalPart")]
    | Annotated[OtherPart, Tag("OtherPart")],
    Discriminator(_part_of),
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
        texts.append(part.text)
    return "".join(texts)
