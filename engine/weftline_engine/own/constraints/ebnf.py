"""EBNF grammars, as vLLM, SGLang and llama.cpp take them, in the words of Lark.

A grammar has rules like `root ::= "a" | [0-9]{2} item*`. Its comments begin with `#`. A rule ends
where the next one begins. Rules that do not contain themselves become terminals of Lark, because
only within a terminal every way to read a text is tried.

llguidance's own converter, gbnf_to_lark, is no substitute in version 1.9. It refuses alternatives
on lines of their own, and deep nesting ends in a RecursionError. Of two rules of one name it takes
the second, and an "é" by its number in four digits becomes one that llguidance refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

ROOT = "root"
MOST_REPEATS = 10_000

_TOKEN = re.compile(
    r"""
      (?P<space> \s+ | \#[^\n]* )
    | (?P<rule> (?P<name>[A-Za-z_][A-Za-z0-9_.-]*) \s* ::= )
    | (?P<ref> [A-Za-z_][A-Za-z0-9_.-]* )
    | (?P<text> "(?:[^"\\\n]|\\[^\n])*" )
    | (?P<set> \[(?:[^\]\\\n]|\\[^\n])*\] )
    | (?P<times> \{ \s* [0-9]+ \s* (?: , \s* [0-9]* \s* )? \} )
    | (?P<mark> [()|*+?.] )
    """,
    re.VERBOSE,
)
_ESCAPE = re.compile(
    r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))|(.)", re.DOTALL
)
_SHORT = {"n": "\n", "r": "\r", "t": "\t"}
_PLAIN = frozenset("\"'\\[]^-/.")  # characters that mean themselves behind a backslash


class BadGrammar(Exception):
    """A grammar cannot be read. The message names the line."""


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of a grammar: its kind, its text, and its line, from 1."""

    kind: str
    text: str
    line: int


@dataclass(slots=True)
class _Rule:
    """A rule in Lark's words. A reference is a part on its own, the rest is text."""

    line: int
    parts: list[str | _Word] = field(default_factory=list)

    @property
    def names(self) -> list[_Word]:
        return [part for part in self.parts if isinstance(part, _Word)]


def is_ebnf(grammar: str) -> bool:
    """Whether a grammar is EBNF rather than Lark: one of its lines has `name ::=`."""
    return re.search(r"^\s*[A-Za-z_][\w.-]*\s*::=", grammar, re.MULTILINE) is not None


def to_lark(grammar: str) -> str:
    """The same grammar in Lark's words. Raises BadGrammar."""
    rules = _Parser(list(_words(grammar))).rules()
    if ROOT not in rules:
        raise BadGrammar(f"the grammar has no rule {ROOT!r}, with which an output begins")
    for rule in rules.values():
        for used in rule.names:
            if used.text not in rules:
                _refuse(used.line, f"there is no rule {used.text!r}")
    recursive = _recursive(rules)
    called = {name: f"r{at}" if name in recursive else f"T{at}" for at, name in enumerate(rules)}
    lines = [f"start: {called[ROOT]}"]
    for name, rule in rules.items():
        body = [called[part.text] if isinstance(part, _Word) else part for part in rule.parts]
        lines.append(f"{called[name]}: {' '.join(body)}")
    return "\n".join(lines)


def _recursive(rules: Mapping[str, _Rule]) -> set[str]:
    """The rules that contain themselves, or contain one that does."""
    users: dict[str, list[str]] = {name: [] for name in rules}
    waits = {name: len({one.text for one in rule.names}) for name, rule in rules.items()}
    for name, rule in rules.items():
        for used in {one.text for one in rule.names}:
            users[used].append(name)
    ready = [name for name, count in waits.items() if not count]
    found = set(rules)
    while ready:
        name = ready.pop()
        found.discard(name)
        for user in users[name]:
            waits[user] -= 1
            if not waits[user]:
                ready.append(user)
    return found


def _words(grammar: str) -> Iterator[_Word]:
    at, line = 0, 1
    while at < len(grammar):
        found = _TOKEN.match(grammar, at)
        if found is None:
            rest = grammar[at:].partition("\n")[0][:40]
            _refuse(line, f"{rest!r} is not understood")
        kind = found.lastgroup or ""
        if kind != "space":
            yield _Word(kind, found["name"] if kind == "rule" else found[0], line)
        line += found[0].count("\n")
        at = found.end()


