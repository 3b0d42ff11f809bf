"""Arguments are told as they close, and calls as they are sealed, however the stream is cut."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from weftline_server.prompt.answer import message_of
from weftline_server.prompt.tool_blocks import CODE, PLAN, BlockParser
from weftline_server.prompt.tool_format import ToolFormat, written
from weftline_server.prompt.tool_parser import (
    Argument,
    Arguments,
    ArgumentText,
    Called,
    Delta,
    Said,
    Sealed,
    ToolParser,
    Unfinished,
)

H, L, M = ToolFormat.HERMES, ToolFormat.LLAMA, ToolFormat.MISTRAL
TYPES = {"properties": {"count": {"type": "integer"}, "tags": {"type": "array"}}}
NAMES = {"search": TYPES, "add": {}}
Parser = ToolParser | BlockParser
Make = Callable[[], Parser]


def maker(format: ToolFormat) -> Make:
    return lambda: ToolParser(format, NAMES, "k")


def events(parser: Parser, pieces: Iterable[str]) -> list[Delta]:
    return [*(delta for piece in pieces for delta in parser.feed(piece)), *parser.end()]


def told(deltas: Sequence[Delta]) -> tuple[list[Any], dict[Any, str]]:
    """The events that happen at one place, in order, and the texts that come in pieces."""
    places: list[Any] = []
    texts: dict[Any, str] = {}
    for delta in deltas:
        match delta:
            case Said(text):
                texts["said"] = texts.get("said", "") + text
            case Arguments(index, text):
                texts[index] = texts.get(index, "") + text
            case ArgumentText(index, key, text):
                texts[index, key] = texts.get((index, key), "") + text
            case Unfinished():
                pass  # the end of a text alone tells it
            case _:
                places.append(delta)
    return places, texts


def random_value(random: random.Random, depth: int = 0) -> Any:
    kind = random.randrange(9 if depth < 3 else 6)
    letters = 'ab"\\/\n\té€😀 <>{}[],:`'
    match kind:
        case 0 | 1:
            return "".join(random.choice(letters) for _ in range(random.randrange(7)))
        case 2:
            return random.choice([0, -1, 7, 12345678901234567890])
        case 3:
            return random.choice([0.5, -2.5e-7, 1e20])
        case 4:
            return random.choice([True, False])
        case 5:
            return None
        case 6 | 7:
            return [random_value(random, depth + 1) for _ in range(random.randrange(3))]
    return {str(n): random_value(random, depth + 1) for n in range(random.randrange(3))}


def random_arguments(random: random.Random) -> dict[str, Any]:
    return {f"k{n}": random_value(random) for n in range(random.randrange(4))}


def as_xml(name: str, arguments: dict[str, Any]) -> str:
    body = ""
    for key, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value)
        body += f"<parameter={key}>\n{text}\n</parameter>\n"
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def as_glm(name: str, arguments: dict[str, Any], line: str) -> str:
    """GLM 4.5 and 4.6 write a line break between the parts. GLM 4.7 does not."""
    parts = [name]
    for key, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value)
        parts += [f"<arg_key>{key}</arg_key>", f"<arg_value>{text}</arg_value>"]
    return f"<tool_call>{line.join([*parts, '</tool_call>'])}"


def recorded(seed: int) -> tuple[Make, str]:
    """An answer with calls, in one of the ways in which models write them."""
    made = random.Random(seed)
    style = seed % 7
    if style == 6:
        values = {
            "query": made.choice(["\na\n", "", "</arg_", "x <b>"]),
            "count": made.randrange(9),
        }
        given = values if made.random() < 0.8 else {}
        return maker(H), "I look." + as_glm("search", given, made.choice(["", "\n"])) * 2
    if style == 5:
        code = made.choice(["x = 1\n", "print('`')\n\n", "```` = 2\n", ""]) * made.randrange(1, 3)
        block, start, end = made.choice([(CODE, "```python", "```"), (PLAN, ">>>", "<<<")])
        return (lambda: BlockParser(block, "k")), f"So:\n{start}\n{code}{end}\nDone.\n"
    if style == 4:
        values = {
            "query": made.choice(["a\nb", "", "</param", 'x "y"']),
            "count": made.randrange(9),
        }
        return maker(H), "I look. " + as_xml("search", values) * made.randrange(1, 3)
    format = (H, L, M, H)[style]
    calls = []
    for _ in range(made.randrange(1, 3)):
        text = json.dumps(random_arguments(made), ensure_ascii=made.random() < 0.5)
        begin, end = written(format, made.choice(["search", "add"]))
        calls.append(f"{begin}{text}{end}")
    if format is M:
        return maker(M), f"[{', '.join(call[1:-1] for call in calls)}]"
    return maker(format), ("; " if format is L else "\n").join(calls)


@pytest.mark.parametrize("part", range(4))
def test_every_cut_gives_the_same_events(part: int) -> None:
    """200 answers with calls, each cut in two at every character, and cut into characters."""
    sealed = 0
    for seed in range(part * 50, part * 50 + 50):
        make, text = recorded(seed)
        whole = told(events(make(), [text]))
        assert told(events(make(), text)) == whole, text
        for cut in range(1, len(text)):
            assert told(events(make(), [text[:cut], text[cut:]])) == whole, (text, cut)
        calls = sum(isinstance(one, Called) for one in whole[0])
        assert calls == sum(isinstance(one, Sealed) for one in whole[0]) > 0, text
        sealed += calls
    assert sealed > 50


@pytest.mark.parametrize("seed", range(60))
def test_nothing_is_told_early(seed: int) -> None:
    """A stream that breaks off has told a beginning of what the whole stream tells. What follows a
    call's arguments seals it: never the end of the stream."""
    make, text = recorded(seed)
    places, texts = told(events(make(), [text]))
    for cut in range(len(text)):
        told_by_then, texts_by_then = told(events(make(), [text[:cut]]))
        assert told_by_then == places[: len(told_by_then)], text[:cut]
        for key, value in texts_by_then.items():
            if isinstance(key, tuple):
                assert texts[key].startswith(value), (key, text[:cut])


