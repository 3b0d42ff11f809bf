"""Constraints in the words of vLLM: patterns and choices as such, tool calls as xgrammar's tags."""

from __future__ import annotations

import json
from typing import Any

import pytest

from weftline_engine.vllm.constraints import structured_outputs

SCHEMA = {"type": "object"}
TAGS = [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}]
TAG = {
    "type": "tag",
    "begin": "<a>",
    "content": {"type": "json_schema", "json_schema": SCHEMA},
    "end": "</a>",
}
CALLS = {
    "type": "tags_with_separator",
    "separator": "\n",
    "at_least_one": True,
    "tags": [TAG],
    "stop_after_first": False,
}


@pytest.mark.parametrize(
    ("wish", "sent"),
    [
        ({"json_schema": SCHEMA}, {"json": SCHEMA}),
        ({"json_schema": True}, {"json": True}),
        ({"regex": "[0-9]+"}, {"regex": "[0-9]+"}),
        ({"choice": ["yes", "no"]}, {"choice": ["yes", "no"]}),
    ],
)
def test_what_vllm_takes_as_such(wish: dict[str, Any], sent: dict[str, Any]) -> None:
    """Only the name of a JSON schema is another one."""
    assert structured_outputs(json.dumps(wish)) == sent


@pytest.mark.parametrize(
    ("form", "format"),
    [
        ({"separator": "\n"}, CALLS),
        ({}, {**CALLS, "separator": ""}),
        ({"separator": "\n", "stop_after_first": True}, {**CALLS, "stop_after_first": True}),
        (
            {"trigger": "<", "stop_after_first": True},
            {
                "type": "triggered_tags",
                "triggers": ["<"],
                "tags": [TAG],
                "stop_after_first": True,
            },
        ),
        (
            {"separator": "\n", "otherwise": {"json_schema": SCHEMA}},
            {"type": "or", "elements": [CALLS, {"type": "json_schema", "json_schema": SCHEMA}]},
        ),
        (
            {"separator": "\n", "otherwise": {"regex": "x+"}},
            {"type": "or", "elements": [CALLS, {"type": "regex", "pattern": "x+"}]},
        ),
        (
            {"separator": "\n", "otherwise": {"choice": ["yes", "no"]}},
            {
                "type": "or",
                "elements": [
                    CALLS,
                    {"type": "const_string", "value": "yes"},
                    {"type": "const_string", "value": "no"},
                ],
            },
        ),
    ],
    ids=["calls", "no separator", "one", "optional", "or JSON", "or a pattern", "or a choice"],
)
def test_tool_calls_are_tags_of_xgrammar(form: dict[str, Any], format: dict[str, Any]) -> None:
    """vLLM takes the tags as a text. With the names that our engine uses it answers 400."""
    sent = structured_outputs(json.dumps({"structural_tag": {"tags": TAGS, **form}}))
    assert sent.keys() == {"structural_tag"}
    assert json.loads(sent["structural_tag"]) == {"type": "structural_tag", "format": format}
