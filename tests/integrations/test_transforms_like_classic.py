"""Transforms against LangChain's XML parser and its classic parsers, on thousands of texts each."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any

import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.output_parsers import BaseOutputParser, XMLOutputParser

from tests.integrations.differential import mutated, named, outcomes, without_link
from weftline.contract.transforms import run

classic = pytest.importorskip("langchain_classic.output_parsers")
structured = pytest.importorskip("langchain_classic.output_parsers.structured")
multi_query = pytest.importorskip("langchain_classic.retrievers.multi_query")
llm_router = pytest.importorskip("langchain_classic.chains.router.llm_router")
extract = pytest.importorskip("langchain_classic.retrievers.document_compressors.chain_extract")
flare = pytest.importorskip("langchain_classic.chains.flare.prompts")

XML = (
    "<a>\n <b>1</b>\n <c/> <d x='1'><e>two</e>tail</d>\n</a>",
    "Sure:\n```xml\n<a><b>é</b></a>\n```\nDone",
    '<?xml version="1.0" encoding="utf-8"?>\n<a><b>1</b></a>',
    "<a>x &amp; y &lt; <![CDATA[<b>]]></a>",
    "<n:a xmlns:n='u'><n:b>1</n:b><!-- c --></n:a>",
    '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>',
    "```<a>1</a>``` and ```<b>2</b>```",
    "<encoding>\n<a/>",
)
WORDS = ("YES", "no", "Yes, no", "I know: NO.", "yes_", "ſyes YES\nyes", "nO", "YES\u00e9 no")
DATES = (
    "2023-07-04T14:30:00.000000Z",
    " 1999-12-31T23:59:59.9Z\n",
    "2023-02-29T00:00:00.0Z",
    "0001-01-01T00:00:00.0Z",
    "2023-7-4T1:2:3.4Z",
    "tomorrow",
    "２０２３-07-04T14:30:00.0Z",
)
LONG_DATES = (
    "Tuesday, 4 July 2023 02:05 PM +0200",
    "tuesday,  04 JULY 2023 2:5 am Z",
    "Sunday, 31 May 0001 12:00 am -11:59",
)
COLORS = ("red", " blue\n", "RED", "re d", "green", "red\u00a0")
SCORES = ("Score: 7 of 10", "Score: ٣", "\nscore: 7", "Score: 12 of x Score: 4 of 5", "x")
LINES = ("last line\n", "a\nb", "", "\n", "one\n\n", "ends here")
LABELS = (
    "Name: Ann.\nDeed: ran away.",
    "Name:Ann'Deed:\nN/A",
    "Name: N/A. Deed: x",
    "Deed: a. Deed: b",
    "Name: é. Deed:",
)
TAGS = ("<Name=Ann> <Deed=ran>", "<Name=é٣> <Deed=>", "<Deed=a> <Deed=b> <Name=x>")
OBJECTS = (
    '```json\n{"a": 1, "b": "x"}\n```',
    '{"a": {"c": [1, 2]}, "b": nul',
    '{"b": 1}',
    '["a", "b"]',
    '\u00a0{"a": 1, "b": "two\nlines"}',
    '{"a": 1]',
    "null",
)
PARAGRAPHS = (
    '{"a": 1}\n\nScore: 3 of 4',
    '["ab", "cd"]\n\n Score: 3\n\nmore',
    '{"a": 1}',
    '[["a", 1]]\n\nScore: 1',
    '"ab"\n\nScore: 1',
)
ROUTES = (
    '```json\n{"destination": " physics ", "next_inputs": "Why?"}\n```',
    '{"destination": "Default", "next_inputs": "two\nlines", "more": [1]}',
    '{"destination": null, "next_inputs": "x"}',
    '{"destination": "a", "next_inputs": ["x"]}',
    '{"next_inputs": "x"}',
)
SCORE = r"Score: (\d+)(?: of (\d+))?"


class Color(Enum):
    """An enum with an alias."""

    RED = "red"
    CRIMSON = "red"  # noqa: PIE796 - an alias is listed once
    BLUE = "blue"


def _case(
    spec: dict[str, Any], parser: BaseOutputParser[Any], seeds: tuple[str, ...], id: str
) -> Any:
    return pytest.param(spec, parser, seeds, id=id)


def _regex(pattern: str, keys: list[str], default: str | None = None) -> tuple[Any, Any]:
    options = {"regex": pattern, "output_keys": keys, "default_output_key": default}
    return {"op": "regex", **options}, classic.RegexParser(**options)


def _labels(**options: Any) -> tuple[Any, Any]:
    options = {"output_key_to_format": {"who": "Name", "what": "Deed"}, **options}
    return {"op": "regex_dict", **options}, classic.RegexDictParser(**options)


def _structured(*keys: str) -> Any:
    schemas = [structured.ResponseSchema(name=key, description="") for key in keys]
    return classic.StructuredOutputParser.from_response_schemas(schemas)


_SCORE, _SCORE_PARSER = _regex(SCORE, ["score", "of"])
LONG = "%A, %d %B %Y %I:%M %p %z"
CASES = [
    _case({"op": "xml"}, XMLOutputParser(), XML, "xml"),
    _case({"op": "boolean"}, classic.BooleanOutputParser(), WORDS, "boolean"),
    _case(
        {"op": "boolean", "true_val": "ſ yes", "false_val": "no"},
        classic.BooleanOutputParser(true_val="ſ yes", false_val="no"),
        WORDS,
        "boolean-words",
    ),
    _case({"op": "datetime"}, classic.DatetimeOutputParser(), DATES, "datetime"),
    _case(
        {"op": "datetime", "format": LONG},
        classic.DatetimeOutputParser(format=LONG),
        LONG_DATES,
        "datetime-format",
    ),
    _case(
        {"op": "enum", "values": ["red", "red", "blue"]},
        classic.EnumOutputParser(enum=Color),
        COLORS,
        "enum",
    ),
    _case(_SCORE, _SCORE_PARSER, SCORES, "regex"),
    _case(*_regex(SCORE, ["a", "b", "c"]), SCORES, "regex-too-many-keys"),
    _case(*_regex(SCORE, ["a", "b", "a"], "b"), SCORES, "regex-default"),
    _case(*_regex("^(.*)$", ["line"]), LINES, "regex-dollar"),
    _case(*_regex(r"(?m)^(\w+) ?(\W*)$", ["x", "y"]), LINES, "regex-lines"),
    _case(*_labels(), LABELS, "regex-dict"),
    _case(*_labels(no_update_value="N/A"), LABELS, "regex-dict-no-update"),
    _case(*_labels(regex_pattern=r"<{}=(\w*)>"), TAGS, "regex-dict-pattern"),
    _case(*_labels(regex_pattern=r"{}=\w"), TAGS, "regex-dict-no-group"),
    _case({"op": "structured", "keys": ["a", "b"]}, _structured("a", "b"), OBJECTS, "structured"),
    _case(
        {"op": "combining", "parsers": [{"op": "structured", "keys": ["a"]}, _SCORE]},
        classic.CombiningOutputParser(parsers=[_structured("a"), _SCORE_PARSER]),
        PARAGRAPHS,
        "combining",
    ),
    _case({"op": "router"}, llm_router.RouterOutputParser(), ROUTES, "router"),
    _case(
        {"op": "router", "default_destination": "PHYSICS", "next_inputs_inner_key": "q"},
        llm_router.RouterOutputParser(default_destination="PHYSICS", next_inputs_inner_key="q"),
        ROUTES,
        "router-names",
    ),
    _case(
        {"op": "no_output"},
        extract.NoOutputParser(),
        ("NO_OUTPUT", " NO_OUTPUT\n", "a NO_OUTPUT", "\x85a\u2028"),
        "no-output",
    ),
    _case(
        {"op": "finished"},
        flare.FinishedOutputParser(),
        ("FINISHED", "a FINISHED b FINISHED\n", "FINISHE", " no "),
        "finished",
    ),
    _case(
        {"op": "line_list"}, multi_query.LineListOutputParser(), ("a\n b\n\nc", "\x85a\u2028b"), "l"
    ),
]


def as_json(value: Any) -> str:
    """Return a parser's result in the form of JSON."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, tuple):
        value = list(value)
    return repr(str(value) if isinstance(value, datetime) else value)


outcome = outcomes(
    {
        OutputParserException: without_link,
        IndexError: named,
        TypeError: named,
        ValueError: str,  # the classic parsers' own exceptions
    },
    shown=as_json,
)


@pytest.mark.parametrize(("spec", "parser", "seeds"), CASES)
def test_same_value_or_same_failure(
    spec: dict[str, Any], parser: BaseOutputParser[Any], seeds: tuple[str, ...]
) -> None:
    """On four thousand texts around the seeds the transform and the parser always agree."""
    values = 0
    for text in mutated(seed=len(str(spec)), count=4000, seeds=seeds, edits=3):
        expected = outcome(partial(parser.parse, text))
        assert outcome(partial(run, [spec], text)) == expected, text
        values += expected[0] == "value"
    assert values >= 100 or spec.get("output_keys") == ["a", "b", "c"]


@pytest.mark.parametrize("text", DATES)
def test_a_date_comes_back(text: str) -> None:
    """A date's text is enough to make the parser's datetime again."""
    try:
        expected = classic.DatetimeOutputParser().parse(text)
    except OutputParserException:
        return
    assert datetime.fromisoformat(run([{"op": "datetime"}], text)) == expected
