"""Helpers for tests of provenance: two models on one server, and requests as short lines."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.prompt_values import PromptValue

from langchain_weftline import ChatWeftline
from tests.integrations.recording import Recording

CHAT = "/v1/chat/completions"


@dataclass
class Watched:
    """A model whose requests are recorded."""

    llm: ChatWeftline
    recording: Recording

    def run(self, program: Callable[[ChatWeftline], Any]) -> tuple[Any, list[str]]:
        """The result of `program`, and the requests that it sent, a line for each call."""
        before = len(self.recording.bodies(CHAT))
        result = result_of(program, self.llm)
        return result, [line(body) for body in self.recording.bodies(CHAT)[before:]]


def result_of(program: Callable[[ChatWeftline], Any], llm: ChatWeftline) -> Any:
    """The result of `program` with `llm`, awaited if needed, without ids and times."""
    result = program(llm)
    if inspect.isawaitable(result):
        result = asyncio.run(_awaited(result))
    return plain(result)


async def _awaited(result: Any) -> Any:
    return await result


def plain(value: Any) -> Any:
    """`value` with messages as their types, contents and usage, which are the same in every run."""
    if isinstance(value, BaseMessage):
        return type(value).__name__, value.content, getattr(value, "usage_metadata", None)
    if isinstance(value, PromptValue):
        return plain(value.to_messages())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in VOLATILE}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


VOLATILE = ("run_id", "parent_ids", "metadata", "id")


def line(body: dict[str, Any]) -> str:
    """One request: `name| role: text {name=value} {name<=text of an earlier answer} | role: …`."""
    said = body.get("weftline") or {}
    messages = said.get("messages") or [None] * len(body["messages"])
    shown = []
    for message, pieces in zip(body["messages"], messages, strict=True):
        text = message["content"]
        if pieces is not None:
            assert "".join(piece["text"] for piece in pieces) == text
            text = "".join(map(_piece, pieces))
        shown.append(f"{message['role']}: {text}")
    name = said.get("name", "chat")
    return " | ".join(([] if name == "chat" else [f"[{name}]"]) + shown)


def _piece(piece: dict[str, str]) -> str:
    if not piece.keys() - {"text"}:
        return piece["text"]
    sign = "<=" if "from_var" in piece else "="
    return f"{{{piece.get('name', '')}{sign}{piece['text']}}}"
