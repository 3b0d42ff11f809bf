"""The fields of a message: what clients are known to send passes, and others are refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.null.asgi import Serve
from weftline_server.http.openai.message_fields import IGNORED

TALK: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
# An assistant's message as clients send it back, of what they have received.
SENT: dict[str, dict[str, Any]] = {
    "openai": {
        "refusal": None, "annotations": [], "audio": None, "function_call": None,
        "tool_calls": None, "parsed": {"a": 1},
    },
    "langchain-openai": {"name": "ann", "tool_calls": [], "refusal": None},
    "litellm": {
        "function_call": None, "audio": None, "images": [], "annotations": [],
        "provider_specific_fields": {"refusal": None, "reasoning_content": "x"},
        "reasoning_content": "x", "thinking_blocks": [],
    },
    "the AI SDK": {"reasoning_content": "x", "providerOptions": {"openaiCompatible": {}}},
    "OpenRouter's": {
        "reasoning": "x", "reasoning_details": [{"type": "reasoning.text", "text": "x"}],
        "cache_control": {"type": "ephemeral"}, "extra_content": {"google": {}},
    },
}  # fmt: skip


@pytest.mark.parametrize("client", SENT)
async def test_a_message_comes_back_as_its_client_sends_it(client: str, serve: Serve) -> None:
    server = await serve()
    said = {"role": "assistant", "content": "It is.", **SENT[client]}
    body = {"messages": [*TALK, said, {"role": "user", "content": "Why?"}]}
    answer = await server.http.post("/v1/chat/completions", json=body)
    content = answer.json()["choices"][0]["message"]["content"]
    assert content == "user: Go.\nassistant: It is.\nuser: Why?\nassistant: "


async def test_what_is_ignored_changes_no_prompt(serve: Serve) -> None:
    server = await serve()
    said = {"role": "assistant", "content": "It is.", **dict.fromkeys(IGNORED, "x")}
    body = {"messages": [*TALK, said, {"role": "user", "content": "Why?"}]}
    answer = await server.http.post("/v1/chat/completions", json=body)
    content = answer.json()["choices"][0]["message"]["content"]
    assert content == "user: Go.\nassistant: It is.\nuser: Why?\nassistant: "


async def test_a_refusal_is_the_text_of_an_answer_without_another(serve: Serve) -> None:
    server = await serve()
    said = {"role": "assistant", "content": None, "refusal": "I cannot say."}
    body = {"messages": [*TALK, said, {"role": "user", "content": "Why?"}]}
    answer = await server.http.post("/v1/chat/completions", json=body)
    content = answer.json()["choices"][0]["message"]["content"]
    assert "assistant: I cannot say.\nuser: Why?" in content


@pytest.mark.parametrize(
    ("field", "value", "instead"),
    [
        ("function_call", {"name": "f", "arguments": "{}"}, "use tool_calls"),
        ("audio", {"id": "a1"}, "send what was said as content"),
        ("images", ["aGk="], "send text"),
        ("prefix", True, "use continue_final_message"),
        ("mood", "glad", "leave it out"),
        ("channel", "final", "leave it out"),
    ],
)
@pytest.mark.parametrize(
    ("path", "name"), [("/v1/chat/completions", "messages"), ("/v1/responses", "input"),
                       ("/tokenize", "messages")]
)  # fmt: skip
async def test_another_field_is_named(
    path: str, name: str, field: str, value: Any, instead: str, serve: Serve
) -> None:
    """In whichever message it stands. null, false and what is empty say nothing."""
    server = await serve()
    said = {"role": "assistant", "content": "It is."}
    body = {name: [*TALK, said | {field: value}]}
    answer = await server.http.post(path, json=body)
    error = answer.json()["error"]
    where = f"{name}.1.{field}"
    assert (answer.status_code, error["param"]) == (400, where)
    assert error["message"] == f"{where} is not served: {instead}"
    for nothing in (None, False, "", [], {}) if path != "/tokenize" else ():
        passed = await server.http.post(path, json={name: [*TALK, said | {field: nothing}]})
        assert passed.status_code == 200
