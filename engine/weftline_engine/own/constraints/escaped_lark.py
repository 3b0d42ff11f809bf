"""Grammars in Lark of texts that stand within a JSON string, as the input of a tool's call does.

What may stand in a text is what Lark's documentation calls rules and terminals: texts, patterns,
ranges, alternatives, repetitions, and imports from `common`. In a rule that contains itself, a text
with a quote, a backslash or a line break should stand in one terminal: between two of them a
backslash alone does not tell which goes on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType

from weftline_engine.own.constraints.escaped_pattern import escaped, escaped_pattern
from weftline_engine.own.constraints.grammar_rules import Rule, Word, as_lark, refuse, words_of

START = "start"
MOST_REPEATS = 10_000
_IGNORED = "%ignore"  # the name of the rule of what may stand between words

_TOKEN = re.compile(
    r"""
      (?P<space> \s+ | //[^\n]* | \#[^\n]* )
    | (?P<import> %import \s+ common (?: \.(?P<one>\w+) (?: [ \t]*->[ \t]*(?P<as>\w+) )?
                                       | [ \t]*\((?P<several>[\w\s,]*)\) ) )
    | (?P<ignore> %ignore\b )
    | (?P<rule> [?!]*(?P<name>[A-Za-z_]\w*) (?: \.-?\d+ )? \s* : )
    | (?P<range> "(?P<low>[^"\\\n]|\\[^\n]+?)" \s* \.\. \s* "(?P<high>[^"\\\n]|\\[^\n]+?)" )
    | (?P<text> "(?:[^"\\\n]|\\[^\n])*"i? )
    | (?P<pattern> /(?P<body>(?:[^/\\\n]|\\[^\n])+)/(?P<flags>[a-z]*) )
    | (?P<alias> -> \s* \w+ )
    | (?P<times> ~ \s* [0-9]+ (?: \s*\.\.\s* [0-9]+ )?
               | \{ \s* [0-9]+ \s* (?: , \s* [0-9]* )? \s* \} )
    | (?P<ref> [A-Za-z_]\w* )
    | (?P<mark> [()\[\]|*+?] )
    """,
    re.VERBOSE,
)
# Lark's common terminals, by their patterns.
_COMMON: Mapping[str, str] = MappingProxyType(
    {
        "DIGIT": "[0-9]",
        "HEXDIGIT": "[a-fA-F0-9]",
        "INT": "[0-9]+",
        "SIGNED_INT": "[+-]?[0-9]+",
        "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
        "FLOAT": r"[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
        "SIGNED_FLOAT": r"[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)",
        "NUMBER": r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
        "SIGNED_NUMBER": r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
        "LCASE_LETTER": "[a-z]",
        "UCASE_LETTER": "[A-Z]",
        "LETTER": "[A-Za-z]",
        "WORD": "[A-Za-z]+",
        "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
        "ESCAPED_STRING": r'"([^"\\\n]|\\.)*"',
        "WS_INLINE": r"[ \t]+",
        "WS": r"[ \t\f\r\n]+",
        "CR": r"\r",
        "LF": r"\n",
        "NEWLINE": r"(\r?\n)+",
        "SH_COMMENT": r"#[^\n]*",
        "CPP_COMMENT": r"//[^\n]*",
    }
)


def to_escaped_lark(grammar: str) -> str:
    """The grammar of the same texts within a JSON string. Raises BadGrammar."""
    return as_lark(_Reader(grammar).rules(), START)


class _Reader:
    """Reads rules. Brackets and marks are kept as they are, since they mean the same."""

    def __init__(self, grammar: str) -> None:
        self._words = list(words_of(grammar, _TOKEN))
        self._ignores = any(word.kind == "ignore" for word, _ in self._words)
        self._found: dict[str, Rule] = {}

    def rules(self) -> dict[str, Rule]:
        """The rules by name, in their order."""
        rule: Rule | None = None
        open: list[Word] = []  # brackets
        before: Word | None = None
        ignored = Rule(0)
        spaced = False  # whether what is ignored may stand between the words of the rule
        for word, found in self._words:
            ends = word.kind in ("rule", "import", "ignore")
            if ends:
                _close(rule, open, before)
                before = None
            if word.kind == "rule":
                rule = self._named(word.text, word.line)
                spaced = self._ignores and _is_rule(word.text)
                continue
            if word.kind == "import":
                self._import(found, word.line)
                rule = None
                continue
            if word.kind == "ignore":
                ignored.parts.append("|" if ignored.parts else "")
                rule, spaced = ignored, False
                continue
            if rule is None:
                refuse(word.line, f"{word.text[:40]!r} stands before the first rule")
            self._add(rule, word, found, open, before, spaced=spaced)
            before = word
        _close(rule, open, before)
        if self._ignores:
            self._found[_IGNORED] = ignored
            if (start := self._found.get(START)) is not None:
                start.parts = [*self._gap(0), "(", *start.parts, ")"]
        return self._found

    def _named(self, name: str, line: int) -> Rule:
        if name in self._found:
            refuse(line, f"rule {name!r} is there twice")
        self._found[name] = Rule(line)
        return self._found[name]

    def _import(self, found: re.Match[str], line: int) -> None:
        for name in [found["one"]] if found["one"] else re.findall(r"\w+", found["several"]):
            if name not in _COMMON:
                refuse(line, f"common has no {name!r}: it has {', '.join(_COMMON)}")
            pattern = escaped_pattern(_COMMON[name], "", line).replace("/", r"\/")
            self._named(found["as"] or name, line).parts.append(f"/{pattern}/")

    def _gap(self, line: int) -> list[str | Word]:
        return ["(", Word("ref", _IGNORED, line), ")*"]

    def _add(
        self,
        rule: Rule,
        word: Word,
        found: re.Match[str],
        open: list[Word],
        before: Word | None,
        *,
        spaced: bool,
    ) -> None:
        """Add a word to a rule. Where nothing stands between two marks, the text may be empty."""
        made: list[str | Word] = []
        match word.kind:
            case "ref":
                made = [word]
            case "text":
                made = [_text(word)]
            case "range":
                low, high = (_read(f'"{found[end]}"', word.line) for end in ("low", "high"))
                codes = "-".join(f"\\u{{{ord(one):X}}}" for one in (low, high))
                made = [f"/{escaped_pattern(f'[{codes}]', '', word.line)}/"]
            case "pattern":
                made = [_pattern(found, word.line)]
            case "times":
                rule.parts.append(_times(word, before))
            case "mark":
                _mark(rule, word, open, before)
        if made and spaced and not (word.kind == "ref" and _is_rule(word.text)):
            made = ["(", *made, *self._gap(word.line), ")"]
        rule.parts += made


def _is_rule(name: str) -> bool:
    """Whether a name is that of a rule, whose terminals have gaps behind them already."""
    return name.lstrip("_")[:1].islower()


def _mark(rule: Rule, word: Word, open: list[Word], before: Word | None) -> None:
    if word.text in "([":
        open.append(word)
        rule.parts.append("(")
        return
    if word.text in ")]" and (not open or (open.pop().text == "(") != (word.text == ")")):
        refuse(word.line, f"{word.text!r} closes nothing")
    if word.text in "|)]":
        if _is_open(before):
            rule.parts.append('""')
        rule.parts.append({"]": ")?"}.get(word.text, word.text))
        return
    _check_repeats(word, before)
    rule.parts.append(word.text)


def _close(rule: Rule | None, open: list[Word], before: Word | None) -> None:
    if open:
        refuse(open[-1].line, f"{open[-1].text!r} is not closed")
    if rule is not None and _is_open(before):
        rule.parts.append('""')


def _is_open(before: Word | None) -> bool:
    """Whether an alternative begins behind this word."""
    return before is None or (before.kind == "mark" and before.text in "([|")


def _check_repeats(word: Word, before: Word | None) -> None:
    if _is_open(before) or (
        before is not None
        and (before.kind == "times" or (before.kind == "mark" and before.text in "*+?"))
    ):
        refuse(word.line, f"{word.text!r} repeats nothing, or a repetition: use brackets")


def _times(word: Word, before: Word | None) -> str:
    """How often something is repeated, as `{2,3}`."""
    _check_repeats(word, before)
    counts = re.findall(r"[0-9]{1,9}", word.text)
    if max(map(int, counts)) > MOST_REPEATS or [*map(int, counts)] != sorted(map(int, counts)):
        refuse(word.line, f"{word.text!r} repeats more than {MOST_REPEATS:,} times, or backwards")
    if word.text.startswith("{"):
        return re.sub(r"\s", "", word.text)
    return f"{{{','.join(counts)}}}"


def _read(text: str, line: int) -> str:
    """A text without its quotes and escapes."""
    try:
        found = json.loads(text, strict=False)
    except ValueError:
        refuse(line, f"{text[:40]} has an escape that no JSON text has")
    if any(0xD800 <= ord(char) < 0xE000 for char in found):
        refuse(line, f"{text[:40]} has half a character")
    return str(found)


def _text(word: Word) -> str:
    quoted, insensitive = word.text.removesuffix("i"), word.text.endswith("i")
    text = escaped(_read(quoted, word.line))
    if not insensitive:
        return json.dumps(text, ensure_ascii=False)
    parts = re.findall(r"\\u[0-9a-f]{4}|\\.|[^\\]+", text)
    shown = [json.dumps(one, ensure_ascii=False) + ("" if one[0] == "\\" else "i") for one in parts]
    return f"({' '.join(shown)})" if shown else '""'


def _pattern(found: re.Match[str], line: int) -> str:
    flags = found["flags"]
    if not set(flags) <= set("ism"):
        refuse(line, f"a pattern has the flags {flags!r}, of which i, s and m are served")
    return f"/{escaped_pattern(found['body'], flags, line)}/{'i' if 'i' in flags else ''}"
