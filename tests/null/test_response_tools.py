"""Tools of /v1/responses that are no plain functions: groups of functions, and what OpenAI runs."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tests.null.asgi import Serve, Server
from tests.null.test_openai_tools import FUNCTION
from weftline.contract.errors import InvalidRequest
from weftline.contract.protocol import Call
from weftline.contract.tools import Tool
from weftline_engine.pretend.null import NullConfig, NullMode
from weftline_server.config import ServerConfig
from weftline_server.http.openai.tool_types import CustomFormat, CustomTool
from weftline_server.prompt.tool_format import ToolFormat, constraint

GROUP = {
    "type": "namespace",
    "name": "mcp__sky__",
    "description": "About the sky.",
    "tools": [FUNCTION, {"type": "function", "name": "moon"}],
}
CALL = '<tool_call>\n{"name": "mcp__sky__moon", "arguments": {}}\n</tool_call>'
SAYS = NullConfig(mode=NullMode.SCRIPT, script=(("<tool_response>", "Full."), ("", CALL)))


async def respond(server: Server, **more: Any) -> dict[str, Any]:
    answer = await server.http.post("/v1/responses", json={"input": "Tonight?", **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_a_group_is_its_functions(serve: Serve) -> None:
    """The model is told of each by the names of the group and of the function."""
    made = await respond(await serve(), tools=[GROUP])
    [tools] = [line for line in made["output"][0]["content"] if line["type"] == "output_text"]
    first, second = (
        json.loads(line)["function"]
        for line in tools["text"].splitlines()
        if line.startswith('{"type": "function"')
    )
    assert first["name"] == "mcp__sky__get_weather"
    assert first["description"] == "About the sky.\nThe weather of a city."
    assert second["name"] == "mcp__sky__moon" and "description" not in second


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_of_a_group_names_both(serve: Serve, stream: bool) -> None:
    """The client finds the group in `namespace`, and the function's own name in `name`."""
    server = await serve(SAYS)
    body = {"input": "Tonight?", "tools": [GROUP], "stream": stream}
    answer = await server.http.post("/v1/responses", json=body)
    made: Any = None if stream else answer.json()
    if stream:
        data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
        made = json.loads(data[-1])["response"]
    [call] = made["output"]
    assert (call["namespace"], call["name"]) == ("mcp__sky__", "moon")
    history = [{"role": "user", "content": "Tonight?"}, call]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "full"}
    again = await respond(server, input=[*history, result], tools=[GROUP])
    assert again["output"][0]["content"][0]["text"] == "Full."


async def test_the_history_of_a_group_names_what_the_model_called(serve: Serve) -> None:
    """So the model reads its own call."""
    call = {"type": "function_call", "call_id": "c", "namespace": "mcp__sky__", "name": "moon"}
    made = await respond(await serve(), input=[{"role": "user", "content": "Tonight?"}, call])
    assert CALL in made["output"][0]["content"][0]["text"]


async def test_a_function_of_a_group_is_chosen(serve: Serve) -> None:
    """By both names, alone or among those that are allowed."""
    server = await serve(SAYS)
    choice = {"type": "function", "namespace": "mcp__sky__", "name": "moon"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [choice]}
    for one in (choice, allowed):
        [call] = (await respond(server, tools=[GROUP], tool_choice=one))["output"]
        assert call["name"] == "moon"


