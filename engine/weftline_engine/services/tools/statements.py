"""Splits Python code into its top-level statements while it is written."""

from __future__ import annotations

import ast

# A line that begins with one of these belongs to the statement before it.
_GO_ON = ("else", "elif", "except", "finally")
# A statement is parsed again for each of its lines, but at most this many times.
MOST_TRIES = 1000


class Statements:
    """Reads code in parts, and returns each statement when the next one begins.

    The reader waits for the next statement because an `if` may still get an `else`, and brackets
    may still be open. Comments and empty lines belong to the statement before them, so the
    statements together are the whole code.
    """

    def __init__(self) -> None:
        self._line = ""  # the beginning of a line
        self._open = ""  # complete lines of a statement that may go on
        self._tries = 0

    def feed(self, text: str) -> list[str]:
        """Read more code, and return the statements that it completes."""
        *complete, self._line = (self._line + text).split("\n")
        found = []
        for line in complete:
            if self._begins(line) and self._is_whole():
                found.append(self._open)
                self._open, self._tries = "", 0
            self._open += line + "\n"
        return found

    def end(self) -> str:
        """The rest of the code. It may be no valid statement."""
        rest, self._open, self._line = self._open + self._line, "", ""
        return rest

    def _begins(self, line: str) -> bool:
        """Whether a line may begin a statement."""
        if not line or line[0] in " \t#)]}" or not line.strip():
            return False
        word = line.split(":")[0].split("(")[0].split()
        return not word or word[0] not in _GO_ON

    def _is_whole(self) -> bool:
        """Whether the open lines are statements as they stand."""
        if not self._open.strip() or self._tries >= MOST_TRIES:
            return False
        self._tries += 1
        try:
            return bool(ast.parse(self._open).body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
