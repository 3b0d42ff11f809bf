"""The requests of one LLM. The answer comes from a graph that was sent ahead, or from a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

from llama_index.llms.weftline.ahead.request_claims import SentCalls, request_key
from llama_index.llms.weftline.model.openai_messages import CHAT, strip_to_text
from llama_index.llms.weftline.trace.span_handler import SPANS

from weftline.errors import EngineFailed, Timeout, UnknownModel, WeftlineError
from weftline.kit import BACKGROUND, CLIENTS, Relay, Request, Result, Server, awaited
from weftline.kit.faults import raising_ours, traceback_of
from weftline.kit.openai import Chunks, finish_reason, message, usage
from weftline.kit.run_sessions import OURS
from weftline.watching import Value

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: its route and body, and the result of the planned call that is equal to it.

    `request` is the data beside the messages that it sends (provenance), or None.
    """

    route: str
    body: dict[str, Any]
    planned: Result | None
    request: Request | None


class Asking:
    """Sends requests to one server, and knows the graphs that were sent ahead to it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.graphs: list[SentCalls] = []
        self._lock = Lock()
        self._limits: dict[str, int] = {}
        self._has_warned = False

    def context_limit(self, model: str) -> int:
        """The context limit of the model, in tokens. The server is asked once.

        Raises UnknownModel and ConnectionFailed.
        """
        if not self._limits:
            self._limits = BACKGROUND.run(self._find_limits())
        if model == "default":
            return next(iter(self._limits.values()))
        if model not in self._limits:
            raise UnknownModel(f"no model {model!r} is served: one of {', '.join(self._limits)} is")
        return self._limits[model]

    async def _find_limits(self) -> dict[str, int]:
        with raising_ours():
            client = await CLIENTS.of(self.server)
            return await client.context_limits()

    def served_name(self, model: str) -> str:
        """The model's name at the server, or `default` while it is not known."""
        return next(iter(self._limits), model) if model == "default" else model

    def __deepcopy__(self, memo: object) -> Asking:
        """This object itself, so that a copy of an LLM shares its running graphs."""
        return self

    def add(self, graph: SentCalls) -> None:
        """From now on, requests that equal one of the graph's calls get its answers."""
        with self._lock:
            self.graphs.append(graph)

    def drop(self, graph: SentCalls) -> None:
        """No more requests get their answers from this graph."""
        with self._lock:
            self.graphs.remove(graph)

    def ask(
        self, llm: Any, route: str, prompt: Mapping[str, Any], fields: Mapping[str, Any]
    ) -> Asked:
        """Prepare a request for the running code."""
        if route == CHAT:
            messages = strip_to_text(prompt["messages"]) or ()
        else:
            messages = (("", prompt["prompt"]),)
        planned = self._claim(messages, fields) if messages and self.graphs else None
        request = None
        if route == CHAT and planned is None and llm.provenance:
            request = SPANS.account(llm, prompt["messages"])
        return Asked(route, {**prompt, **fields}, planned, request)

    def _claim(
        self, messages: tuple[tuple[str, str], ...], fields: Mapping[str, Any]
    ) -> Result | None:
        key = request_key(messages, fields)
        with self._lock:
            graphs = list(self.graphs)
        found = (graph.claim(key) for graph in graphs)
        return next((planned for planned in found if planned is not None), None)

    def answer(self, asked: Asked) -> dict[str, Any]:
        """Wait for the complete answer."""
        return BACKGROUND.run(self._answer(asked))

    async def aanswer(self, asked: Asked) -> dict[str, Any]:
        """Await the complete answer. Cancelling this cancels the request."""
        return await asyncio.wrap_future(BACKGROUND.start(self._answer(asked)))

    def chunks(self, asked: Asked) -> Relay[dict[str, Any]]:
        """The answer in chunks, for a loop or an async loop."""
        return Relay(self._chunks(asked))

    async def _answer(self, asked: Asked) -> dict[str, Any]:
        if asked.planned is not None:
            try:
                value = await self._value(asked.planned)
            except (EngineFailed, Timeout):
                raise  # the call was equal to the request, so the request would fail, too
            except WeftlineError as error:
                self.warn(error)
            else:
                return _answer_of(asked, value)
        with raising_ours(), _telling(asked) as request:
            client = await CLIENTS.of(self.server)
            answer = await client.openai(asked.route, _body(asked))
            _hear(request, answer)
            return answer

    async def _chunks(self, asked: Asked) -> AsyncGenerator[dict[str, Any], None]:
        if asked.planned is not None:
            made = Chunks(chat=asked.route == CHAT)
            try:
                if "tools" not in asked.body:
                    async for text in asked.planned.text.aread(self.server.timeout_s):
                        for chunk in made.text(text, asked.planned.thoughts):
                            yield chunk
                for chunk in made.end(await self._value(asked.planned)):
                    yield chunk
                return
            except TimeoutError:
                raise self._too_late() from None
            except (EngineFailed, Timeout):
                raise
            except WeftlineError as error:
                if made.has_begun:
                    raise  # the caller already has the first part
                self.warn(error)
        with raising_ours(), _telling(asked) as request:
            client = await CLIENTS.of(self.server)
            body = {**_body(asked), "stream_options": {"include_usage": True}}
            async with aclosing(client.openai_stream(asked.route, body)) as chunks:
                async for chunk in chunks:
                    _hear(request, chunk)
                    yield chunk

    async def _value(self, planned: Result) -> Value:
        """The value of a call that was sent ahead. Raises Timeout after the LLM's `timeout`."""
        try:
            return await awaited(planned.value, self.server.timeout_s)
        except TimeoutError:
            raise self._too_late() from None

    def _too_late(self) -> Timeout:
        return Timeout(f"no answer came within {self.server.timeout_s:g} s: set a longer timeout")

    def warn(self, error: Exception) -> None:
        """Log that calls are sent one by one, and why. Only the first message is a warning.

        An error that is no answer of the server comes with its traceback.
        """
        level = logging.DEBUG if self._has_warned else logging.WARNING
        self._has_warned = True
        text = "a graph sent ahead has failed, so its calls go one by one: %s"
        log.log(level, text, error, exc_info=traceback_of(error))


@contextmanager
def _telling(asked: Asked) -> Iterator[Request | None]:
    """Send a request inside this block.

    The answer is noted at the end, even an incomplete one.
    """
    if asked.request is None:
        yield None
        return
    with asked.request as request:
        try:
            yield request
        finally:
            request.finish()


def _body(asked: Asked) -> dict[str, Any]:
    if asked.request is None:
        return asked.body
    return {**asked.body, OURS: {**(asked.request.said or {}), **asked.body.get(OURS, {})}}


def _hear(request: Request | None, answer: Mapping[str, Any]) -> None:
    """Note an answer, or a chunk of one."""
    if request is not None:
        said = [c.get("message") or c.get("delta") or c for c in answer["choices"]]
        text = "".join(one.get("content") or one.get("text") or "" for one in said)
        called = (call.get("id") for one in said for call in one.get("tool_calls") or ())
        request.hear(answer.get(OURS), text, called)


def _answer_of(asked: Asked, value: Value) -> dict[str, Any]:
    """A value of a graph as the response to an ordinary request."""
    content: dict[str, Any] = {"message": message(value.value, value.facts)}
    if asked.route != CHAT and not isinstance(value.value, dict):
        content = {"text": value.value}
    reason = finish_reason(value.value, value.facts["finish_reason"])
    choice = {"index": 0, **content, "finish_reason": reason}
    return {"model": asked.body.get("model"), "choices": [choice], "usage": usage(value.facts)}
