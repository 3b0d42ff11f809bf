"""POST /v1/messages and its count of tokens, as Anthropic's clients send and read them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.null.asgi import Serve, Server
from tests.null.test_conversations import sizes
from tests.null.test_openai_tools import CALL, SAYS
from tests.null.test_thinking import QWEN3, SWITCHED
from weftline_engine.pretend import null
from weftline_engine.pretend.null import NullConfig, NullMode
from weftline_server.config import ServerConfig

SCHEMA = {
    "type": "object",
    "properties": {"zone": {"type": "string"}, "city": {"type": "string"}},
    "required": ["city"],
}
WEATHER = {"name": "get_weather", "description": "The weather of a city.", "input_schema": SCHEMA}
ASK = {"role": "user", "content": "How is the weather in Rome?"}
# A template that shows all that a message has.
SHOWN = (
    "{% for m in messages %}[{{ m.role }}]"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}"
    "{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.function.arguments | tojson }})"
    "{% endfor %}{% endfor %}{% if tools %} tools{% endif %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


async def answered(server: Server, *messages: Any, **more: Any) -> dict[str, Any]:
    body = {"model": "null", "max_tokens": 2000, "messages": messages, **more}
    answer = await server.http.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def events_of(server: Server, *messages: Any, **more: Any) -> list[dict[str, Any]]:
    """The events of a stream, whose names are their types."""
    body = {"model": "null", "max_tokens": 200, "messages": messages, "stream": True, **more}
    answer = await server.http.post("/v1/messages", json=body)
    names, events = [], []
    for line in answer.text.splitlines():
        if line.startswith("event: "):
            names.append(line[7:])
        if line.startswith("data: "):
            events.append(json.loads(line[6:]))
    assert names == [event["type"] for event in events]
    return events


def rebuilt(events: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str | None]:
    """The content and the reason that a client reads from a stream."""
    content: list[dict[str, Any]] = []
    reason = None
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(content)
                content.append({**event["content_block"], "json": ""})
            case "content_block_delta":
                block, delta = content[event["index"]], dict(event["delta"])
                match delta.pop("type"):
                    case "input_json_delta":
                        block["json"] += delta["partial_json"]
                    case _:
                        for name, text in delta.items():
                            block[name] += text
            case "message_delta":
                reason = event["delta"]["stop_reason"]
    for block in content:
        if text := block.pop("json"):
            block["input"] = json.loads(text)
    return content, reason


async def test_a_text_is_answered(serve: Serve) -> None:
    """A message has one block of text, why it ended, and its tokens."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("Rome", "It is sunny."),)))
    made = await answered(server, ASK)
    assert made.pop("id").startswith("msg_")
    assert made.pop("usage") == {
        "input_tokens": 9,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 3,
    }
    assert made == {
        "type": "message",
        "role": "assistant",
        "model": "null",
        "content": [{"type": "text", "text": "It is sunny."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
    }


async def test_a_stream_has_its_events_in_their_order(serve: Serve) -> None:
    """A start, the blocks one by one, the reason with the usage, and a stop."""
    server = await serve(SAYS)
    events = await events_of(server, ASK, tools=[WEATHER])
    kinds = [event["type"] for event in events if event["type"] != "content_block_delta"]
    assert kinds == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["usage"]["input_tokens"] > 10
    content, reason = rebuilt(events)
    [text, call] = content
    assert text == {"type": "text", "text": "Let me look.\n"} or text["text"].strip()
    assert (call["name"], call["input"]) == ("get_weather", {"city": "Rome"})
    assert reason == "tool_use"
    assert events[-2]["usage"]["output_tokens"] > 0


async def test_a_tool_is_called_and_answered(serve: Serve) -> None:
    """The call goes back with its result, and the next message ends the turn."""
    server = await serve(SAYS)
    first = await answered(server, ASK, tools=[WEATHER])
    [_, call] = first["content"]
    assert first["stop_reason"] == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "sunny"}
    talk = [ASK, {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": [result]}]  # fmt: skip
    second = await answered(server, *talk, tools=[WEATHER])
    assert second["content"] == [{"type": "text", "text": "It is sunny."}]
    assert second["stop_reason"] == "end_turn"


async def test_thoughts_are_a_signed_block(serve: Serve, monkeypatch: Any) -> None:
    """Whole and streamed, before the answer. `disabled` switches them off in the template."""
    monkeypatch.setattr(null, "CHAT_TEMPLATE", SWITCHED)
    script = (("</think>", "It is sunny."), ("", QWEN3))
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=script))
    thoughts = {"type": "thinking", "thinking": "Rome is in Italy.", "signature": "weftline"}
    text = {"type": "text", "text": "It is sunny."}
    thinking = {"type": "enabled", "budget_tokens": 1024}
    assert (await answered(server, ASK, thinking=thinking))["content"] == [thoughts, text]
    assert rebuilt(await events_of(server, ASK))[0] == [thoughts, text]
    off = await answered(server, ASK, thinking={"type": "disabled"})
    assert off["content"] == [text]


async def test_every_block_is_in_the_prompt(serve: Serve, monkeypatch: Any) -> None:
    """System, thoughts of any signature, calls in the order of their arguments, results, documents
    and text between them, as the chat template writes them."""
    monkeypatch.setattr(null, "CHAT_TEMPLATE", SHOWN)
    server = await serve()
    blocks = [
        {"type": "thinking", "thinking": "PLAN", "signature": "of another service"},
        {"type": "redacted_thinking", "data": "xx"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "get_weather",
         "input": {"zone": "CET", "city": "Rome"}},
    ]  # fmt: skip
    told = [
        {"type": "tool_result", "tool_use_id": "t1", "is_error": False,
         "content": [{"type": "text", "text": "sunny"}]},
        {"type": "text", "text": "And tomorrow?"},
        {"type": "document", "title": "Notes", "source": {"type": "text", "data": "Rain."}},
    ]  # fmt: skip
    system = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]
    made = await answered(server, ASK, {"role": "assistant", "content": blocks},
                          {"role": "user", "content": told}, system=system)  # fmt: skip
    assert made["content"][0]["text"] == (
        "[system]Be brief.\n\nBe kind.[user]How is the weather in Rome?"
        '[assistant]<think>PLAN</think>I look.(get_weather {"zone": "CET", "city": "Rome"})'
        "[tool]sunny[user]And tomorrow?\n\nNotes\nRain.[assistant]"
    )


