"""Answers that ChatWeftline streams internally, so that tools can start while they are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from openai import APIConnectionError
from openai.types.chat import ChatCompletion

from langchain_weftline.model.message_thoughts import FIELD
from langchain_weftline.model.transport import httpx
from weftline.kit.early_tools import EarlyTurn
from weftline.kit.run_sessions import OURS


class StreamedAnswer:
    """Joins the chunks of an answer into the body that a request without a stream gets."""

    def __init__(self, turn: EarlyTurn[Any]) -> None:
        self._turn = turn
        self._head: dict[str, Any] = {}
        self._message: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
        self._calls: dict[int, dict[str, Any]] = {}
        self._logprobs: dict[str, Any] | None = None
        self._finish: str | None = None

    @staticmethod
    def hear(chunk: Mapping[str, Any]) -> None:
        """Add a chunk, if the current model call joins its chunks."""
        if (answer := _ANSWER.get()) is not None:
            answer._take(chunk)

    def _take(self, chunk: Mapping[str, Any]) -> None:
        more = ("id", "created", "model", "system_fingerprint", "service_tier", "usage", OURS)
        self._head |= {key: chunk[key] for key in more if chunk.get(key) is not None}
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            self._message["content"] += delta.get("content") or ""
            if thoughts := delta.get(FIELD):
                self._message[FIELD] = self._message.get(FIELD, "") + thoughts
            for part in delta.get("tool_calls") or ():
                self._take_call(part)
            if (logprobs := choice.get("logprobs")) is not None:
                self._take_logprobs(logprobs)
            self._finish = choice.get("finish_reason") or self._finish

    def _take_call(self, part: Mapping[str, Any]) -> None:
        index, said = part.get("index") or 0, part.get("function") or {}
        function = {"name": "", "arguments": ""}
        call = self._calls.setdefault(index, {"id": "", "type": "function", "function": function})
        call["id"] = part.get("id") or call["id"]
        for key in function:
            call["function"][key] += said.get(key) or ""
        self._turn.see(index, part.get("id"), said.get("name"), said.get("arguments"))

    def _take_logprobs(self, more: Mapping[str, Any]) -> None:
        if self._logprobs is None:
            self._logprobs = {"content": [], "refusal": None}
        self._logprobs["content"] += more.get("content") or []

    def completion(self) -> ChatCompletion:
        message = self._message
        if self._calls:
            calls = [self._calls[index] for index in sorted(self._calls)]
            message = {**message, "content": message["content"] or None, "tool_calls": calls}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self._logprobs,
            "finish_reason": self._finish,
        }
        # The answer is not validated, because the openai client does not validate it either.
        body = {**self._head, "object": "chat.completion", "choices": [choice]}
        return ChatCompletion.model_validate(body)


_ANSWER: ContextVar[StreamedAnswer | None] = ContextVar("weftline_streamed", default=None)


@contextmanager
def streamed_answer(turn: EarlyTurn[Any], retried: bool) -> Iterator[StreamedAnswer]:
    """An answer that collects the chunks of the model call inside the block.

    If the connection breaks, the block ends without an error, and the caller repeats the request
    without a stream. The openai client repeats only requests without a stream.
    """
    answer = StreamedAnswer(turn)
    token = _ANSWER.set(answer)
    try:
        yield answer
    except (APIConnectionError, httpx.TransportError):
        if not retried:
            raise
    finally:
        _ANSWER.reset(token)


def is_chunked(model: Any, options: Mapping[str, Any]) -> bool:
    """Whether the chunks of a streamed call have everything that its unstreamed answer has."""
    tells_more = "response_format" in options or model.include_response_headers
    tells_more |= model.is_on_responses(options)
    return not tells_more and (options.get("n") or model.n or 1) == 1


def see_chunk(turn: EarlyTurn[Any] | None, chunk: ChatGenerationChunk) -> None:
    """Show `turn` the parts of calls in a chunk that a streamed model call yields."""
    if turn is not None and isinstance(chunk.message, AIMessageChunk):
        for part in chunk.message.tool_call_chunks:
            turn.see(part["index"] or 0, part["id"], part["name"], part["args"])
