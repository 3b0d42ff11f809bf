"""Calls that were sent ahead of a run, and the model calls of the run that use their results.

LangChain runs the chain. A model call uses the result of a call with exactly the same prompt and
parameters. Each result is used once. Any other call goes to the server as usual.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from langchain_core.messages import BaseMessage
from langchain_core.runnables.config import var_child_runnable_config
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from langchain_weftline.lower.graph import CallOptions, Draft, raw_calls
from langchain_weftline.lower.prompts import messages_as_turns, text_of
from langchain_weftline.lower.symbols import CannotCompile, Hole, Prompt, PromptMessage
from langchain_weftline.model.answers import completion_of
from langchain_weftline.model.failures import as_model
from langchain_weftline.model.forms import Form
from langchain_weftline.model.sampling import call_options
from langchain_weftline.trace.audience import OwnHandler
from langchain_weftline.trace.provenance import running
from weftline.adapters import Claims, Feed, Piece, Planned, Result, RunSession, Server, awaited
from weftline.adapters.openai import finish_reason, usage, whole_delta
from weftline.contract import transforms
from weftline.contract.protocol import Call
from weftline.errors import ClientFailed, Timeout, WeftlineError
from weftline.sdk.http import OnGraph
from weftline.watching import Failed, Value

log = logging.getLogger(__name__)

Key = tuple[tuple[tuple[str, str, str | None], ...], CallOptions, Server]

# These options say how an answer is sent. They do not change its content.
_STREAMING = frozenset({"stream", "stream_usage", "stream_options"})


class Begun(OwnHandler, ABC):
    """A callback handler through which a model call finds the calls that were sent ahead."""

    @abstractmethod
    def of(self, parent: UUID | None) -> Ahead | None:
        """The calls that were submitted for the run `parent`."""


class Ahead(Begun):
    """The calls that were sent ahead for one run. It is a callback handler, so that models find it.

    The handler ignores all events. With `joins` the calls belong to that session of a surrounding
    run.
    """

    def __init__(
        self,
        server: Server,
        drafts: Sequence[Draft],
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
            self._feed = Feed(server, self._settled, run_name=name)
        else:
            self._feed = Feed(server, self._settled, joins.alias, joins.name)
        calls = raw_calls(drafts)
        # Sent once, because a call without a result is made by the model, with the model's retries.
        self._feed.send(
            calls if joins is None else [_traced(call, joins) for call in calls],
            [draft.var for draft in drafts],
            parts=parts,
            graph=on_graph is not None,
            close=joins is None,
            max_retries=0,
        )
        if joins is not None:
            joins.join(self._feed)
        results = self._feed.results
        self._claims: Claims[Key] = Claims([_planned(draft, server, results) for draft in drafts])
        if on_graph is not None:
            self._feed.show_graph(on_graph)

    def _settled(self, event: Value | Failed) -> None:
        """Note an answer, so that later prompts of the run that contain it name its variable."""
        if self._joins is not None and isinstance(event, Value) and isinstance(event.value, str):
            self._joins.answered(event.variable, event.value)

    def of(self, parent: UUID | None) -> Ahead | None:
        return self

    def take(self, key: Key) -> Result | None:
        """The unused result of a call with this prompt and these parameters, or None."""
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

    def taken(self, model: Any, key: Key) -> Taken | None:
        """The result of a call of `model`, for the model; None if there is none."""
        result = self.take(key)
        if result is None:
            return None
        seconds, (_, options, _) = model.patience.seconds, key
        return Taken(self, result, None if seconds == math.inf else seconds, options.form)

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


def _planned(draft: Draft, server: Server, results: Mapping[str, Result]) -> Planned[Key]:
    reads = {hole.ref.var: results[hole.ref.var] for hole in Prompt(draft.turns).holes()}

    def key_of(values: Mapping[str, Any]) -> Key | None:
        try:
            turns = tuple(_text(turn, values) for turn in draft.turns)
        except WeftlineError:
            return None
        return turns, draft.options, server

    return Planned(results[draft.var], reads, key_of)


def _text(turn: PromptMessage, values: Mapping[str, Any]) -> tuple[str, str, str | None]:
    return turn.role, "".join(_shown(piece, values) for piece in turn.pieces()), turn.name


def _shown(piece: str | Hole, values: Mapping[str, Any]) -> str:
    if isinstance(piece, str):
        return piece
    return str(transforms.run((*piece.ref.transforms, *piece.form), values[piece.ref.var]))


@dataclass(frozen=True, slots=True)
class Taken:
    """A result that a model call has claimed, in the shapes of OpenAI's responses.

    The answer is None, or an empty stream, if the model must make the call itself: the submit was
    refused, the server ended, or `timeout_s` seconds passed.
    """

    run: Ahead
    result: Result
    timeout_s: float | None
    form: Form | None = None

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
        shape = _Chunks()
        try:
            for text in self.result.text.read(self.timeout_s):
                yield from shape.text(text)
            yield from shape.end(self.result.value.result())
        except (WeftlineError, TimeoutError, CancelledError) as error:
            shape.fail(error)
            self.run.note(error)

    async def achunks(self) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a chat completion."""
        shape = _Chunks()
        try:
            async for text in self.result.text.aread(self.timeout_s):
                for chunk in shape.text(text):
                    yield chunk
            for chunk in shape.end(self.result.value.result()):
                yield chunk
        except (WeftlineError, TimeoutError) as error:
            if self.run.is_over:  # LangChain leaves a task that reads behind a closed stream
                raise asyncio.CancelledError from error
            shape.fail(error)
            self.run.note(error)