async def test_the_last_message_of_the_assistant_is_continued(
    serve: Serve, monkeypatch: Any
) -> None:
    """The answer is what comes behind it, as Anthropic's API continues it."""
    monkeypatch.setattr(null, "CHAT_TEMPLATE", SHOWN)
    server = await serve()
    made = await answered(server, ASK, {"role": "assistant", "content": "It is"})
    assert made["content"][0]["text"] == "[user]How is the weather in Rome?[assistant]It is"


@pytest.mark.parametrize(
    ("choice", "calls"),
    [({"type": "any"}, True), ({"type": "tool", "name": "get_weather"}, True),
     ({"type": "none"}, False), ({"type": "auto", "disable_parallel_tool_use": True}, True)],
)  # fmt: skip
async def test_the_choice_of_a_tool(serve: Serve, choice: dict[str, Any], calls: bool) -> None:
    """any and tool force a call, none forbids one."""
    script = (("", f"{CALL}\n{CALL}"),)
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=script))
    made = await answered(server, ASK, tools=[WEATHER], tool_choice=choice)
    kinds = [block["type"] for block in made["content"]]
    assert ("tool_use" in kinds) is calls


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_sequence_is_named(serve: Serve, stream: bool) -> None:
    """The answer ends before the first of them, and says which it was."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("", "It is END sunny."),)))
    stops = {"stop_sequences": ["sunny", "END"]}
    if stream:
        events = await events_of(server, ASK, **stops)
        ended = next(event["delta"] for event in events if event["type"] == "message_delta")
        assert rebuilt(events) == ([{"type": "text", "text": "It is "}], "stop_sequence")
    else:
        ended = await answered(server, ASK, **stops)
        assert ended["content"] == [{"type": "text", "text": "It is "}]
    assert (ended["stop_reason"], ended["stop_sequence"]) == ("stop_sequence", "END")


async def test_a_call_that_is_cut_is_no_content(serve: Serve) -> None:
    """The answer ended in it, so the reason is max_tokens, and the stream closes the block."""
    server = await serve(SAYS)
    made = await answered(server, ASK, tools=[WEATHER], max_tokens=6)
    assert made["stop_reason"] == "max_tokens"
    assert [block["type"] for block in made["content"]] == ["text"]


async def test_tools_of_anthropic_are_left_out(serve: Serve) -> None:
    """A header names them. A server that refuses them says where they stand."""
    search = {"type": "web_search_20250305", "name": "web_search"}
    body = {"model": "null", "max_tokens": 9, "messages": [ASK], "tools": [WEATHER, search]}
    answer = await (await serve()).http.post("/v1/messages", json=body)
    assert answer.headers["Weftline-Left-Out"] == "web_search_20250305"
    strict = await serve(config=ServerConfig(refuse_hosted_tools=True))
    answer = await strict.http.post("/v1/messages", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("tools.1: a tool of type 'web_search_")


async def test_a_line_of_accounting_is_left_out(serve: Serve, monkeypatch: Any) -> None:
    """It changes with each session, so it would end every common beginning. A header names it, and
    the advice says how often it changed."""
    monkeypatch.setattr(null, "CHAT_TEMPLATE", SHOWN)
    line = "x-anthropic-billing-header: cc_version=2.1.9; cc_entrypoint=cli; cch=3f9a;"
    system = [{"type": "text", "text": line}, {"type": "text", "text": "You write code."}]
    body = {"model": "null", "max_tokens": 99, "messages": [ASK], "system": system}
    server = await serve()
    answer = await server.http.post("/v1/messages", json=body)
    assert answer.headers["Weftline-Left-Out"] == "x-anthropic-billing-header"
    [text] = answer.json()["content"]
    assert text["text"].startswith("[system]You write code.[user]")
    assert (await server.http.get("/v1/advice")).json()["total"] == 0
    for session in ("3f9b", "3f9b", "3f9c"):
        system[0]["text"] = line.replace("3f9a", session)
        await server.http.post("/v1/messages", json=body)
    [row] = (await server.http.get("/v1/advice")).json()["advice"]
    assert (row["cause"], row["name"]) == ("accounting", "x-anthropic-billing-header")
    assert (row["times"], row["calls"], row["lost_tokens"]) == (2, 4, 0)
    assert row["says"].startswith(
        "system message: its first line, `x-anthropic-billing-header`, changed in 2 of 4 requests: "
        "the server leaves it out"
    )
    body["system"] = "x-ray pictures show bones.\nYou are a doctor."
    answer = await (await serve()).http.post("/v1/messages", json=body)
    assert "Weftline-Left-Out" not in answer.headers


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages must not be empty"),
        ({"container": "c1"}, "container is run by Anthropic"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers is run by Anthropic"),
        ({"tool_choice": {"type": "tool"}}, "needs the name of a tool"),
        ({"messages": [{"role": "user", "content": [{"type": ["text"]}]}]}, "type"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
         "messages.0.content.0: a block of type 'image' of the user is not served"),
        ({"messages": [{"role": "user", "content": [
            {"type": "document", "source": {"type": "base64", "data": "x"}}]}]},
         "messages.0.content.0.source: a document of type 'base64' is not served"),
        ({"messages": [{"role": "assistant", "content": [
            {"type": "tool_result", "tool_use_id": "t"}]}]},
         "messages.0.content.0: a block of type 'tool_result' of the assistant"),
        ({"messages": [{"role": "user", "content": "x", "rank": 1}]}, "messages.0.rank"),
        ({"messages": [ASK, {"role": "assistant", "content": "x"}] * 5_000},
         "messages has fewer than 10,000 items, and this has 10,000"),
        ({"model": "other"}, "other"),
    ],
)  # fmt: skip
async def test_what_is_not_served_is_refused(serve: Serve, more: dict[str, Any], says: str) -> None:
    """The error has Anthropic's form and names the place."""
    body = {"model": "null", "max_tokens": 9, "messages": [ASK], **more}
    answer = await (await serve()).http.post("/v1/messages", json=body)
    wrong = answer.json()
    missing = more.get("model") is not None
    assert (answer.status_code, wrong["type"]) == (404 if missing else 400, "error")
    assert wrong["error"]["type"] == ("not_found_error" if missing else "invalid_request_error")
    assert says in wrong["error"]["message"]


