"""Makes documents of a given number of tokens from the sentences of our documentation."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/concepts.md",
    "docs/serving.md",
    "docs/transforms.md",
)

Count = Callable[[str], int]


def words(text: str) -> int:
    """The number of words, which the null engine counts as tokens."""
    return len(text.split())


def counter(model: Path | None) -> Count:
    """A function that counts tokens with the tokenizer of `model`, or words without a model."""
    if model is None:
        return words
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


@cache
def sentences() -> tuple[str, ...]:
    """The sentences of the documentation's prose, in order."""
    found: list[str] = []
    for page in PAGES:
        text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
        marks = ("|", "#", "- ", "    ", "<!--", "![")
        lines = (line for line in text.splitlines() if not line.startswith(marks))
        for paragraph in "\n".join(lines).split("\n\n"):
            flat = re.sub(r"[{}\s]+", " ", paragraph).strip()
            found += re.split(r"(?<=[.!?]) (?=[A-Z])", flat)
    return tuple(sentence for sentence in found if len(sentence.split()) > 4)


class Texts:
    """Makes the same text for the same seed, except for a number at its beginning, the salt."""

    def __init__(self, count: Count, salt: int) -> None:
        self._count = count
        self._salt = salt

    def document(self, seed: object, tokens: int) -> str:
        """Prose of at most `tokens` tokens, at most one word short of them.

        It begins with the salt as a number of four digits, so that none of it is in a cache.
        """
        rng = random.Random(f"{seed}")
        text = f"Part {self._salt % 10_000:04}."
        while True:
            sentence = rng.choice(sentences())
            longer = f"{text} {sentence}"
            if self._count(longer) > tokens:
                return self._cut(text, sentence, tokens)
            text = longer

    def _cut(self, text: str, sentence: str, tokens: int) -> str:
        for word in sentence.split():
            longer = f"{text} {word}"
            if self._count(longer) > tokens:
                break
            text = longer
        return text
