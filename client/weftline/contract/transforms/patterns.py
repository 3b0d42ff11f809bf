r"""Translates a user's pattern from Python's syntax to RE2's, or refuses it.

RE2 takes time linear in the text for every pattern, so a server can run a pattern that it does not
trust. Its syntax is similar to Python's, but the meanings differ. Python's \d has 650 digits and
RE2's has ten, and Python's $ also matches before a last newline. So the pattern is parsed as Python
parses it, and written for RE2 with character ranges from Python's own tables. A pattern that RE2
cannot express, or would read differently, is refused with an error message.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from weftline.contract.errors import InvalidRequest
from weftline.contract.transforms.base import MAX_OPTION_CHARS, package, refuse

# RE2's slowest automaton took 27 ns for each character and position. With 256 positions, a text of
# 2^17 characters takes 131,072 · 256 · 27 ns = 0.9 s.
MAX_POSITIONS = 256
MAX_READ_CHARS = 1 << 17
_MAX_NESTING = 32
_MAX_REPEAT = 1000  # RE2's own limit
_MAX_BYTES = 4 << 20  # memory for the automata that RE2 keeps for a pattern

_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_SETS = frozenset("dDsSwW")
_REPEAT = re.compile(r"\{(?:(\d+)(,(\d*))?|,(\d*))\}")
_LEADING_FLAGS = re.compile(r"\(\?([sm]+)\)")
_NAME = re.compile(r"\?P<\w+>")
_GROUP_KINDS = {
    "?=": "look-ahead",
    "?!": "look-ahead",
    "?<": "look-behind",
    "?P": "back-references",
    "?>": "atomic groups",
    "?(": "conditions",
    "?#": "comments",
}


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern for RE2, with its properties.

    A `nullable` pattern may match the empty text. An `anchored` one depends on the position.
    """

    text: str
    groups: int
    nullable: bool
    anchored: bool


def translate(pattern: str) -> Pattern:
    """`pattern` for RE2. Raises InvalidRequest where RE2 cannot match as Python does."""
    if len(pattern) > MAX_OPTION_CHARS:
        refuse(f"a pattern has at most {MAX_OPTION_CHARS} characters, and this has {len(pattern)}")
    reader = _Reader(pattern)
    part = reader.alternatives(0)
    reader.check_ended()
    try:
        groups = re.compile(pattern).groups
    except (re.error, OverflowError) as error:
        raise _invalid(pattern, str(error)) from error
    if part.positions > MAX_POSITIONS:
        raise _leave(pattern, f"more than {MAX_POSITIONS} positions, repetitions counted out")
    assert groups == reader.groups, f"{pattern!r} was misread"
    return Pattern(part.text, groups, part.nullable, reader.anchored)


class CompiledPattern:
    """A compiled pattern."""

    def __init__(self, pattern: str) -> None:
        re2 = package("re2", "a pattern", "google-re2")
        options = re2.Options()
        options.max_mem = _MAX_BYTES
        options.log_errors = False
        self.pattern = translate(pattern)
        try:
            self._compiled = re2.compile(self.pattern.text, options)
        except re2.error as error:
            raise _leave(pattern, f"what RE2 refuses ({error})") from error

    def first(self, text: str) -> tuple[str | None, ...] | None:
        """The groups of the first match, or None without one.

        A group that did not take part is None.
        """
        match = self._compiled.search(text)
        return None if match is None else tuple(match.groups())

    def every(self, text: str) -> list[str]:
        """Python's findall, for a pattern that has at most one group and is never empty."""
        found: list[str] = self._compiled.findall(text)
        return found


@lru_cache(maxsize=32)
def search_for(pattern: str) -> CompiledPattern:
    """`pattern`, translated and compiled. Raises InvalidRequest like `translate`."""
    return CompiledPattern(pattern)


def _leave(pattern: str, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"pattern {pattern[:80]!r} has {what}, which the server cannot run as Python does: "
        "leave the parser to the client",
        param="transforms",
    )


