"""Turns generated tokens into text, one token at a time, with the `tokenizers` package."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

# The prompt tokens before an output that decide whether its first token has a leading space.
_CONTEXT = 4
# The most tokens that wait for the rest of a character. A character has at most 4 bytes, and so at
# most 4 tokens. If more tokens decode to U+FFFD, their bytes are not valid.
_MOST_WAITING = 8


class ByteDetokenizer:
    """Starts a stream behind a prompt (the `Detokenizer` of weftline_engine.bookkeeping)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def stream(self, prompt: Sequence[int]) -> ByteStream:
        return ByteStream(self._tokenizer, prompt[-_CONTEXT:])


class ByteStream:
    """Decodes a short window twice, with and without the new tokens; the difference is the text.

    An incomplete character reads as U+FFFD, and waits for its other bytes.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._window = list(before)
        self._sent = len(self._window)  # tokens of the window whose text was returned

    def push(self, tokens: Sequence[int]) -> str:
        self._window.extend(tokens)
        return self._advance(whole=True)

    def finish(self) -> str:
        return self._advance(whole=False)

    def _advance(self, *, whole: bool) -> str:
        after = self._tokenizer.decode(self._window)
        unsent = len(self._window) - self._sent
        if not unsent or (whole and after.endswith("\ufffd") and unsent < _MOST_WAITING):
            return ""
        before = self._tokenizer.decode(self._window[: self._sent])
        # The tokens sent last are the context of the next ones.
        self._window = self._window[self._sent :]
        self._sent = len(self._window)
        return after[len(before) :]