def test_each_argument_is_told_as_it_closes() -> None:
    """A string's text comes at once. A number is complete when something ends it."""
    parser = ToolParser(H, NAMES, "k")
    parser.feed('<tool_call>{"name": "search", "arguments": ')
    assert parser.feed('{"q": "a')[-1] == ArgumentText(0, "q", "a")
    assert parser.feed("\\u00")[1:] == []
    assert parser.feed('e9"')[1:] == [ArgumentText(0, "q", "é"), Argument(0, "q", "aé")]
    assert parser.feed(', "count": 12')[1:] == []
    assert parser.feed("3")[1:] == []
    assert parser.feed(",")[1:] == [Argument(0, "count", 123)]
    assert parser.feed(' "tags": ["x"]')[1:] == [Argument(0, "tags", ["x"])]
    assert parser.feed("}")[1:] == []
    assert parser.feed("}\n</tool_call") == []
    assert parser.feed(">") == [Sealed(0)]


NEVER_SEALED = {
    "cut before the mark": '<tool_call>{"name": "add", "arguments": {"a": 1}}',
    "cut inside the mark": '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_cal',
    "no strict JSON": '<tool_call>{"name": "add", "arguments": {"a": 01}}</tool_call>',
    "a raw line break": '<tool_call>{"name": "add", "arguments": {"a": "x\ny"}}</tool_call>',
    "not a number": '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>',
    "half of a pair": '<tool_call>{"name": "add", "arguments": {"a": "\\ud83d"}}</tool_call>',
    "the same key twice": '<tool_call>{"name": "add", "arguments": {"a": 1, "a": 2}}</tool_call>',
    "too deep": f'<tool_call>{{"name": "add", "arguments": {{"a": {"[" * 200}}}}}</tool_call>',
    "no object": '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
    "more fields": '<tool_call>{"name": "add", "arguments": {}, "id": 1}</tool_call>',
    "a comma": '<tool_call>{"name": "add", "arguments": {"a": 1,}}</tool_call>',
    "XML, cut": "<tool_call><function=add><parameter=a>\n1\n</parameter></function>",
    "XML with words": "<tool_call><function=add>hm</function></tool_call>",
    "XML, twice": as_xml("add", {"a": "1"}).replace("</f", "<parameter=a>2</parameter></f"),
    "GLM, cut": as_glm("add", {"a": 1}, "").removesuffix("</tool_call>"),
    "GLM, cut in the mark": as_glm("add", {"a": 1}, "\n").removesuffix("call>"),
    "GLM with words": as_glm("add", {"a": 1}, "hm\n").replace("addhm", "add"),
    "GLM, twice": as_glm("add", {"a": 1}, "").replace("</t", "<arg_key>a</arg_key><arg_value>2</t"),
}


