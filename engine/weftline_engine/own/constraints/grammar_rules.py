"""The rules of a grammar that was read, and their form in the language of llguidance.

Rules that do not contain themselves become terminals of Lark, because only within a terminal every
way to read a text is tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn


class BadGrammar(Exception):
    """A grammar cannot be read. The message names the line."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a grammar: its kind, its text, and its line, from 1."""

    kind: str
    text: str
    line: int


@dataclass(slots=True)
class Rule:
    """A rule in Lark's words. A reference is a part on its own, the rest is text."""

    line: int
    parts: list[str | Word] = field(default_factory=list)

    @property
    def names(self) -> list[Word]:
        return [part for part in self.parts if isinstance(part, Word)]


def words_of(grammar: str, token: re.Pattern[str]) -> Iterator[tuple[Word, re.Match[str]]]:
    """The words of a grammar that `token` matches, but for space and aliases. Raises BadGrammar."""
    at, line = 0, 1
    while at < len(grammar):
        found = token.match(grammar, at)
        if found is None:
            rest = grammar[at:].partition("\n")[0][:40]
            refuse(line, f"{rest!r} is not understood, or not served")
        kind = found.lastgroup or ""
        if kind not in ("space", "alias"):
            yield Word(kind, found["name"] if kind == "rule" else found[0], line), found
        line += found[0].count("\n")
        at = found.end()


def as_lark(rules: Mapping[str, Rule], root: str) -> str:
    """The grammar of these rules, whose outputs begin with `root`. Raises BadGrammar."""
    if root not in rules:
        raise BadGrammar(f"the grammar has no rule {root!r}, with which an output begins")
    for rule in rules.values():
        for used in rule.names:
            if used.text not in rules:
                refuse(used.line, f"there is no rule {used.text!r}")
    recursive = _recursive(rules)
    called = {name: f"r{at}" if name in recursive else f"T{at}" for at, name in enumerate(rules)}
    lines = [f"start: {called[root]}"]
    for name, rule in rules.items():
        body = [called[part.text] if isinstance(part, Word) else part for part in rule.parts]
        lines.append(f"{called[name]}: {' '.join(body)}")
    return "\n".join(lines)


def _recursive(rules: Mapping[str, Rule]) -> set[str]:
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


def refuse(line: int, what: str) -> NoReturn:
    """Raise BadGrammar for what stands on a line."""
    raise BadGrammar(f"line {line} of the grammar: {what}")
