"""The transforms of LangChain's classic parsers: values, messages of failures, refused specs."""

from __future__ import annotations

from typing import Any

import pytest

from weftline.contract.transforms import parse, run
from weftline.contract.transforms.base import MAX_PARSED_CHARS
from weftline.errors import InvalidRequest, TransformFailed

REGEX = {"op": "regex", "regex": r"Score: (\d+)(?: of (\d+))?", "output_keys": ["score", "of"]}
LABELS = {"op": "regex_dict", "output_key_to_format": {"who": "Name", "what": "Deed"}}
BOTH = {"op": "combining", "parsers": [{"op": "json"}, REGEX]}


@pytest.mark.parametrize(
    ("spec", "value", "expected"),
    [
        pytest.param({"op": "line_list"}, " \na\n\n b \n", ["a", " b"], id="lines"),
        pytest.param(
            {"op": "xml"},
            'Here:\n```xml\n<?xml encoding="x"?>\n<a><b>1</b><c/><d><e> </e></d></a>\n```',
            {"a": [{"b": "1"}, {"c": None}, {"d": [{"e": " "}]}]},
            id="xml",
        ),
        pytest.param({"op": "xml"}, "<a>text<b/></a>", {"a": "text"}, id="xml-text-wins"),
        pytest.param({"op": "boolean"}, "I say yes.", True, id="boolean"),
        pytest.param({"op": "boolean"}, "no: I know nothing", False, id="boolean-a-word"),
        pytest.param(
            {"op": "boolean", "true_val": "wahr", "false_val": "falsch"},
            "Falsch",
            False,
            id="boolean-words",
        ),
        pytest.param(
            {"op": "datetime"}, " 2023-07-04T14:30:00.5Z\n", "2023-07-04 14:30:00.500000", id="date"
        ),
        pytest.param(
            {"op": "datetime", "format": "%d %B %Y %z"},
            "4 July 2023 +0200",
            "2023-07-04 00:00:00+02:00",
            id="date-zone",
        ),
        pytest.param({"op": "enum", "values": ["red", "blue"]}, " red\n", "red", id="enum"),
        pytest.param(REGEX, "Score: ٣٤ of 5", {"score": "٣٤", "of": "5"}, id="regex-all-digits"),
        pytest.param(REGEX, "Score: 7.", {"score": "7", "of": None}, id="regex-group-unused"),
        pytest.param(
            {**REGEX, "default_output_key": "of"}, "none", {"score": "", "of": "none"}, id="default"
        ),
        pytest.param(
            {"op": "regex", "regex": "^(.*)$", "output_keys": ["line"]},
            "last line\n",
            {"line": "last line"},
            id="regex-dollar-before-a-last-newline",
        ),
        pytest.param(LABELS, "Name: Ann.\nDeed:ran", {"who": "Ann", "what": "ran"}, id="labels"),
        pytest.param(
            {**LABELS, "no_update_value": "N/A"}, "Name: N/A\nDeed: x", {"what": "x"}, id="N/A"
        ),
        pytest.param(
            {**LABELS, "regex_pattern": r"<{}=(\w+)>"},
            "<Name=Ann> <Deed=ran>",
            {"who": "Ann", "what": "ran"},
            id="labels-own-pattern",
        ),
        pytest.param(
            {"op": "structured", "keys": ["a"]},
            '```json\n{"a": 1, "b": 2',
            {"a": 1, "b": 2},
            id="s",
        ),
        pytest.param(
            BOTH,
            '{"a": 1}\n\n Score: 3\n\nmore',
            {"a": 1, "score": "3", "of": None},
            id="combining",
        ),
    ],
)
def test_value(spec: dict[str, Any], value: str, expected: Any) -> None:
    """Every op gives the same value, as JSON, as the LangChain class that it stands for."""
    assert run([spec], value) == expected


@pytest.mark.parametrize(
    ("spec", "value", "message"),
    [
        (
            {"op": "xml"},
            " <a>",
            "Failed to parse XML format from completion <a>. Got: no element found: line 1, "
            "column 3",
        ),
        (
            {"op": "xml"},
            '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>',
            "EntitiesForbidden(name='b', system_id=None, public_id=None)",
        ),
        ({"op": "boolean"}, "yes or no", "Ambiguous response. Both YES and NO in received: yes or "
         "no."),
        (
            {"op": "boolean"},
            "nobody",
            "BooleanOutputParser expected output value to include either YES or NO. Received "
            "nobody.",
        ),
        ({"op": "datetime"}, "tomorrow", "Could not parse datetime string: tomorrow"),
        (
            {"op": "enum", "values": ["red", "red", "blue"]},
            "green\n",
            "Response 'green\n' is not one of the expected values: ['red', 'blue']",
        ),
        (REGEX, "none", "Could not parse output: none"),
        ({**REGEX, "output_keys": ["a", "b", "c"]}, "Score: 1", "IndexError: no such group"),
        (
            LABELS,
            "Name: x",
            "No match found for output key: what with expected format "
            "                        Deed on text Name: x",
        ),
        (
            LABELS,
            "Name: x\nName: y",
            "Multiple matches found for output key: who with "
            "                        expected format Name on text Name: x\nName: y",
        ),
        (
            {"op": "structured", "keys": ["a"]},
            "no json",
            "Got invalid JSON object. Error: Expecting value: line 1 column 1 (char 0)",
        ),
        (
            {"op": "structured", "keys": ["a"]},
            "[1]",
            "Expected JSON object (dict), but got: list. ",
        ),
        (
            {"op": "structured", "keys": ["a", "b"]},
            '{"a": 1}',
            "Got invalid return object. Expected key `b` to be present, but got {'a': 1}",
        ),
        (
            {"op": "router"},
            '{"destination": 1, "next_inputs": "x"}',
            'Parsing text\n{"destination": 1, "next_inputs": "x"}\n raised following error:\n'
            "Expected 'destination' to be a string.",
        ),
        ({"op": "tool_calls"}, "text", "tool_calls reads a message, but its value is a str"),
        (BOTH, "[1]\n\nScore: 3", "TypeError: cannot convert dictionary update sequence element #0 "
         "to a sequence"),
        (BOTH, "[[1, 2]]\n\nScore: 3", "combining made an object whose keys are not all text"),
        (BOTH, "{}\n\nx", "Could not parse output: x"),
    ],
)  # fmt: skip
def test_failure_keeps_the_parsers_words(spec: dict[str, Any], value: str, message: str) -> None:
    """The variable fails with the message that LangChain would have given the user."""
    with pytest.raises(TransformFailed) as failure:
        run([spec], value)
    assert failure.value.message == message


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": "\\ud800"}', '{"a":' * 200])
def test_a_value_that_json_cannot_carry_fails(text: str) -> None:
    """Objects with expected keys follow the rule for all JSON."""
    with pytest.raises(TransformFailed, match="which cannot be sent on"):
        run([{"op": "structured", "keys": ["a"]}], text)
    with pytest.raises(TransformFailed, match="which cannot be sent on"):
        run([{"op": "xml"}], "<a>" * 65 + "<b/>" + "</a>" * 65)


