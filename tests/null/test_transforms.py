"""Transforms: each op's values and failures, the check of specs, and the limits of one."""

from __future__ import annotations

from typing import Any

import pytest

from weftline.contract.transforms import OPS, ValueFlow, parse, run
from weftline.errors import InvalidRequest, TransformFailed


@pytest.mark.parametrize(
    ("specs", "value", "expected"),
    [
        pytest.param([], "as it is", "as it is", id="none"),
        pytest.param([{"op": "string"}], " text\n", " text\n", id="string"),
        pytest.param([{"op": "strip"}], " a text\n\u2003", "a text", id="strip"),
        pytest.param([{"op": "json"}], '{"a": [1, 2.0, null]}', {"a": [1, 2.0, None]}, id="json"),
        pytest.param([{"op": "json"}], 'Sure:\n```json\n{"a": 1}\n```\nBye', {"a": 1}, id="fenced"),
        pytest.param([{"op": "json"}], '{"a": [1, {"b": "c', {"a": [1, {"b": "c"}]}, id="cut"),
        pytest.param([{"op": "json"}], '{"a": 1, "b": tr', {"a": 1}, id="cut-in-literal"),
        pytest.param([{"op": "json"}], '{"a": 1]', None, id="crossed-brackets"),
        pytest.param(
            [{"op": "json"}],
            '{"action": "x", "action_input": "two\nlines"}',
            {"action": "x", "action_input": "two\nlines"},
            id="action-input",
        ),
        pytest.param([{"op": "path", "keys": ["a", -1]}], {"a": [1, 2]}, 2, id="path"),
        pytest.param([{"op": "comma_list"}], 'a, "b, c" ,d', ["a", "b, c ", "d"], id="comma"),
        pytest.param([{"op": "numbered_list"}], "1. a\n12. b c\n3.d", ["a", "b c"], id="numbered"),
        pytest.param([{"op": "markdown_list"}], "x\n- a\n\n  * b\n-c", ["a", "b"], id="markdown"),
        pytest.param([{"op": "str"}], {"a": [True, None]}, "{'a': [True, None]}", id="str"),
        pytest.param([{"op": "str"}], "text", "text", id="str-of-text"),
        pytest.param([{"op": "repr"}], "it's", '"it\'s"', id="repr"),
        pytest.param([{"op": "join", "separator": "; "}], ["a", "b"], "a; b", id="join"),
        pytest.param([{"op": "join", "separator": "-"}], "abc", "a-b-c", id="join-characters"),
        pytest.param(
            [{"op": "json"}, {"op": "path", "keys": ["t"]}, {"op": "join", "separator": ","}],
            '{"t": ["x", "y"]}',
            "x,y",
            id="in-order",
        ),
    ],
)
def test_value(specs: list[dict[str, Any]], value: Any, expected: Any) -> None:
    """Every op gives the same value as the LangChain class that it stands for."""
    assert run(specs, value) == expected


@pytest.mark.parametrize(
    ("spec", "value", "message"),
    [
        ({"op": "json"}, " no json ", "Invalid json output: no json"),
        ({"op": "path", "keys": ["b"]}, {"a": 1}, "KeyError: 'b'"),
        ({"op": "path", "keys": [3]}, [1], "IndexError: list index out of range"),
        (
            {"op": "path", "keys": ["b"]},
            [1],
            "TypeError: list indices must be integers or slices, not str",
        ),
        (
            {"op": "join", "separator": ""},
            ["a", 1],
            "TypeError: sequence item 1: expected str instance, int found",
        ),
        ({"op": "comma_list"}, ["a"], "comma_list reads text, but its value is a list"),
    ],
)
def test_failure_keeps_the_parsers_words(spec: dict[str, Any], value: Any, message: str) -> None:
    """The client raises LangChain's exception, so the message must be the parser's own."""
    with pytest.raises(TransformFailed) as failure:
        run([spec], value)
    assert failure.value.message == message


