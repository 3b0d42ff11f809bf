"""From generated tokens to text that may be sent: whole characters, and nothing of a stop string.

The engine knows no tokenizer; whoever runs it passes a `Detokenizer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TokenStream(Protocol):
    """The text of one output, token by token."""

    def push(self, tokens: Sequence[int]) -> str:
        """Text that these tokens complete; empty while a character's bytes are missing."""
        ...

    def finish(self) -> str:
        """What is left when no more tokens come."""
        ...


class Detokenizer(Protocol):
    """Starts a stream behind a prompt, whose last tokens may decide on a leading space."""

    def stream(self, prompt: Sequence[int]) -> TokenStream: ...


class StopScanner:
    """Passes text on until a stop string appears, holding back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._kept = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that is now safe to send; after a stop string, nothing."""
        if self.stopped:
            return ""
        if not self._stops:
            return text
        text = self._kept + text
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped, self._kept = True, ""
            return text[: min(found)]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._kept = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back, when no more text comes."""
        kept, self._kept = self._kept, ""
        return kept


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, but not all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
