"""Texts with tool calls that SmolLM2-135M-Instruct wrote, and what the parsers read from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weftline_server.prompt.tool_blocks import CODE, PLAN, BlockParser
from weftline_server.prompt.tool_format import ToolFormat
from weftline_server.prompt.tool_parser import (
    Argument,
    Arguments,
    ArgumentText,
    Called,
    Said,
    Sealed,
    ToolParser,
)

FILE = Path(__file__).parent / "tool_texts.jsonl"
MAX_CHARACTERS = 600  # every text is cut at every character
STYLES = ("hermes", "llama", "mistral", "xml", "code", "plan")
TOOLS: dict[str, dict[str, Any]] = {
    "add": {"properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    "search": {"properties": {"count": {"type": "integer"}, "tags": {"type": "array"}}},
    "weather": {"properties": {"city": {"type": "string"}}},
}


@dataclass
class ReadCall:
    """One call as the parser told it: the JSON text of its arguments, and the arguments decoded.

    `strings` are the texts of arguments as they came, joined. They are there also for an argument
    that never closed.
    """

    name: str
    arguments: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    strings: dict[str, str] = field(default_factory=dict)
    is_sealed: bool = False


@dataclass
class Reading:
    """What a parser has read from one text."""

    content: str = ""
    calls: list[ReadCall] = field(default_factory=list)


def parser_of(style: str) -> ToolParser | BlockParser:
    """The parser that a server uses for a model of this style."""
    match style:
        case "code":
            return BlockParser(CODE, "k")
        case "plan":
            return BlockParser(PLAN, "k")
        case "xml":
            return ToolParser(ToolFormat.HERMES, TOOLS, "k")
    return ToolParser(ToolFormat(style), TOOLS, "k")


def read(style: str, pieces: Iterable[str]) -> Reading:
    """Read a text that comes in `pieces`."""
    parser, reading = parser_of(style), Reading()
    for delta in (*(one for piece in pieces for one in parser.feed(piece)), *parser.end()):
        match delta:
            case Said(text):
                reading.content += text
            case Called(_, _, name):
                reading.calls.append(ReadCall(name))
            case Arguments(index, text):
                reading.calls[index].arguments += text
            case Argument(index, key, value):
                reading.calls[index].values[key] = value
            case ArgumentText(index, key, text):
                strings = reading.calls[index].strings
                strings[key] = strings.get(key, "") + text
            case Sealed(index):
                assert not reading.calls[index].is_sealed, "a call is sealed once"
                reading.calls[index].is_sealed = True
    return reading
