"""The body of POST /v1/responses, and how it becomes a chat request.

Fields that would not change the answer (`metadata`, `store`, `reasoning`, …) are ignored. A field
that would, and is not served, is a 400 that names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from weftline.errors import InvalidRequest
from weftline_server.http.openai.provenance import Provenance
from weftline_server.http.openai.requests import (
    ChatMessage,
    ChatRequest,
    JsonSchema,
    ResponseFormat,
)
from weftline_server.http.openai.response_items import Conversation, InputItem
from weftline_server.http.openai.tool_types import (
    AnyResponseTool,
    ResponseChoice,
    chosen,
    offered,
)

_LOOSE = {"extra": "ignore", "allow_inf_nan": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFormat:
    """The form of the text."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None

    __pydantic_config__ = _LOOSE

    def of_chat(self) -> ResponseFormat:
        """The same format of a chat. Raises InvalidRequest for a schema that is missing."""
        schema = None if self.schema is None else JsonSchema(schema=self.schema)
        return ResponseFormat(type=self.type, json_schema=schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig:
    """How the text is written."""

    format: TextFormat | None = None

    __pydantic_config__ = _LOOSE


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest:
    """The body of POST /v1/responses. The server keeps no response: send the whole input."""

    input: str | tuple[InputItem, ...]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: tuple[AnyResponseTool, ...] | None = None
    tool_choice: ResponseChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    stream: bool = False
    previous_response_id: str | None = None
    background: bool | None = None
    conversation: Any = None
    weftline: Provenance | None = None

    __pydantic_config__ = _LOOSE

    def chat(self) -> ChatRequest:
        """The request as a chat request. Raises InvalidRequest for what is not served."""
        for name in ("previous_response_id", "background", "conversation"):
            if getattr(self, name):
                raise InvalidRequest(
                    f"{name} is not served, since no response is kept: send the whole input",
                    param=name,
                )
        format = None if self.text is None else self.text.format
        said = self._conversation()
        if not said.messages:
            raise InvalidRequest("input must have a message", param="input")
        tools = (*offered(self.tools or (), "tools"), *said.tools)
        tools, choice = chosen(self.tool_choice, tools)
        return ChatRequest(
            messages=tuple(said.messages),
            model=self.model,
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            tools=tools or None,
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=None if format is None else format.of_chat(),
            stream=self.stream,
            weftline=self.weftline,
        )

    def _conversation(self) -> Conversation:
        found = Conversation()
        if self.instructions is not None:
            found.messages.append(ChatMessage(role="system", content=self.instructions))
        if isinstance(self.input, str):
            found.messages.append(ChatMessage(role="user", content=self.input))
        else:
            found.read(self.input)
        return found