class _Parser:
    """Reads rules. Brackets are kept as they are, since they mean the same in Lark."""

    def __init__(self, words: list[_Word]) -> None:
        self._words = words

    def rules(self) -> dict[str, _Rule]:
        """The rules by name, in their order."""
        found: dict[str, _Rule] = {}
        rule: _Rule | None = None
        open: list[_Word] = []  # brackets
        before: _Word | None = None  # the word that a repetition would repeat
        for word in self._words:
            if word.kind == "rule":
                self._close(rule, open, before)
                if word.text in found:
                    _refuse(word.line, f"rule {word.text!r} is there twice")
                rule = found[word.text] = _Rule(word.line)
                before = None
                continue
            if rule is None:
                _refuse(word.line, f"{word.text!r} stands before the first rule")
            self._add(rule, word, open, before)
            before = word
        self._close(rule, open, before)
        return found

    def _add(self, rule: _Rule, word: _Word, open: list[_Word], before: _Word | None) -> None:
        """Add a word to a rule. Where nothing stands between two marks, the text may be empty."""
        match word.kind, word.text:
            case "ref", _:
                rule.parts.append(word)
            case "text", text:
                rule.parts.append(json.dumps(_plain(text, word.line), ensure_ascii=False))
            case "set", text:
                rule.parts.append(_set(text, word.line))
            case "mark", ".":
                rule.parts.append(r"/(.|\n)/")
            case ("mark", "*" | "+" | "?") | ("times", _):
                _check_repetition(word, before)
                rule.parts.append(re.sub(r"\s", "", word.text))
            case "mark", "(":
                open.append(word)
                rule.parts.append("(")
            case "mark", mark:
                if _is_open(before):
                    rule.parts.append('""')
                if mark == ")":
                    if not open:
                        _refuse(word.line, "')' closes nothing")
                    open.pop()
                rule.parts.append(mark)

    def _close(self, rule: _Rule | None, open: list[_Word], before: _Word | None) -> None:
        if open:
            _refuse(open[-1].line, "'(' is not closed")
        if rule is not None and _is_open(before):
            rule.parts.append('""')


def _is_open(before: _Word | None) -> bool:
    """Whether an alternative begins behind this word."""
    return before is None or (before.kind == "mark" and before.text in "(|")


def _repeats(word: _Word) -> bool:
    return word.kind == "times" or (word.kind == "mark" and word.text in "*+?")


def _check_repetition(word: _Word, before: _Word | None) -> None:
    """Raise BadGrammar unless `word` can repeat what stands `before` it."""
    if before is None or _is_open(before):
        _refuse(word.line, f"{word.text!r} repeats nothing")
    if _repeats(before):
        _refuse(word.line, f"{word.text!r} repeats a repetition: use brackets")
    if word.kind == "mark":
        return
    counts = [int(one) for one in re.findall(r"[0-9]{1,9}", word.text)]
    if max(counts) > MOST_REPEATS:
        _refuse(word.line, f"{word.text!r} repeats more than {MOST_REPEATS:,} times")
    if counts != sorted(counts):
        _refuse(word.line, f"{word.text!r} has a most that is below its least")


def _chars(text: str, line: int) -> Iterator[tuple[str, bool]]:
    """The characters of a text without its ends, and whether each had a backslash."""
    for found in _ESCAPE.finditer(text[1:-1]):
        code = found[1] or found[2] or found[3]
        if code is not None:
            if int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) < 0xE000:
                _refuse(line, f"{found[0]} is no character")
            yield chr(int(code, 16)), True
        elif (short := found[4]) is not None:
            if short not in _SHORT and short not in _PLAIN:
                _refuse(line, f"{found[0]!r} is not an escape of EBNF")
            yield _SHORT.get(short, short), True
        else:
            yield found[5], False


def _plain(text: str, line: int) -> str:
    return "".join(char for char, _ in _chars(text, line))


def _set(text: str, line: int) -> str:
    """A set of characters, as a pattern in which none of them means anything else."""
    chars = list(_chars(text, line))
    negated = bool(chars) and chars[0] == ("^", False)
    chars = chars[1:] if negated else chars
    if not chars:
        if negated:
            return r"/(.|\n)/"
        _refuse(line, "'[]' has no characters")
    made, at = "", 0
    while at < len(chars):
        first = last = chars[at][0]
        if at + 2 < len(chars) and chars[at + 1] == ("-", False):
            last = chars[at + 2][0]
            at += 2
        if last < first:
            _refuse(line, f"{text} has a range that ends before it begins")
        made += _code(first) if first == last else f"{_code(first)}-{_code(last)}"
        at += 1
    return f"/[{'^' if negated else ''}{made}]/"


def _code(char: str) -> str:
    return f"\\u{{{ord(char):X}}}"


def _refuse(line: int, what: str) -> NoReturn:
    raise BadGrammar(f"line {line} of the grammar: {what}")
