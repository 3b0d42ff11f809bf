"""Constraints in the words of vLLM and SGLang: patterns as such, tool calls as xgrammar's tags."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from weftline.contract.protocol import Call, InOut, Placeholder
from weftline.contract.tools import Function, NamedFunction, NamedTool, Tool, ToolChoice
from weftline_engine.api import Constraint
from weftline_engine.remote.openai.endpoint import EndpointError
from weftline_engine.remote.openai.endpoint_constraints import fields, kinds, structured_outputs
from weftline_engine.remote.openai.scheduling import EndpointScheduler
from weftline_server.prompt.tool_format import ToolFormat, constraint

SCHEMA = {"type": "object"}
TAG = {
    "type": "tag",
    "begin": "<a>",
    "content": {"type": "json_schema", "json_schema": SCHEMA},
    "end": "</a>",
}


@pytest.mark.parametrize(
    ("wish", "sent"),
    [
        ({"json_schema": SCHEMA}, {"json": SCHEMA}),
        ({"json_schema": True}, {"json": True}),
        (
            {"json_schema": {"x-guidance": {"whitespace_flexible": False}, **SCHEMA}},
            {"json": SCHEMA, "disable_any_whitespace": True},
        ),
        ({"regex": "[0-9]+"}, {"regex": "[0-9]+"}),
        ({"choice": ["yes", "no"]}, {"choice": ["yes", "no"]}),
        ({"grammar": 'start: "a"'}, {"grammar": 'start: "a"'}),
    ],
)
def test_what_vllm_takes_as_such(wish: dict[str, Any], sent: dict[str, Any]) -> None:
    """Only the name of a JSON schema is another one."""
    assert structured_outputs(json.dumps(wish)) == sent


LARK = 'start: "yes" | "no"'
EBNF = 'root ::= "yes" | "no"'
OLD_TAG = {
    "structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}],
    "triggers": ["<a"],
}
FREE = {
    "type": "triggered_tags",
    "triggers": ["<a"],
    "tags": [TAG],
    "at_least_one": False,
    "stop_after_first": False,
}
TOOL = Tool(function=Function(name="f", parameters={"type": "object"}))
CALL_TAG = {**TAG, "begin": '<tool_call>\n{"name": "f", "arguments": ', "end": "}\n</tool_call>"}
CALLS = {
    "type": "tags_with_separator",
    "separator": "\n",
    "tags": [CALL_TAG],
    "at_least_one": True,
    "stop_after_first": False,
}


def lowered(wish: dict[str, Any] | None, choice: ToolChoice = None, **more: Any) -> Any:
    """The structural tag that vLLM gets for a call with a tool, or with none."""
    asks = Call(
        name="c",
        prompt="{{output:x}}",
        placeholders=(Placeholder(name="x", in_out=InOut.OUT),),
        tool_choice=choice,
        **more,
    )
    held = constraint(asks, wish, ToolFormat.HERMES)
    assert held is not None
    sent = structured_outputs(held)
    assert sent.keys() == {"structural_tag"}
    return json.loads(sent["structural_tag"])


@pytest.mark.parametrize(("tag", "format"), [(OLD_TAG, FREE), ({"format": FREE}, FREE)])
def test_both_forms_of_a_structural_tag(tag: dict[str, Any], format: dict[str, Any]) -> None:
    """The older form becomes the newer one. vLLM takes it as a text."""
    assert lowered({"structural_tag": tag}) == {"type": "structural_tag", "format": format}


@pytest.mark.parametrize(
    ("wish", "others"),
    [
        ({"json_schema": SCHEMA}, [{"type": "json_schema", "json_schema": SCHEMA}]),
        ({"regex": "x+"}, [{"type": "regex", "pattern": "x+"}]),
        (
            {"choice": ["yes", "no"]},
            [{"type": "const_string", "value": "yes"}, {"type": "const_string", "value": "no"}],
        ),
        ({"grammar": EBNF}, [{"type": "grammar", "grammar": EBNF}]),
        ({"structural_tag": OLD_TAG}, [FREE]),
    ],
    ids=["JSON", "a pattern", "a choice", "a grammar", "a tag"],
)
def test_an_answer_is_a_call_or_what_the_client_asks_for(
    wish: dict[str, Any], others: list[dict[str, Any]]
) -> None:
    """Beside optional tools. With names of ours, vLLM would answer 400."""
    either = {"type": "or", "elements": [CALLS, *others]}
    assert lowered(wish, tools=(TOOL,)) == {"type": "structural_tag", "format": either}


def test_forced_calls_leave_no_other_text() -> None:
    """A named function is called once, whatever the client asks for besides. The only tool is
    called once if the request does not allow more.
    """
    once = {**CALLS, "stop_after_first": True}
    named = NamedTool(function=NamedFunction(name="f"))
    choices: list[tuple[ToolChoice, bool | None, dict[str, Any]]] = [
        ("required", None, once),
        ("required", True, CALLS),
        (named, True, once),
    ]
    for choice, parallel, format in choices:
        sent = lowered({"regex": "x"}, choice, tools=(TOOL,), parallel_tool_calls=parallel)
        assert sent == {"type": "structural_tag", "format": format}


def test_a_strict_tool_holds_only_its_calls() -> None:
    """The text is free until a call begins. Without parallel calls it ends behind the first."""
    strict = Tool(function=replace(TOOL.function, strict=True))
    free = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [CALL_TAG]}
    for parallel in (True, False):
        sent = lowered(None, tools=(strict,), parallel_tool_calls=parallel)
        assert sent["format"] == {**free, "stop_after_first": not parallel}


SGLANG: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"regex": "a+"}, {"regex": "a+"}),
    ({"choice": ["yes", 'n"o']}, {"ebnf": 'root ::= "yes" | "n\\"o"'}),
    ({"grammar": EBNF}, {"ebnf": EBNF}),
    (
        {"structural_tag": FREE},
        {"response_format": {"type": "structural_tag", "format": FREE}},
    ),
    (
        {"json_schema": SCHEMA},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "output", "schema": SCHEMA, "strict": True},
            }
        },
    ),
]


@pytest.mark.parametrize(("wish", "sent"), SGLANG)
def test_what_sglang_gets(wish: dict[str, Any], sent: dict[str, Any]) -> None:
    """SGLang has fields of its own. It knows no choice, which is a grammar of texts."""
    assert fields(EndpointScheduler.SGLANG, json.dumps(wish)) == (sent, "", "")


def test_sglang_reads_no_lark() -> None:
    """A grammar in another language is refused, and not sent."""
    with pytest.raises(EndpointError, match="write it in EBNF"):
        fields(EndpointScheduler.SGLANG, json.dumps({"grammar": LARK}))


def test_what_an_endpoint_announces() -> None:
    """Only where the endpoint's scheduler is known is it known whose grammars it has."""
    assert (
        kinds(EndpointScheduler.NONE)
        == kinds(EndpointScheduler.DYNAMO)
        == (Constraint.JSON_SCHEMA,)
    )
    assert kinds(EndpointScheduler.VLLM) == kinds(EndpointScheduler.SGLANG) == tuple(Constraint)
    asked = {"structured_outputs": {"regex": "a"}}
    assert fields(EndpointScheduler.VLLM, '{"regex": "a"}') == (asked, "", "")
