"""Custom tools whose input a grammar holds, with OpenAI's own client, on a real model."""

from __future__ import annotations

import re
from typing import Any

import openai
import pytest
from openai import OpenAI

PATCH = r"""
start: "*** Begin" LF hunk "*** End"
hunk: "*** Update File: " name LF ("@@" LF)? line ~ 1..3
name: /[a-z]{1,8}/ ".py"
line: ("+" | "-" | " ") /[^\n]{0,12}/ LF
%import common.LF
"""
PATCHED = (
    r"\*\*\* Begin\n\*\*\* Update File: [a-z]{1,8}\.py\n(@@\n)?([+\- ][^\n]{0,12}\n){1,3}\*\*\* End"
)
REGEX = r'(move|copy) "[a-z]{1,6}"\n[0-9]{2}'
FORMS = [("lark", PATCH, PATCHED), ("regex", REGEX, REGEX)]


@pytest.fixture
def client(model_url: str) -> OpenAI:
    return OpenAI(base_url=f"{model_url}/v1", api_key="none", max_retries=0)


def asked(syntax: str, definition: str, **more: Any) -> dict[str, Any]:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    tool = {"type": "custom", "name": "edit", "description": "Edits a file.", "format": form}
    return {
        "model": "default",
        "input": 'Print "hello" in the file main.py, with the tool edit.',
        "tools": [tool],
        "temperature": 0,
        "max_output_tokens": 160,
        **more,
    }


@pytest.mark.parametrize(("syntax", "definition", "pattern"), FORMS, ids=["lark", "regex"])
def test_a_forced_call_is_a_sentence_of_its_grammar(
    syntax: str, definition: str, pattern: str, client: OpenAI
) -> None:
    """Whole, and the same streamed."""
    body = asked(syntax, definition, tool_choice={"type": "custom", "name": "edit"})
    made: Any = client.responses.create(**body)
    [call] = made.output
    assert (call.type, call.name) == ("custom_tool_call", "edit")
    assert re.fullmatch(pattern, call.input), call.input
    deltas = []
    with client.responses.create(**body, stream=True) as events:
        for event in events:
            if event.type == "response.custom_tool_call_input.delta":
                deltas.append(event.delta)
            if event.type == "response.completed":
                final: Any = event.response
    assert "".join(deltas) == final.output[0].input == call.input


@pytest.mark.parametrize(("syntax", "definition", "pattern"), FORMS, ids=["lark", "regex"])
def test_a_free_call_is_one_too(syntax: str, definition: str, pattern: str, client: OpenAI) -> None:
    """The model may answer in words. A call that it begins keeps to the grammar."""
    made: Any = client.responses.create(**asked(syntax, definition))
    calls = [one for one in made.output if one.type == "custom_tool_call"]
    assert calls or made.output_text
    for call in calls:
        assert call.status == "incomplete" or re.fullmatch(pattern, call.input)


# Twice as many letters in each line: 2 ** 40.
EXPLODES = "start: a0\n" + "".join(f"a{n}: a{n + 1} a{n + 1}\n" for n in range(40)) + 'a40: "x"'
WRONG = [
    ("lark", 'start: "a" b', "there is no rule 'b'"),
    ("lark", "start: " + "(" * 5000 + '"a"' + ")" * 5000, "too deeply nested"),
    ("lark", EXPLODES, "too"),
    ("regex", "(a", "unclosed group"),
]


@pytest.mark.parametrize(("syntax", "definition", "words"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_grammar_is_refused(
    syntax: str, definition: str, words: str, client: OpenAI
) -> None:
    """With a 400, or at the end of a stream, as the API says."""
    body = asked(syntax, definition, tool_choice="required")
    with pytest.raises(openai.BadRequestError, match=words):
        client.responses.create(**body)
    with client.responses.create(**body, stream=True) as events:
        *_, last = events
    assert last.type == "response.failed" and last.response.error is not None
    assert last.response.error.code == "invalid_prompt"
    assert words in last.response.error.message


def test_a_function_of_a_chat_that_explodes_is_refused(client: OpenAI) -> None:
    """The next request is answered."""
    text = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    function = {"name": "edit", "parameters": text, "grammar": EXPLODES}
    body: dict[str, Any] = {
        "model": "default",
        "messages": [{"role": "user", "content": "Edit."}],
        "max_completion_tokens": 1,
    }
    tools: Any = [{"type": "function", "function": function}]
    with pytest.raises(openai.BadRequestError, match="too"):
        client.chat.completions.create(**body, tools=tools, tool_choice="required")
    assert client.chat.completions.create(**body).choices
