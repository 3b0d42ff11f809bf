"""Thoughts of earlier answers: how clients send them back, and where they stand in the prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.null.asgi import Serve, Server
from tests.null.test_openai_tools import chat
from tests.null.test_thinking import QWEN3, SWITCHED
from weftline_engine.pretend import null
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullMode

# As Qwen3.5 writes a chat: thoughts behind the user's last message, or all of them.
TEMPLATE = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}{{ m.role }}: "
    "{% if m.reasoning_content is string and (loop.index0 > ns.last or clear_thinking is false) %}"
    "<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls %}[{{ c.function.name }}]{% endfor %}{{ '\\n' }}{% endfor %}"
    "{% if tools %}{% endif %}assistant: "
    "{% if enable_thinking is false %}<think></think>{% endif %}"
)
TALK: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
CALLED: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "ok"}
OFF = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.fixture(autouse=True)
def _template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(null, "CHAT_TEMPLATE", TEMPLATE)


async def prompt_of(server: Server, messages: list[Any], **more: Any) -> str:
    """The prompt, which the engine echoes. It does not end in a block, so it is no thought."""
    answer = await chat(server, *messages, **(OFF | more))
    [choice] = answer["choices"]
    return str(choice["message"]["content"])


@pytest.mark.parametrize(
    "given",
    [
        {"reasoning_content": "PLAN-7"},
        {"reasoning": "PLAN-7"},
        {"reasoning_content": "PLAN-7", "reasoning": "PLAN-7"},
        {"reasoning_details": [{"type": "reasoning.text", "text": "PLAN-7", "index": 0}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "PLAN-7", "signature": "x"}]},
        {"content": [{"type": "thinking", "thinking": "PLAN-7", "signature": "x"}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "PLAN-7"}]}]},
        {"content": [{"type": "reasoning", "reasoning": "PLAN-7"}, {"type": "text", "text": ""}]},
    ],
    ids=lambda given: "+".join(given),
)
async def test_thoughts_of_a_chat_are_in_the_prompt(given: dict[str, Any], serve: Serve) -> None:
    """Under the name that the client's service gives them."""
    server = await serve()
    prompt = await prompt_of(server, [*TALK, CALLED | given, RESULT])
    assert prompt == "user: Go.\nassistant: <think>PLAN-7</think>[look]\ntool: ok\nassistant: " + (
        "<think></think>"
    )


async def test_thoughts_that_are_encrypted_have_no_text(serve: Serve) -> None:
    """Anthropic's and OpenRouter's own blocks, which another service has sealed."""
    server = await serve()
    sealed = [{"type": "reasoning.encrypted", "data": "xx"}]
    for given in (
        {"reasoning_details": sealed},
        {"content": [{"type": "redacted_thinking", "data": "xx"}]},
        {"reasoning_content": None, "reasoning": ""},
    ):
        prompt = await prompt_of(server, [*TALK, CALLED | given, RESULT])
        assert "assistant: [look]" in prompt


async def test_the_template_decides_which_thoughts_stay(serve: Serve) -> None:
    """Those of a turn before the user's last message are kept where the client asks for it, by the
    one name that stands for those of all families."""
    server = await serve()
    talk = [
        *TALK,
        CALLED | {"reasoning_content": "PLAN-7"},
        RESULT,
        {"role": "user", "content": "?"},
    ]
    assert "PLAN-7" not in await prompt_of(server, talk)
    words = {"enable_thinking": False, "preserve_thinking": True}
    assert "<think>PLAN-7</think>" in await prompt_of(server, talk, chat_template_kwargs=words)
    words["clear_thinking"] = True  # what the client says itself goes first
    assert "PLAN-7" not in await prompt_of(server, talk, chat_template_kwargs=words)


async def test_thoughts_of_a_response_are_those_of_the_next_item(serve: Serve) -> None:
    """Of a message, of a call, and of both where they are one answer. The summary counts where the
    thoughts are sealed."""
    server = await serve()
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
    items = [
        {"role": "user", "content": "Go."},
        _thoughts("PLAN-7"),
        call,
        result,
        _thoughts("PLAN-8"),
        {"role": "assistant", "content": "So."},
        call,
        result,
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "PLAN-9"}],
         "encrypted_content": "xx"},
        {"role": "assistant", "content": "Then."},
        {"type": "reasoning", "summary": [], "encrypted_content": "xx"},
    ]  # fmt: skip
    answer = await server.http.post("/v1/responses", json={"input": items})
    text = answer.json()["output"][0]["content"][0]["text"]
    assert text == (
        "user: Go.\nassistant: <think>PLAN-7</think>[look]\ntool: ok\n"
        "assistant: <think>PLAN-8</think>So.[look]\ntool: ok\nassistant: <think>PLAN-9</think>Then."
        "\nassistant: "
    )


