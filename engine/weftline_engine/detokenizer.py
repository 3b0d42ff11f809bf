"""Text of generated tokens, a token at a time, with the `tokenizers` package."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

# Prompt tokens before an output that decide how its first token reads (a leading space or not).
_CONTEXT = 4
# A character has at most 4 bytes, and so 4 tokens; more that read as U+FFFD are just bad bytes.
_MOST_WAITING = 8


class ByteDetokenizer:
    """Starts a stream behind a prompt (the `Detokenizer` of weftline_engine.bookkeeping)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def stream(self, prompt: Sequence[int]) -> ByteStream:
        return ByteStream(self._tokenizer, prompt[-_CONTEXT:])


class ByteStream:
    """Decodes a short window twice, with and without the new tokens; the difference is the text.

    A character whose bytes are not all there reads as U+FFFD, and waits for the rest.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._window = list(before)
        self._sent = len(self._window)  # tokens of the window whose text is out

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
        # What was sent last is the context of what comes next.
        self._window = self._window[self._sent :]
        self._sent = len(self._window)
        return after[len(before) :]
