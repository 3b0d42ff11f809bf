"""Whether an endpoint takes tools in the fields of its own API, learned from its answers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from weftline_engine import api
from weftline_engine.remote.openai.endpoint import Endpoint, EndpointError
from weftline_engine.remote.openai.endpoint_settings import ToolSupport

log = logging.getLogger("weftline.openai")


_S = ToolSupport
ALLOWED: Mapping[ToolSupport, frozenset[ToolSupport]] = MappingProxyType(
    {
        _S.AUTO: frozenset({_S.NATIVE, _S.TEXT}),
        _S.NATIVE: frozenset(),
        _S.TEXT: frozenset(),
    }
)

# What servers answer to fields that they do not serve: vLLM without a tool parser 400, Ollama for a
# model without tools 400, routers 404, strict servers 422, llama.cpp without --jinja 500 or 501.
_REFUSALS = frozenset({400, 404, 422, 500, 501})
_PROBE: Mapping[str, Any] = MappingProxyType(
    {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 1,
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "probe",
                    "description": "Does nothing.",
                    "parameters": {"type": "object", "properties": {}},
                },
            }
        ],
    }
)


class EndpointTools:
    """What is known of an endpoint's tools."""

    def __init__(self, support: ToolSupport, url: str) -> None:
        self.support = support
        self._url = url

    def form(self, op: api.Op) -> api.Op:
        """The op as the endpoint takes it now."""
        return in_words(op) if self.support is ToolSupport.TEXT else op

    def accepted(self, op: api.Op) -> None:
        """The endpoint answers an op with these fields. vLLM without a tool parser takes forced
        calls alone, so they say nothing."""
        chat = op.chat
        if chat is not None and chat.tools and chat.choice in (None, "auto"):
            self._learn(ToolSupport.NATIVE)

    def refused(self, error: EndpointError) -> None:
        """The endpoint has refused the fields, and answers the same chat in words."""
        if self._learn(ToolSupport.TEXT):
            log.warning(
                "the endpoint at %s takes no tools (%s): from now on they stand in the text of its "
                "prompts; --endpoint-tools text says so at the start, and native never does it",
                self._url,
                error,
            )

    async def refuses(self, endpoint: Endpoint, model: str, error: EndpointError) -> bool:
        """Whether the endpoint has refused an op for its tools. A small request with a tool tells
        that from a fault of the op, such as a schema that the endpoint does not take."""
        if self.support is ToolSupport.NATIVE or not _may_mean_tools(error):
            return False
        if self.support is ToolSupport.TEXT:  # another op has found it out meanwhile
            return True
        try:
            await endpoint.post("/chat/completions", {"model": model, **_PROBE})
        except EndpointError as refusal:
            return _may_mean_tools(refusal)
        self._learn(ToolSupport.NATIVE)
        return False

    def _learn(self, support: ToolSupport) -> bool:
        """Note what is known from now on. Return whether it is new: several ops may find it out."""
        if support not in ALLOWED[self.support]:
            return False
        self.support = support
        return True


def _may_mean_tools(error: EndpointError) -> bool:
    return error.status in _REFUSALS and error.error != "ContextTooLong"


def in_words(op: api.Op) -> api.Op:
    """The op with its tools, its calls and their results in the text of its messages."""
    if op.chat is None or op.chat.words is None:
        return op
    assert op.sampling is not None, "a generate has sampling parameters"
    sampling = replace(op.sampling, constraint=op.chat.constraint)
    return replace(op, chat=api.Chat(messages=op.chat.words), sampling=sampling)


def chat_fields(op: api.Op, thinks: bool) -> dict[str, Any]:
    """The fields of a chat's request. What a client has not set stays unset. A text is one message
    of a user. Thoughts go to an endpoint that `thinks`: OpenAI's own refuses the field."""
    chat = op.chat
    if chat is None:
        return {"messages": [{"role": "user", "content": op.text or ""}]}
    messages = chat.messages
    if not thinks:
        messages = tuple({k: one[k] for k in one if k != api.THOUGHTS} for one in messages)
    if not chat.tools:
        return {"messages": messages}
    wishes = {"tool_choice": chat.choice, "parallel_tool_calls": chat.parallel}
    wishes = {name: value for name, value in wishes.items() if value is not None}
    return {"messages": messages, "tools": chat.tools, **wishes}
