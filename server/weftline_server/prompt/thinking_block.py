"""Splits an answer that begins with a thinking block into the thoughts and the rest."""

from __future__ import annotations

from enum import Enum, auto

from weftline_server.prompt.tool_xml import kept_back

OPEN_BLOCK, CLOSE_BLOCK = "<think>", "</think>"


class Thinking(Enum):
    """How a model's answers think."""

    NONE = "no block"
    MARKED = "an answer may begin with a block"
    OPEN = "the prompt ends inside a block"


class _At(Enum):
    BEFORE = auto()  # only white space, or the beginning of the mark
    INSIDE = auto()
    BEHIND = auto()  # the mark that closes the block has come, and only white space since
    AFTER = auto()


def thoughts_of(thinking: Thinking, text: str) -> str:
    """The thoughts in a whole answer."""
    block = ThinkingBlock(thinking)
    thought, _ = block.feed(text)
    last, _ = block.end()
    return thought + last


class ThinkingBlock:
    """Takes an answer's text piece by piece.

    White space at the ends of the block, and between it and the answer, belongs to neither. A block
    that is cut off is all thoughts. However the text is cut, the pieces add up to the same.
    """

    def __init__(self, thinking: Thinking) -> None:
        starts = {
            Thinking.NONE: _At.AFTER,
            Thinking.MARKED: _At.BEFORE,
            Thinking.OPEN: _At.INSIDE,
        }
        self._at = starts[thinking]
        self._held = ""
        self._is_fresh = True  # no thought has come yet

    def feed(self, text: str) -> tuple[str, str]:
        """Take more text. Return more thoughts and more of the answer."""
        self._held += text
        if self._at is _At.BEFORE:
            self._enter()
        thought = self._inside() if self._at is _At.INSIDE else ""
        if self._at is _At.BEHIND:
            self._held = self._held.lstrip()
            if self._held:
                self._at = _At.AFTER
        if self._at is not _At.AFTER:
            return thought, ""
        said, self._held = self._held, ""
        return thought, said

    def end(self) -> tuple[str, str]:
        """Take the end of the text. Return the last thoughts and the last of the answer."""
        held, self._held = self._held, ""
        if self._at is _At.INSIDE:
            return held.rstrip(), ""
        return "", held if self._at is _At.BEFORE else ""

    def _enter(self) -> None:
        text = self._held.lstrip()
        if text.startswith(OPEN_BLOCK):
            self._held, self._at = text[len(OPEN_BLOCK) :], _At.INSIDE
        elif not OPEN_BLOCK.startswith(text):
            self._at = _At.AFTER

    def _inside(self) -> str:
        if self._is_fresh:
            self._held = self._held.lstrip()
            # A model may write the mark that its prompt has written, too.
            if OPEN_BLOCK.startswith(self._held[: len(OPEN_BLOCK)]):
                if len(self._held) < len(OPEN_BLOCK):
                    return ""
                self._held = self._held[len(OPEN_BLOCK) :].lstrip()
        text, found, rest = self._held.partition(CLOSE_BLOCK)
        if found:
            self._held, self._at = rest, _At.BEHIND
            return text.rstrip()
        cut = text[: len(text) - kept_back(text, CLOSE_BLOCK)].rstrip()
        self._held = text[len(cut) :]
        self._is_fresh = self._is_fresh and not cut
        return cut