def _invalid(pattern: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{pattern[:80]!r} is no pattern: {why}", param="transforms")


@dataclass(frozen=True, slots=True)
class _Part:
    """A translated part. `positions` is the number of places in it where a match can be."""

    text: str
    nullable: bool = False
    positions: int = 1
    captures: bool = False


class _Reader:
    """Reads a pattern from left to right, as Python's `re` does."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        leading = _LEADING_FLAGS.match(pattern)
        self._flags = leading[1] if leading else ""
        self._at = leading.end() if leading else 0
        self.groups = 0
        self.anchored = False

    def check_ended(self) -> None:
        """Raise unless all of the pattern has been read."""
        if self._peek():
            raise _invalid(self._pattern, f"unbalanced parenthesis at position {self._at}")

    def _peek(self) -> str:
        """The next character, or an empty text at the end."""
        return self._pattern[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise _invalid(self._pattern, "it ends too early")
        self._at += 1
        return char

    def _took(self, char: str) -> bool:
        """Take `char` if it comes next. Returns whether it did."""
        if self._peek() != char:
            return False
        self._at += 1
        return True

    def alternatives(self, depth: int) -> _Part:
        """The rest of this group, which is `depth` groups deep."""
        if depth > _MAX_NESTING:
            raise _leave(self._pattern, f"more than {_MAX_NESTING} groups in each other")
        branches = [self._sequence(depth)]
        while self._took("|"):
            branches.append(self._sequence(depth))
        return _Part(
            "|".join(branch.text for branch in branches),
            any(branch.nullable for branch in branches),
            sum(branch.positions for branch in branches),
            any(branch.captures for branch in branches),
        )

    def _sequence(self, depth: int) -> _Part:
        parts = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom(depth)))
        return _Part(
            "".join(part.text for part in parts),
            all(part.nullable for part in parts),
            sum(part.positions for part in parts),
            any(part.captures for part in parts),
        )

    def _repeated(self, part: _Part) -> _Part:
        bounds = self._bounds()
        if bounds is None:
            return part
        low, high = bounds
        if part.nullable:
            raise _leave(self._pattern, "a repetition of what may be empty")
        if part.captures and high != 1:
            raise _leave(self._pattern, "a group inside a repetition")
        if max(low, high or 0) > _MAX_REPEAT:
            raise _leave(self._pattern, f"a repetition of more than {_MAX_REPEAT}")
        if self._peek() == "+":
            raise _leave(self._pattern, "a possessive repetition")
        lazy = "?" if self._took("?") else ""
        sign = f"{{{low},{'' if high is None else high}}}"
        return _Part(
            f"{part.text}{sign}{lazy}",
            low == 0,
            part.positions * max(low, high or 1),
            part.captures,
        )

    def _bounds(self) -> tuple[int, int | None] | None:
        """The bounds of a quantifier, if one comes next."""
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._took(sign):
                return bounds
        found = _REPEAT.match(self._pattern, self._at)
        if found is None:
            return None
        self._at = found.end()
        low, comma, high, only_high = found.groups()
        if max(map(len, (low or "", high or "", only_high or ""))) > 9:
            raise _leave(self._pattern, f"a repetition of more than {_MAX_REPEAT}")
        if low is None:
            return 0, int(only_high) if only_high else None
        if not comma:
            return int(low), int(low)
        return int(low), int(high) if high else None

    def _atom(self, depth: int) -> _Part:
        char = self._take()
        match char:
            case ".":
                return _Part("(?s:.)" if "s" in self._flags else r"[^\n]")
            case "^":
                return self._anchor("(?m:^)" if "m" in self._flags else r"\A")
            case "$":
                return self._end(depth)
            case "[":
                return _Part(self._class())
            case "(":
                return self._group(depth)
            case "\\":
                return self._escape()
        return _Part(self._literal(char))

    def _anchor(self, text: str) -> _Part:
        self.anchored = True
        return _Part(text, nullable=True)

    def _end(self, depth: int) -> _Part:
        """Python's $ also matches before a newline that ends the text.

        At the end of the pattern and outside of groups, the match may contain that newline, because
        only the groups of a match are used.
        """
        if "m" in self._flags:
            return self._anchor("(?m:$)")
        if depth or self._peek() not in ("", "|"):
            raise _leave(self._pattern, "a $ before its end")
        return self._anchor(r"(?:\n?\z)")

    def _group(self, depth: int) -> _Part:
        kind = self._pattern[self._at : self._at + 2]
        captures = True
        if kind == "?:":
            self._at += 2
            captures = False
        elif (name := _NAME.match(self._pattern, self._at)) is not None:
            self._at = name.end()
        elif kind.startswith("?"):
            raise _leave(self._pattern, _GROUP_KINDS.get(kind, "flags other than (?s) and (?m)"))
        self.groups += captures
        inner = self.alternatives(depth + 1)
        if not self._took(")"):
            raise _invalid(self._pattern, "a group has no end")
        text = f"({'' if captures else '?:'}{inner.text})"
        return _Part(text, inner.nullable, inner.positions, captures or inner.captures)

    def _escape(self) -> _Part:
        char = self._take()
        if char in _SETS:
            return _Part(f"[{_set(char)}]")
        if char == "A":
            return self._anchor(r"\A")
        if char == "Z":
            return self._anchor(r"\z")
        if char in "bB":
            raise _leave(self._pattern, f"\\{char}, which in RE2 knows ASCII alone")
        return _Part(self._literal(self._escaped(char)))

    def _escaped(self, char: str) -> str:
        """The character that a backslash and `char` stand for."""
        if char in _ESCAPED:
            return _ESCAPED[char]
        if char.isascii() and char.isdigit():
            raise _leave(self._pattern, "back-references or octal escapes")
        if char in _HEX_DIGITS:
            return self._numbered(char)
        if char == "N":
            raise _leave(self._pattern, "characters by name")
        if char.isascii() and char.isalpha():
            raise _invalid(self._pattern, f"bad escape \\{char}")
        return char

    def _numbered(self, char: str) -> str:
        """The character whose number follows `char`, in hexadecimal digits."""
        digits = self._pattern[self._at : self._at + _HEX_DIGITS[char]]
        self._at += _HEX_DIGITS[char]
        try:
            return chr(int(digits, 16))
        except (ValueError, OverflowError) as error:
            raise _invalid(self._pattern, f"incomplete escape \\{char}") from error

    def _literal(self, char: str) -> str:
        if "\ud800" <= char <= "\udfff":
            raise _leave(self._pattern, "a lone surrogate")
        return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"

    def _class(self) -> str:
        if self._peek() == "[":
            raise _leave(self._pattern, "[[, which may become a set in a set")
        negated = "^" if self._took("^") else ""
        items = [self._item()]  # a closing bracket that comes first is a character
        while not self._took("]"):
            items.append(self._item())
        return f"[{negated}{''.join(items)}]"

    def _item(self) -> str:
        """A character, a range or a set in a class."""
        low = self._member()
        following = self._pattern[self._at : self._at + 2]
        if not following.startswith("-") or following in ("-", "-]"):
            return _set(low[1]) if len(low) == 2 else self._literal(low)
        self._at += 1
        if self._peek() == "-":
            raise _leave(self._pattern, "-- in a class, which may become an operation")
        high = self._member()
        if len(low) == 2 or len(high) == 2 or high < low:
            raise _invalid(self._pattern, f"bad character range {low}-{high}")
        return f"{self._literal(low)}-{self._literal(high)}"

    def _member(self) -> str:
        r"""A character, or one of \d \D \s \S \w \W as written."""
        char = self._take()
        if char in "-&~|" and self._peek() == char:
            raise _leave(self._pattern, f"{char * 2} in a class, which may become an operation")
        if char != "\\":
            return char
        char = self._take()
        if char in _SETS:
            return f"\\{char}"
        return "\b" if char == "b" else self._escaped(char)


@lru_cache(maxsize=len(_SETS))
def _set(letter: str) -> str:
    r"""The ranges of a set such as \w, as in this version of Python."""
    return "".join(f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in _ranges(letter))


def _ranges(letter: str) -> Iterator[tuple[int, int]]:
    every = array("I", range(0x110000)).tobytes().decode("utf-32", "surrogatepass")
    for run in re.finditer(f"\\{letter}+", every):
        yield run.start(), run.end() - 1
