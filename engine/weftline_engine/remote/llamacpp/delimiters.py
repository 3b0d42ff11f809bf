"""The texts by which llama-server finds the places of a prompt where it keeps a state."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

# A text is made of so many tokens. With fewer it stands in more places, with more it gives other
# tokens more often.
SIZES = (8, 5, 12)
# A place may begin inside a word, whose text gives other tokens. Then an earlier one is taken.
MOST_EARLIER = 3


class Delimiters:
    """The texts of a model, whose tokenizer gives the tokens that llama-server's gives."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def at(self, tokens: Sequence[int], place: int) -> tuple[int, str] | None:
        """A text whose tokens stand at a place of the prompt or up to MOST_EARLIER before it, and
        where. None if no text gives the tokens."""
        for begin in range(place, max(-1, place - MOST_EARLIER - 1), -1):
            for size in SIZES:
                part = list(tokens[begin : begin + size])
                text = self._tokenizer.decode(part, skip_special_tokens=False)
                if self._tokenizer.encode(text, add_special_tokens=False).ids == part:
                    return begin, text
        return None
