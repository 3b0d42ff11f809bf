"""An OpenAI endpoint on a port that keeps what it gets, and calls two tools before it answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

MODEL = "gpt-4o-mini"
CALLS = (("warmth", '{"town": "Rome"}'), ("warmth", '{"town": "Oslo"}'))
ANSWER = "Rome is warm."
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


def _message(body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The answer to a request, and why it ends."""
    offers = body.get("tools") and body.get("tool_choice") != "none"
    if not offers or body["messages"][-1]["role"] == "tool":
        return {"role": "assistant", "content": ANSWER}, "stop"
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(CALLS)
        if i == 0 or body.get("parallel_tool_calls") is not False
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}, "tool_calls"


def _events(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The answer as a stream, with arguments in pieces."""
    message, reason = _message(body)
    yield {"role": "assistant", "content": message["content"]}
    for index, call in enumerate(message.get("tool_calls", ())):
        text = call["function"]["arguments"]
        head = {"name": call["function"]["name"], "arguments": ""}
        yield {"tool_calls": [{**call, "index": index, "function": head}]}
        for piece in (text[:5], text[5:]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
    yield {"finish_reason": reason}


class ScriptedEndpoint:
    """The requests for chats that it got, in their order."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[dict[str, Any]] = []

    def chats(self) -> list[dict[str, Any]]:
        """What the endpoint was told since the last time: messages, tools, and wishes about tools.

        The ids of calls are numbers in the order in which they come: a server gives its own. An
        empty text beside calls is none.
        """
        names = ("messages", "tools", "tool_choice", "parallel_tool_calls")
        found = [{name: body[name] for name in names if name in body} for body in self.bodies]
        self.bodies.clear()
        for body in found:
            ids: dict[str, int] = {}
            for message in body["messages"]:
                message["content"] = message["content"] or None
                for call in message.get("tool_calls", ()):
                    call["id"] = ids.setdefault(call["id"], len(ids))
                if "tool_call_id" in message:
                    message["tool_call_id"] = ids[message["tool_call_id"]]
        return found


@contextmanager
def scripted_endpoint() -> Iterator[ScriptedEndpoint]:
    """An endpoint that runs inside the block."""
    kept = ScriptedEndpoint()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._send(json.dumps({"data": [{"id": MODEL, "max_model_len": 8192}]}).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            kept.bodies.append(body)
            head = {"id": "chatcmpl-1", "created": 1, "model": MODEL}
            if not body.get("stream"):
                message, reason = _message(body)
                choice = {"index": 0, "message": message, "finish_reason": reason}
                whole = {**head, "object": "chat.completion", "choices": [choice], "usage": USAGE}
                self._send(json.dumps(whole).encode())
                return
            lines = []
            for delta in _events(body):
                reason = delta.pop("finish_reason", None)
                choice = {"index": 0, "delta": delta, "finish_reason": reason}
                lines.append({**head, "object": "chat.completion.chunk", "choices": [choice]})
            lines.append({**lines[-1], "choices": [], "usage": USAGE})
            texts = [f"data: {json.dumps(line)}\n\n" for line in lines]
            self._send("".join([*texts, "data: [DONE]\n\n"]).encode(), "text/event-stream")

        def _send(self, data: bytes, kind: str = "application/json") -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        kept.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        yield kept
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
