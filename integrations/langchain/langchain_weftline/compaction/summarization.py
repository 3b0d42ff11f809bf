"""A SummarizationMiddleware that asks behind the live context, while a tool runs or a user reads.

The server then computes the conversation's new beginning, so the next turn finds it in the cache.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import openai
from langchain.agents.middleware import ModelRequest, ModelResponse, SummarizationMiddleware
from langchain.agents.middleware.internal_call_transformer import internal_call_metadata
from langchain.agents.middleware.summarization import DEFAULT_SUMMARY_PROMPT
from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from langchain_weftline.chat_models import ChatWeftline
from langchain_weftline.compaction.live_conversation import (
    LiveConversation,
    LiveConversations,
    NoSummary,
    to_come,
)
from langchain_weftline.model.envelope import SUMMARY, Summary, session_within
from langchain_weftline.trace.prompt_origins import running
from weftline.kit.compaction import ABOVE, ANSWER_MARK, INSTRUCTION, LATER_MARK, replacing
from weftline.kit.early_tools import in_thread

log = logging.getLogger(__name__)

Update = dict[str, Any] | None
# After these the history is sent as text, as LangChain's class does, which also shortens it.
_REFUSED = (NoSummary, ContextOverflowError, openai.BadRequestError)


class WeftlineSummarizationMiddleware(SummarizationMiddleware[Any, Any]):
    """LangChain's SummarizationMiddleware, with a summary that is asked behind the live context.

    The arguments, the messages that are kept, and the message that replaces the others are those of
    LangChain's class. Where a turn ends with a conversation that is too long for the next one, the
    summary is asked at once. The prompt is the conversation with an instruction as its last
    message, so that nothing of it is computed twice. The next turn waits for it, and begins with
    what replaces the conversation. A server of weftline has computed that beginning by then.

        ```python
        agent = create_agent(
            llm, tools, middleware=[WeftlineSummarizationMiddleware(llm, trigger=("tokens", 8000))]
        )
        ```

    Put it last in the list, because it sees the prompt as the middleware before it has made it.
    `trim_tokens_to_summarize` counts only where the history goes as text: with a `summarizer`, with
    another model than the agent's, or where the model refuses or calls a tool.
    """

    def __init__(self, model: str | BaseChatModel, **options: Any) -> None:
        super().__init__(model, **options)
        self._conversations = LiveConversations()

    @property
    def _instruction(self) -> str:
        if self.summary_prompt == DEFAULT_SUMMARY_PROMPT:
            return INSTRUCTION
        return self.summary_prompt.format(messages=ABOVE).rstrip()

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Ask for a summary when the turn has ended. LangChain's agent calls this."""
        response = handler(request)
        self._turn_ended(request, response)
        return response

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Ask for a summary when the turn has ended. LangChain's agent calls this."""
        response = await handler(request)
        self._turn_ended(request, response)
        return response

    def before_model(self, state: Any, runtime: Any) -> Update:
        """Switch to the new beginning, if there is one. LangChain's agent calls this."""
        messages: list[AnyMessage] = state["messages"]
        live = self._conversations.find(messages)
        if live is None or live.summary is None or len(messages) <= live.cutoff:
            return super().before_model(state, runtime)
        try:
            new = [*self._build_new_messages(live.summary.result()), *messages[live.cutoff :]]
        except Exception as error:  # of a call that this turn has not made: it makes its own
            log.info("a summary that was asked ahead has not come: %r", error)
            live.summary, live.is_refused = None, isinstance(error, _REFUSED)
            return super().before_model(state, runtime)
        self._conversations.pop(str(messages[0].id), None)
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *new]}

    async def abefore_model(self, state: Any, runtime: Any) -> Update:
        """Switch to the new beginning, if there is one. LangChain's agent calls this."""
        if self.summarizer is not None:  # it may be a coroutine function
            return await super().abefore_model(state, runtime)
        live = self._conversations.find(state["messages"])
        if live is not None and live.summary is not None:  # no thread waits for it
            await asyncio.gather(asyncio.wrap_future(live.summary), return_exceptions=True)
        return await asyncio.to_thread(self.before_model, state, runtime)

    def _create_summary(self, messages_to_summarize: list[AnyMessage]) -> str:
        live = self._conversations.find(messages_to_summarize)
        if live is not None and not live.is_refused:
            prompt = live.prompt(self._instruction, messages_to_summarize)
            try:
                return _said(live.bound(self.model).invoke(prompt, _config()))
            except _REFUSED as error:
                log.info("the summary is asked again, with the history as text: %s", error)
        return super()._create_summary(messages_to_summarize)

    def _turn_ended(self, request: ModelRequest[Any], response: Any) -> None:
        """Note the live conversation, and ask for its summary if it is too long by now."""
        result: list[Any] = response.result if isinstance(response, ModelResponse) else []
        if not request.messages or not result or not self._is_live(request.model):
            return
        messages: list[AnyMessage] = [*request.messages, *result]
        self._ensure_message_ids(messages)
        expected = to_come(messages, "")
        seen = messages if expected[0].type == "human" else list(request.messages)
        live = LiveConversation(request, seen)
        foreseen = [*messages, *expected]
        if self._should_summarize(foreseen, self.token_counter(foreseen)):
            live.cutoff = min(self._determine_cutoff_index(foreseen), len(seen))
            if live.cutoff > 0:
                live.summary = self._ahead(live, messages)
        self._conversations.put(live)

    def _is_live(self, model: BaseChatModel) -> bool:
        """Whether the model that summarises is the one whose context is live."""
        if self.summarizer is not None or self._summary_chat_model is not self.model:
            return False
        if model is self.model:
            return True
        ours = isinstance(model, ChatWeftline) and isinstance(self.model, ChatWeftline)
        return ours and _place(model) == _place(self.model)

    def _ahead(self, live: LiveConversation, messages: list[AnyMessage]) -> Future[str] | None:
        """The summary, which a thread asks for. The run may end before it has come. None where
        too many threads run."""
        prompt, bound = live.prompt(self._instruction), live.bound(self.model)
        session = None
        if isinstance(self.model, ChatWeftline):
            session = session_within(self.model, running())
        if session is None:
            return in_thread(lambda: _said(bound.invoke(prompt, _config())))
        asked = Summary(self._replacing(live, messages), session)

        def ask() -> str:
            SUMMARY.set(asked)  # in the thread's own context
            return _said(bound.invoke(prompt, _config()))

        session.begin()
        found = in_thread(ask)
        if found is None:
            session.end()
        else:
            found.add_done_callback(lambda _: session.end())
        return found

    def _replacing(
        self, live: LiveConversation, messages: list[AnyMessage]
    ) -> list[dict[str, Any]]:
        """What the next prompt will be, as far as it is known, in the form of a request."""
        system = live.request.system_message
        made = [
            *([] if system is None else [system]),
            *self._build_new_messages(ANSWER_MARK),
            *messages[live.cutoff :],
            *to_come(messages, LATER_MARK),
        ]
        assert isinstance(self.model, ChatWeftline), "only a session has this"
        return replacing(self.model._get_request_payload(made)["messages"])


def _said(answer: AIMessage) -> str:
    """The text of a summary. Raises NoSummary."""
    text = answer.text.strip()
    if answer.tool_calls or not text:
        raise NoSummary("the model has called a tool, or said nothing")
    return text


def _place(model: Any) -> tuple[str, str]:
    return model.server_url, model.model_name


def _config() -> RunnableConfig:
    """What marks the call as LangChain's class marks its own."""
    return {"metadata": {"lc_source": "summarization", **internal_call_metadata()}}
