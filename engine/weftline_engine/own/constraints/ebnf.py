"""EBNF grammars, as vLLM, SGLang and llama.cpp take them, in the words of Lark.

A grammar has rules like `root ::= "a" | [0-9]{2} item*`. Its comments begin with `#`. A rule ends
where the next one begins.

llguidance's own converter, gbnf_to_lark, is no substitute in version 1.9. It refuses alternatives
on lines of their own, and deep nesting ends in a RecursionError. Of two rules of one name it takes
the second, and an "é" by its number in four digits becomes one that llguidance refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from weftline_engine.own.constraints.grammar_rules import Rule, Word, as_lark, refuse, words_of

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


def is_ebnf(grammar: str) -> bool:
    """Whether a grammar is EBNF rather than Lark: one of its lines has `name ::=`."""
    return re.search(r"^\s*[A-Za-z_][\w.-]*\s*::=", grammar, re.MULTILINE) is not None


def to_lark(grammar: str) -> str:
    """The same grammar in Lark's words. Raises BadGrammar."""
    return as_lark(_Parser([word for word, _ in words_of(grammar, _TOKEN)]).rules(), ROOT)


class _Parser:
    """Reads rules. Brackets are kept as they are, since they mean the same in Lark."""

    def __init__(self, words: list[Word]) -> None:
        self._words = words

    def rules(self) -> dict[str, Rule]:
        """The rules by name, in their order."""
        found: dict[str, Rule] = {}
        rule: Rule | None = None
        open: list[Word] = []  # brackets
        before: Word | None = None  # the word that a repetition would repeat
        for word in self._words:
            if word.kind == "rule":
                self._close(rule, open, before)
                if word.text in found:
                    refuse(word.line, f"rule {word.text!r} is there twice")
                rule = found[word.text] = Rule(word.line)
                before = None
                continue
            if rule is None:
                refuse(word.line, f"{word.text!r} stands before the first rule")
            self._add(rule, word, open, before)
            before = word
        self._close(rule, open, before)
        return found

    def _add(self, rule: Rule, word: Word, open: list[Word], before: Word | None) -> None:
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
                        refuse(word.line, "')' closes nothing")
                    open.pop()
                rule.parts.append(mark)

    def _close(self, rule: Rule | None, open: list[Word], before: Word | None) -> None:
        if open:
            refuse(open[-1].line, "'(' is not closed")
        if rule is not None and _is_open(before):
            rule.parts.append('""')


def _is_open(before: Word | None) -> bool:
    """Whether an alternative begins behind this word."""
    return before is None or (before.kind == "mark" and before.text in "(|")


def _repeats(word: Word) -> bool:
    return word.kind == "times" or (word.kind == "mark" and word.text in "*+?")


def _check_repetition(word: Word, before: Word | None) -> None:
    """Raise BadGrammar unless `word` can repeat what stands `before` it."""
    if before is None or _is_open(before):
        refuse(word.line, f"{word.text!r} repeats nothing")
    if _repeats(before):
        refuse(word.line, f"{word.text!r} repeats a repetition: use brackets")
    if word.kind == "mark":
        return
    counts = [int(one) for one in re.findall(r"[0-9]{1,9}", word.text)]
    if max(counts) > MOST_REPEATS:
        refuse(word.line, f"{word.text!r} repeats more than {MOST_REPEATS:,} times")
    if counts != sorted(counts):
        refuse(word.line, f"{word.text!r} has a most that is below its least")


def _chars(text: str, line: int) -> Iterator[tuple[str, bool]]:
    """The characters of a text without its ends, and whether each had a backslash."""
    for found in _ESCAPE.finditer(text[1:-1]):
        code = found[1] or found[2] or found[3]
        if code is not None:
            if int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) < 0xE000:
                refuse(line, f"{found[0]} is no character")
            yield chr(int(code, 16)), True
        elif (short := found[4]) is not None:
            if short not in _SHORT and short not in _PLAIN:
                refuse(line, f"{found[0]!r} is not an escape of EBNF")
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
        refuse(line, "'[]' has no characters")
    made, at = "", 0
    while at < len(chars):
        first = last = chars[at][0]
        if at + 2 < len(chars) and chars[at + 1] == ("-", False):
            last = chars[at + 2][0]
            at += 2
        if last < first:
            refuse(line, f"{text} has a range that ends before it begins")
        made += _code(first) if first == last else f"{_code(first)}-{_code(last)}"
        at += 1
    return f"/[{'^' if negated else ''}{made}]/"


def _code(char: str) -> str:
    return f"\\u{{{ord(char):X}}}"
