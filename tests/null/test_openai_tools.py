"""Tools over OpenAI's API and over submit, on the null engine, which writes its script's texts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.null.asgi import Serve, Server, call
from weftline.contract.protocol import Call, InOut, Placeholder
from weftline.contract.tools import Function, Tool
from weftline_engine.pretend import null
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullMode
from weftline_server.prompt.tool_format import ToolFormat, constraint

SIGNATURE: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
WEATHER = {"type": "function", "function": SIGNATURE}
FUNCTION = {"type": "function", **SIGNATURE}  # of a response
USER = {"role": "user", "content": "How is the weather in Rome?"}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
SAYS = NullConfig(
    mode=NullMode.SCRIPT,
    script=(("<tool_response>", "It is sunny."), ("", f"Let me look.\n{CALL}")),
)


async def chat(server: Server, *messages: Any, **more: Any) -> Any:
    answer = await server.http.post("/v1/chat/completions", json={"messages": messages, **more})
    return answer.json()


async def streamed(server: Server, *messages: Any, **more: Any) -> list[dict[str, Any]]:
    """Return every chunk of a streamed chat but the last line, which is [DONE]."""
    body = {"messages": messages, "stream": True, **more}
    answer = await server.http.post("/v1/chat/completions", json=body)
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_a_template_without_tools_gets_them_in_words(serve: Serve) -> None:
    """A block at the end of the system message lists the tools. Tool calls and their results are
    words as well.
    """
    server = await serve()
    asked = {"id": "c1", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    history = [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", **asked}]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "warm"}]},
    ]
    answer = await chat(server, *history, tools=[WEATHER])
    said = answer["choices"][0]["message"]["content"]
    schema = json.dumps(WEATHER, separators=(", ", ": "))
    assert said.startswith("system: Be brief.\n\nYou can call functions.")
    assert f"<tools>\n{schema}\n</tools>" in said
    [echoed] = answer["choices"][0]["message"]["tool_calls"][1:]
    assert echoed["function"] == asked["function"], "the echo holds the call of the history"
    plain = await chat(server, *history)
    assert plain["choices"][0]["message"]["content"] == (
        f"system: Be brief.\nuser: {USER['content']}\nassistant: {CALL}\n"
        "user: <tool_response>\nsunny\n</tool_response>\n<tool_response>\nwarm\n</tool_response>\n"
        "assistant: "
    )
    told = await chat(server, USER, tools=[WEATHER], tool_choice="none")
    assert told["choices"][0]["message"]["content"].startswith("user: "), "it is not told of them"


async def test_a_template_with_tools_gets_them(serve: Serve, monkeypatch: Any) -> None:
    """The served model's own template renders tools, calls with their arguments, and results."""
    template = (
        "{% if tools %}{{ tools[0].function.name }}<tool_call>\n{% endif %}{% for m in messages %}"
        "{{ m.role }}|{{ m.content }}|{{ m.tool_call_id }}|{{ m.name }}|"
        "{% for c in m.tool_calls %}{{ c.function.arguments.city }}{% endfor %}; {% endfor %}"
    )
    monkeypatch.setattr(null, "CHAT_TEMPLATE", template)
    server = await serve()
    function = {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    history = [
        {"role": "assistant", "tool_calls": [{"id": "c1", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "name": "w", "content": "sunny"},
    ]
    answer = await chat(server, *history, tools=[WEATHER], tool_choice="auto")
    assert answer["choices"][0]["message"]["content"] == (
        "get_weather<tool_call>\nassistant||||Rome; tool|sunny|c1|w|; "
    )


async def test_a_call_is_read_from_the_answer(serve: Serve) -> None:
    """Whole and streamed responses have the same content, calls, ids and finish reason."""
    server = await serve(SAYS)
    whole = (await chat(server, USER, tools=[WEATHER]))["choices"][0]
    assert whole["finish_reason"] == "tool_calls"
    assert whole["message"]["content"] == "Let me look."
    [called] = whole["message"]["tool_calls"]
    assert called["type"] == "function" and called["id"].startswith("call_")
    assert called["function"] == {"name": "get_weather", "arguments": '{"city": "Rome"}'}

    slow = await serve(replace(SAYS, latency=LatencyProfile(step_s=0.002)))
    chunks = await streamed(slow, USER, tools=[WEATHER])
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Let me look."
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert calls[0]["function"] == {"name": "get_weather", "arguments": ""}
    assert len(calls) > 2, "the arguments came in parts"
    assert all(one["index"] == 0 for one in calls)
    assert "".join(one["function"]["arguments"] for one in calls) == '{"city": "Rome"}'
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


CUTS: list[tuple[dict[str, Any], str]] = [
    ({"stop": [' "Rome']}, "stop"),
    ({"max_tokens": 8}, "length"),
]


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize(("more", "reason"), CUTS, ids=["stop", "length"])
async def test_a_call_that_is_cut_is_no_call(
    serve: Serve, more: dict[str, Any], reason: str, choice: str
) -> None:
    """The answer is the text before it. A stream has told of the call by then: its finish reason
    says that it is not complete."""
    server = await serve(SAYS)
    asks = {"tools": [WEATHER], "tool_choice": choice, **more}
    whole = (await chat(server, USER, **asks))["choices"][0]
    assert whole["message"] == {"role": "assistant", "content": "Let me look.", "refusal": None}
    assert whole["finish_reason"] == reason
    chunks = await streamed(server, USER, **asks)
    assert chunks[-1]["choices"][0]["finish_reason"] == reason


async def test_a_whole_call_before_one_that_is_cut_counts(serve: Serve) -> None:
    """The client can run it. The reason is that of an answer with calls."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("", CALL + CALL[:-30]),)))
    asks = {"tools": [WEATHER], "parallel_tool_calls": True}
    whole = (await chat(server, USER, **asks))["choices"][0]
    assert (whole["finish_reason"], len(whole["message"]["tool_calls"])) == ("tool_calls", 1)
    assert (await streamed(server, USER, **asks))[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(("more", "reason"), CUTS, ids=["stop", "length"])
async def test_a_call_of_a_response_that_is_cut_is_no_call(
    serve: Serve, more: dict[str, Any], reason: str
) -> None:
    """A whole response has the text before it. A streamed one has told of the call, whose item ends
    as incomplete."""
    server = await serve(SAYS)
    asks: dict[str, Any] = {"input": "Rome?", "stop": more.get("stop")}
    asks |= {"tools": [FUNCTION], "max_output_tokens": more.get("max_tokens")}
    whole = (await server.http.post("/v1/responses", json=asks)).json()
    [message] = whole["output"]
    assert message["content"][0]["text"] == "Let me look."
    status = "incomplete" if reason == "length" else "completed"
    assert whole["status"] == status
    answer = await server.http.post("/v1/responses", json={**asks, "stream": True})
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line[:6] == "data: "]
    kinds = [event["type"] for event in events]
    assert "response.function_call_arguments.done" not in kinds
    assert kinds[-1] == f"response.{status}"
    message, call = events[-1]["response"]["output"]
    assert (call["status"], call["arguments"]) == ("incomplete", '{"city":')


async def test_arguments_that_a_history_leaves_out_are_an_empty_object(serve: Serve) -> None:
    """Clients write null, nothing or an empty text for a call without arguments."""
    server = await serve()
    for given in ({"arguments": None}, {}, {"arguments": ""}, {"arguments": "null"}):
        asked = {"id": "c1", "type": "function", "function": {"name": "get_weather", **given}}
        history = [USER, {"role": "assistant", "content": None, "tool_calls": [asked]}]
        text = (await chat(server, *history))["choices"][0]["message"]["content"]
        assert '{"name": "get_weather", "arguments": {}}' in text
        item = {"type": "function_call", "call_id": "c1", "name": "get_weather", **given}
        body = {"input": [{"role": "user", "content": "Rome?"}, item]}
        made = (await server.http.post("/v1/responses", json=body)).json()
        said = made["output"][0]["content"][0]["text"]
        assert '{"name": "get_weather", "arguments": {}}' in said


async def test_without_tools_the_same_text_is_text(serve: Serve) -> None:
    """A tool call that the model writes without being offered tools is text."""
    server = await serve(SAYS)
    for more in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        choice = (await chat(server, USER, **more))["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (
            f"Let me look.\n{CALL}",
            "stop",
        )


async def test_one_call_at_most(serve: Serve) -> None:
    """With parallel_tool_calls false only the first call is kept."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("", CALL * 2),)))
    for flag, count in ((True, 2), (False, 1)):
        choice = (await chat(server, USER, tools=[WEATHER], parallel_tool_calls=flag))["choices"][0]
        assert len(choice["message"]["tool_calls"]) == count


async def test_a_model_that_has_to_call_one_of_two_tools_may_call_both(serve: Serve) -> None:
    """As many calls as the request allows. The only tool is called once if it does not say."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("", CALL * 2),)))
    other = {"type": "function", "function": {"name": "get_time"}}
    for flag, alone, beside in ((None, 1, 2), (True, 2, 2), (False, 1, 1)):
        for tools, count in (([WEATHER], alone), ([WEATHER, other], beside)):
            more = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": flag}
            answer = await chat(server, USER, **more)
            assert len(answer["choices"][0]["message"]["tool_calls"]) == count


def test_arguments_are_those_that_the_schema_names() -> None:
    """A function without parameters gets no arguments unless its schema allows any."""
    open_schema = {"type": "object", "properties": {}, "additionalProperties": True}
    functions = (Function(name="now"), Function(name="any", parameters=open_schema))
    asks = Call(
        name="c",
        prompt="{{output:x}}",
        placeholders=(Placeholder(name="x", in_out=InOut.OUT),),
        tools=tuple(Tool(function=function) for function in functions),
        tool_choice="required",
    )
    held = constraint(asks, None, ToolFormat.HERMES)
    assert held is not None
    tags = json.loads(held)["structural_tag"]["tags"]
    assert [tag["content"]["json_schema"]["additionalProperties"] for tag in tags] == [False, True]


async def test_an_agent_loop_runs_in_the_server(serve: Serve) -> None:
    """Over submit, the value is the assistant's message, and the next prompt accepts it as a
    message.
    """
    server = await serve(SAYS)
    session = await server.session()
    ask = [
        {"role": "user", "content": [{"text": "Rome?"}]},
        {"role": "assistant", "content": [{"output": "m"}]},
    ]
    go_on = [
        {"role": "user", "content": [{"text": "Rome?"}]},
        {"input": "m"},
        {"role": "tool", "content": [{"input": "seen"}]},
        {"role": "assistant", "content": [{"output": "end"}]},
    ]
    await server.submit(
        session,
        {**call("ask", ask, m={"in_out": "out", "semantic_var_id": "m"}), "tools": [WEATHER]},
        call(
            "go on",
            go_on,
            m={"in_out": "in", "semantic_var_id": "m"},
            seen={"in_out": "in", "semantic_var_id": "seen"},
            end={"in_out": "out", "semantic_var_id": "end"},
        ),
    )
    message = (await server.get(session, "m")).json()["value"]
    assert (message["role"], message["content"]) == ("assistant", "Let me look.")
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"city": "Rome"}
    await server.http.put(f"/v1/session/{session}/variable/seen", json={"value": "sunny"})
    assert (await server.get(session, "end")).json()["value"] == "It is sunny."


async def test_transforms_reach_into_the_message(serve: Serve) -> None:
    """The arguments of the first call as an object, as LangChain's tool parsers give it."""
    server = await serve(SAYS)
    session = await server.session()
    keys = ["tool_calls", 0, "function", "arguments"]
    out = {
        "in_out": "out",
        "semantic_var_id": "m",
        "transforms": [{"op": "path", "keys": keys}, {"op": "json"}],
    }
    ask = [{"role": "user", "content": []}, {"role": "assistant", "content": [{"output": "m"}]}]
    answer = await server.submit(session, {**call("ask", ask, m=out), "tools": [WEATHER]})
    assert answer.status_code == 200, answer.text
    assert (await server.get(session, "m")).json()["value"] == {"city": "Rome"}


async def test_a_whole_history_is_one_input(serve: Serve) -> None:
    """A list of messages is an input as a value or as a variable; anything else is refused."""
    server = await serve()
    session = await server.session()
    prompt = [
        {"role": "system", "content": [{"text": "Be brief."}]},
        {"input": "history"},
        {"role": "assistant", "content": [{"output": "o"}]},
    ]
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    said = "system: Be brief.\nuser: Hi\nassistant: Ho\nassistant: "

    def with_history(name: str, **history: Any) -> dict[str, Any]:
        out = {"in_out": "out", "semantic_var_id": name}
        return call(name, prompt, history={"in_out": "in", **history}, o=out)

    later = with_history("b", semantic_var_id="h")
    await server.submit(session, with_history("a", value=history), later)
    assert (await server.get(session, "a")).json()["value"] == said
    await server.http.put(f"/v1/session/{session}/variable/h", json={"value": history})
    assert (await server.get(session, "b")).json()["value"] == said
    answer = await server.submit(session, with_history("c", value=[{"x": 1}]))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "history")


async def test_bad_tools_are_refused(serve: Serve) -> None:
    """Each names the field at fault."""
    server = await serve()
    named = {"type": "function", "function": {"name": "other"}}
    deep: Any = {}
    for _ in range(70):
        deep = {"items": deep}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "tools"),
        ({"tools": [{"function": {"name": "f", "parameters": deep}}]}, "tools"),
        ({"tools": [WEATHER] * 129}, "tools"),
        ({"tools": [WEATHER], "tool_choice": named}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"messages": [{"role": "user", "content": "", "tool_call_id": "c"}]}, "tool_call_id"),
    ]
    for more, param in cases:
        answer = await server.http.post("/v1/chat/completions", json={"messages": [USER], **more})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), more
