"""Parses an answer while it streams: its thoughts, its text, and its calls of tools."""

from __future__ import annotations

from weftline.contract.protocol import Call
from weftline_server.prompt.thinking_block import Thinking, ThinkingBlock
from weftline_server.prompt.tool_blocks import BlockParser
from weftline_server.prompt.tool_format import ToolFormat
from weftline_server.prompt.tool_parser import Delta, Said, Thought, ToolParser


class AnswerParser:
    """Takes an answer's text piece by piece. Without `tools` it calls none.

    Calls are read from what follows the thinking block.
    """

    def __init__(self, thinking: Thinking, tools: ToolParser | BlockParser | None) -> None:
        self._block = ThinkingBlock(thinking)
        self._tools = tools

    @property
    def calls(self) -> int:
        return 0 if self._tools is None else self._tools.calls

    def feed(self, text: str) -> list[Delta]:
        """Take more text, and return the deltas that it completes."""
        return self._read(*self._block.feed(text))

    def end(self) -> list[Delta]:
        """Take the end of the text, and return the last deltas."""
        found = self._read(*self._block.end())
        return found if self._tools is None else [*found, *self._tools.end()]

    def _read(self, thought: str, text: str) -> list[Delta]:
        found: list[Delta] = [Thought(thought)] if thought else []
        if self._tools is not None:
            return [*found, *self._tools.feed(text)]
        return [*found, Said(text)] if text else found


def parser_of(
    call: Call, key: str, format: ToolFormat, thinking: Thinking, *, limited: bool = True
) -> AnswerParser:
    """Return the parser for an output of `call`. `key` identifies the output. A `limited` output
    makes one call where the call wants no more."""
    schemas = {tool.function.name: tool.function.schema for tool in call.offered_tools}
    single = limited and not call.may_call_several
    tools = ToolParser(format, schemas, key, single=single) if schemas else None
    return AnswerParser(thinking, tools)
