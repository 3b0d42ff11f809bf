"""The body of POST /v1/responses, and how it becomes a chat request.

A field that is not here is looked up in `surface`: one that would change what may be answered is a
400 that names it, and one that only advises is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from weftline.contract.bodies import LooseBody
from weftline.contract.errors import InvalidRequest
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
class ResponsesRequest(SamplingFields):
    """The body of POST /v1/responses. The server keeps no response: send the whole input."""

    input: str | tuple[InputItem, ...]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: tuple[AnyResponseTool, ...] | None = None
    tool_choice: ResponseChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    stream: bool = False
    weftline: Provenance | None = None

    def chat(self, offer: Offer) -> ChatRequest:
        """The request as a chat request, whose tools `offer` takes. Raises InvalidRequest for two
        forms of the text."""
        shared = {one.name: getattr(self, one.name) for one in fields(SamplingFields)}
        if self.text is not None and self.text.format is not None:
            if self.response_format is not None:
                raise InvalidRequest(
                    "response_format and text.format exclude one another: give one",
                    param="response_format",
                )
            shared["response_format"] = self.text.format.of_chat()
        offer.read(self.tools or (), "tools")
        said = self._conversation(offer)
        if not said.messages:
            raise InvalidRequest("input must have a message", param="input")
        tools, choice = chosen(self.tool_choice, tuple(offer.tools))
        return ChatRequest(
            **shared,
            messages=tuple(said.messages),
            model=self.model,
            max_completion_tokens=self.max_output_tokens,
            tools=tools or None,
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            reasoning_effort=None if self.reasoning is None else self.reasoning.effort,
            stream=self.stream,
            weftline=self.weftline,
        )

    def _conversation(self, offer: Offer) -> Conversation:
        found = Conversation(offer)
        if self.instructions is not None:
            found.messages.append(ChatMessage(role="system", content=self.instructions))
        if isinstance(self.input, str):
            found.messages.append(ChatMessage(role="user", content=self.input))
        else:
            found.read(self.input)
        return found
