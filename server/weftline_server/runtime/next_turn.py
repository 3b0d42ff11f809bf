"""Computes the beginning of a client's next prompt while the client runs the tools of an answer, or
while its user reads.

The text is known: the template writes the answer's turn as it will stand in the next prompt, which
is seldom what the model wrote. Behind the user's next message most templates drop earlier thoughts,
so all that the model has said since the message before is computed anew. Behind a summary the
client has said what replaces the conversation.
The engine computes it after all calls, and its context is freed at once, so that it stays in the
cache only as long as nothing needs the room.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from weftline.contract.calls import ANSWER, LATER
from weftline.contract.errors import InvalidRequest
from weftline.contract.tools import CalledFunction, ToolCall
from weftline_server.graph.growth import TakesItems
from weftline_server.graph.primitive import Primitive
from weftline_server.lowering.kinds.prompt import PromptBody
from weftline_server.lowering.result_values import thinking_of
from weftline_server.prompt.answer import message_of
from weftline_server.prompt.answer_parser import AnswerParser
from weftline_server.prompt.render import PromptBefore, RenderedMessage, render
from weftline_server.prompt.thinking_block import Thinking
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
        """An output has its value. The session may send what follows."""
        body, step = primitive.body, session.primitives[primitive.id].step
        if not self._is_on or not isinstance(body, PromptBody) or not _may_be_followed(body, value):
            return
        if isinstance(body, TakesItems) or not body.is_last:
            return
        if not session.stays or step is None or step.engine is None:
            return
        prompter = self._prompts.prompter(primitive.resource)
        if prompter.tokenizer is not None:
            apart = body.call.separate_reasoning
            thinking = Thinking.NONE if apart else thinking_of(body.call, body.output, prompter)
            told = _answer(value, thinking, "".join(step.thoughts))
            self._spawn(session, self._fill(session, primitive, told, step.engine))

    async def _fill(
        self, session: ServerSession, primitive: Primitive, answer: AnsweredTurn, engine: str
    ) -> None:
        prompter = self._prompts.prompter(primitive.resource)
        body = primitive.body
        assert isinstance(body, PromptBody), "asked before"
        if body.call.compacts_to:
            prompt = compacted_prompt(body, answer)
        else:
            before = known_before(session, primitive, HOLE)
            if not answer.calls and not _drops_thoughts(before, answer):
                return
            prompt = next_prompt(before, answer)
        loop = asyncio.get_running_loop()
        try:
            ids = await loop.run_in_executor(None, prompter.stable_prefix, prompt, HOLE, session.id)
        except InvalidRequest as error:
            log.debug("the template refuses the turn after %s: %s", primitive.id, error)
            return
        if session.ended is None and MIN_TOKENS <= len(ids) < prompter.description.context_limit:
            op = self._prompts.fill(session, primitive, ids)
            self._dispatcher.fill(engine, primitive.resource, op)


@dataclass(frozen=True, slots=True)
class AnsweredTurn:
    """What an assistant's message has of an answer."""

    said: str
    calls: tuple[ToolCall, ...] = ()
    thoughts: str = ""


def _may_be_followed(body: PromptBody, value: object) -> bool:
    """Whether the prompt that follows this answer may be known."""
    if body.call.compacts_to:
        return not _calls_of(value) and bool(_said(value).strip())
    return isinstance(value, dict | str) and not body.output.transforms


def _drops_thoughts(before: PromptBefore, answer: AnsweredTurn) -> bool:
    """Whether an answer without calls ends a turn of a conversation with thoughts. An answer
    without a conversation before it may be a step of a chain, which nobody continues."""
    earlier = [turn for turn in before.messages or () if turn.role == "assistant"]
    is_conversation = before.messages is not None and bool(earlier or before.tools)
    return is_conversation and bool(answer.thoughts or any(turn.thoughts for turn in earlier))


def _said(value: object) -> str:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def _calls_of(value: object) -> tuple[ToolCall, ...]:
    found = value.get("tool_calls", ()) if isinstance(value, dict) else ()
    return tuple(
        ToolCall(id=one["id"], function=CalledFunction(**one["function"])) for one in found
    )


def _answer(value: object, thinking: Thinking, apart: str) -> AnsweredTurn:
    """The answer in this value. Its thoughts are in a message, in a text, or `apart` from it."""
    if isinstance(value, str):
        value = message_of(AnswerParser(thinking, None), value)
    thoughts = value.get("reasoning_content", apart) if isinstance(value, dict) else apart
    return AnsweredTurn(_said(value), _calls_of(value), thoughts)


def compacted_prompt(body: PromptBody, answer: AnsweredTurn) -> PromptBefore:
    """The prompt that replaces the summarised conversation, with HOLE where the client does not
    know it yet."""
    call = replace(body.call, prompt=body.call.compacts_to)
    return render(call, body.output, {ANSWER: answer.said.strip(), LATER: HOLE})


def next_prompt(prompt: PromptBefore, answer: AnsweredTurn) -> PromptBefore:
    """The prompt behind an answer, with HOLE where the first result or the user's message
    begins."""
    assert prompt.messages is not None, "only a chat goes on"
    said = prompt.begun + answer.said
    told = RenderedMessage("assistant", said, tool_calls=answer.calls, thoughts=answer.thoughts)
    follows = RenderedMessage("user", HOLE)
    if answer.calls:
        follows = RenderedMessage("tool", HOLE, tool_call_id=answer.calls[0].id)
    return replace(prompt, messages=(*prompt.messages, told, follows), begun="")
