"""The texts of a span, as the conventions for generative AI have them: messages, tools, values."""

from __future__ import annotations

import json
from typing import Any

from weftline.contract.protocol import Call
from weftline_server.observe.client_tools import ClientToolRun
from weftline_server.observe.edges import Links
from weftline_server.observe.glance import answered, asked
from weftline_server.observe.prompt_view import result_of, segments_of
from weftline_server.session.session import ServerSession
from weftline_server.session.task import TaskRun

SHOWN_CHARS = 20_000  # of one attribute

Texts = dict[str, str]


def call_texts(session: ServerSession, run: TaskRun, call: Call) -> Texts:
    """The messages before a call's last output, and this output."""
    segments = segments_of(session, call, run.task.writes)
    messages: list[dict[str, Any]] = []
    said = ""
    for segment in segments:
        role, text = segment["role"] or "user", segment["text"]
        if segment["kind"] == "output":
            said = text
        elif messages and messages[-1]["role"] == role:
            messages[-1]["parts"][0]["content"] += text
        else:
            messages.append({"role": role, "parts": [{"type": "text", "content": text}]})
    answer = {"role": "assistant", "parts": [{"type": "text", "content": said}]}
    return {
        "gen_ai.input.messages": _json(messages),
        "gen_ai.output.messages": _json([answer]),
    }


def tool_texts(session: ServerSession, tool: ClientToolRun) -> Texts:
    """The arguments of a tool that the client ran, and its result."""
    return {
        "gen_ai.tool.call.arguments": tool.arguments[:SHOWN_CHARS],
        "gen_ai.tool.call.result": result_of(session, tool)[:SHOWN_CHARS],
    }


def session_texts(session: ServerSession, links: Links) -> Texts:
    """What the session was asked, and what it has answered."""
    return {"input.value": asked(session), "output.value": answered(session, links)[1]}


def _json(messages: list[dict[str, Any]]) -> str:
    """The messages as JSON. Long texts are cut, so that the JSON stays whole."""
    most = SHOWN_CHARS // max(1, len(messages))
    for message in messages:
        for part in message["parts"]:
            part["content"] = part["content"][:most]
    return json.dumps(messages, ensure_ascii=False)
