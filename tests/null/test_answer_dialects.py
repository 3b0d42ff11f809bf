"""Answers with marks of their own dialects become thoughts, text and calls."""

from __future__ import annotations

import json
from keyword import kwlist
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weftline_server.prompt.answer import message_of
from weftline_server.prompt.answer_dialect import ANSWER_DIALECTS, dialect_of
from weftline_server.prompt.answer_parser import AnswerParser
from weftline_server.prompt.dialect_channels import GemmaArguments, HarmonyRewriter
from weftline_server.prompt.dialect_lists import MAX_LIST
from weftline_server.prompt.python_calls import calls_in_python, written_in_python
from weftline_server.prompt.thinking_block import Thinking
from weftline_server.prompt.tool_format import ToolFormat
from weftline_server.prompt.tool_parser import Sealed, ToolParser

SCHEMAS: dict[str, dict[str, Any]] = {
    "weather": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "clock": {"properties": {}},
}
THOUGHTS, SAID = "The user asks for Rome.", "I look."
CALLS = [("weather", {"city": "Rome <b>", "days": 2}), ("clock", {})]

_DEEPSEEK = (
    "<think>The user asks for Rome.</think>I look.\n\n<｜DSML｜tool_calls>\n"
    '<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Rome <b></｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
    '<｜DSML｜invoke name="clock">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
)
_MINIMAX = (
    "<think>\nThe user asks for Rome.\n</think>\n\nI look.\n<minimax:tool_call>\n"
    '<invoke name="weather">\n<parameter name="city">Rome <b></parameter>\n'
    '<parameter name="days">2</parameter>\n</invoke>\n<invoke name="clock">\n</invoke>\n'
    "</minimax:tool_call>"
)
# By the family: an answer that thinks, says something and calls two tools.
ANSWERS = {
    "gpt-oss": (
        "<|channel|>analysis<|message|>The user asks for Rome.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
        '{"city": "Rome <b>", "days": 2}<|call|>'
        "<|start|>assistant to=functions.clock<|channel|>commentary json<|message|>{}<|call|>"
    ),
    "Gemma 4": (
        "<|channel>thought\nThe user asks for Rome.\n<channel|>I look."
        '<|tool_call>call:weather{city:<|"|>Rome <b><|"|>,days:2}<tool_call|>'
        "<|tool_call>call:clock{}<tool_call|>"
    ),
    "Kimi K2": (
        "<think>The user asks for Rome.</think>I look.<|tool_calls_section_begin|>"
        "<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        '{"city": "Rome <b>", "days": 2}<|tool_call_end|>'
        "<|tool_call_begin|>functions.clock:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>"
    ),
    "DeepSeek V3.2": _DEEPSEEK,
    "DeepSeek V3": (
        "<think>The user asks for Rome.</think>I look.<｜tool▁calls▁begin｜>"
        '<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Rome <b>", "days": 2}'
        "<｜tool▁call▁end｜><｜tool▁call▁begin｜>clock<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>"
    ),
    "MiniMax M2": _MINIMAX,
    "Seed-OSS": (
        "<seed:think>The user asks for Rome.</seed:think>\nI look.\n<seed:tool_call>\n"
        "<function=weather>\n<parameter=city>Rome <b></parameter>\n<parameter=days>2</parameter>\n"
        "</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=clock>\n</function>\n"
        "</seed:tool_call>"
    ),
    "Command R7B": (
        "<|START_THINKING|>The user asks for Rome.<|END_THINKING|><|START_RESPONSE|>I look."
        '<|END_RESPONSE|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", '
        '"parameters": {"city": "Rome <b>", "days": 2}},\n    {"tool_call_id": "1", '
        '"tool_name": "clock", "parameters": {}}\n]<|END_ACTION|>'
    ),
    "MiniCPM5": (
        "<think>\nThe user asks for Rome.\n</think>\n\nI look.\n"
        '<function name="weather"><param name="city"><![CDATA[Rome <b>]]></param>'
        '<param name="days">2</param></function>\n<function name="clock"></function>'
    ),
    "Apertus": (
        "<|inner_prefix|>The user asks for Rome.<|inner_suffix|>I look."
        '<|tools_prefix|>[{"weather": {"city": "Rome <b>", "days": 2}}, {"clock": {}}]'
        "<|tools_suffix|>"
    ),
    "LFM2": (
        "<think>The user asks for Rome.</think>I look.<|tool_call_start|>"
        "[weather(city='Rome <b>', days=2), clock()]<|tool_call_end|>"
    ),
    "Nemotron Nano 2": (
        "<think>\nThe user asks for Rome.\n</think>\n\nI look.\n\n<TOOLCALL>["
        '{"name": "weather", "arguments": {"city": "Rome <b>", "days": 2}}, '
        '{"name": "clock", "arguments": "{}"}]</TOOLCALL>'
    ),
    "Apriel": (
        "<think>The user asks for Rome.</think>I look.\n<tool_calls>\n"
        '{"name": "weather", "arguments": {"city": "Rome <b>", "days": 2}}\n'
        '{"name": "clock", "arguments": {}}\n</tool_calls>'
    ),
}


