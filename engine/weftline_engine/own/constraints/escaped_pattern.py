"""Patterns of texts that stand within a JSON string, where some characters are escaped.

Patterns have the syntax of Rust's regex. Each character that JSON escapes becomes its shortest
escape. The control characters without a short one are in no set: no text has them.
"""

from __future__ import annotations

import json
import re
import warnings

from weftline_engine.own.constraints.grammar_rules import refuse

# Each escaped character, and what stands behind the backslash.
_SHORT = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_BARE = r'[^"\\\x00-\x1f]'  # characters that stand for themselves
_PART = re.compile(
    r"""
      (?P<set> \[ \^? \]? (?: \\. | [^\]\\] )* \] )
    | (?P<group> \(\? (?: P?<\w+> | [a-zA-Z-]* [:)] | <?[=!] ) )
    | (?P<code> \\ (?: x[0-9A-Fa-f]{2} | u[0-9A-Fa-f]{4} | U[0-9A-Fa-f]{8}
                     | [xuU]\{[0-9A-Fa-f]{1,8}\} ) )
    | (?P<property> \\[pP] (?: \{[^}]*\} | \w ) )
    | (?P<escape> \\. )
    | (?P<plain> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_CODE = re.compile(r"\\[xuU]\{?([0-9A-Fa-f]{1,8})\}?")
_CONTROL = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_ZERO_WIDTH = "bBAzZ"
# Of the sets with names, letters, marks and numbers have no character that JSON escapes.
_HARMLESS = re.compile(r"\\p(?:\{[LMN]\w?\}|[LMN])")
_OF_SETS = re.compile(r"(?:\\.|[^\\])*?(?:\[|&&|--|~~)")


def escaped(text: str) -> str:
    """A text as it stands within a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def escaped_pattern(pattern: str, flags: str, line: int) -> str:
    """The pattern of the same texts within a JSON string. Raises BadGrammar, which names `line`."""
    parts: list[str] = []
    for found in _PART.finditer(pattern):
        kind, text = found.lastgroup, found[0]
        if kind == "code":
            parts.append(_char(_coded(text, line), text))
        elif kind in ("set", "property"):
            parts.append(_set(text if kind == "set" else f"[{text}]", line))
        elif kind == "group":
            if re.fullmatch(r"\(\?[a-zA-Z-]*[^i:)-][a-zA-Z-]*[:)]", text):
                refuse(line, f"{text!r} sets flags of which only i is served: write it without")
            parts.append(text)
        elif kind == "escape":
            parts.append(_behind_backslash(text, line))
        elif text == ".":
            parts.append(_set(r"[\s\S]" if "s" in flags else r"[^\n]", line))
        else:
            parts.append(_char(text, text))
    return "".join(parts)


def _behind_backslash(text: str, line: int) -> str:
    char = text[1]
    if char in "sSDW":
        return _set(f"[{text}]", line)
    if char in _CONTROL:
        return _char(_CONTROL[char], text)
    if char.isalnum() and char not in "dw" + _ZERO_WIDTH:
        refuse(line, f"{text!r} is not an escape of a pattern")
    return text if char.isalnum() else _char(char, text)


def _char(char: str, text: str) -> str:
    """One character, which a pattern writes as `text`."""
    made = escaped(char)
    return text if made == char else f"(?-i:{re.escape(made)})"


def _coded(text: str, line: int) -> str:
    found = _CODE.fullmatch(text)
    assert found is not None, "a code was matched"
    number = int(found[1], 16)
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        refuse(line, f"{text} is no character")
    return chr(number)


def _set(text: str, line: int) -> str:
    """A set: its characters that stand for themselves, and the escapes of the others."""
    if _OF_SETS.match(text, 1):
        refuse(line, f"the set {text[:40]} has a set within, or an operator: write it without")
    behind = [short for char, short in _SHORT.items() if _holds(text, char, line)]
    bare = f"[{text}&&{_BARE}]"
    if not behind:
        return bare
    escapes = rf"(?-i:\\[{''.join(map(re.escape, behind))}])"
    return escapes if _is_escaped_only(text, line) else f"(?:{bare}|{escapes})"


def _is_escaped_only(text: str, line: int) -> bool:
    """Whether every character of a set that lists its characters is escaped."""
    if text.startswith("[^") or "-" in text[2:-2] or re.search(r"\\[dwsSDWpP]", text):
        return False
    return not any(_holds(text, char, line) for char in _listed(text[1:-1], line))


def _listed(inner: str, line: int) -> set[str]:
    """The characters of a set without ranges that are not escaped."""
    found = set()
    for part in _PART.finditer(inner):
        text = part[0]
        if part.lastgroup == "code":
            text = _coded(text, line)
        elif part.lastgroup == "escape":
            text = _CONTROL.get(text[1], text[1])
        found |= set(text) - _SHORT.keys()
    return found


def _holds(text: str, char: str, line: int) -> bool:
    """Whether a character that JSON escapes is in the set. Python and Rust agree about those."""
    known = _CODE.sub(lambda found: f"\\U{ord(_coded(found[0], line)):08X}", text)
    known = _HARMLESS.sub("a", known)
    if re.search(r"\\[pP]", known):
        refuse(line, f"the set {text[:40]} names a property other than L, M and N: list characters")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            return re.fullmatch(known, char) is not None
        except (re.error, OverflowError) as error:
            refuse(line, f"the set {text[:40]} is not understood: {error}")