@pytest.mark.parametrize("text", NEVER_SEALED.values(), ids=NEVER_SEALED)
def test_what_is_not_a_whole_call_is_not_sealed(text: str) -> None:
    """It is told as a call, as OpenAI's stream tells it. No tool starts by it before its turn."""
    deltas = events(ToolParser(H, NAMES, "k"), [text])
    assert [one for one in deltas if isinstance(one, Called)]
    assert not [one for one in deltas if isinstance(one, Sealed)]


def test_xml_of_coder_models_is_read() -> None:
    """Strings are taken as they stand. Other types are JSON, as the tool's schema says."""
    text = as_xml("search", {"query": 'a "b"\n<c>', "count": 3, "tags": ["x"]})
    message = message_of(ToolParser(H, NAMES, "k"), "Let me see.\n" + text)
    [call] = message["tool_calls"]
    assert message["content"] == "Let me see."
    assert call["function"]["name"] == "search"
    assert json.loads(call["function"]["arguments"]) == {
        "query": 'a "b"\n<c>',
        "count": 3,
        "tags": ["x"],
    }


@pytest.mark.parametrize("line", ["", "\n"])
def test_calls_of_glm_are_read(line: str) -> None:
    """Strings are taken as they stand, line breaks too. Other types are JSON."""
    values = {"query": '\n"b" <c>\n', "count": 3, "tags": ["x"]}
    text = as_glm("search", values, line)
    message = message_of(ToolParser(H, NAMES, "k"), f"Let me see.\n{text}")
    [call] = message["tool_calls"]
    assert message["content"] == "Let me see."
    assert call["function"]["name"] == "search"
    assert json.loads(call["function"]["arguments"]) == values
    assert Sealed(0) in events(ToolParser(H, NAMES, "k"), text)


def test_a_name_alone_is_a_call_of_a_tool_that_exists() -> None:
    """GLM writes no more for a call without arguments. Other words in the marks stay text."""
    called, *more = events(ToolParser(H, NAMES, "k"), ["<tool_call>add</tool_call>"])
    assert isinstance(called, Called) and called.name == "add"
    assert more == [Arguments(0, "{}"), Sealed(0)]
    for other in ("<tool_call>sub</tool_call>", "<tool_call>add it</tool_call>", "<tool_call>z"):
        assert told(events(ToolParser(H, NAMES, "k"), [other])) == ([], {"said": other})
        assert told(events(ToolParser(H, NAMES, "k"), other)) == ([], {"said": other})


def test_blocks_are_calls_with_one_argument() -> None:
    """The answer's text stays whole. A fence inside a line of code ends nothing."""
    text = "Here:\n```python\nx = '```'\n\nprint(x)\n``` \nDone"
    places, texts = told(events(BlockParser(CODE, "k"), text))
    code = "x = '```'\n\nprint(x)\n"
    assert texts == {"said": text, (0, "code"): code, 0: json.dumps({"code": code})}
    assert places == [Called(0, "k/0", "python"), Argument(0, "code", code), Sealed(0)]
    places, _ = told(events(BlockParser(PLAN, "k"), ">>>\nsearch a\nsearch b\n<<"))
    assert places == [Called(0, "k/0", "plan")], "a plan that is cut off is not sealed"