def rewritten(name: str, text: str, size: int = 1000) -> str:
    """An answer of a family, in pieces of `size` characters, as our parsers get it."""
    rewriter = ANSWER_DIALECTS[name].rewriter()
    pieces = [rewriter.feed(text[at : at + size]) for at in range(0, len(text), size)]
    return "".join([*pieces, rewriter.end()])


def parser() -> AnswerParser:
    """What reads the rewritten answers."""
    return AnswerParser(Thinking.MARKED, ToolParser(ToolFormat.HERMES, SCHEMAS, "k"))


def calls_of(message: dict[str, Any]) -> list[tuple[str, Any]]:
    """The names and the arguments of a message's calls."""
    calls = [call["function"] for call in message.get("tool_calls", [])]
    return [(call["name"], json.loads(call["arguments"])) for call in calls]


def test_every_family_has_an_answer() -> None:
    """No family is read that is not tested here, and each is found by its sign."""
    assert list(ANSWERS) == list(ANSWER_DIALECTS)
    for dialect in ANSWER_DIALECTS.values():
        assert dialect_of(f"{{{{ messages }}}}{dialect.sign}") is dialect
    assert dialect_of("{{ messages }}<think><tool_call>") is None
    assert dialect_of(None) is None


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("name", ANSWER_DIALECTS)
def test_an_answer_is_read(name: str, size: int) -> None:
    """Thoughts, text and both calls are found, however the text is cut, and both calls are sealed:
    so a tool may start before the answer has ended."""
    text = rewritten(name, ANSWERS[name], size)
    message = message_of(parser(), text)
    assert message["reasoning_content"] == THOUGHTS
    assert message["content"] == SAID
    assert calls_of(message) == CALLS
    reader = parser()
    sealed = [one for one in [*reader.feed(text), *reader.end()] if isinstance(one, Sealed)]
    assert sealed == [Sealed(0), Sealed(1)]


@pytest.mark.parametrize("name", ANSWER_DIALECTS)
def test_a_call_that_is_cut_off_is_not_sealed(name: str) -> None:
    """The end of the tokens may come within a call. What it has is shown, but it never starts."""
    text = ANSWERS[name]
    cut = rewritten(name, text[: text.index("Rome <b>") + 4])
    reader = parser()
    deltas = [*reader.feed(cut), *reader.end()]
    assert not any(isinstance(one, Sealed) for one in deltas)


@pytest.mark.parametrize("name", ANSWER_DIALECTS)
@given(text=st.text(alphabet="ab<>|/:{} \n｜", max_size=60), data=st.data())
def test_text_without_marks_is_unchanged(name: str, text: str, data: st.DataObject) -> None:
    """Whatever looks like the beginning of a mark is said in the end."""
    size = data.draw(st.integers(1, 9))
    assert rewritten(name, text, size) == text


@pytest.mark.parametrize("name", ANSWER_DIALECTS)
def test_an_answer_without_thoughts_is_its_text(name: str) -> None:
    """An answer to a plain question, and one that a constraint has forced, begin without a mark."""
    for text in ('{"city": "Rome"}', "2 < 3 <b>", '<tool_call>\n{"name": "clock"}\n</tool_call>'):
        assert rewritten(name, text, 3) == text


@pytest.mark.parametrize(
    ("text", "thoughts", "said"),
    [
        ("<|channel|>final<|message|>Rome.<|return|>", None, "Rome."),
        ("<|channel|>final<|message|>Rome.", None, "Rome."),
        ("<|channel|>analysis<|message|>So", "So", None),
        (
            "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>analysis"
            "<|message|>Then.<|end|><|start|>assistant<|channel|>final<|message|>Rome.<|return|>",
            "So.\n\nThen.",
            "Rome.",
        ),
        (
            "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>commentary"
            "<|message|>I look.<|end|><|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>"
            "<|start|>assistant<|channel|>final<|message|>Rome.<|return|>",
            "So.",
            "I look.\n\nRome.",
        ),
        ("<|message|>Rome.<|end|>", None, "Rome."),
    ],
)
def test_channels_of_gpt_oss(text: str, thoughts: str | None, said: str | None) -> None:
    """Thoughts in a row are one block. Later ones have no place in an answer, and are left out."""
    for size in (1, 5, 1000):
        message = message_of(parser(), rewritten("gpt-oss", text, size))
        assert (message.get("reasoning_content"), message["content"] or None) == (thoughts, said)


def test_the_mark_behind_a_call_may_be_missing() -> None:
    """`<|call|>` ends the output, and an engine may keep its end tokens. A call whose arguments are
    complete then is sealed."""
    head = "<|channel|>commentary to=functions.clock <|constrain|>json<|message|>"
    for arguments, count in (("{}", 1), ('{"city"', 0), ("[]", 0)):
        reader = parser()
        deltas = [*reader.feed(rewritten("gpt-oss", head + arguments, 4)), *reader.end()]
        assert sum(isinstance(one, Sealed) for one in deltas) == count