def _thoughts(text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": content}


THOUGHT = {"type": "thinking", "thinking": "PLAN-7", "signature": "of another service"}
USE = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
USED = {"type": "tool_result", "tool_use_id": "c1", "content": "ok"}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
MADE = {"type": "function_call_output", "call_id": "c1", "output": "ok"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {
            "messages": [*TALK, CALLED | {"reasoning_content": "PLAN-7"}, RESULT]}),
        ("responses", {"input": [*TALK, {"type": "reasoning", "id": "rs_1", "summary": [],
                       "content": [{"type": "reasoning_text", "text": "PLAN-7"}],
                       "encrypted_content": "of another service"}, CALL, MADE]}),
        ("messages", {"messages": [*TALK, {"role": "assistant", "content": [THOUGHT, USE]},
                      {"role": "user", "content": [USED]}], "max_tokens": 99}),
    ],
)  # fmt: skip
async def test_a_model_that_has_none_gets_none(
    path: str, body: dict[str, Any], serve: Serve, monkeypatch: Any
) -> None:
    """Its template writes no thoughts, and a text of its own would not mean any."""
    plain = TEMPLATE.replace("<think></think>", "").replace("<think>", "").replace("</think>", "")
    monkeypatch.setattr(null, "CHAT_TEMPLATE", plain.replace("reasoning_content", "other"))
    server = await serve()
    answer = await server.http.post(f"/v1/{path}", json={"model": "null", **body})
    prompt = "user: Go.\nassistant: [look]\ntool: ok\nassistant: "
    assert answer.status_code == 200 and json.dumps(prompt)[1:-1] in answer.text, answer.text
    assert "PLAN-7" not in answer.text


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant", "content": "", "reasoning_content": 7},
         "messages.1.reasoning_content"),
        ({"role": "assistant", "content": "", "reasoning": ["x"]}, "messages.1.reasoning"),
        ({"role": "assistant", "content": "", "thinking_blocks": "x"},
         "messages.1.thinking_blocks"),
        ({"role": "user", "content": "", "reasoning_content": "x"}, "reasoning_content"),
        ({"role": "assistant", "content": "It", "reasoning_content": "x"},
         "continue_final_message"),
    ],
)  # fmt: skip
async def test_thoughts_that_are_none_are_refused(
    message: dict[str, Any], param: str, serve: Serve
) -> None:
    server = await serve()
    more = {"continue_final_message": True} if param.startswith("continue") else {}
    body = {"messages": [*TALK, message], **more}
    answer = await server.http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_long_list_of_thoughts_is_taken_or_refused(serve: Serve) -> None:
    """9,998 turns with thoughts are a chat, and 10,000 messages are too many."""
    server = await serve()
    turn = {"role": "assistant", "content": "a", "reasoning_content": "b"}
    prompt = await prompt_of(server, [*TALK, *[turn] * 9_998], max_tokens=50_000)
    assert prompt.count("<think>b</think>a") == 9_998
    answer = await server.http.post(
        "/v1/chat/completions", json={"messages": [*TALK, *[turn] * 9_999]}
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")


async def test_a_message_of_a_variable_has_its_thoughts(serve: Serve) -> None:
    """A message as the value of an input enters a prompt as it does in a chat."""
    server = await serve()
    function = {"name": "look", "arguments": "{}"}
    called = {"tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    value = CALLED | called | {"reasoning_content": "PLAN-7"}
    body = {
        "calls": [
            {
                "name": "next",
                "prompt": [
                    {"role": "user", "content": [{"text": "Go."}]},
                    {"input": "m"},
                    {"role": "assistant", "content": [{"output": "o"}]},
                ],
                "placeholders": [
                    {"name": "m", "in_out": "in", "value": value},
                    {"name": "o", "in_out": "out", "semantic_var_id": "v"},
                ],
            }
        ],
        "get": ["v"],
    }
    answer = await server.http.post("/v1/submit", json=body)
    assert "<think>PLAN-7</think>[look]" in answer.text
    value["reasoning_content"] = 7  # `body` has this object
    refused = await server.http.post("/v1/submit", json=body)
    assert "reasoning_content that is no text" in refused.text


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("apart", [False, True])
async def test_thoughts_stay_apart_from_a_value(
    apart: bool, parts: bool, serve: Serve, monkeypatch: Any
) -> None:
    """Where a call asks for that, neither its value nor a call that reads it has them. They come
    with the first part of the text, or with the value, however the engine cuts the answer."""
    monkeypatch.setattr(null, "CHAT_TEMPLATE", SWITCHED)
    says = NullConfig(
        mode=NullMode.SCRIPT,
        script=(
            ("I say: It", "<think>\nB\n</think>\n\nGood."),
            ("I say: <think>", "Raw."),
            ("", QWEN3),
        ),
        latency=LatencyProfile(step_s=0.001),
    )
    server = await serve(says)

    def call(name: str, text: str, reads: str | None) -> dict[str, Any]:
        content = [{"text": text}, *([{"input": "x"}] if reads else [])]
        given = [{"name": "x", "in_out": "in", "semantic_var_id": reads}] if reads else []
        return {
            "name": name,
            "prompt": [
                {"role": "user", "content": content},
                {"role": "assistant", "content": [{"output": "o"}]},
            ],
            "placeholders": [*given, {"name": "o", "in_out": "out", "semantic_var_id": name}],
            "separate_reasoning": apart,
        }

    calls = [call("one", "Rome?", None), call("two", "I say: ", "one")]
    body = {"calls": calls, "watch": ["one", "two"], "parts": parts}
    text = (await server.http.post("/v1/submit", json=body)).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    values = {one["semantic_var_id"]: one for one in events if "value" in one}
    thoughts = {name: one.get("reasoning_content") for name, one in values.items()}
    if not apart:
        assert (values["one"]["value"], values["two"]["value"]) == (QWEN3, "Raw.")
        assert thoughts == {"one": None, "two": None}
        return
    assert (values["one"]["value"], values["two"]["value"]) == ("It is sunny.", "Good.")
    assert thoughts == {"one": "Rome is in Italy.", "two": "B"}
    texts = [one for one in events if one.get("text") and one["semantic_var_id"] == "one"]
    assert "".join(one["text"] for one in texts) == ("It is sunny." if parts else "")
    told = [one.get("reasoning_content") for one in texts]
    assert told[:1] == ["Rome is in Italy."] * parts and not any(told[1:])
