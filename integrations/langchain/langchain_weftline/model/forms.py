"""The form that an answer must have (OpenAI's `response_format`), for calls in a graph.

The openai client turns a class into a schema, and an answer into an object of that class. Here it
does both on a transport that sends nothing. So schemas, objects and errors are the same as its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import openai
from openai.types.chat import ChatCompletion

from langchain_weftline.model.transport import Answering, httpx

_answer: ContextVar[str] = ContextVar("weftline_answer")
_asked: ContextVar[list[Any]] = ContextVar("weftline_asked")


@dataclass(frozen=True, slots=True)
class Form:
    """A `response_format`. `kind` is the class or the JSON that LangChain received.

    `said` is the JSON that the openai client sends for it. It is text, so that equal forms have
    equal hashes. Forms whose fields have another order differ: a model writes them in that order.
    """

    said: str
    kind: Any = None

    @staticmethod
    def of(payload: Mapping[str, Any]) -> Form | None:
        """The form that a request asks for, or None. Raises ValueError for an unknown one."""
        kind = payload.get("response_format")
        if kind is None:
            return None
        said = _of_class(kind) if isinstance(kind, type) else kind
        if not isinstance(said, dict) or said.get("type") not in _TYPES:
            raise ValueError("it is none of json_schema, json_object and text")
        kept = kind if isinstance(kind, type) else None
        return Form(json.dumps(said, default=repr), kept)

    @property
    def constraint(self) -> dict[str, Any] | None:
        """The constraint that the server makes of this `response_format`; None for free text."""
        said = json.loads(self.said)
        if said["type"] == "text":
            return None
        schema = (said.get("json_schema") or {}).get("schema", {"type": "object"})
        return {"json_schema": schema}

    def read(self, answer: ChatCompletion) -> ChatCompletion:
        """`answer` as the openai client returns it, with the object that it holds.

        Raises what the client raises for an answer that was cut off or does not fit.
        """
        kind = self.kind or json.loads(self.said)
        said = _answer.set(answer.model_dump_json())
        try:
            return _client().chat.completions.parse(
                messages=[], model="default", response_format=kind
            )
        finally:
            _answer.reset(said)


_TYPES = frozenset({"text", "json_object", "json_schema"})
# A response that the client can read. It is used where only the request matters.
_EMPTY = '{"id": "", "object": "chat.completion", "created": 0, "model": "", "choices": []}'


@lru_cache(maxsize=256)
def _of_class(kind: type) -> Any:
    """The `response_format` that the openai client sends for a class."""
    asked: list[Any] = []
    token, said = _asked.set(asked), _answer.set(_EMPTY)
    try:
        _client().chat.completions.parse(messages=[], model="default", response_format=kind)
    finally:
        _answer.reset(said)
        _asked.reset(token)
    return asked[0]["response_format"]


def _respond(request: Any) -> Any:
    asked = _asked.get(None)
    if asked is not None:
        asked.append(json.loads(request.content))
    return httpx.Response(200, text=_answer.get(), headers={"Content-Type": "application/json"})


@cache
def _client() -> openai.OpenAI:
    http: Any = Answering(_respond)
    return openai.OpenAI(
        base_url="http://weftline/v1",
        api_key="none",
        http_client=http,
        max_retries=0,
    )
