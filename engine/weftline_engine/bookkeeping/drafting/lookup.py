"""Guesses the next tokens of an output: it looks for the output's last tokens in earlier text, and
proposes the tokens that followed them there.

Earlier text is the prompt, the output itself, or a reference. Pairs of neighbouring tokens are
indexed as in LZ77 (Ziv and Lempel 1977). A table has the last position of each pair, and a chain
has the earlier positions.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

# The most tokens in the index. A token takes about 130 bytes, which makes 1 MB in all. Further
# references are left out, and only the end of a longer prompt is indexed.
MOST_INDEXED = 8192
# The most positions that one guess compares, the latest first, and the most tokens that it compares
# at each. One comparison takes 1 us, so a guess takes at most about 20 us.
_MOST_COMPARED = 8
MOST_MATCHED = 16
_PAIR = 2
# Both constants stand beside integers that are not negative: token ids, and positions in an array
# of C longs, which has a place for every token and can hold no None.
_BORDER = -1  # separates two texts; no token has this id
_NOWHERE = -1  # no position


class Lookup:
    """The texts in which guesses for one output are found: its references and its own tokens."""

    def __init__(self, references: Iterable[Sequence[int]], tokens: Sequence[int]) -> None:
        self._text: list[int] = []
        self._last: dict[tuple[int, int], int] = {}  # the position behind a pair's last occurrence
        self._earlier = array("l")  # by position: the one behind the same pair's occurrence before
        self.seen = 0  # own tokens that are in the index, or were too many for it
        room = MOST_INDEXED - min(len(tokens), MOST_INDEXED // 2)
        for reference in references:
            self._add(reference[:room])
            room -= len(reference[:room])
            self._add((_BORDER,))
        self.seen = max(0, len(tokens) - (MOST_INDEXED - len(self._text)))
        self.grow(tokens)

    def grow(self, tokens: Sequence[int]) -> None:
        """Index the new tokens of the prompt and output. `tokens` are all their tokens so far."""
        self._add(tokens[self.seen :])
        self.seen = len(tokens)

    def after(self, ahead: Sequence[int], most: int) -> tuple[tuple[int, ...], int]:
        """Guess at most `most` tokens that follow the own tokens and `ahead`.

        Also returns how many tokens before the guess are equal at the place where it was found, 2
        to MOST_MATCHED. Without a guess the result is empty and 0.
        """
        context = (*self._text[-MOST_MATCHED:], *ahead)[-MOST_MATCHED:]
        if len(context) < _PAIR:
            return (), 0
        at = self._last.get((context[-2], context[-1]), _NOWHERE)
        if at == len(self._text):
            at = self._earlier[at]  # this position is the end of the text, with nothing after it
        best, longest = _NOWHERE, 0
        for _ in range(_MOST_COMPARED):
            if at == _NOWHERE:
                break
            matched = self._matched(context, at)
            if matched > longest:
                best, longest = at, matched
            if longest == len(context):
                break
            at = self._earlier[at]
        if best == _NOWHERE:
            return (), 0
        found = self._text[best : best + most]
        if _BORDER in found:
            found = found[: found.index(_BORDER)]
        elif not ahead and best + most > len(self._text):
            # The text repeats itself up to its end, so the repetition is continued.
            found = (found * most)[:most]
        return tuple(found), longest if found else 0

    def _matched(self, context: Sequence[int], at: int) -> int:
        """How many tokens before position `at` are the last ones of `context`."""
        count = 0
        for token in reversed(context):
            at -= 1
            if at < 0 or self._text[at] != token or token == _BORDER:
                break
            count += 1
        return count

    def _add(self, tokens: Sequence[int]) -> None:
        text, last, earlier = self._text, self._last, self._earlier
        if not earlier:
            earlier.append(_NOWHERE)
        before = text[-1] if text else _BORDER
        text.extend(tokens)
        for token in tokens:
            at = len(earlier)
            if before == _BORDER or token == _BORDER:
                earlier.append(_NOWHERE)
            else:
                earlier.append(last.get((before, token), _NOWHERE))
                last[before, token] = at
            before = token
