"""Calls that were submitted ahead of a run, and how a model call of the run finds its own.

The run is LangChain's. A call takes the result whose prompt and parameters are its own to the
letter, each result once; any other call goes to the server as it would have gone.
"""

from __future__ import annotations

import math
import time
import uuid
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, Self

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.runnables.config import var_child_runnable_config
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from langchain_weftline.failures import as_model
from langchain_weftline.feed import Feed, Result, awaited
from langchain_weftline.lowered import CallOptions, Draft, Server, raw_calls
from langchain_weftline.prompts import messages_as_turns, text_of
from langchain_weftline.sampling import call_options
from langchain_weftline.symbols import CannotCompile, Hole, Prompt, Turn
from langchain_weftline.toolbox import finish_reason
from weftline import transforms
from weftline.errors import Timeout, WeftlineError
from weftline.http import OnGraph
from weftline.watching import Value

Key = tuple[tuple[tuple[str, str, str | None], ...], CallOptions, Server]

# How an answer comes, which is none of the call's parameters.
_STREAMING = frozenset({"stream", "stream_usage", "stream_options"})


class Ahead(BaseCallbackHandler):
    """What was submitted for one run. It travels with the run's callbacks, and hears none."""

    ignore_llm = True
    ignore_chain = True
    ignore_chat_model = True
    ignore_retriever = True
    ignore_agent = True
    ignore_retry = True
    ignore_custom_event = True

    def __init__(
        self,
        server: Server,
        drafts: Sequence[Draft],
        *,
        parts: bool,
        on_graph: OnGraph | None = None,
    ) -> None:
        self._server = server
        self._lock = Lock()
        self._hidden = list(drafts)  # whose prompts wait for a value
        self._shown: defaultdict[Key, deque[Result]] = defaultdict(deque)
        self._feed = Feed(server)
        watch = [draft.var for draft in drafts]
        # Tried once: a call that finds no result is the model's own, with the model's retries.
        self._feed.send(
            raw_calls(drafts),
            watch,
            parts=parts,
            graph=on_graph is not None,
            close=True,
            max_retries=0,
        )
        if on_graph is not None:
            self._feed.graph.add_done_callback(partial(_pass_on, on_graph))

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def take(self, key: Key) -> Result | None:
        """The result of a call with this prompt and these parameters, if one is left."""
        with self._lock:
            self._show()
            results = self._shown.get(key)
            return results.popleft() if results else None

    def close(self) -> None:
        """The run is over: what it did not use is cancelled."""
        self._feed.close()

    def _show(self) -> None:
        """File the calls whose prompts are known by now."""
        hidden = []
        for draft in self._hidden:
            reads = [self._feed.results[hole.ref.var] for hole in Prompt(draft.turns).holes()]
            if not all(result.value.done() for result in reads):
                hidden.append(draft)
            elif (key := self._key(draft)) is not None:
                self._shown[key].append(self._feed.results[draft.var])
        self._hidden = hidden

    def _key(self, draft: Draft) -> Key | None:
        """None where an input has failed: the run meets that failure, and never this call."""
        try:
            turns = tuple(self._text(turn) for turn in draft.turns)
        except (WeftlineError, CancelledError):
            return None
        return turns, draft.options, self._server

    def _text(self, turn: Turn) -> tuple[str, str, str | None]:
        return turn.role, "".join(map(self._shown_piece, turn.pieces())), turn.name

    def _shown_piece(self, piece: str | Hole) -> str:
        if isinstance(piece, str):
            return piece
        value = self._feed.results[piece.ref.var].value.result().value
        return str(transforms.run((*piece.ref.transforms, *piece.form), value))


def _pass_on(on_graph: OnGraph, graph: Future[dict[str, Any]]) -> None:
    if graph.exception() is None:  # else the session ended before
        on_graph(graph.result())