@pytest.mark.parametrize("spec", [REGEX, LABELS, {"op": "xml"}, {"op": "boolean"}])
def test_length_is_bounded(spec: dict[str, Any]) -> None:
    """The searched text has a limit, and the error names it."""
    with pytest.raises(
        TransformFailed, match=r"reads at most \d+ characters, and there are 1048577"
    ):
        run([spec], "x" * (MAX_PARSED_CHARS + 1))


def test_a_lone_surrogate_is_no_text() -> None:
    """It cannot be encoded, so it is not searched for a pattern."""
    with pytest.raises(TransformFailed, match="a lone surrogate is none"):
        run([REGEX], "Score: 1 \ud800")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"op": "boolean", "true_val": "y.s"}, "is a pattern, not a word: leave the parser to the"),
        ({"op": "boolean", "true_val": 1}, "'true_val' is a text of at most 1024"),
        ({"op": "datetime", "format": "%Y %Z"}, "%Z depends on where it is read"),
        ({"op": "datetime", "format": "%c"}, "%c depends on where it is read"),
        ({"op": "datetime", "format": "%Q"}, "%Q, which is no directive"),
        ({"op": "datetime", "format": "100%"}, "which is no directive"),
        ({"op": "datetime", "format": "%Y %Y"}, "a directive twice"),
        ({"op": "enum", "values": []}, "a list of 1 to 1024"),
        ({"op": "enum", "values": [1]}, "each of enum's 'values' is a text"),
        ({"op": "structured", "keys": "ab"}, "a list of 1 to 64"),
        ({**REGEX, "regex": "("}, "is no pattern"),
        ({**REGEX, "regex": r"(a)\1"}, "back-references or octal escapes"),
        ({**REGEX, "output_keys": []}, "a list of 1 to 64"),
        ({**REGEX, "default_output_key": 1}, "'default_output_key' is a text"),
        ({"op": "regex_dict", "output_key_to_format": {}}, "an object of 1 to 64 labels"),
        ({"op": "regex_dict", "output_key_to_format": [["a", "b"]]}, "an object of 1 to 64 labels"),
        ({"op": "regex_dict", "output_key_to_format": {"a": 1}}, "each label of regex_dict"),
        ({**LABELS, "regex_pattern": "{0.__class__}"}, "one {} for the label and no other brace"),
        ({**LABELS, "regex_pattern": "{}{}"}, "one {} for the label and no other brace"),
        ({**LABELS, "regex_pattern": "{}|"}, "at most one group, is never empty and has no anchor"),
        ({**LABELS, "regex_pattern": "({})(a)"}, "at most one group"),
        ({**LABELS, "regex_pattern": "^{}"}, "no anchor"),
        ({"op": "router", "default_destination": 1}, "'default_destination' is a text"),
        ({"op": "router", "next_inputs_inner_key": None}, "'next_inputs_inner_key' is a text"),
        ({"op": "no_output", "no_output_str": 1}, "'no_output_str' is a text"),
        ({"op": "finished", "finished_value": ["x"]}, "'finished_value' is a text"),
        ({"op": "tool_calls", "key_name": 1}, "'key_name' is a text"),
        ({"op": "tool_calls", "return_id": "yes"}, "are true or false"),
        ({"op": "combining", "parsers": [{"op": "json"}]}, "a list of 2 to 16"),
        (
            {"op": "combining", "parsers": [{"op": "json"}, BOTH]},
            "combining takes json, structured",
        ),
        (
            {"op": "combining", "parsers": [{"op": "json"}, {"op": "enum", "values": ["a"]}]},
            "not en",
        ),
        ({"op": "combining", "parsers": ["json", "json"]}, "a transform is an object"),
    ],
)
def test_bad_spec_is_refused(spec: dict[str, Any], message: str) -> None:
    """A spec that the server could not run exactly as LangChain does is refused."""
    with pytest.raises(InvalidRequest) as refusal:
        parse(spec)
    assert message in refusal.value.message
    assert refusal.value.param == "transforms"


def test_equal_specs_are_equal_transforms() -> None:
    """This includes specs with objects and other transforms in their options."""
    for spec in (LABELS, BOTH, REGEX):
        assert len({parse(spec), parse(dict(spec))}) == 1
