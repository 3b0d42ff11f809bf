"""Users' patterns: RE2 gives the result of Python's `re` for every pattern that is not refused."""

from __future__ import annotations

import random
import re

import pytest

from weftline.contract.transforms.patterns import MAX_READ_CHARS, CompiledPattern, translate
from weftline.errors import InvalidRequest

ATOMS = [
    *"aab1 .^$\n-_é٣\x85\u2028ſ{}]",
    r"\d",
    r"\w",
    r"\s",
    r"\S",
    r"\D",
    r"\W",
    r"\A",
    r"\Z",
    r"\b",
    r"\n",
    r"\x61",
    r"\u0663",
    r"\.",
    r"\-",
    "\\\n",
    "[a-c]",
    "[^a]",
    r"[\w-]",
    r"[^\d\s]",
    "[]a]",
    r"[a\]]",
    "[.*]",
    r"[^\W]",
    "[--a]",
    "[[a]",
    r"\1",
    "(?=a)",
    "[é-ü]",
    r"[\b]",
]
REPEATS = [
    "",
    "",
    "",
    "",
    "",
    "*",
    "+",
    "?",
    "*?",
    "+?",
    "??",
    "++",
    "{a}",
    "{2}",
    "{1,2}",
    "{,2}",
    "{2,}",
    "{0}",
    "{1,2}?",
    "{,}",
    "{0,1}",
]
GROUPS = ("({})", "({})", "(?:{})", "(?P<name>{})")
TEXT = "aaabbbcc11 \n\n.-_é٣\x85\u2028ſ]\x00😀"


def random_pattern(rng: random.Random, depth: int = 0) -> str:
    """A pattern of a few parts, valid or not."""
    made = []
    for _ in range(rng.randint(1, 4)):
        if depth < 3 and rng.random() < 0.3:
            part = rng.choice(GROUPS).replace("{}", random_pattern(rng, depth + 1))
        else:
            part = rng.choice(ATOMS)
        made.append(part + rng.choice(REPEATS))
    text = "".join(made)
    return f"{text}|{random_pattern(rng, depth + 1)}" if rng.random() < 0.25 else text


def test_same_groups_as_python() -> None:
    """RE2 takes a quarter of 12,000 random patterns. On 12 texts each, the groups are Python's."""
    rng = random.Random(4)
    taken = found = 0
    for _ in range(12_000):
        pattern = rng.choice(["", "", "(?s)", "(?m)"]) + random_pattern(rng)
        pattern += rng.choice(["", "", "", "$"])
        try:
            search = CompiledPattern(pattern)
        except InvalidRequest:
            continue
        taken += 1
        ours = search.pattern
        for _ in range(12):
            text = "".join(rng.choice(TEXT) for _ in range(rng.randint(0, 8)))
            text += rng.choice(["", "", "\n"])
            match = re.search(pattern, text)
            expected = None if match is None else match.groups()
            assert search.first(text) == expected, (pattern, text)
            found += match is not None
            if ours.groups < 2 and not ours.nullable and not ours.anchored:
                assert search.every(text) == re.findall(pattern, text), (pattern, text)
    assert taken > 2500 and found > 10_000


def test_no_text_breaks_the_reader() -> None:
    """Random characters are a pattern, or they are refused with a sentence. Python agrees."""
    rng = random.Random(5)
    characters = r"()[]{}?*+|\^$.-,:=!<>PadwsxuUNAZbB019 é&~#" + "\n"
    taken = 0
    for _ in range(20_000):
        pattern = "".join(rng.choice(characters) for _ in range(rng.randint(1, 9)))
        try:
            groups = translate(pattern).groups
        except InvalidRequest as refusal:
            assert refusal.param == "transforms"
            continue
        assert re.compile(pattern).groups == groups
        taken += 1
    assert taken > 5000


@pytest.mark.parametrize("letter", "dDsSwW")
def test_sets_are_pythons(letter: str) -> None:
    """Every character of Unicode is in a set exactly if Python says so, alone and in a class."""
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
    for pattern in (rf"\{letter}+", rf"[\{letter}]+", rf"[^\{letter}]+"):
        assert CompiledPattern(pattern).every(every) == re.findall(pattern, every)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"(a)\1", "back-references or octal escapes"),
        (r"(?P<x>a)(?P=x)", "back-references"),
        (r"\0", "back-references or octal escapes"),
        (r"a(?=b)", "look-ahead"),
        (r"a(?!b)", "look-ahead"),
        (r"(?<=a)b", "look-behind"),
        (r"(?<!a)b", "look-behind"),
        (r"(?>a)", "atomic groups"),
        (r"(a)?(?(1)b)", "conditions"),
        (r"(?#x)a", "comments"),
        (r"\bword\b", r"\b, which in RE2 knows ASCII alone"),
        (r"a\B", r"\B, which"),
        (r"(?i)yes", "flags other than (?s) and (?m)"),
        (r"(?x) a", "flags other than"),
        (r"(?i:a)", "flags other than"),
        (r"a++", "a possessive repetition"),
        (r"(a|b)*", "a group inside a repetition"),
        (r"(?:a*)*", "a repetition of what may be empty"),
        (r"(?:|a)+", "a repetition of what may be empty"),
        (r"a$b", "a $ before its end"),
        (r"(a$)", "a $ before its end"),
        (r"\N{DIGIT ONE}", "characters by name"),
        (r"[[a]", "[[, which"),
        (r"[+--]", "-- in a class"),
        (r"[a&&b]", "&& in a class"),
        ("\ud800", "a lone surrogate"),
        (r"\ud800", "a lone surrogate"),
        (r"a{1001}", "a repetition of more than 1000"),
        (r"a{99999999999999999999}", "a repetition of more than 1000"),
        (r"(?:a{100}b){3}", "more than 256 positions"),
        ("(?:" * 40 + "a" + ")" * 40, "more than 32 groups in each other"),
    ],
)
def test_a_pattern_that_differs_in_re2_is_refused(pattern: str, reason: str) -> None:
    """The refusal names the construct and says what to do."""
    with pytest.raises(InvalidRequest) as refusal:
        translate(pattern)
    assert reason in refusal.value.message
    assert refusal.value.message.endswith("leave the parser to the client")


@pytest.mark.parametrize(
    "pattern", ["(", ")", "[a", "a**", "*", r"\q", r"\x6", r"\u12", "(?P<1>a)", "[b-a]", r"[\w-z]"]
)
def test_a_pattern_that_python_refuses_is_refused(pattern: str) -> None:
    """The error comes at submit, instead of once for every output."""
    with pytest.raises(re.error):
        re.compile(pattern)
    with pytest.raises(InvalidRequest):
        translate(pattern)


def test_a_hostile_pattern_takes_linear_time() -> None:
    """The pattern has two long repetitions in a row: `re` would need years, RE2 a
    second at most.
    """
    text = "a" * MAX_READ_CHARS
    assert CompiledPattern("(a{1,128})(a{1,127})y").first(text) is None
    assert CompiledPattern("(a*a*a*a*a*a*a*a*)y").first(text) is None
