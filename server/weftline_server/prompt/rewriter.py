"""The base of what rewrites an answer while it comes, and the tags that it writes."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from weftline_server.prompt.tool_xml import kept_back

THINK, THOUGHT = "<think>\n", "\n</think>\n\n"
CALL_END = "}\n</tool_call>"


def call_of(name: str) -> str:
    """A call of Hermes up to its arguments."""
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": '


def cut(text: str, marks: Sequence[str], last: bool) -> tuple[str, str, str]:
    """The text before the first of `marks`, the mark, and what follows. Without a mark, what may
    begin one follows."""
    places = [(at, mark) for mark in marks if (at := text.find(mark)) >= 0]
    if places:
        at, mark = min(places)
        return text[:at], mark, text[at + len(mark) :]
    keep = 0 if last else max(kept_back(text, mark) for mark in marks)
    at = len(text) - keep
    return text[:at], "", text[at:]


class Rewriter(ABC):
    """Takes an answer's text piece by piece, and gives it as Hermes and Qwen write: `<think>`
    around thoughts, `<tool_call>` around calls.

    What may go on is held back, so the pieces add up to the same however the text is cut. Text
    without marks stays as it is.
    """

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """What the text has become so far, behind what was returned before."""
        self._held += text
        return "".join(self._advance(last=False))

    def end(self) -> str:
        """The rest."""
        return "".join(self._advance(last=True))

    @abstractmethod
    def _advance(self, last: bool) -> Iterator[str]:
        """What `_held` has become; it keeps what may go on, unless the text ends here."""
