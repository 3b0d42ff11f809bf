"""One text of what an endpoint tells apart: thoughts, content and calls of tools.

The server reads an answer as a model writes it. So thoughts become a block before the content, and
calls stand between their marks, in the words in which the server describes tools to an endpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto

from weftline_engine import api
from weftline_engine.remote.openai.endpoint import EndpointError

_THOUGHTS = ("reasoning_content", "reasoning")  # servers have one name or the other


class _In(Enum):
    """Where the text ends so far."""

    NOTHING = auto()
    THOUGHTS = auto()
    CONTENT = auto()
    CALL = auto()  # before its arguments
    ARGUMENTS = auto()


class DeltaText:
    """Takes an answer delta by delta. `begin` and `end` are fixed texts around its content.

    Thoughts are left out unless it `thinks`, and where they come behind the content.
    """

    def __init__(self, begin: str = "", end: str = "", *, thinks: bool = True) -> None:
        self._thinks = thinks
        self._begin = begin
        self._end = end
        self._in = _In.NOTHING
        self._call: object = None  # the index of the call that is open

    def feed(self, delta: Mapping[str, object]) -> str:
        """The text that a delta of a chat adds."""
        return "".join(self._parts(delta))

    def _parts(self, delta: Mapping[str, object]) -> Iterator[str]:
        thought = next((text for name in _THOUGHTS if (text := _text(delta, name))), "")
        if self._thinks and thought and self._in in (_In.NOTHING, _In.THOUGHTS):
            if self._in is _In.NOTHING:
                yield "<think>\n"
            self._in = _In.THOUGHTS
            yield thought
        if content := _text(delta, "content"):
            yield from self._enter(_In.CONTENT)
            begin, self._begin = self._begin, ""
            yield begin + content
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, Sequence) and not isinstance(calls, str) else ():
            if isinstance(call, Mapping):
                yield from self._called(call)

    def _called(self, call: Mapping[str, object]) -> Iterator[str]:
        function = call.get("function")
        if not isinstance(function, Mapping):
            return
        name, arguments = _text(function, "name"), _text(function, "arguments")
        is_open = self._in in (_In.CALL, _In.ARGUMENTS)
        if name and not (is_open and call.get("index") == self._call):
            yield from self._enter(_In.CALL)
            self._call = call.get("index")
            quoted = json.dumps(name, ensure_ascii=False)
            yield f'<tool_call>\n{{"name": {quoted}, "arguments": '
        if arguments and self._in in (_In.CALL, _In.ARGUMENTS):
            self._in = _In.ARGUMENTS
            yield arguments

    def _enter(self, where: _In) -> Iterator[str]:
        """Close what is open, unless it goes on."""
        if self._in is _In.THOUGHTS:
            yield "\n</think>\n\n"
        if self._in is _In.CALL:
            yield "{}"
        if self._in in (_In.CALL, _In.ARGUMENTS):
            yield "}\n</tool_call>\n"
        elif where is _In.CALL and self._in is _In.CONTENT:
            yield "\n"
        self._in = where

    def last(self, reason: api.FinishReason | None) -> str:
        """The text at the end of an answer. One that was cut off stays open."""
        if reason is not api.FinishReason.STOP:
            return ""
        if self._in in (_In.CALL, _In.ARGUMENTS):
            return "".join(self._enter(_In.CONTENT))
        return self._end if self._in is _In.CONTENT else ""


def _text(delta: Mapping[str, object], name: str) -> str:
    text = delta.get(name)
    if not (text is None or isinstance(text, str)):
        raise EndpointError("EngineFailed", f"the endpoint sent {name} that is not text")
    return text or ""
