"""The body of POST /v1/responses, and how it becomes a chat request.

A field that is not here is looked up in `surface`: one that would change what may be answered is a
400 that names it, and one that only advises is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from weftline.errors import InvalidRequest
from weftline.tools import (
    CalledFunction,
    Function,
    NamedFunction,
    NamedTool,
    Tool,
    ToolCall,
    ToolChoice,
)
from weftline_server.http.openai.constraints import JsonSchema, ResponseFormat
from weftline_server.http.openai.provenance import Provenance
from weftline_server.http.openai.requests import (
    ChatMessage,
    ChatRequest,
    SamplingFields,
)

_LOOSE = {"extra": "ignore", "allow_inf_nan": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentPart:
    """A part of a message. Texts are the only parts that are served."""

    type: Literal["input_text", "output_text", "text"]
    text: str

    __pydantic_config__ = _LOOSE


@dataclass(frozen=True, slots=True, kw_only=True)
class InputMessage:
    """A message of the input."""

    role: str
    content: str | tuple[ContentPart, ...]
    type: Literal["message"] = "message"

    __pydantic_config__ = _LOOSE

    def chat(self) -> ChatMessage:
        """The same message of a chat."""
        content = self.content
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        return ChatMessage(role=self.role, content=content)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputCall:
    """A call that the assistant made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str = "{}"

    __pydantic_config__ = _LOOSE

    def called(self) -> ToolCall:
        """The same call of a chat."""
        function = CalledFunction(name=self.name, arguments=self.arguments)
        return ToolCall(id=self.call_id, function=function)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputResult:
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: str

    __pydantic_config__ = _LOOSE

    def chat(self) -> ChatMessage:
        """The tool's message of a chat."""
        return ChatMessage(role="tool", content=self.output, tool_call_id=self.call_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseTool:
    """A function that the model may call, without the object around it that chats have."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    __pydantic_config__ = _LOOSE

    def tool(self) -> Tool:
        """The same tool of a chat."""
        function = Function(
            name=self.name,
            description=self.description,
            parameters=self.parameters,
            strict=self.strict,
        )
        return Tool(function=function)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenTool:
    """The function that must be called."""

    type: Literal["function"]
    name: str

    __pydantic_config__ = _LOOSE


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFormat:
    """The form of the text."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None

    __pydantic_config__ = _LOOSE

    def of_chat(self) -> ResponseFormat:
        """The same format of a chat. Raises InvalidRequest if its schema is wrong."""
        schema = None if self.schema is None else JsonSchema(schema=self.schema)
        try:
            return ResponseFormat(type=self.type, json_schema=schema, schema=self.schema)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, param="text.format") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig:
    """How the text is written."""

    format: TextFormat | None = None

    __pydantic_config__ = _LOOSE


InputItem = InputMessage | InputCall | InputResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest(SamplingFields):
    """The body of POST /v1/responses. The server keeps no response: send the whole input."""

    input: str | tuple[InputItem, ...]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: tuple[ResponseTool, ...] = ()
    tool_choice: Literal["auto", "none", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    stream: bool = False
    weftline: Provenance | None = None

    __pydantic_config__ = _LOOSE

    def chat(self) -> ChatRequest:
        """The request as a chat request. Raises InvalidRequest for two forms of the text."""
        shared = {one.name: getattr(self, one.name) for one in fields(SamplingFields)}
        if self.text is not None and self.text.format is not None:
            if self.response_format is not None:
                raise InvalidRequest(
                    "response_format and text.format exclude one another: give one",
                    param="response_format",
                )
            shared["response_format"] = self.text.format.of_chat()
        return ChatRequest(
            **shared,
            messages=tuple(self._messages()),
            model=self.model,
            max_completion_tokens=self.max_output_tokens,
            tools=tuple(tool.tool() for tool in self.tools) or None,
            tool_choice=self._choice(),
            parallel_tool_calls=self.parallel_tool_calls,
            stream=self.stream,
            weftline=self.weftline,
        )

    def _choice(self) -> ToolChoice:
        if isinstance(self.tool_choice, ChosenTool):
            return NamedTool(function=NamedFunction(name=self.tool_choice.name))
        return self.tool_choice

    def _messages(self) -> list[ChatMessage]:
        """The messages. Calls that follow one another are of one message."""
        found: list[ChatMessage] = []
        if self.instructions is not None:
            found.append(ChatMessage(role="system", content=self.instructions))
        if isinstance(self.input, str):
            return [*found, ChatMessage(role="user", content=self.input)]
        calls: list[ToolCall] = []
        for item in self.input:
            if isinstance(item, InputCall):
                calls.append(item.called())
                continue
            if calls:
                found.append(ChatMessage(role="assistant", tool_calls=tuple(calls)))
                calls = []
            found.append(item.chat())
        if calls:
            found.append(ChatMessage(role="assistant", tool_calls=tuple(calls)))
        return found
