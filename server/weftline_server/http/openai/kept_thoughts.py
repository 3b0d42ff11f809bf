"""Thoughts before calls of tools, which are put back where a client sends its turn without them.

Most templates write a model's thoughts while its tools run, and most clients drop them. They are
kept by tenant, by model and by the id of the turn's first call, which the server has made up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weftline_server.http.openai.requests import ChatMessage, ChatRequest
from weftline_server.session.session import ServerSession

MOST_TENANTS = 256
# Of one tenant: turns, and characters of their thoughts. An hour of an agent is some 500 turns with
# 1,000 characters each.
MOST_TURNS = 8192
MOST_CHARS = 8 << 20


class KeptThoughts:
    """The newest thoughts of each tenant. Those of other turns, models and tenants are never put
    back."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, _Turns] = OrderedDict()

    def keep(self, tenant: str, model: str, message: Mapping[str, Any]) -> None:
        """Keep the thoughts of an answer that calls tools."""
        thoughts, calls = message.get("reasoning_content"), message.get("tool_calls")
        if not thoughts or not calls:
            return
        turns = self._tenants[tenant] = self._tenants.pop(tenant, _Turns())
        if len(self._tenants) > MOST_TENANTS:
            self._tenants.popitem(last=False)
        turns.put((model, calls[0]["id"]), thoughts)

    def adopt(self, session: ServerSession) -> None:
        """Keep the thoughts of a session that an earlier run of the server had, or another one."""
        for task in session.graph.tasks.values():
            value = session.variable(task.writes[0]).value if task.call and task.writes else None
            if isinstance(value, dict):
                self.keep(session.tenant, task.resource, value)

    def restored(self, tenant: str, model: str, body: ChatRequest) -> tuple[ChatRequest, int]:
        """The request with the thoughts of its turns, and how many turns they were put back in. A
        turn that says that it has none, with an empty text, gets none."""
        turns = self._tenants.get(tenant)
        if turns is None:
            return body, 0
        found = {
            index: thoughts
            for index, message in enumerate(body.messages)
            if _lacks(message) and (thoughts := turns.get((model, _first_id(message))))
        }
        if not found:
            return body, 0
        messages = list(body.messages)
        for index, thoughts in found.items():
            messages[index] = replace(messages[index], reasoning_content=thoughts)
        return replace(body, messages=tuple(messages)), len(found)


class _Turns:
    """The thoughts of one tenant's turns, by model and call."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._chars = 0

    def put(self, key: tuple[str, str], thoughts: str) -> None:
        self._chars += len(thoughts) - len(self._found.pop(key, ""))
        self._found[key] = thoughts
        while len(self._found) > MOST_TURNS or self._chars > MOST_CHARS:
            self._chars -= len(self._found.popitem(last=False)[1])

    def get(self, key: tuple[str, str]) -> str | None:
        if (thoughts := self._found.get(key)) is not None:
            self._found.move_to_end(key)
        return thoughts


def _lacks(message: ChatMessage) -> bool:
    has_said = message.reasoning_content is not None or message.reasoning is not None
    return bool(message.tool_calls) and not has_said and not message.thoughts


def _first_id(message: ChatMessage) -> str:
    assert message.tool_calls, "it calls tools"
    return message.tool_calls[0].id
