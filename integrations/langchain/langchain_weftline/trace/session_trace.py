"""The session of one run, and how its prompts are traced back to its earlier answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from weftline.kit import Piece, Pieces, RunSession
from weftline.kit.pieces import MAX_SEARCHES, MIN_DISTINCT

# A text without a name (of a template or an f-string) is taken for an answer only from this many
# characters on. Shorter ones may be labels, which stand in templates and are answers of models.
MIN_UNNAMED = 24
MAX_SEEN = 4096


@dataclass(eq=False)
class TracedSession(RunSession):
    """A run's session, which also knows the values that the run was given."""

    max_answers: ClassVar[int] = 1024

    seen: dict[str, None] = field(default_factory=dict)  # values that are not answers of the run

    def see(self, values: Iterable[str]) -> None:
        """Note values that were given to the run. Answers that repeat such values are not the
        values' source."""
        with self.lock:
            for value in values:
                if len(self.seen) < MAX_SEEN:
                    self.seen[value] = None

    def trace(self, pieces: Pieces) -> Pieces:
        """`pieces`, with `from_var` set on the parts that came from earlier answers of the run."""
        with self.lock:
            answers = list(self.answers)
            if not answers:
                return pieces
            # Applications often strip an answer. The stripped text still counts as the answer.
            stripped = ((variable, text, text.strip()) for variable, text in answers)
            answers = [(name, kept) for name, text, kept in stripped if kept not in ("", text)]
            answers += self.answers
            return tuple(part for piece in pieces for part in self._trace(piece, answers))

    def _trace(self, piece: Piece, answers: list[tuple[str, str]]) -> Iterator[Piece]:
        text, name = piece.text, piece.name
        shortest = MIN_UNNAMED if name is None else MIN_DISTINCT
        if text in self.seen:
            yield piece
            return
        whole = next((var for var, answer in reversed(answers) if answer == text), None)
        if whole is not None and (name is not None or len(text) >= shortest):
            yield Piece(text, name, whole)
            return
        if len(text) < shortest or len(text) * len(answers) > MAX_SEARCHES:
            yield piece
            return
        inside = [(v, a) for v, a in answers if len(a) >= shortest and a in text]
        if inside:
            yield from _split(piece, inside)
            return
        around = (var for var, answer in reversed(answers) if name is not None and text in answer)
        yield Piece(text, name, next(around, None))


def _split(piece: Piece, answers: list[tuple[str, str]]) -> Iterator[Piece]:
    """`piece` cut around the answers that occur in it, the longest first."""
    if not piece.text:
        return
    here = [(v, a) for v, a in answers if a in piece.text]
    if not here:
        # Punctuation and space between two answers are not part of a value.
        is_value = any(char.isalnum() for char in piece.text)
        yield piece if is_value else Piece(piece.text)
        return
    chosen = max(here, key=lambda item: len(item[1]))
    variable, answer = chosen
    before, _, after = piece.text.partition(answer)
    others = [item for item in here if item is not chosen]
    if any(text == answer for _, text in others):
        here = others  # two calls have generated the same text, and each is used once
    yield from _split(Piece(before, piece.name), here)
    yield Piece(answer, piece.name, variable)
    yield from _split(Piece(after, piece.name), here)
