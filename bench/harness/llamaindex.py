"""LlamaIndex on a stage: the synthesizer of each system, and a record of its calls."""

from __future__ import annotations

from typing import Any

from llama_index.core.callbacks import CallbackManager
from llama_index.core.callbacks.base_handler import BaseCallbackHandler
from llama_index.core.callbacks.schema import CBEventType, EventPayload
from llama_index.core.indices.prompt_helper import PromptHelper
from llama_index.core.response_synthesizers import (
    BaseSynthesizer,
    ResponseMode,
    get_response_synthesizer,
)
from llama_index.llms.weftline import Weftline

from bench.harness.stage import Call, Stage
from bench.harness.systems import Way


def synthesizer(stage: Stage, mode: str, tokens: int, helper: PromptHelper) -> BaseSynthesizer:
    """A synthesizer that is greedy and answers exactly `tokens` tokens; `helper` packs its prompts.

    The plain LLM is ours with early sending and provenance switched off, which makes it a client of
    OpenAI's chat endpoint. LlamaIndex's own needs an older openai package than LangChain's.
    """
    watched = CallbackManager([_Watch(stage)])
    llm = Weftline(
        base_url=stage.url,
        temperature=0,
        max_tokens=tokens,
        context_window=helper.context_window,
        additional_kwargs={"ignore_eos": True},
        ahead=stage.way is Way.ACCELERATED,
        provenance=stage.way in (Way.CHAT_WEFTLINE, Way.ACCELERATED),
    )
    made: BaseSynthesizer = get_response_synthesizer(
        llm=llm, response_mode=ResponseMode(mode), prompt_helper=helper, callback_manager=watched
    )
    return made


class _Watch(BaseCallbackHandler):
    """Records when each LLM call began and ended, and its tokens."""

    def __init__(self, stage: Stage) -> None:
        super().__init__([], [])
        self._stage = stage
        self._starts: dict[str, float] = {}

    def start_trace(self, trace_id: str | None = None) -> None:
        """Ignored: the events of the calls hold everything."""

    def end_trace(
        self, trace_id: str | None = None, trace_map: dict[str, list[str]] | None = None
    ) -> None:
        """Ignored, as its start is."""

    def on_event_start(
        self,
        event_type: CBEventType,
        payload: dict[str, Any] | None = None,
        event_id: str = "",
        parent_id: str = "",
        **kwargs: Any,
    ) -> str:
        if event_type is CBEventType.LLM:
            self._starts[event_id] = self._stage.now()
            messages = (payload or {})[EventPayload.MESSAGES]
            self._stage.prompts.append("\n".join(message.content or "" for message in messages))
        return event_id

    def on_event_end(
        self,
        event_type: CBEventType,
        payload: dict[str, Any] | None = None,
        event_id: str = "",
        **kwargs: Any,
    ) -> None:
        if event_type is not CBEventType.LLM:
            return
        start = self._starts.pop(event_id)
        response = (payload or {}).get(EventPayload.RESPONSE)
        if response is None:  # it failed, and the application records the error
            return
        usage = response.additional_kwargs
        prompt, output = usage["prompt_tokens"], usage["completion_tokens"]
        self._stage.take_call(Call("call", start, self._stage.now() - start, prompt, output))
