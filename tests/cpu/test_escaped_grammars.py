"""Grammars in Lark of texts within a JSON string, which hold the input of a custom tool's call."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from tests.cpu.test_constraints import follows, grammars
from weftline_engine.own.constraints.grammars import TokenGrammars
from weftline_engine.own.embedded.sample.constraint import BadConstraint

__all__ = ["grammars"]

# Files are added and changed, with a line for each line.
PATCH = r"""
start: "<<< patch" LF change+ ">>> end" LF?
// What happens to one file.
change: added | changed -> one
added: "new file " name LF ("+" line)+
changed: "file " name LF ("to " name LF)? part+
part: ("@@ " /(.+)/ LF) | (("+" | "-" | " ") line)
line: /(.*)/ LF
name: /[^\n]+/
%import common.LF
"""
EDIT = (
    '<<< patch\nnew file a "b".py\n+\n+\tx = "\\n"  # \U0001f600\nfile c\\d\nto e\n@@ def f():\n-\n'
)
BRACKETS = 'start: item\nitem: WORD | "(" item (", " item)* ")"\nWORD: /"[^"]*"/ | INT\n'
SQL = 'start: "select"i COLUMN ("," COLUMN)* ";"\nCOLUMN: /[a-z"]+/\n'
JUDGED = [
    (PATCH, [EDIT + ">>> end", EDIT + "+x\n>>> end\n"], [EDIT, EDIT + "?\n>>> end", EDIT + "+x"]),
    (f"{BRACKETS}%import common.INT", ['"a\\b\n"', '(1, ("", 22))'], ["(1", '"a"b"', "(1,2)"]),
    (
        f"{SQL}%import common (WS, LF)\n%ignore WS",
        ['SELECT a,"b;', '\n selEct\ta , "b"  ;\r\n'],
        ["select;", "sel ect a;", "select a b;"],
    ),
    ('start: "a".."c"~2..3 ["x"]', ["ab", "abcx"], ["a", "abcc", "abd"]),
    ('start: ("a"{2} | /b{2,}/){1,2}', ["aa", "bbb", "aabb"], ["a", "b", "aabbaa"]),
    ('?start: x | y\n!x.2: "1"\ny: | "2" |', ["1", "", "2"], ["12"]),
    ('start: "\\"A\\n"i', ['"A\n', '"a\n'], ['"A', '"A\\N']),
    (r'start: /\x41\u{42}\u0043\// "\u00e9"', ["ABC/\u00e9"], ["ABC/e"]),
    (r"start: /a.b/s /c.d/i /\p{L}/", ["a\nbC\tD\u00e9"], ["a\nbc\ndx", "a\nbc d1"]),
    (r'start: /["\\]/ /["x]/ /[^"]/ /[\n-]/', ['"xx-', '\\"\\\n'], ["xxx-", '"""-']),
    ("start: ESCAPED_STRING\n%import common.ESCAPED_STRING -> ESCAPED_STRING", ['"a\\""'], ['"a']),
]


def held(grammar: str) -> dict[str, Any]:
    """The constraint on an object whose only text the grammar holds."""
    content = {"type": "json_string", "grammar": grammar}
    tag = {"type": "tag", "begin": '{"input": "', "content": content, "end": '"}'}
    return {"structural_tag": tag}


def written(text: str) -> str:
    return json.dumps({"input": text}, ensure_ascii=False)


@pytest.mark.parametrize(("grammar", "whole", "wrong"), JUDGED, ids=range(len(JUDGED)))
def test_an_input_is_a_sentence(
    grammar: str, whole: list[str], wrong: list[str], grammars: TokenGrammars
) -> None:
    """The object is JSON, and the grammar holds the text that it says."""
    for text in whole:
        assert follows(grammars, held(grammar), written(text)), text
    for text in wrong:
        assert not follows(grammars, held(grammar), written(text)), text


PATTERNS = [
    r"[^a]*",
    r"a.*b",
    r'("|\\)+[^"\\]?',
    r"[\n\t ]+a*",
    r"\s*\S+\s",
    r"\w+\W\d?\D",
    r'(?:a|"b"|\\n)+',
    r"[a-c\"]{2,4}",
    r"[^\s]*\\",
    r"[\\\"a]+\x62?",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_means_what_it_means_outside(pattern: str, grammars: TokenGrammars) -> None:
    """Compared with Python's on 300 short texts of characters that JSON escapes, and others."""
    chance = random.Random(pattern)
    slashed = pattern.replace("/", r"\/")
    found = set()
    for _ in range(300):
        text = "".join(chance.choices('ab"\\\n\t c1', k=chance.randrange(6)))
        fits = re.fullmatch(pattern, text) is not None
        assert follows(grammars, held(f"start: /{slashed}/"), written(text)) == fits, text
        found.add(fits)
    assert found == {False, True}


REFUSED = [
    ('x: "a"', "has no rule 'start'"),
    ("start: b", "line 1 of the grammar: there is no rule 'b'"),
    ('start: "a"\n  | "b', "line 2 of the grammar: '\"b' is not understood"),
    ('"a"', "stands before the first rule"),
    ('start: "a"\nstart: "b"', "rule 'start' is there twice"),
    ('start: ("a"', "'(' is not closed"),
    ('start: ("a"]', "']' closes nothing"),
    ("start: *", "repeats nothing"),
    ('start: "a"~3..2', "or backwards"),
    ('start: "a"~1..99999', "repeats more than 10,000 times"),
    ("start: %json {}", "is not understood, or not served"),
    ("%import common.FOO\nstart: FOO", "common has no 'FOO'"),
    ("start: /[[:alpha:]]/", "has a set within"),
    (r"start: /\p{P}/", "names a property other than"),
    ("start: /a/x", "of which i, s and m are served"),
    ("start: /(?s)a/", "sets flags of which only i"),
    (r"start: /\q/", "is not an escape of a pattern"),
    (r"start: /\u{D800}/", "is no character"),
    ('start: "\\ud800"', "has half a character"),
    ("start: /(?=a)b/", "look-around"),
    ("start: " + "(" * 9000 + '"a"' + ")" * 9000, "too deeply nested"),
    ("start: a0\n" + "".join(f"a{n}: a{n + 1} a{n + 1}\n" for n in range(40)) + 'a40: "x"', "too"),
]


@pytest.mark.parametrize(("grammar", "words"), REFUSED, ids=range(len(REFUSED)))
def test_a_wrong_grammar_is_refused(grammar: str, words: str, grammars: TokenGrammars) -> None:
    """What is wrong is told, also of a grammar that would explode."""
    with pytest.raises(BadConstraint, match=re.escape(words)):
        grammars.compile(json.dumps(held(grammar)))