@pytest.mark.parametrize(
    "text", ['{"a": NaN}', "[1e999]", '["\\ud800"]', '{"\\udfff": 1}', "[" * 200]
)
def test_json_that_cannot_be_sent_on_fails(text: str) -> None:
    """Python reads NaN, infinities, lone surrogates and deep nesting. A JSON body must not have
    them.
    """
    with pytest.raises(TransformFailed, match="which cannot be sent on"):
        run([{"op": "json"}], text)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("json", "a transform is an object"),
        ({}, "unknown transform 'None'"),
        ({"op": "eval"}, "unknown transform 'eval': use one of string, json"),
        ({"op": ["json"]}, "unknown transform"),
        ({"op": "json", "strict": True}, "transform 'json' has no option 'strict'"),
        ({"op": "path"}, "transform 'path' needs its option 'keys'"),
        ({"op": "path", "keys": []}, "a list of 1 to 64"),
        ({"op": "path", "keys": "ab"}, "a list of 1 to 64"),
        ({"op": "path", "keys": [True]}, "a string or an integer"),
        ({"op": "path", "keys": [1.5]}, "a string or an integer"),
        ({"op": "join", "separator": 7}, "join takes 'separator'"),
        ({"op": "join", "separator": "x" * 2000}, "join takes 'separator'"),
    ],
)
def test_bad_spec_is_refused(spec: Any, message: str) -> None:
    """A spec is checked whole when it arrives. The refusal names the field."""
    with pytest.raises(InvalidRequest, match=message.replace("(", r"\(")) as refusal:
        parse(spec)
    assert refusal.value.param == "transforms"


def test_the_flow_of_each_transform() -> None:
    """Unchanged text passes part by part, and lists pass item by item. Everything else waits for
    its end.
    """
    assert {op: cls.flow for op, cls in OPS.items() if cls.flow is not ValueFlow.WHOLE} == {
        "string": ValueFlow.STREAM,
        "comma_list": ValueFlow.ITEMS,
        "numbered_list": ValueFlow.ITEMS,
        "markdown_list": ValueFlow.ITEMS,
        "line_list": ValueFlow.ITEMS,
        "query_list": ValueFlow.ITEMS,
    }


def test_equal_specs_are_equal_transforms() -> None:
    """Transforms are values: the graph may compare and hash them."""
    spec = {"op": "path", "keys": ["a", 0]}
    assert parse(spec) == parse(dict(spec))
    assert len({parse(spec), parse(dict(spec))}) == 1


@pytest.mark.parametrize(
    ("op", "text"),
    [
        pytest.param("json", '{"a": [' + "1, " * 300_000 + "x {", id="json-wrong-tail"),
        pytest.param("json", "[1," + " " * 1_000_000, id="json-space"),
        pytest.param("json", '{"a": 1, "' + "k" * 1_000_000, id="json-long-key"),
        pytest.param("json", '{"a":1' + ',"b":2' * 200_000 + "} [", id="json-second-value"),
        pytest.param("json", '"action_input": "' * 60_000, id="json-action-input"),
        pytest.param("numbered_list", "1" * 1_000_000, id="digits"),
        pytest.param("markdown_list", "\n" * 1_000_000, id="newlines"),
        pytest.param("markdown_list", " " * 1_000_000, id="spaces"),
        pytest.param("line_list", "\n" * 1_000_000, id="lines"),
        pytest.param("boolean", "YES " * 250_000 + "NO", id="words"),
        pytest.param("xml", "<" * 500_000, id="xml-opened"),
        pytest.param("xml", "<encoding" * 100_000, id="xml-encoding"),
        pytest.param("xml", "`" * 1_000_000, id="xml-fences"),
        pytest.param("xml", "<a>" * 300_000, id="xml-deep"),
        pytest.param("xml", "<a>" * 140_000 + "</a>" * 140_000, id="xml-deep-and-closed"),
        pytest.param("datetime", " " * 1_000_000, id="blanks"),
    ],
)
def test_hostile_text_takes_linear_time(op: str, text: str) -> None:
    """A model that repeats itself must not block the server. LangChain's code takes hours here."""
    try:
        run([{"op": op}], text)
    except TransformFailed as failure:
        assert failure.message.startswith(
            (
                "Invalid json output",
                "Ambiguous",
                "Failed to parse XML",
                "Could not parse",
                "the XML",
            )
        )


def test_specs_cannot_multiply_text_without_end() -> None:
    """Each repr doubles the backslashes of the one before. The sixteenth is stopped by its size."""
    with pytest.raises(TransformFailed, match="more than 16777216 characters"):
        run([{"op": "repr"}] * 16, "\\" * 4096)
    with pytest.raises(InvalidRequest, match="at most 16 transforms"):
        run([{"op": "string"}] * 17, "text")