HOSTED: list[dict[str, Any]] = [
    {"type": "web_search"},
    {"type": "mcp", "server_label": "docs", "server_url": "http://there"},
    {"type": "web_search_preview_2025_03_11"},
]


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_that_openai_runs_are_left_out(
    serve: Serve, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The prompt is that without them. A header and the log name them, and the response shows the
    tools that it has."""
    server = await serve()
    caplog.set_level(logging.INFO)
    body = {"input": "Tonight?", "tools": [HOSTED[0], FUNCTION, *HOSTED], "stream": stream}
    answer = await server.http.post("/v1/responses", json=body)
    types = "web_search, mcp, web_search_preview_2025_03_11"
    assert answer.headers["Weftline-Left-Out"] == types
    assert f"a request leaves out what another service runs: {types}" in caplog.messages
    if not stream:
        assert [one["type"] for one in answer.json()["tools"]] == ["function"]
        plain = await respond(server, tools=[FUNCTION])
        assert answer.json()["output"][0]["content"] == plain["output"][0]["content"]
    none = await server.http.post("/v1/responses", json={**body, "tools": [FUNCTION]})
    assert "Weftline-Left-Out" not in none.headers


async def test_a_switch_refuses_them(serve: Serve) -> None:
    """So a client cannot believe that the model may search."""
    server = await serve(NullConfig(), ServerConfig(refuse_hosted_tools=True))
    for tool in HOSTED:
        body = {"input": "Tonight?", "tools": [FUNCTION, tool]}
        answer = await server.http.post("/v1/responses", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools.1")


async def test_a_tool_that_openai_runs_is_not_chosen(serve: Serve) -> None:
    """A client that insists on it is told that it is not served."""
    body = {"input": "x", "tools": [FUNCTION, HOSTED[0]], "tool_choice": HOSTED[0]}
    answer = await (await serve()).http.post("/v1/responses", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_choice")


async def test_another_tool_in_a_group_is_refused(serve: Serve) -> None:
    """A tool without a schema cannot be told to the model. The place is named."""
    group = {**GROUP, "tools": [FUNCTION, {"type": "custom", "name": "x"}]}
    answer = await (await serve()).http.post("/v1/responses", json={"input": "x", "tools": [group]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools.0.tools.1")


PATCH = {"type": "custom", "name": "patch", "description": "Edits files."}
EDIT = 'a\n"b" \U0001f600'
EDITS = json.dumps({"name": "patch", "arguments": {"input": EDIT}})
WRITES = NullConfig(
    mode=NullMode.SCRIPT,
    script=(("<tool_response>", "Done."), ("", f"<tool_call>\n{EDITS}\n</tool_call>")),
)


@pytest.mark.parametrize("format", [None, {"type": "text"}], ids=["no format", "text"])
async def test_a_custom_tool_is_a_function_of_a_text(
    serve: Serve, format: dict[str, Any] | None
) -> None:
    """The model calls it with an object. The client gets and sends the text."""
    server = await serve(WRITES)
    tools = [FUNCTION, PATCH if format is None else {**PATCH, "format": format}]
    choice = {"type": "custom", "name": "patch"}
    for more in ({}, {"tool_choice": choice}):
        made = await respond(server, tools=tools, **more)
        [call] = made["output"]
        assert call.pop("id").startswith("ctc_")
        assert call == {
            "type": "custom_tool_call",
            "call_id": call["call_id"],
            "name": "patch",
            "input": EDIT,
            "status": "completed",
        }
        assert made["tools"][1]["type"] == "custom"
    result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "ok"}
    history = [{"role": "user", "content": "Edit."}, call, result]
    again = await respond(server, input=history, tools=tools)
    assert again["output"][0]["content"][0]["text"] == "Done."


async def test_the_model_is_told_of_a_custom_tool(serve: Serve) -> None:
    """By its description, and by the one text that it takes."""
    made = await respond(await serve(), tools=[PATCH])
    text = made["output"][0]["content"][0]["text"]
    [line] = [one for one in text.splitlines() if one.startswith('{"type": "function"')]
    assert json.loads(line)["function"] == {
        "name": "patch",
        "description": "Edits files.",
        "parameters": {
            "type": "object",
            "properties": {"input": {"type": "string"}},
            "required": ["input"],
            "additionalProperties": False,
        },
    }


async def test_the_input_of_a_custom_tool_is_streamed(serve: Serve) -> None:
    """In parts, whose escapes are read."""
    body = {"input": "Edit.", "tools": [PATCH], "stream": True}
    answer = await (await serve(WRITES)).http.post("/v1/responses", json=body)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if "data: {" in line]
    kinds = [one["type"].removeprefix("response.") for one in events]
    parts = [one["delta"] for one in events if one["type"].endswith("input.delta")]
    assert "".join(parts) == EDIT and len(parts) > 1
    whole = ["output_item.added", *["custom_tool_call_input.delta"] * len(parts)]
    whole += ["custom_tool_call_input.done", "output_item.done", "completed"]
    assert kinds == ["created", "in_progress", *whole]
    done = events[-3]
    assert (done["input"], done["output_index"]) == (EDIT, 0)


LARK = 'start: "a" /"[^"]*"/'
GRAMMARS = {"lark": LARK, "regex": r'a\n"b".'}


def formed(syntax: str, definition: str | None = None) -> dict[str, Any]:
    text = GRAMMARS[syntax] if definition is None else definition
    return {**PATCH, "format": {"type": "grammar", "syntax": syntax, "definition": text}}


@pytest.mark.parametrize("syntax", GRAMMARS)
async def test_a_grammar_of_a_custom_tool(serve: Serve, syntax: str) -> None:
    """Its call has a text as any custom tool's, and the response shows the grammar again."""
    server = await serve(WRITES)
    made = await respond(server, tools=[FUNCTION, formed(syntax)])
    [call] = made["output"]
    assert (call["type"], call["input"]) == ("custom_tool_call", EDIT)
    assert made["tools"][1]["format"] == formed(syntax)["format"]


def custom(syntax: str) -> Tool:
    """The function that a tool with such a grammar becomes."""
    form = CustomFormat(type="grammar", syntax=syntax, definition=GRAMMARS[syntax])
    tool = CustomTool(type="custom", name="patch", description="Edits files.", format=form)
    return tool.tool("tools.0")


def test_the_model_reads_the_grammar() -> None:
    """In Lark as part of the description, and a pattern in the schema."""
    lark, regex = (custom(syntax).to_template()["function"] for syntax in ("lark", "regex"))
    says = f"Edits files.\nThe input follows this grammar in Lark:\n{LARK}"
    assert (lark["description"], regex["description"]) == (says, "Edits files.")
    assert lark["parameters"]["properties"] == {"input": {"type": "string"}}
    pattern = f"^(?:{GRAMMARS['regex']})$"
    assert regex["parameters"]["properties"] == {"input": {"type": "string", "pattern": pattern}}


@pytest.mark.parametrize(
    ("format", "param"),
    [
        ({"type": "grammar", "syntax": "ebnf", "definition": "a"}, "tools.0.format"),
        ({"type": "grammar", "syntax": "lark"}, "tools.0.format"),
        ({"type": "grammar", "syntax": "regex", "definition": ""}, "tools.0.format"),
        ({"type": "json"}, "tools.0.format"),
        (
            {"type": "grammar", "syntax": "lark", "definition": "a" * 65537},
            "tools.0.format.definition",
        ),
        (
            {"type": "grammar", "syntax": "regex", "definition": "a" * 65537},
            "tools.0.format.definition",
        ),
    ],
)
async def test_a_format_that_is_none(serve: Serve, format: dict[str, Any], param: str) -> None:
    """The error names its place, also of a grammar that is too long."""
    body = {"input": "x", "tools": [{**PATCH, "format": format}]}
    answer = await (await serve(WRITES)).http.post("/v1/responses", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_an_engine_without_grammars(serve: Serve) -> None:
    """It is told at once, in a stream, too, and nothing is free that should be held."""
    server = await serve(NullConfig())
    for stream in (False, True):
        body = {"input": "x", "tools": [formed("lark")], "stream": stream}
        answer = await server.http.post("/v1/responses", json=body)
        assert answer.status_code == 400
        assert "cannot hold the text of tool 'patch' to a grammar" in answer.text


def test_how_a_grammar_holds_a_call() -> None:
    """The text of the only argument, forced or from where the model begins a call."""
    tool = custom("lark")
    held = {
        "type": "tag",
        "begin": '<tool_call>\n{"name": "patch", "arguments": {"input": "',
        "content": {"type": "json_string", "grammar": LARK},
        "end": '"}}\n</tool_call>',
    }
    kinds: dict[Any, str] = {"required": "tags_with_separator", "auto": "triggered_tags"}
    for choice, kind in kinds.items():
        call = Call(name="c", prompt=(), tools=(tool,), tool_choice=choice)
        form = json.loads(constraint(call, None, ToolFormat.HERMES) or "")["structural_tag"]
        assert (form["type"], form["tags"]) == (kind, [held])
    free = Call(name="c", prompt=(), tools=(tool,))
    with pytest.raises(InvalidRequest, match="begins a call with a token that is no text"):
        constraint(free, None, ToolFormat.MISTRAL)


@pytest.mark.parametrize(
    "parameters",
    [
        None,
        {"type": "object", "properties": {"n": {"type": "integer"}}},
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
    ],
)
async def test_a_grammar_of_a_function(serve: Serve, parameters: Any) -> None:
    """A chat's function may have one, too, if its only argument is a text."""
    server = await serve(WRITES)
    function = {"name": "patch", "grammar": LARK, "parameters": parameters}
    body = {"messages": [{"role": "user", "content": "Edit."}]}
    tools = [{"type": "function", "function": function}]
    answer = await server.http.post("/v1/chat/completions", json={**body, "tools": tools})
    assert answer.status_code == 400 and "must have one parameter" in answer.text
    function["parameters"] = {"type": "object", "properties": {"input": {"type": "string"}}}
    answer = await server.http.post("/v1/chat/completions", json={**body, "tools": tools})
    [call] = answer.json()["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"input": EDIT}
