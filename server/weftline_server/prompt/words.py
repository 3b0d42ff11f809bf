"""A tokenizer for engines without a model: each word is a token.

`wN` has the id N, where N is below the number of words that the engine writes. Any other word has
an id behind these, from its checksum. So equal texts have equal ids, and different texts differ.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from weftline_engine.api import OTHER_WORDS

_WORD = re.compile(r"\S+")
_OWN = re.compile(r"w(0|[1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class WordEncoding:
    """The ids of a text's words, and where each begins and ends."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class WordTokenizer:
    """What the prompter needs of a tokenizer."""

    def __init__(self, words: int) -> None:
        self._words = words

    def encode(self, text: str, add_special_tokens: bool = True) -> WordEncoding:
        found = list(_WORD.finditer(text))
        return WordEncoding([self._id(one.group()) for one in found], [one.span() for one in found])

    def encode_batch(
        self, texts: Sequence[str], add_special_tokens: bool = True
    ) -> list[WordEncoding]:
        return [self.encode(text) for text in texts]

    def token_to_id(self, token: str) -> int | None:
        return self._id(token) if token else None

    def id_to_token(self, id: int) -> str:
        return f"w{id}"

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The words of ids. Of a word that is none of the engine's own only the id is known."""
        return " ".join(map(self.id_to_token, ids))

    def _id(self, word: str) -> int:
        own = _OWN.fullmatch(word)
        if own and (number := int(own.group(1))) < self._words:
            return number
        return self._words + zlib.crc32(word.encode()) % OTHER_WORDS
