"""Characters of an endpoint's texts that arrive in halves.

JSON may write a character beyond U+FFFF as two escapes, such as \\ud83d\\ude00. An endpoint whose
language counts UTF-16 units may cut its stream between them. Half a pair is no text: it cannot be
encoded.
"""

from __future__ import annotations

import re

_HALF = re.compile("[\ud800-\udfff]")


class SurrogateJoiner:
    """Joins the halves over the pieces of one answer. A half without its other one is U+FFFD."""

    def __init__(self) -> None:
        self._held = ""  # the first half of a pair

    def push(self, piece: str) -> str:
        """The text that can be sent: a first half at its end is held back."""
        if not piece or not (self._held or _HALF.search(piece)):
            return piece
        text, self._held = self._held + piece, ""
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._held = text[:-1], text[-1]
        return whole(text)

    def finish(self) -> str:
        """The rest at the end of the answer."""
        held, self._held = self._held, ""
        return whole(held)


def whole(text: str) -> str:
    """`text` with its pairs joined, and with U+FFFD for each other half."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
