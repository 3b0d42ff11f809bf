"""Documents of a given number of tokens, made of the sentences of our documentation."""

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
    """What the null engine counts."""
    return len(text.split())


def counter(model: Path | None) -> Count:
    """Counts tokens with the tokenizer of `model`, or words where there is no model."""
    if model is None:
        return words
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


@cache
def sentences() -> tuple[str, ...]:
    """The prose of the documentation, sentence by sentence, in its order."""
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
    """Texts that are the same for the same seed, and share no beginning for different salts."""

    def __init__(self, count: Count, salt: int) -> None:
        self._count = count
        self._salt = salt

    def document(self, seed: object, tokens: int) -> str:
        """About `tokens` tokens of prose: never more, and at most one word's tokens fewer.

        Begins with a number of its salt, of always four digits, so that nothing of it is cached.
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