@dataclass(frozen=True, slots=True)
class Taken:
    """A result that a model call has taken, in the shapes of OpenAI's answers.

    It fails before anything is given, as None or an empty stream, where the call has to be made
    after all: the submit was refused, the server went away, or `timeout_s` passed.
    """

    result: Result
    timeout_s: float | None

    def answer(self) -> ChatCompletion | None:
        """A chat completion."""
        try:
            return _answer(self.result.value.result(self.timeout_s))
        except (WeftlineError, TimeoutError, CancelledError):
            return None

    async def aanswer(self) -> ChatCompletion | None:
        """A chat completion."""
        try:
            return _answer(await awaited(self.result.value, self.timeout_s))
        except (WeftlineError, TimeoutError):
            return None

    def chunks(self) -> Generator[dict[str, Any], None, None]:
        """The chunks of a chat completion."""
        shape = _Chunks()
        try:
            for text in self.result.parts(self.timeout_s):
                yield from shape.text(text)
            yield from shape.end(self.result.value.result())
        except (WeftlineError, TimeoutError, CancelledError) as error:
            shape.fail(error)

    async def achunks(self) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a chat completion."""
        shape = _Chunks()
        try:
            async for text in self.result.aparts(self.timeout_s):
                for chunk in shape.text(text):
                    yield chunk
            for chunk in shape.end(self.result.value.result()):
                yield chunk
        except (WeftlineError, TimeoutError) as error:
            shape.fail(error)


class _Chunks:
    """One streamed completion."""

    def __init__(self) -> None:
        self._id, self._created = _new_id(), int(time.time())
        self._began = False

    def text(self, text: str) -> Generator[dict[str, Any], None, None]:
        if not self._began:
            self._began = True
            yield self._chunk({"role": "assistant", "content": ""})
        yield self._chunk({"content": text})

    def end(self, value: Value) -> Generator[dict[str, Any], None, None]:
        if isinstance(value.value, dict):  # a message, perhaps with calls of tools
            calls = value.value.get("tool_calls") or ()
            indexed = [{"index": index, **call} for index, call in enumerate(calls)]
            yield self._chunk({**value.value, "tool_calls": indexed})
        elif not self._began:
            yield from self.text("")
        model = value.facts["model"]
        reason = finish_reason(value.value, value.facts["finish_reason"])
        yield self._chunk({}, reason, model=model)
        yield self._chunk(None, model=model, usage=_usage(value.facts))

    def fail(self, error: BaseException) -> None:
        """Raise what the model raises whose answer breaks off; nothing if none has begun."""
        if not self._began:
            return
        if isinstance(error, TimeoutError):
            error = Timeout("the next part of the answer did not come in time")
        raise as_model(error, streamed=True) if isinstance(error, WeftlineError) else error

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


def _answer(value: Value) -> ChatCompletion:
    said = value.value
    choice = {
        "index": 0,
        "message": said if isinstance(said, dict) else {"role": "assistant", "content": said},
        "finish_reason": finish_reason(said, value.facts["finish_reason"]),
        "logprobs": None,
    }
    answer = {
        "id": _new_id(),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": value.facts["model"],
        "choices": [choice],
        "usage": _usage(value.facts),
    }
    return ChatCompletion.model_validate(answer)


def _usage(facts: Mapping[str, Any]) -> dict[str, Any]:
    prompt, output = facts["prompt_tokens"], facts["output_tokens"]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": facts["cached_tokens"]},
    }


def _new_id() -> str:
    return f"chatcmpl-{uuid.uuid4().hex}"


def take(
    model: Any, messages: Sequence[BaseMessage], options: Mapping[str, Any], run_manager: Any
) -> Taken | None:
    """The result that was made ahead for this very call of `model`, if there is one."""
    runs = [handler for handler in _handlers(run_manager) if isinstance(handler, Ahead)]
    if not runs:
        return None
    try:
        turns = tuple(text_of(messages_as_turns(list(messages), model)))
        server = Server(model.server_url, model.openai_api_key)
        asked = {name: value for name, value in options.items() if name not in _STREAMING}
        key: Key = turns, call_options(model, asked), server
    except CannotCompile:
        return None
    for run in reversed(runs):  # the innermost first
        if (result := run.take(key)) is not None:
            seconds = model.patience.seconds
            return Taken(result, None if seconds == math.inf else seconds)
    return None


def _handlers(run_manager: Any) -> Sequence[Any]:
    """The handlers of a model's run; LangChain does not tell a model that is streamed."""
    if run_manager is not None:
        handlers: Sequence[Any] = run_manager.handlers
        return handlers
    callbacks = (var_child_runnable_config.get() or {}).get("callbacks") or ()
    return callbacks if isinstance(callbacks, list) else getattr(callbacks, "handlers", ())
