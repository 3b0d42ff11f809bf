"""Computes the beginning of a client's next prompt while the client runs the tools of an answer, or
while its user reads.

The text is known: the template writes the answer's turn as it will stand in the next prompt, which
is seldom what the model wrote. Behind a summary the client has said what replaces the conversation.
The engine computes it after all calls, and its context is freed at once, so that it stays in the
cache only as long as nothing needs the room.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from weftline.contract.calls import ANSWER, LATER
from weftline.contract.errors import InvalidRequest
from weftline.contract.tools import CalledFunction, ToolCall
from weftline_server.graph.growth import TakesItems
from weftline_server.graph.primitive import Primitive
from weftline_server.lowering.kinds.prompt import PromptBody
from weftline_server.prompt.render import PromptBefore, RenderedMessage, render
from weftline_server.runtime.early_fill import HOLE, MIN_TOKENS
from weftline_server.runtime.prompt_runner import PromptRunner
from weftline_server.runtime.prompts import known_before
from weftline_server.schedule.dispatcher import Dispatcher
from weftline_server.session.session import ServerSession

log = logging.getLogger("weftline.driver")

Spawn = Callable[[ServerSession, Coroutine[Any, Any, None]], object]


class NextTurns:
    """Sends the fills. An agent that the server runs has its next turn in the graph."""

    def __init__(
        self, dispatcher: Dispatcher, prompts: PromptRunner, spawn: Spawn, without: frozenset[str]
    ) -> None:
        self._dispatcher = dispatcher
        self._prompts = prompts
        self._spawn = spawn
        self._is_on = "prefill_early" not in without

    def answered(self, session: ServerSession, primitive: Primitive, value: object) -> None:
        """An output has its value. If it calls tools, or summarises a conversation, the session may
        send what follows."""
        body, step = primitive.body, session.primitives[primitive.id].step
        if not self._is_on or not isinstance(body, PromptBody) or not _is_followed(body, value):
            return
        if isinstance(body, TakesItems) or not body.is_last:
            return
        if not session.stays or step is None or step.engine is None:
            return
        if self._prompts.prompter(primitive.resource).tokenizer is not None:
            self._spawn(session, self._fill(session, primitive, value, step.engine))

    async def _fill(
        self, session: ServerSession, primitive: Primitive, value: object, engine: str
    ) -> None:
        prompter = self._prompts.prompter(primitive.resource)
        body = primitive.body
        assert isinstance(body, PromptBody), "asked before"
        if body.call.compacts_to:
            prompt = compacted_prompt(body, value)
        else:
            assert isinstance(value, dict), "an answer that calls tools is a message"
            prompt = next_prompt(known_before(session, primitive, HOLE), value)
        loop = asyncio.get_running_loop()
        try:
            ids = await loop.run_in_executor(None, prompter.stable_prefix, prompt, HOLE, session.id)
        except InvalidRequest as error:
            log.debug("the template refuses the turn after %s: %s", primitive.id, error)
            return
        if session.ended is None and MIN_TOKENS <= len(ids) < prompter.description.context_limit:
            op = self._prompts.fill(session, primitive, ids)
            self._dispatcher.fill(engine, primitive.resource, op)


def _is_followed(body: PromptBody, value: object) -> bool:
    """Whether the prompt that follows this answer is known."""
    calls = isinstance(value, dict) and bool(value.get("tool_calls"))
    return not calls and bool(_said(value)) if body.call.compacts_to else calls


def _said(value: object) -> str:
    """The text of an answer, as it stands in a summary."""
    text = value.get("content") if isinstance(value, dict) else value
    return text.strip() if isinstance(text, str) else ""


def compacted_prompt(body: PromptBody, value: object) -> PromptBefore:
    """The prompt that replaces the summarised conversation, with HOLE where the client does not
    know it yet."""
    call = replace(body.call, prompt=body.call.compacts_to)
    return render(call, body.output, {ANSWER: _said(value), LATER: HOLE})


def next_prompt(prompt: PromptBefore, value: Mapping[str, Any]) -> PromptBefore:
    """The prompt behind an answer that calls tools, with HOLE where the first result begins."""
    assert prompt.messages is not None, "only a chat has tools"
    calls = tuple(
        ToolCall(id=one["id"], function=CalledFunction(**one["function"]))
        for one in value["tool_calls"]
    )
    said, thoughts = value["content"] or "", value.get("reasoning_content", "")
    answer = RenderedMessage("assistant", said, tool_calls=calls, thoughts=thoughts)
    result = RenderedMessage("tool", HOLE, tool_call_id=calls[0].id)
    return replace(prompt, messages=(*prompt.messages, answer, result), begun="")