def test_a_head_has_a_bounded_length() -> None:
    """Text that never becomes a head is not held back for ever."""
    rewriter = HarmonyRewriter()
    text = "<|channel|>" + "x" * 600
    assert rewriter.feed(text) == text


@pytest.mark.parametrize(
    ("name", "body"),
    [
        *(("LFM2", body) for body in ("[f(1)]", "[f(**some)]", "[f(x=g())]", "[f(x=b'1')]")),
        *(("LFM2", body) for body in ("[f(x=1, x=2)]", "f(x=1)", "[f(x=1e999)]", "[f(x='a]", "")),
        *(("LFM2", body) for body in ("[" * 20_000, "'" * 60_000, "[f(x='" + "' " * 30_000)),
        *(("Apertus", body) for body in ('{"f": {}}', '[{"f": {}, "g": {}}]', "[{}]", "[1]")),
        *(("Apriel", body) for body in ('[{"name": 1}]', "[1]", "Rome", "", "[" * 20_000)),
        ("Apriel", '[{"name": "f", "arguments": "[1]"}]'),
        ("Apriel", '[{"name": "f", "arguments": {"x": NaN}}]'),
        ("Apriel", f'[{{"name": "f", "arguments": {{"x": "{"y" * MAX_LIST}"}}}}]'),
    ],
    ids=lambda text: text[:24],
)
def test_a_list_that_holds_no_calls_stays_text(name: str, body: str) -> None:
    """Nothing is lost, nothing is evaluated, and a list is held back to a bounded length."""
    opens, closes = ANSWER_DIALECTS[name].marks[:2]
    text = f"I look.{opens}{body}{closes}"
    assert rewritten(name, text, 40_000) == text


def test_deepseek_v3_writes_a_type_and_a_fenced_block() -> None:
    """R1 and the models that learned from it write the same."""
    text = (
        "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"city": "a ```b"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    )
    for size in (1, 6, 1000):
        message = message_of(parser(), rewritten("DeepSeek V3", text, size))
        assert calls_of(message) == [("weather", {"city": "a ```b"})]
        assert message["content"] == "I look."


def test_a_list_is_held_back_to_a_bounded_length() -> None:
    """One that never ends is said as soon as it is too long."""
    rewriter = ANSWER_DIALECTS["Apriel"].rewriter()
    assert rewriter.feed("I look.<tool_calls>" + "x" * MAX_LIST) == "I look."
    assert rewriter.feed("y") == "<tool_calls>" + "x" * MAX_LIST + "y"


@pytest.mark.parametrize(
    ("body", "name", "arguments"),
    [
        ("[f(q='What's up', p=\"it's\")]", "f", {"q": "What's up", "p": "it's"}),
        ("[get-it(q='a\nb')]", "get-it", {"q": "a\nb"}),
        (r"[a.f(q='C:\dir', r='\'')]", "a.f", {"q": "C:\\dir", "r": "'"}),
        (
            "[f(x=[1, -2.5, None, True], y={'k': false, 'l': null}, z=(1,))]",
            "f",
            {"x": [1, -2.5, None, True], "y": {"k": False, "l": None}, "z": [1]},
        ),
        ('[{"name": "f", "arguments": {"x": 1}}]', "f", {"x": 1}),
    ],
)
def test_calls_of_lfm2(body: str, name: str, arguments: dict[str, Any]) -> None:
    """Its template leaves quotes as they are, and JSON's names stand beside Python's."""
    text = rewritten("LFM2", f"<|tool_call_start|>{body}<|tool_call_end|>", 3)
    assert calls_of(message_of(parser(), text)) == [(name, arguments)]


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet='ab"\\<|>:,{}[] \né', max_size=8).filter(lambda one: "<|" not in one),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def _gemma(value: Any) -> str:
    """A value as Gemma 4's template writes it."""
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case bool():
            return "true" if value else "false"
        case dict():
            return "{" + ",".join(f"{key}:{_gemma(one)}" for key, one in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_gemma, value)) + "]"
    return str(value)


@settings(max_examples=50)
@given(
    arguments=st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), _VALUES, max_size=3),
    size=st.integers(1, 12),
)
def test_arguments_of_gemma_become_the_same_json(arguments: dict[str, Any], size: int) -> None:
    """Any value goes through, in any pieces."""
    reader, text = GemmaArguments(), _gemma(arguments)
    made = "".join(reader.feed(text[at : at + size]) for at in range(0, len(text), size))
    assert json.loads(made + reader.end()) == arguments


@settings(max_examples=50)
@given(st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), _VALUES, max_size=3))
def test_arguments_in_python_are_read(arguments: dict[str, Any]) -> None:
    """Any value of JSON that Python writes is read again."""
    named = ", ".join(f"{key}={value!r}" for key, value in arguments.items() if key not in kwlist)
    wanted = {key: value for key, value in arguments.items() if key not in kwlist}
    assert calls_in_python(f"[f({named})]") == [("f", wanted)]
    assert calls_in_python(written_in_python([("f", wanted)])) == [("f", wanted)]
