"""Calls that were sent ahead of a run, and the model calls of the run that use their results.

LangChain runs the chain. A model call uses the result of a call with exactly the same prompt and
parameters. Each result is used once. Any other call goes to the server as usual.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any, NoReturn
from uuid import UUID

from langchain_core.messages import BaseMessage
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from langchain_weftline.ahead.chain_claims import CallKey, Key, claims_of, watched
from langchain_weftline.ahead.handler_lookup import Begun, begun
from langchain_weftline.lower.drafts import CallDraft, StepDraft, raw_calls
from langchain_weftline.lower.prompt_templates import messages_as_turns, text_of
from langchain_weftline.lower.symbols import CannotCompile
from langchain_weftline.model.answers import completion_of
from langchain_weftline.model.call_sampling import call_options
from langchain_weftline.model.failures import as_model
from langchain_weftline.model.forms import Form
from weftline.contract.protocol import Call
from weftline.errors import ClientFailed, Timeout, WeftlineError
from weftline.kit import Piece, Result, RunFeed, RunSession, Server, awaited
from weftline.kit.openai import Chunks
from weftline.sdk.http import OnGraph
from weftline.watching import Failed, Value

log = logging.getLogger(__name__)

# These options say how an answer is sent. They do not change its content.
_STREAMING = frozenset({"stream", "stream_usage", "stream_options"})


class Ahead(Begun):
    """The calls and steps that were sent ahead for one run.

    An Ahead is a callback handler, so that models and vector stores find it. It ignores all events.
    With `joins` the calls belong to that session of a surrounding run.
    """

    def __init__(
        self,
        server: Server,
        drafts: Sequence[CallDraft],
        steps: Sequence[StepDraft] = (),
        *,
        parts: bool,
        on_graph: OnGraph | None = None,
        joins: RunSession | None = None,
        name: str = "",
    ) -> None:
        self.is_over = False
        self._has_warned = False
        self._joins = joins
        if joins is None:
            self._feed = RunFeed(server, self._settled, run_name=name)
        else:
            self._feed = RunFeed(server, self._settled, joins.alias, joins.name)
        calls = raw_calls(drafts)
        # Sent once, because a call without a result is made by the model, with the model's retries.
        self._feed.send(
            calls if joins is None else [_traced(call, joins) for call in calls],
            watched(drafts, steps),
            steps=[step for draft in steps for step in draft.steps()],
            parts=parts,
            graph=on_graph is not None,
            close=joins is None,
            max_retries=0,
        )
        if joins is not None:
            joins.join(self._feed)
        self._claims = claims_of(drafts, steps, server, self._feed.results)
        if on_graph is not None:
            context = copy_context()
            self._feed.show_graph(lambda graph: context.run(on_graph, graph))

    def _settled(self, event: Value | Failed) -> None:
        """Note an answer, so that later prompts of the run that contain it name its variable."""
        if self._joins is not None and isinstance(event, Value) and isinstance(event.value, str):
            self._joins.answered(event.variable, event.value)

    def of(self, parent: UUID | None) -> Iterable[Ahead]:
        return (self,)

    def take(self, key: Key) -> Result | None:
        """The unused result of a call or a search with this key, or None."""
        planned = self._claims.claim(key)
        return None if planned is None else planned.result

    def note(self, error: BaseException) -> None:
        """Log why a model makes a call itself. It meets the same error then, or has an answer.

        What ended the submit in this process is one warning, with its traceback.
        """
        is_new = isinstance(error, ClientFailed) and not self._has_warned
        self._has_warned |= is_new
        level = logging.WARNING if is_new else logging.DEBUG
        log.log(level, "a call sent ahead has no answer: %r", error, exc_info=error)

    def taken(self, model: Any, key: CallKey) -> Taken | None:
        """The result of a call of `model`, for the model; None if there is none."""
        result = self.take(key)
        if result is None:
            return None
        seconds = model.patience.seconds
        return Taken(
            self,
            result,
            None if seconds == math.inf else seconds,
            key.options.form,
            is_whole=key.options.toolbox is not None,
        )

    def close(self) -> None:
        """End the run. The server cancels the calls that it did not use."""
        self.is_over = True
        self._feed.close()


def _traced(call: Call, session: RunSession) -> Call:
    """`call`, with the sources of those inputs that are earlier answers of the session."""
    holders = []
    for holder in call.placeholders:
        if isinstance(holder.value, str) and holder.value:
            (first, *more) = session.trace((Piece(holder.value, holder.name),))
            if not more and first.from_var is not None:
                holder = replace(holder, from_var=first.from_var)
        holders.append(holder)
    return replace(call, placeholders=tuple(holders))


@dataclass(frozen=True, slots=True)
class Taken:
    """A result that a model call has claimed, in the shapes of OpenAI's responses.

    The answer is None, or an empty stream, if the model must make the call itself: the submit was
    refused, the server ended, or `timeout_s` seconds passed. An answer that `is_whole` is a message
    with tool calls: the text that the model writes is not what the message says.
    """

    run: Ahead
    result: Result
    timeout_s: float | None
    form: Form | None = None
    is_whole: bool = False

    def answer(self) -> ChatCompletion | None:
        try:
            value = self.result.value.result(self.timeout_s)
        except (WeftlineError, TimeoutError, CancelledError) as error:
            self.run.note(error)
            return None
        return self._read(value)

    async def aanswer(self) -> ChatCompletion | None:
        try:
            value = await awaited(self.result.value, self.timeout_s)
        except (WeftlineError, TimeoutError) as error:
            self.run.note(error)
            return None
        return self._read(value)

    def _read(self, value: Value) -> ChatCompletion:
        answer = completion_of(value)
        return answer if self.form is None else self.form.read(answer)

    def chunks(self) -> Generator[dict[str, Any], None, None]:
        """The chunks of a chat completion."""
        chunks = Chunks()
        try:
            for text in () if self.is_whole else self.result.text.read(self.timeout_s):
                yield from map(_as_model, chunks.text(text, self.result.thoughts))
            value = self.result.value.result(self.timeout_s)
            yield from map(_as_model, chunks.end(value))
        except (WeftlineError, TimeoutError, CancelledError) as error:
            if chunks.has_begun:
                self._break_off(error)
            self.run.note(error)

    async def achunks(self) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a chat completion."""
        chunks = Chunks()
        try:
            if not self.is_whole:
                async for text in self.result.text.aread(self.timeout_s):
                    for chunk in chunks.text(text, self.result.thoughts):
                        yield _as_model(chunk)
            for chunk in chunks.end(await awaited(self.result.value, self.timeout_s)):
                yield _as_model(chunk)
        except (WeftlineError, TimeoutError) as error:
            if self.run.is_over:  # LangChain leaves a task that reads behind a closed stream
                raise asyncio.CancelledError from error
            if chunks.has_begun:
                self._break_off(error)
            self.run.note(error)

    def _break_off(self, error: BaseException) -> NoReturn:
        """Raise the error of a model whose stream breaks off."""
        if isinstance(error, TimeoutError):
            error = Timeout("the next part of the answer did not come in time")
        made = as_model(error, streamed=True) if isinstance(error, WeftlineError) else error
        raise made from made.__cause__


def _as_model(chunk: dict[str, Any]) -> dict[str, Any]:
    """A chunk as the openai client would have given it to the model."""
    return ChatCompletionChunk.model_validate(chunk).model_dump()


def take(
    model: Any,
    messages: Sequence[BaseMessage],
    options: Mapping[str, Any],
    run_manager: Any,
    *,
    streams: bool = False,
) -> Taken | None:
    """The result that was made ahead for this call of `model`, if there is one."""
    runs = list(begun(run_manager))
    if not runs or (streams and "response_format" in options):
        return None  # the openai client itself must read the stream of an answer with a form
    try:
        turns = tuple(text_of(messages_as_turns(list(messages), model)))
        asked = call_options(model, sent_options(options))
    except CannotCompile:
        return None
    key = CallKey(turns, asked, model.server)
    found = (run.taken(model, key) for run in reversed(runs))  # the innermost first
    return next((taken for taken in found if taken is not None), None)


def sent_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a call without those that say how its answer is sent."""
    return {name: value for name, value in options.items() if name not in _STREAMING}
