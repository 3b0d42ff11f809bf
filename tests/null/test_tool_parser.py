"""Tool calls are read from text in every format that models write, however the text is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weftline_server.prompt.answer import message_of
from weftline_server.prompt.tool_format import ToolFormat, format_of, written
from weftline_server.prompt.tool_parser import (
    Argument,
    Arguments,
    Called,
    Delta,
    Said,
    Sealed,
    ToolParser,
    Unfinished,
)

NAMES = ("add", "get_weather")
H, L, M = ToolFormat.HERMES, ToolFormat.LLAMA, ToolFormat.MISTRAL
N = ToolFormat.MISTRAL_NAMED


def read(format: ToolFormat, text: str) -> tuple[str | None, list[tuple[str, str]]]:
    """Return the content, and (name, arguments) of each call."""
    message = message_of(ToolParser(format, NAMES, "k"), text)
    calls = message.get("tool_calls", [])
    found = [(c["function"]["name"], c["function"]["arguments"]) for c in calls]
    return message["content"], found


CASES: list[tuple[str, ToolFormat, str, str | None, list[tuple[str, str]]]] = [
    ("plain", H, "Hello there.", "Hello there.", []),
    ("spaces", H, " \n ", " \n ", []),
    (
        "one",
        H,
        '<tool_call>\n{"name": "add", "arguments": {"a": [1, {"b": "}"}]}}\n</tool_call>',
        None,
        [("add", '{"a": [1, {"b": "}"}]}')],
    ),
    (
        "two, after some words",
        H,
        'Let me see.\n<tool_call>{"name":"add","arguments":{}}</tool_call>\n'
        '<tool_call>\n{"name": "x", "arguments": {"q": "\\"<"}}\n</tool_call>\n',
        "Let me see.",
        [("add", "{}"), ("x", '{"q": "\\"<"}')],
    ),
    (
        "in another order",
        H,
        '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>',
        None,
        [("add", '{"a": 1}')],
    ),
    (
        "quoted",
        H,
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}',
        None,
        [("add", '{"a": 1}')],
    ),
    (
        "none",
        H,
        '<tool_call>{"name": "add", "arguments": null}</tool_call>',
        None,
        [("add", "{}")],
    ),
    (
        "none, in another order",
        H,
        '<tool_call>{"arguments": null, "name": "add"}</tool_call>',
        None,
        [("add", "{}")],
    ),
    ("without arguments", H, '<tool_call>{"name": "add"}</tool_call>', None, [("add", "{}")]),
    ("cut off", H, 'Well.\n<tool_call>{"name": "add", "arguments": {"a": "b', "Well.", []),
    (
        "cut off in the second",
        H,
        '<tool_call>{"name": "add", "arguments": {}}</tool_call>\n<tool_call>{"name": "y", '
        '"arguments": nu',
        None,
        [("add", "{}")],
    ),
    ("cut in a string of JSON", H, '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}', "", []),
    ("cut in a parameter in XML", H, "<tool_call>\n<function=add>\n<parameter=a>\n1", "", []),
    ("Llama's, cut", L, '{"name": "add", "parameters": {"a": ', "", []),
    ("Mistral's, cut", M, '[TOOL_CALLS] [{"name": "add", "arguments": {"a": ', "", []),
    ("Mistral's without marks, cut", N, 'add{"a": ', "", []),
    (
        "cut behind the arguments",
        H,
        '<tool_call>{"name": "add", "arguments": {"a": 1}',
        None,
        [("add", '{"a": 1}')],
    ),
    ("cut in its name", H, 'Well. <tool_call>{"name": "ad', "Well.", []),
    ("cut before its arguments", H, '<tool_call>{"name": "add", "arguments": ', "", []),
    ("cut behind its mark", H, "Well. <tool_call>\n", "Well.", []),
    ("cut in another order", H, '<tool_call>{"arguments": {"a": 1}, "na', "", []),
    ("cut in its mark", H, "Well. <tool_ca", "Well.", []),
    ("cut in XML", H, "Well. <tool_call>\n<function=ad", "Well.", []),
    ("cut in GLM's name", H, "Well. <tool_call>get_we", "Well.", []),
    (
        "a second call, cut",
        H,
        '<tool_call>{"name": "add", "arguments": {}}</tool_call>\n<tool_call>\n{',
        None,
        [("add", "{}")],
    ),
    ("nonsense, cut", H, '<tool_call>{"name": 1, "x', '<tool_call>{"name": 1, "x', []),
    ("cut, Mistral's", M, 'Well. [TOOL_CALLS] [{"name": "ad', "Well.", []),
    ("cut behind Mistral's mark", M, "Well. [TOOL_CALLS]", "Well.", []),
    ("no JSON", H, "<tool_call>add(1)</tool_call>!", "<tool_call>add(1)</tool_call>!", []),
    ("a tag in part", H, "a <tool", "a <tool", []),
    ("Llama's", L, '{"name": "add", "parameters": {"a": 1}}', None, [("add", '{"a": 1}')]),
    (
        "Llama's, two",
        L,
        '{"name": "add", "parameters": {}}; {"name": "get_weather", "parameters": {"c": "Rome"}}',
        None,
        [("add", "{}"), ("get_weather", '{"c": "Rome"}')],
    ),
    (
        "JSON that calls nothing",
        L,
        '{"name": "Ann", "parameters": 3}',
        '{"name": "Ann", "parameters": 3}',
        [],
    ),
    ("any JSON", L, '{"age": 3}', '{"age": 3}', []),
    ("with its mark", L, '<|python_tag|>{"name": "y", "parameters": {}}', None, [("y", "{}")]),
    (
        "Mistral's",
        M,
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, {"name": "y", "arguments": {}}]',
        None,
        [("add", '{"a": 1}'), ("y", "{}")],
    ),
    (
        "without the mark",
        M,
        '[{"name": "add", "arguments": {"a": 1}}]',
        None,
        [("add", '{"a": 1}')],
    ),
    ("a list", M, "[1, 2]", "[1, 2]", []),
    (
        "words first",
        M,
        'Well. [TOOL_CALLS][{"name": "add", "arguments": {}}]',
        "Well.",
        [("add", "{}")],
    ),
    (
        "Mistral's with names, two",
        N,
        'Well. [TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]y[CALL_ID]abcdefghi[ARGS]{"b": "[ARGS]"}',
        "Well.",
        [("add", '{"a": 1}'), ("y", '{"b": "[ARGS]"}')],
    ),
    (
        "its marks are special tokens, which engines leave out",
        N,
        'add{"a": 1}get_weather{"c": "Rome"}',
        None,
        [("add", '{"a": 1}'), ("get_weather", '{"c": "Rome"}')],
    ),
    ("words behind a call", N, "add {} it up", " it up", [("add", "{}")]),
    ("a name within a sentence", N, "add it up {}", "add it up {}", []),
    ("the name of no tool", N, 'y{"a": 1}', 'y{"a": 1}', []),
    ("its mark before text", N, "[TOOL_CALLS]add(1)", "[TOOL_CALLS]add(1)", []),
    ("cut in its name's mark", N, "[TOOL_CALLS]add[AR", "", []),
    ("cut in its arguments", N, '[TOOL_CALLS]add[ARGS]{"a": [', "", []),
]


@pytest.mark.parametrize(
    ("format", "text", "content", "calls"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_an_answer_is_read(
    format: ToolFormat, text: str, content: str | None, calls: list[tuple[str, str]]
) -> None:
    """Content and calls are read. Text that looks like a call and is none stays text."""
    assert read(format, text) == (content, calls)


def whole(deltas: list[Delta]) -> tuple[str, list[list[str]]]:
    said, calls = "", []
    for delta in deltas:
        match delta:
            case Said(text):
                said += text
            case Called(index, id, name):
                assert index == len(calls), "calls begin in order"
                calls.append([id, name, ""])
            case Arguments(index, text):
                calls[index][2] += text
            case Unfinished(index):
                calls[index].append("unfinished")
    return said, calls


PIECES = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "add",
        "<|python_tag|>",
        "<tool",
        "_call>",
        '{"name": "add", "arguments": ',
        '{"name": "add", "parameters": ',
        '{"a": "\\"}"}',
        "}",
        "]",
        "[",
        "{",
        ", ",
        "; ",
        "\n",
        " ",
        "text",
        '"',
        "\\",
        "null",
        '"{}"',
        "é",
    ]
)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.sampled_from(ToolFormat), st.lists(PIECES, max_size=12), st.data())
def test_the_cuts_do_not_matter(format: ToolFormat, pieces: list[str], data: Any) -> None:
    """Streamed a few characters at a time, the same text gives the same content and calls."""
    text = "".join(pieces)
    at_once = ToolParser(format, NAMES, "k")
    streamed = ToolParser(format, NAMES, "k")
    deltas: list[Delta] = []
    start = 0
    while start < len(text):
        size = data.draw(st.integers(1, 9))
        deltas += streamed.feed(text[start : start + size])
        start += size
    assert whole([*deltas, *streamed.end()]) == whole([*at_once.feed(text), *at_once.end()])


ARGUMENTS = st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.integers(), max_size=3)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.sampled_from(ToolFormat), st.sampled_from(NAMES), ARGUMENTS)
def test_a_forced_call_is_readable(
    format: ToolFormat, name: str, arguments: dict[str, Any]
) -> None:
    """The form that a forced call is held to is exactly a form that the parser reads."""
    begin, end = written(format, name)
    text = json.dumps(arguments)
    assert read(format, begin + text + end) == (None, [(name, text)])


def test_arguments_stream() -> None:
    """The name comes before the arguments, which come as they are written."""
    parser = ToolParser(H, NAMES, "k")
    assert parser.feed('<tool_call>{"name": "add", "arguments": ') == []
    [called, first] = parser.feed('{"a"')
    assert isinstance(called, Called) and called.name == "add"
    assert first == Arguments(0, '{"a"')
    assert parser.feed(": 1") == [Arguments(0, ": 1")]
    assert parser.feed("}") == [Arguments(0, "}"), Argument(0, "a", 1)]
    assert parser.feed("}</tool_call>") == [Sealed(0)]
    assert parser.end() == []


def test_ids_are_the_same_each_time() -> None:
    """A stream and the value of its variable give a call the same id. Mistral's ids have nine
    characters.
    """
    text = '[{"name": "add", "arguments": {}}, {"name": "add", "arguments": {}}]'

    def ids_of(key: str) -> list[str]:
        message = message_of(ToolParser(M, NAMES, key), text)
        return [call["id"] for call in message["tool_calls"]]

    ids = ids_of("call/0")
    assert ids == ids_of("call/0") != ids_of("call/1")
    assert len(set(ids)) == 2 and all(len(id) == 9 and id.isalnum() for id in ids)


def test_the_template_tells_the_format() -> None:
    """Each format is known by its mark. A template that knows no tools gets the tags."""
    assert format_of("{% for t in tools %}<tool_call>{% endfor %}") is H
    assert format_of("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]") is M
    assert format_of("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]f[ARGS]{}") is N
    assert format_of("""{% if tools %}{{ '"parameters": ' }}{% endif %}""") is L
    assert format_of("{{ messages }}") is format_of(None) is H


def test_a_single_call_is_the_first() -> None:
    """Where at most one call is wanted, the model's other calls do not count."""
    text = 'So: <tool_call>{"name": "add", "arguments": {}}</tool_call>' * 2
    message = message_of(ToolParser(H, NAMES, "k", single=True), text)
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["add"]
    assert message["content"] == "So:So:"
