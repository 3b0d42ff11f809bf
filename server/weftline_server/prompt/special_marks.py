"""Puts the special tokens that part an answer back into its text."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set


class MarkedText:
    """Takes an answer part by part, its tokens and its text, and gives the text with marks.

    Engines leave special tokens out of their texts. `marks` are the ids and the texts of those that
    stay. `data` gives the bytes of any other token, by which the place of a mark is counted. The
    text remains the engine's: it may be late, and it may end before its tokens at a stop string.
    """

    def __init__(
        self, data: Callable[[int], bytes], special: Set[int], marks: Mapping[int, str]
    ) -> None:
        self._data = data
        self._special = special
        self._marks = marks
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._seen = 0  # characters that the tokens before have
        self._given = 0  # characters of the engine's text that were returned
        self._text = ""  # those that were not
        self._waiting: deque[tuple[int, str]] = deque()  # marks, and the characters before each

    def feed(self, tokens: Sequence[int], text: str) -> str:
        """The text that is known now, with its marks."""
        self._text += text
        for token in tokens:
            if token in self._marks:
                self._waiting.append((self._seen, self._marks[token]))
            elif token not in self._special:
                self._seen += len(self._decoder.decode(self._data(token)))
        pieces = []
        while self._waiting and self._waiting[0][0] <= self._given + len(self._text):
            at, mark = self._waiting.popleft()
            pieces += [self._taken(at - self._given), mark]
            self._text = self._text.removeprefix(mark)  # an engine may leave it in
        # Without tokens nothing is known of marks, so the text goes on as it is.
        pieces.append(self._taken(len(self._text)))
        return "".join(pieces)

    def end(self) -> str:
        """The marks behind the last text."""
        marks = "".join(mark for _, mark in self._waiting)
        self._waiting.clear()
        return marks

    def _taken(self, count: int) -> str:
        taken, self._text = self._text[:count], self._text[count:]
        self._given += len(taken)
        return taken
