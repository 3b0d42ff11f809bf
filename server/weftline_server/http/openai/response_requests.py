"""The body of POST /v1/responses, and how it becomes a chat request.

A field that is not here is looked up in `surface`: one that would change what may be answered is a
400 that names it, and one that only advises is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from pydantic import TypeAdapter

from weftline.contract.bodies import LooseBody
from weftline.contract.calls import TemplateWord
from weftline.contract.errors import InvalidRequest
from weftline.contract.protocol import MAX_ITEMS
from weftline_server.http.openai.constraint_fields import JsonSchema, ResponseFormat
from weftline_server.http.openai.provenance import Provenance
from weftline_server.http.openai.requests import (
    ChatMessage,
    ChatRequest,
    SamplingFields,
)
from weftline_server.http.openai.response_items import Conversation, InputItem
from weftline_server.http.openai.tool_types import (
    AnyResponseTool,
    Offer,
    ResponseChoice,
    chosen,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFormat(LooseBody):
    """The form of the text."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None

    def of_chat(self) -> ResponseFormat:
        """The same format of a chat. Raises InvalidRequest if its schema is wrong."""
        schema = None if self.schema is None else JsonSchema(schema=self.schema)
        try:
            return ResponseFormat(type=self.type, json_schema=schema, schema=self.schema)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, param="text.format") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig(LooseBody):
    """How the text is written."""

    format: TextFormat | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningConfig(LooseBody):
    """How much the model thinks."""

    effort: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationName(LooseBody):
    """A conversation that the server keeps."""

    id: str


# What a client may write beside an object that is kept, as in OpenAI's API.
MOST_PAIRS, KEY_CHARS, VALUE_CHARS = 16, 64, 512
_ITEMS: TypeAdapter[tuple[InputItem, ...]] = TypeAdapter(tuple[InputItem, ...])


def check_metadata(metadata: Mapping[str, str] | None) -> None:
    """Raise InvalidRequest for metadata beyond these bounds."""
    given = metadata or {}
    if len(given) > MOST_PAIRS or any(
        len(key) > KEY_CHARS or len(value) > VALUE_CHARS for key, value in given.items()
    ):
        raise InvalidRequest(
            f"metadata has at most {MOST_PAIRS} pairs, of keys of {KEY_CHARS} characters and "
            f"values of {VALUE_CHARS}",
            param="metadata",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFields(SamplingFields):
    """The fields that say what a response continues, and how it is kept."""

    store: bool = True
    previous_response_id: str | None = None
    conversation: str | ConversationName | None = None
    background: bool = False
    metadata: dict[str, str] | None = None

    def __post_init__(self) -> None:
        check_metadata(self.metadata)
        if self.background and not self.store:
            raise InvalidRequest(
                "a response in the background is read later: leave out store or background",
                param="background",
            )
        if self.previous_response_id and self.thread:
            raise InvalidRequest(
                "previous_response_id and conversation exclude one another: give one",
                param="previous_response_id",
            )

    @property
    def thread(self) -> str | None:
        """The id of the conversation; None for none."""
        named = self.conversation
        return (named.id if isinstance(named, ConversationName) else named) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest(KeptFields):
    """The body of POST /v1/responses. What it continues goes before its input."""

    input: str | tuple[InputItem, ...]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: tuple[AnyResponseTool, ...] | None = None
    tool_choice: ResponseChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    chat_template_kwargs: dict[str, TemplateWord] | None = None
    stream: bool = False
    weftline: Provenance | None = None

    def with_input(self, given: Iterable[Mapping[str, Any]]) -> ResponsesRequest:
        """The request with this input, in which each reference is its item."""
        return replace(self, input=_ITEMS.validate_python(tuple(given)))

    def chat(self, offer: Offer, past: Iterable[Mapping[str, Any]] = ()) -> ChatRequest:
        """The request as a chat request, whose tools `offer` takes. The items of the `past` go
        before its input. Raises InvalidRequest for two forms of the text."""
        shared = {one.name: getattr(self, one.name) for one in fields(SamplingFields)}
        if self.text is not None and self.text.format is not None:
            if self.response_format is not None:
                raise InvalidRequest(
                    "response_format and text.format exclude one another: give one",
                    param="response_format",
                )
            shared["response_format"] = self.text.format.of_chat()
        offer.read(self.tools or (), "tools")
        said = self._conversation(offer, past)
        if not said.messages:
            raise InvalidRequest("input must have a message", param="input")
        if len(said.messages) >= MAX_ITEMS:
            raise InvalidRequest(
                f"input has fewer than {MAX_ITEMS:,} messages, with those before it, and this has "
                f"{len(said.messages):,}: begin anew with a summary",
                param="input",
            )
        tools, choice = chosen(self.tool_choice, tuple(offer.tools))
        return ChatRequest(
            **shared,
            messages=tuple(said.messages),
            model=self.model,
            max_completion_tokens=self.max_output_tokens,
            tools=tools or None,
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            chat_template_kwargs=self.chat_template_kwargs,
            reasoning_effort=None if self.reasoning is None else self.reasoning.effort,
            stream=self.stream or self.background,
            weftline=self.weftline,
        )

    def _conversation(self, offer: Offer, past: Iterable[Mapping[str, Any]]) -> Conversation:
        found = Conversation(offer)
        if self.instructions is not None:
            found.messages.append(ChatMessage(role="system", content=self.instructions))
        before = _ITEMS.validate_python(tuple(past))
        if isinstance(self.input, str):
            found.read(before)
            found.messages.append(ChatMessage(role="user", content=self.input))
        else:
            found.read((*before, *self.input), past=len(before))
        return found
