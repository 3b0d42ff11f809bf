"""Requests of one LLM: each is answered by a graph that was sent ahead, or by the server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from threading import Lock
from typing import Any

from llama_index.llms.weftline.ahead import Ahead, Planned, Server, request_key
from llama_index.llms.weftline.runs import Said
from llama_index.llms.weftline.spans import SPANS
from llama_index.llms.weftline.wire import CHAT, strip_to_text

from weftline.background import BACKGROUND, Relay
from weftline.errors import UnknownModel, WeftlineError
from weftline.watching import Value

log = logging.getLogger(__name__)

OURS = "weftline"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: its route and body, the planned call that asks the same, and what it says."""

    route: str
    body: dict[str, Any]
    planned: Planned | None
    said: Said | None


class Asking:
    """Sends requests to one server, and knows the graphs that were sent ahead to it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.graphs: list[Ahead] = []
        self._lock = Lock()
        self._limits: dict[str, int] = {}
        self._has_warned = False

    def context_limit(self, model: str) -> int:
        """Tokens of the model's context, asked once. Raises UnknownModel, ConnectionFailed."""
        if not self._limits:
            self._limits = BACKGROUND.run(self._find_limits())
        if model == "default":
            return next(iter(self._limits.values()))
        if model not in self._limits:
            raise UnknownModel(f"no model {model!r} is served: one of {', '.join(self._limits)} is")
        return self._limits[model]

    async def _find_limits(self) -> dict[str, int]:
        client = await BACKGROUND.client(self.server.base_url, self.server.api_key)
        return await client.context_limits()

    def send_ahead(self, graph: Ahead, with_parts: bool) -> None:
        """Submit a graph; calls that ask what it holds get its answers from now on."""
        with self._lock:
            self.graphs.append(graph)
        graph.start(self.server, with_parts)

    def leave(self, graph: Ahead) -> None:
        """What LlamaIndex did with the graph's calls is over."""
        with self._lock:
            self.graphs.remove(graph)
        graph.leave()

    def ask(
        self, llm: Any, route: str, prompt: Mapping[str, Any], fields: Mapping[str, Any]
    ) -> Asked:
        """A request of the code that runs now."""
        if route == CHAT:
            messages = strip_to_text(prompt["messages"]) or ()
        else:
            messages = (("", prompt["prompt"]),)
        planned = self._claim(messages, fields) if messages and self.graphs else None
        said = None
        if route == CHAT and planned is None and llm.provenance:
            said = SPANS.account(llm, [message["content"] for message in prompt["messages"]])
        return Asked(route, {**prompt, **fields}, planned, said)

    def _claim(
        self, messages: tuple[tuple[str, str], ...], fields: Mapping[str, Any]
    ) -> Planned | None:
        key = request_key(messages, fields)
        with self._lock:
            graphs = list(self.graphs)
        found = (graph.claim(key) for graph in graphs)
        return next((planned for planned in found if planned is not None), None)

    def answer(self, asked: Asked) -> dict[str, Any]:
        """The whole answer, waited for."""
        return BACKGROUND.run(self._answer(asked))

    async def aanswer(self, asked: Asked) -> dict[str, Any]:
        """The whole answer, awaited; being cancelled cancels the request."""
        return await asyncio.wrap_future(BACKGROUND.start(self._answer(asked)))

    def chunks(self, asked: Asked) -> Relay[dict[str, Any]]:
        """The answer in chunks, to be read in a loop of either kind."""
        return Relay(self._chunks(asked))

    async def _answer(self, asked: Asked) -> dict[str, Any]:
        if asked.planned is not None:
            try:
                value = await asyncio.shield(asyncio.wrap_future(asked.planned.value))
            except WeftlineError as error:
                self.warn(error)
            else:
                return _answer_of(asked, value)
        client = await BACKGROUND.client(self.server.base_url, self.server.api_key)
        with _Telling(asked) as telling:
            answer = await client.openai(asked.route, telling.body)
            telling.hear(answer)
            return answer

    async def _chunks(self, asked: Asked) -> AsyncGenerator[dict[str, Any], None]:
        if asked.planned is not None:
            has_begun = False
            try:
                if "tools" not in asked.body:
                    async for text in asked.planned.text:
                        has_begun = True
                        yield _chunk_of(asked, text)
                value = await asyncio.shield(asyncio.wrap_future(asked.planned.value))
                answer = _answer_of(asked, value)
                if "tools" in asked.body:
                    yield _whole(answer)
                yield {**answer, "choices": []}
                return
            except WeftlineError as error:
                if has_begun:
                    raise  # what was given cannot be taken back
                self.warn(error)
        client = await BACKGROUND.client(self.server.base_url, self.server.api_key)
        with _Telling(asked) as telling:
            body = {**telling.body, "stream_options": {"include_usage": True}}
            async with aclosing(client.openai_stream(asked.route, body)) as chunks:
                async for chunk in chunks:
                    telling.hear(chunk)
                    yield chunk

    def warn(self, error: Exception) -> None:
        """Say once that calls go one by one, and why."""
        level = logging.DEBUG if self._has_warned else logging.WARNING
        self._has_warned = True
        log.log(level, "a graph sent ahead has failed, so its calls go one by one: %s", error)


class _Telling:
    """One request on its way: what it says of itself, and what the server says of it."""

    def __init__(self, asked: Asked) -> None:
        self._said = asked.said
        self._told: Mapping[str, str] | None = None
        self._text = ""
        self.body = asked.body

    def __enter__(self) -> _Telling:
        if self._said is not None:
            self._said.begin()
            self.body = {**self.body, OURS: self._said.body}
        return self

    def __exit__(self, *exc: object) -> None:
        if self._said is not None:
            self._said.end(self._told, self._text)

    def hear(self, answer: Mapping[str, Any]) -> None:
        """An answer, or a chunk of one."""
        self._told = answer.get(OURS) or self._told
        for choice in answer["choices"]:
            said = choice.get("message") or choice.get("delta") or choice
            self._text += said.get("content") or said.get("text") or ""


def _answer_of(asked: Asked, value: Value) -> dict[str, Any]:
    """A value of a graph as the answer of an ordinary request."""
    facts, said = value.facts, value.value
    finish = facts["finish_reason"]
    if isinstance(said, dict):  # with tools the value is the assistant's message
        content: dict[str, Any] = {"message": said}
        finish = "tool_calls" if said.get("tool_calls") and finish == "stop" else finish
    elif asked.route == CHAT:
        content = {"message": {"role": "assistant", "content": said}}
    else:
        content = {"text": said}
    usage = {
        "prompt_tokens": facts["prompt_tokens"],
        "completion_tokens": facts["output_tokens"],
        "total_tokens": facts["prompt_tokens"] + facts["output_tokens"],
        "prompt_tokens_details": {"cached_tokens": facts["cached_tokens"]},
    }
    choice = {"index": 0, **content, "finish_reason": finish}
    return {"model": asked.body.get("model"), "choices": [choice], "usage": usage}


def _whole(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer as one chunk: the call of a tool is not given in parts."""
    message = answer["choices"][0]["message"]
    calls = [{**call, "index": n} for n, call in enumerate(message.get("tool_calls") or ())]
    return {**answer, "choices": [{"index": 0, "delta": {**message, "tool_calls": calls}}]}


def _chunk_of(asked: Asked, text: str) -> dict[str, Any]:
    content: dict[str, Any] = {"text": text}
    if asked.route == CHAT:
        content = {"delta": {"content": text}}
    return {"model": asked.body.get("model"), "choices": [{"index": 0, **content}]}