class _Chunks:
    """Makes the chunks of one streamed completion."""

    def __init__(self) -> None:
        self._id, self._created = f"chatcmpl-{uuid.uuid4().hex}", int(time.time())
        self._began = False

    def text(self, text: str) -> Generator[dict[str, Any], None, None]:
        if not self._began:
            self._began = True
            yield self._chunk({"role": "assistant", "content": ""})
        yield self._chunk({"content": text})

    def end(self, value: Value) -> Generator[dict[str, Any], None, None]:
        if isinstance(value.value, dict):  # a message, which may have tool calls
            yield self._chunk(whole_delta(value.value))
        elif not self._began:
            yield from self.text("")
        model = value.facts["model"]
        reason = finish_reason(value.value, value.facts["finish_reason"])
        yield self._chunk({}, reason, model=model)
        yield self._chunk(None, model=model, usage=usage(value.facts))

    def fail(self, error: BaseException) -> None:
        """Raise the error of a model whose stream breaks off. Do nothing before the first chunk."""
        if not self._began:
            return
        if isinstance(error, TimeoutError):
            error = Timeout("the next part of the answer did not come in time")
        made = as_model(error, streamed=True) if isinstance(error, WeftlineError) else error
        raise made from made.__cause__

    def _chunk(
        self, delta: Mapping[str, Any] | None, reason: str | None = None, **more: Any
    ) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        chunk = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": "",
            "choices": [] if delta is None else [choice],
            **more,
        }
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
    runs = list(_begun(run_manager))
    if not runs or (streams and "response_format" in options):
        return None  # the openai client itself must read the stream of an answer with a form
    try:
        turns = tuple(text_of(messages_as_turns(list(messages), model)))
        asked = call_options(model, sent_options(options))
    except CannotCompile:
        return None
    key: Key = turns, asked, model.server
    found = (run.taken(model, key) for run in reversed(runs))  # the innermost first
    return next((taken for taken in found if taken is not None), None)


def sent_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a call without those that say how its answer is sent."""
    return {name: value for name, value in options.items() if name not in _STREAMING}


def _begun(run_manager: Any) -> Iterator[Ahead]:
    """The calls that were sent ahead for the runs around a model call, the outermost run first."""
    parent = running() if run_manager is None else run_manager.parent_run_id
    for handler in handlers_of(run_manager):
        if isinstance(handler, Begun) and (found := handler.of(parent)) is not None:
            yield found


def handlers_of(run_manager: Any) -> Sequence[Any]:
    """The handlers of a model's run. LangChain does not pass them to a model that is streamed."""
    if run_manager is not None:
        handlers: Sequence[Any] = run_manager.handlers
        return handlers
    callbacks = (var_child_runnable_config.get() or {}).get("callbacks") or ()
    return callbacks if isinstance(callbacks, list) else getattr(callbacks, "handlers", ())
