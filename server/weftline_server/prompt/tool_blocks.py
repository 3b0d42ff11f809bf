"""Reads blocks of code and plans out of an answer while it streams, as calls with one argument."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from weftline_server.prompt.tool_parser import (
    Argument,
    Arguments,
    ArgumentText,
    Called,
    Delta,
    Said,
    Sealed,
)

_LINES = re.compile(r"[^\n]*\n|[^\n]+")


@dataclass(frozen=True, slots=True)
class BlockStyle:
    """How a block looks. A line that is a key of `tools` opens it, and names the tool that takes
    its text as `argument`. A line that begins with `end` closes it.
    """

    tools: Mapping[str, str]
    argument: str
    end: str


def code_of(tool: str, argument: str) -> BlockStyle:
    """Fenced Python, which `tool` takes as `argument`."""
    return BlockStyle({"```python": tool, "```py": tool}, argument, "```")


CODE = code_of("python", "code")
PLAN = BlockStyle({">>>": "plan"}, "steps", "<<<")


class BlockParser:
    """Takes an answer's text piece by piece. All of it is said, the blocks too.

    A block's text is also given as the JSON text of the call's arguments.

    A block is sealed as soon as its closing mark is there. One that is cut off never is.
    """

    def __init__(self, style: BlockStyle, key: str) -> None:
        self._style = style
        self._key = key
        self._line = ""  # the beginning of a line that may be a mark
        self._is_fresh = True  # at the beginning of a line, or in one that may be a mark
        self._pieces: list[str] | None = None  # of the open block
        self.calls = 0

    def feed(self, text: str) -> list[Delta]:
        """Take more text, and return what it says and completes."""
        said: list[Delta] = [Said(text)] if text else []
        for line in _LINES.findall(text):
            said += self._outside(line) if self._pieces is None else self._inside(line)
        return said

    def end(self) -> list[Delta]:
        """Take the end of the text. It completes nothing."""
        return []

    def _outside(self, text: str) -> Iterator[Delta]:
        self._line += text
        if not text.endswith("\n"):
            return
        tool = self._style.tools.get(self._line.strip())
        self._line = ""
        if tool is not None:
            self._pieces = []
            self.calls += 1
            yield Called(self.calls - 1, f"{self._key}/{self.calls - 1}", tool)
            yield Arguments(self.calls - 1, json.dumps({self._style.argument: ""})[:-2])

    def _inside(self, text: str) -> Iterator[Delta]:
        assert self._pieces is not None, "a block is open"
        if self._is_fresh:
            text, self._line = self._line + text, ""
            if text.startswith(self._style.end):
                yield from self._seal()
                self._line = text[len(self._style.end) :]
                if self._line.endswith("\n"):
                    self._line = ""
                return
            if self._style.end.startswith(text):
                self._line = text
                return
        self._is_fresh = text.endswith("\n")
        self._pieces.append(text)
        yield Arguments(self.calls - 1, json.dumps(text, ensure_ascii=False)[1:-1])
        yield ArgumentText(self.calls - 1, self._style.argument, text)

    def _seal(self) -> Iterator[Delta]:
        assert self._pieces is not None, "a block is open"
        yield Arguments(self.calls - 1, '"}')
        yield Argument(self.calls - 1, self._style.argument, "".join(self._pieces))
        yield Sealed(self.calls - 1)
        self._pieces = None
        self._is_fresh = True
