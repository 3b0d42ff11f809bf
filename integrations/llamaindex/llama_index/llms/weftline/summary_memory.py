"""A memory of an agent whose summary is asked behind the live context."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.memory import ChatSummaryMemoryBuffer
from llama_index.core.memory.chat_summary_memory_buffer import SUMMARIZE_PROMPT
from llama_index.llms.weftline.base import Weftline
from llama_index.llms.weftline.model.openai_messages import message_body, said_in

from weftline.errors import InvalidRequest
from weftline.kit.compaction import ANSWER_MARK, INSTRUCTION, LATER_MARK, replacing
from weftline.kit.run_sessions import OURS

log = logging.getLogger(__name__)


class WeftlineSummaryMemory(ChatSummaryMemoryBuffer):
    """LlamaIndex's ChatSummaryMemoryBuffer, with a summary that is asked behind the live context.

    What is kept and what is replaced are those of LlamaIndex's class. The prompt of the summary is
    the agent's: `system_prompt` and `tools` are to be the agent's own, since the memory is not told
    of them. An agent reads its memory when it has answered, so the summary is made at the end of a
    turn, and the server computes what replaces the conversation while the user reads.
    """

    system_prompt: str | None = None
    tools: Sequence[Any] = Field(default=(), exclude=True)

    _kept: list[ChatMessage] = PrivateAttr(default_factory=list)

    @classmethod
    def from_defaults(
        cls,
        *args: Any,
        system_prompt: str | None = None,
        tools: Sequence[Any] = (),
        **options: Any,
    ) -> WeftlineSummaryMemory:
        made = super().from_defaults(*args, **options)
        assert isinstance(made, cls), "made by this class"
        made.system_prompt, made.tools = system_prompt, tools
        return made

    @classmethod
    def class_name(cls) -> str:
        return "WeftlineSummaryMemory"

    def _split_messages_summary_or_full_text(
        self, chat_history: list[ChatMessage]
    ) -> tuple[list[ChatMessage], list[ChatMessage]]:
        self._kept, replaced = super()._split_messages_summary_or_full_text(chat_history)
        return self._kept, replaced

    def _summarize_oldest_chat_history(
        self, chat_history_to_be_summarized: list[ChatMessage]
    ) -> ChatMessage:
        """The message that replaces these. Where the model refuses or calls a tool, they go as
        text, as LlamaIndex's class sends them."""
        asked = chat_history_to_be_summarized
        if isinstance(self.llm, Weftline) and [one.role for one in asked] != [MessageRole.SYSTEM]:
            try:
                response = self._asked_behind(self.llm, asked)
            except InvalidRequest as error:
                log.info("the summary is asked again, with the history as text: %s", error)
            else:
                calls = self.llm.get_tool_calls_from_response(response, error_on_no_tool_call=False)
                if not calls and (text := (response.message.content or "").strip()):
                    return ChatMessage(role=MessageRole.SYSTEM, content=text)
        return super()._summarize_oldest_chat_history(asked)

    def _asked_behind(self, llm: Weftline, replaced: list[ChatMessage]) -> Any:
        given = self.summarize_prompt
        instruction = INSTRUCTION if given in (None, SUMMARIZE_PROMPT) else str(given)
        head = [ChatMessage(role=MessageRole.SYSTEM, content=self.system_prompt)]
        head = head if self.system_prompt is not None else []
        *before, last = replaced
        if last.role is MessageRole.USER:  # templates refuse two messages of the user in a row
            instruction = f"{said_in(last)}\n\n{instruction}"
        else:
            before = replaced
        question = ChatMessage(role=MessageRole.USER, content=instruction)
        options: dict[str, Any] = {}
        if (self._kept or replaced)[-1].role is MessageRole.ASSISTANT:  # the user reads
            summary = ChatMessage(role=MessageRole.SYSTEM, content=ANSWER_MARK)
            later = ChatMessage(role=MessageRole.USER, content=LATER_MARK)
            new = [*head, summary, *self._kept, later]
            options[OURS] = {"compacts_to": replacing(map(message_body, new))}
        messages = [*head, *before, question]
        if not self.tools:
            return llm.chat(messages, **options)
        return llm.chat_with_tools(list(self.tools), chat_history=messages, **options)
