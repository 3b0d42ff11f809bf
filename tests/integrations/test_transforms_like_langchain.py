"""Transforms against LangChain's parsers: equal values and equal failures on thousands of texts."""

from __future__ import annotations

import json
from functools import partial
from string import Formatter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.exceptions import OutputParserException
from langchain_core.output_parsers import (
    BaseOutputParser,
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    MarkdownListOutputParser,
    NumberedListOutputParser,
    StrOutputParser,
)

from tests.integrations.differential import mutated, outcomes, without_link
from weftline.contract.transforms import run

PARSERS: dict[str, BaseOutputParser[Any]] = {
    "string": StrOutputParser(),
    "json": JsonOutputParser(),
    "comma_list": CommaSeparatedListOutputParser(),
    "numbered_list": NumberedListOutputParser(),
    "markdown_list": MarkdownListOutputParser(),
}

SEEDS = (
    '```json\n{"a": 1, "b": "x\ny", "n": 3}\n```',
    '{"a": [1, 2, {"b": "c"}], "b": nul',
    'Sure:\n```json\n{"a": 1, "b": [2.50, -1e3]}```\nbye',
    '{"action": "x", "action_input": "many\nlines\tand\r tabs"}',
    '{"k": "say \\"hi\\" \\u00e9 \\\\", "l": true, "m": {"o": []}}',
    '[[1, [2]], {"a": {"b": [null, false',
    "a, b, \"c, d\" ,'e'\n f,g",
    "1. one\n2. two\n 10.  three\n4.\nfour",
    "- x\n* y\n  - z\n\n\t-  w\n-\nv",
    "```{}``` and ```json\n[1]```",
    '"text"',
    " 12 ",
    "null",
    "",
    "é, ü\u2028* ß\x85- ø",
)
outcome = outcomes({OutputParserException: without_link})


@pytest.mark.parametrize("op", PARSERS)
def test_same_value_or_same_failure(op: str) -> None:
    """On six thousand texts around the seeds the transform and the parser always agree."""
    values = failures = 0
    for text in mutated(seed=len(op), count=6000, seeds=SEEDS):
        expected = outcome(partial(PARSERS[op].parse, text))
        assert outcome(partial(run, [{"op": op}], text)) == expected, text
        values += expected[0] == "value"
        failures += expected[0] == "failure"
    assert values > 1500
    assert (failures > 1500) == (op == "json")


def _cuts(value: Any) -> st.SearchStrategy[str]:
    text = json.dumps(value)
    return st.integers(0, len(text)).map(lambda end: text[:end])


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('ab"\\{}[]\n', max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text('kl"\\', max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=1500, deadline=None)
@given(_JSON.flatmap(_cuts), st.text('{}[]", \n`1', max_size=3))
def test_json_cut_anywhere(head: str, tail: str) -> None:
    """An answer cut anywhere by max_tokens, perhaps with garbage behind, is repaired alike."""
    text = head + tail
    expected = outcome(partial(PARSERS["json"].parse, text))
    got = outcome(partial(run, [{"op": "json"}], text))
    if "inf" in expected[1] and expected[0] == "value":  # a digit behind 1e308 makes infinity
        assert got[0] == "failure"
    else:
        assert got == expected


@settings(max_examples=300, deadline=None)
@given(_JSON, st.text(max_size=3))
def test_values_look_as_in_an_f_string(value: Any, separator: str) -> None:
    """A template shows a value by str and a list's items by repr."""
    shown = Formatter().format("{x}", x=value)
    assert run([{"op": "str"}], value) == shown
    assert "[" + run([{"op": "repr"}], value) + "]" == Formatter().format("{x}", x=[value])
    texts = [shown, separator]
    assert run([{"op": "join", "separator": separator}], texts) == separator.join(texts)
