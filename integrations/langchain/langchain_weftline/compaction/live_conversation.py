"""A conversation as an agent's model has just seen it, and the summary that is asked behind it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from langchain.agents.middleware import ModelRequest
from langchain.agents.structured_output import OutputToolBinding, ToolStrategy
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import Runnable

MOST = 1024  # conversations that are kept; the least recently used leaves


class NoSummary(Exception):
    """The model has called a tool in place of a summary, or has said nothing."""


@dataclass(eq=False)
class LiveConversation:
    """`messages` are those of the last model request, and its answer where that calls no tools.

    `summary` replaces the first `cutoff` messages. It is None where none is asked yet. Where one
    `is_refused`, none is not asked behind this context again.
    """

    request: ModelRequest[Any]
    messages: list[AnyMessage]
    summary: Future[str] | None = None
    cutoff: int = 0
    is_refused: bool = False

    def begins(self, messages: Sequence[AnyMessage]) -> bool:
        """Whether `messages` have those of the conversation at their beginning, as far as both
        go."""
        known = [one.id for one in self.messages]
        return None not in known and all(
            one.id == id for one, id in zip(messages, known, strict=False)
        )

    def prompt(self, instruction: str, replaced: Sequence[AnyMessage] = ()) -> list[BaseMessage]:
        """The live context with the instruction as its last message of the user.

        The messages that are to be `replaced` stand there also if the conversation has grown. Many
        templates refuse two messages of the user in a row, so the instruction ends the last one.
        """
        system = self.request.system_message
        seen = self.messages if len(self.messages) >= len(replaced) else replaced
        messages: list[BaseMessage] = [*([] if system is None else [system]), *seen]
        last = messages[-1]
        if isinstance(last, HumanMessage) and isinstance(last.content, str):
            text = f"{last.content}\n\n{instruction}"
            return [*messages[:-1], last.model_copy(update={"content": text})]
        return [*messages, HumanMessage(instruction)]

    def bound(self, model: BaseChatModel) -> Runnable[LanguageModelInput, AIMessage]:
        """`model` with the tools of the request, which stand at the beginning of its prompt.

        The choice of tools is left out: with the choice none, the prompt would have no tools.
        """
        request, options = self.request, self.request.model_settings
        tools, form = list(request.tools), request.response_format
        if isinstance(form, ToolStrategy):
            tools += [OutputToolBinding.from_schema_spec(one).tool for one in form.schema_specs]
        elif form is not None:
            options = {**options, "strict": True}  # as LangChain binds them beside a schema
        return model.bind_tools(tools, **options) if tools else model.bind(**options)


class LiveConversations(OrderedDict[str, LiveConversation]):
    """The conversations by the id of their first message."""

    def put(self, one: LiveConversation) -> None:
        """Keep a conversation in place of the one that it goes on with."""
        self.pop(str(one.messages[0].id), None)
        self[str(one.messages[0].id)] = one
        if len(self) > MOST:
            self.popitem(last=False)

    def find(self, messages: Sequence[AnyMessage]) -> LiveConversation | None:
        """The conversation that these messages go on with."""
        found = self.get(str(messages[0].id)) if messages else None
        return found if found is not None and found.begins(messages) else None


def to_come(messages: Sequence[AnyMessage], text: str) -> list[AnyMessage]:
    """The messages that come next, with `text` in place of what they will say: the results of the
    calls without one, or else the user's."""
    answered = {one.tool_call_id for one in messages if isinstance(one, ToolMessage)}
    last = next((one for one in reversed(messages) if isinstance(one, AIMessage)), None)
    calls = [] if last is None else [call["id"] or "" for call in last.tool_calls]
    results = [ToolMessage(text, tool_call_id=id) for id in calls if id not in answered]
    return [*results] or [HumanMessage(text)]