async def test_errors_and_ids_are_in_the_form_of_the_api(serve: Serve) -> None:
    """A missing key, a key in either header, a route that is not there, and a long prompt."""
    keys = {"secret": "a"}
    server = await serve(NullConfig(context_limit=40), config=ServerConfig(keys=keys))
    body = {"model": "null", "max_tokens": 9, "messages": [ASK]}
    answer = await server.http.post("/v1/messages", json=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
    for name, value in (("x-api-key", "secret"), ("Authorization", "Bearer secret")):
        answer = await server.http.post("/v1/messages", json=body, headers={name: value})
        assert answer.status_code == 200
        assert answer.headers["request-id"] == answer.headers["x-request-id"]
    own = {"x-api-key": "secret"}
    answer = await server.http.get("/v1/messages/batches", headers=own)
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
    long = {**body, "messages": [{"role": "user", "content": "word " * 100}]}
    answer = await server.http.post("/v1/messages", json=long, headers=own)
    assert answer.status_code == 400
    assert "prompt is too long" in answer.json()["error"]["message"]


async def test_a_stream_that_fails_ends_with_an_error(serve: Serve) -> None:
    """The engine refuses the prompt after the status was sent."""
    server = await serve(NullConfig(context_limit=40))
    long = {"role": "user", "content": "w " * 60}
    events = await events_of(server, long)
    assert [event["type"] for event in events] == ["error"]
    assert events[0]["error"]["type"] == "invalid_request_error"


async def test_advice_to_keep_begins_a_conversation(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a tenant's requests have never gone on, only one with cache_control gets a session that
    waits for the next request."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("", "Yes."),)))
    for number in range(6):
        await answered(server, {"role": "user", "content": f"Question {number}"})
    monkeypatch.setattr("weftline_server.http.openai.conversations.UNDECIDED_S", -1.0)
    await answered(server, {"role": "user", "content": "the last"})
    assert await sizes(server) == []
    monkeypatch.setattr("weftline_server.http.openai.conversations.UNDECIDED_S", 60.0)
    kept = {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}
    await answered(server, ASK, system=[kept])
    assert await sizes(server) == [1]
