"""The part of Weftline that asks for objects and tool calls, and reads them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    MessageRole,
    ToolCallBlock,
)
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.program.utils import FlexibleModel
from llama_index.core.prompts.base import PromptTemplate
from llama_index.core.tools.types import BaseTool
from llama_index.core.types import Model
from llama_index.llms.weftline.ahead.agent_tools import watched
from llama_index.llms.weftline.model.object_fields import are_asked_in_text, as_text_field, offer
from llama_index.llms.weftline.model.openai_messages import arguments_of

Options = dict[str, Any] | None


class StructuredLLM(FunctionCallingLLM):
    """The part of a Weftline that asks for objects and tool calls."""

    # Tells type checkers that the fields of subclasses are keyword arguments.
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def structured_predict(
        self,
        output_cls: type[Model],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Model:
        """As in every LLM. Without tools the server constrains the text to the class's schema."""
        options = self._held_to(output_cls, llm_kwargs)
        made: Model = super().structured_predict(output_cls, prompt, options, **prompt_args)
        return made

    async def astructured_predict(
        self,
        output_cls: type[Model],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Model:
        """Like `structured_predict`, for a coroutine."""
        options = self._held_to(output_cls, llm_kwargs)
        made: Model = await super().astructured_predict(output_cls, prompt, options, **prompt_args)
        return made

    def stream_structured_predict(
        self,
        output_cls: type[Model],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Generator[Model | FlexibleModel, None, None]:
        """The object as it grows. The model writes it as the arguments of a tool call."""
        options = self._held_to(output_cls, llm_kwargs, is_streamed=True)
        parts: Generator[Model | FlexibleModel, None, None] = super().stream_structured_predict(
            output_cls, prompt, options, **prompt_args
        )
        return parts

    async def astream_structured_predict(
        self,
        output_cls: type[Model],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> AsyncGenerator[Model | FlexibleModel, None]:
        """Like `stream_structured_predict`, for a coroutine."""
        options = self._held_to(output_cls, llm_kwargs, is_streamed=True)
        parts: AsyncGenerator[
            Model | FlexibleModel, None
        ] = await super().astream_structured_predict(output_cls, prompt, options, **prompt_args)
        return parts

    def _held_to(
        self, output_cls: type[BaseModel], options: Options, is_streamed: bool = False
    ) -> Options:
        if are_asked_in_text(self):
            return {**as_text_field(output_cls), **(options or {})}
        # LlamaIndex's program forces the tool only where it does not stream.
        return {"must_call": True, **(options or {})} if is_streamed else options

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        tool_choice: str | dict[str, Any] | None = None,
        must_call: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        if isinstance(user_msg, str):
            user_msg = ChatMessage(role=MessageRole.USER, content=user_msg)
        messages = [*(chat_history or ()), *(() if user_msg is None else (user_msg,))]
        offered: dict[str, Any] = {}
        if tools:
            specs = [tool.metadata.to_openai_tool(skip_length_check=True) for tool in tools]
            forced = tool_required or must_call
            offered = offer(specs, tool_choice, forced, allow_parallel_tool_calls)
        return {"messages": messages, **offered, **kwargs}

    async def astream_chat_with_tools(
        self, tools: Sequence[BaseTool], *args: Any, **kwargs: Any
    ) -> ChatResponseAsyncGen:
        """As in every LLM. A tool of `early` starts as soon as its call is complete."""
        return watched(await super().astream_chat_with_tools(tools, *args, **kwargs), tools)

    def _validate_chat_with_tools_response(
        self,
        response: ChatResponse,
        tools: Sequence[BaseTool],
        allow_parallel_tool_calls: bool = False,
        **kwargs: Any,
    ) -> ChatResponse:
        if not allow_parallel_tool_calls:
            blocks = response.message.blocks
            calls = [block for block in blocks if isinstance(block, ToolCallBlock)]
            response.message.blocks = [
                block for block in blocks if block not in calls or block is calls[0]
            ]
        return response

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        calls = [b for b in response.message.blocks if isinstance(b, ToolCallBlock)]
        if not calls and error_on_no_tool_call:
            raise ValueError("Expected at least one tool call, but got 0 tool calls.")
        return [
            ToolSelection(
                tool_id=call.tool_call_id or call.tool_name,
                tool_name=call.tool_name,
                tool_kwargs=arguments_of(call),
            )
            for call in calls
        ]
