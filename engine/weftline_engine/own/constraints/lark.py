"""Constraints in the grammar language of llguidance, which is a kind of Lark.

Structural tags have the `format` of xgrammar (https://xgrammar.mlc.ai/docs/): texts, JSON, patterns
and grammars, and tags around them. Ours have the type json_string besides, whose `grammar` in Lark
is of texts within a JSON string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from weftline_engine.own.constraints.ebnf import is_ebnf, to_lark
from weftline_engine.own.constraints.escaped_lark import to_escaped_lark
from weftline_engine.own.constraints.grammar_rules import BadGrammar
from weftline_engine.own.constraints.integer_bounds import with_bounds

# One space stands behind a comma and a colon, as Python's json.dumps writes it. With free space
# SmolLM2, which had to write an empty object, wrote 160 tokens of spaces. Without any it called a
# tool with {"input":10} where it was told to use 3.
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_ANY = r"/(.|\n)*/"
DEEPEST = 64  # levels of a structural tag
# A slash ends a pattern in the grammar's language, unless a backslash stands before it.
_SLASH = re.compile(r"\\.|/", re.DOTALL)
_TEXT = "an engine of weftline's own reads only texts, JSON, patterns, grammars and tags of them"


def json_text(schema: dict[str, Any] | bool) -> str:
    """The text of a schema whose values are on one line, and whose integers are bounded."""
    if schema is False:
        return json.dumps(schema)
    found = with_bounds(schema if schema is not True else {})
    own = found.get("x-guidance") or {}
    guidance = own if own.get("whitespace_flexible") else {**_COMPACT, **own}
    return json.dumps({**found, "x-guidance": guidance})


def of_choice(texts: Sequence[object]) -> str:
    """The grammar of one of some texts. Raises BadGrammar."""
    if not all(isinstance(text, str) and text for text in texts):
        raise BadGrammar("every choice must be a non-empty text")
    return "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)


def of_grammar(text: str) -> str:
    """The grammar that a client wrote, in EBNF or Lark. Raises BadGrammar."""
    return to_lark(text) if is_ebnf(text) else text


def of_tag(format: Mapping[str, Any]) -> str:
    """The grammars of a structural tag's `format`, as llguidance's JSON. Raises BadGrammar."""
    made = _Tag()
    start = made.expression(format, "format", 1)
    lark = "\n".join([f"start: {start}", *made.rules])
    main = {"name": "main", "lark_grammar": lark}
    return json.dumps({"grammars": [main, *made.grammars]})


class _Tag:
    """The rules of a structural tag, and the grammars that they name."""

    def __init__(self) -> None:
        self.rules: list[str] = []
        self.grammars: list[dict[str, str]] = []
        self._names = 0

    def expression(self, format: object, path: str, depth: int) -> str:
        """The expression of `format`, which stands at `path`. Its rules are added."""
        if depth > DEEPEST:
            _refuse(path, f"nests deeper than {DEEPEST} levels")
        match format:
            case {"type": "sequence", "elements": [_, *_] as elements}:
                return f"({' '.join(self._all(elements, path, depth))})"
            case {"type": "or", "elements": [_, *_] as elements}:
                return f"({' | '.join(self._all(elements, path, depth))})"
            case {"type": "optional" | "star" | "plus" as kind, "content": content}:
                mark = {"optional": "?", "star": "*", "plus": "+"}[kind]
                return f"({self.expression(content, f'{path}.content', depth + 1)}){mark}"
            case {"type": "tag"}:
                return self._rule(self._tag(format, path, depth))
            case {
                "type": "tags_with_separator",
                "tags": [_, *_] as tags,
                "separator": str(text),
                **more,
            }:
                return self._separated(more, tags, text, path, depth)
            case {
                "type": "triggered_tags",
                "tags": [_, *_] as tags,
                "triggers": [_, *_] as starts,
                **more,
            }:
                return self._triggered(more, tags, starts, path, depth)
        return self._leaf(format, path)

    def _leaf(self, format: object, path: str) -> str:
        """The expression of a format that holds no other."""
        match format:
            case {"type": "const_string", "value": str(text)}:
                return _quoted(text)
            case {"type": "json_schema", "json_schema": dict() | bool() as schema}:
                _known(format, path, {"json_schema"}, {"style": "json", "any_order": False})
                return self._rule(f"%json {json_text(schema)}")
            case {"type": "regex", "pattern": str(pattern)}:
                _known(format, path, {"pattern"}, {"excludes": []})
                return self._terminal(f"/{_bare(pattern)}/")
            case {"type": "grammar", "grammar": str(text)}:
                return self._grammar(of_grammar, text, path)
            case {"type": "json_string", "grammar": str(text)}:
                return self._grammar(to_escaped_lark, text, path)
            case {"type": "any_text"}:
                _known(format, path, set(), _BOUNDS)
                return self._terminal(_ANY)
            case {"type": str(kind)}:
                _refuse(path, f"the type {kind!r} with these fields is not served: {_TEXT}")
        _refuse(path, "needs a type")

    def _all(self, elements: Sequence[object], path: str, depth: int) -> list[str]:
        return [
            self.expression(one, f"{path}.elements.{at}", depth + 1)
            for at, one in enumerate(elements)
        ]

    def _separated(
        self, format: dict[object, object], tags: Sequence[object], text: str, path: str, depth: int
    ) -> str:
        """Tags with `text` between them, and nothing else."""
        _known(format, path, _FLAGS, {})
        one = self._rule(" | ".join(self._tags(tags, path, depth)))
        more = "" if format.get("stop_after_first") else f" ({_quoted(text)} {one})*"
        return f"({one}{more})" if format.get("at_least_one") else f"({one}{more})?"

    def _triggered(
        self,
        format: dict[object, object],
        tags: Sequence[object],
        triggers: Sequence[object],
        path: str,
        depth: int,
    ) -> str:
        """Text that is free until a trigger appears, behind which the rest of a tag follows."""
        _known(format, path, _FLAGS, {"excludes": []})
        if not all(isinstance(one, str) and one for one in triggers):
            _refuse(f"{path}.triggers", "every trigger must be a non-empty text")
        free = self._terminal(_ANY)
        heads = {str(one): self._rule(f"{free} {_quoted(str(one))}", "[lazy]") for one in triggers}
        found = []
        for at, tag in enumerate(tags):
            where = f"{path}.tags.{at}"
            begin = tag.get("begin") if isinstance(tag, dict) else None
            fits = [one for one in heads if isinstance(begin, str) and begin.startswith(one)]
            if len(fits) != 1:
                _refuse(f"{where}.begin", "must begin with exactly one of the triggers")
            assert isinstance(tag, dict) and isinstance(begin, str)
            rest = {**tag, "begin": begin[len(fits[0]) :]}
            found.append(f"{heads[fits[0]]} {self._tag(rest, where, depth + 1)}")
        one = self._rule(" | ".join(found))
        match bool(format.get("at_least_one")), bool(format.get("stop_after_first")):
            case True, True:
                return one
            case False, True:
                return f"({one} | {free})"
            case True, False:
                return f"({one}+ {free})"
        return f"({one}* {free})"

    def _tags(self, tags: Sequence[object], path: str, depth: int) -> list[str]:
        return [self._tag(tag, f"{path}.tags.{at}", depth + 1) for at, tag in enumerate(tags)]

    def _tag(self, tag: object, path: str, depth: int) -> str:
        """A content between two texts. One of several may end it. Free text ends at the first."""
        match tag:
            case {"begin": str(begin), "content": content, "end": str() | [_, *_] as end}:
                ends = [end] if isinstance(end, str) else end
            case _:
                _refuse(path, "needs begin, content and end, where begin and end are texts")
        _known(tag, path, {"begin", "content", "end"}, {})
        if not all(isinstance(one, str) for one in ends):
            _refuse(f"{path}.end", "must be a text, or several")
        match content:
            case {"type": "any_text"}:
                _known(content, f"{path}.content", set(), _BOUNDS)
                if not all(ends):
                    _refuse(f"{path}.end", "must not be empty behind free text")
                inner = " | ".join(self._rule(_ANY, f"[suffix={_quoted(one)}]") for one in ends)
                return f"{_quoted(begin)} ({inner})"
        inner = self.expression(content, f"{path}.content", depth + 1)
        return f"{_quoted(begin)} {inner} ({' | '.join(map(_quoted, ends))})"

    def _grammar(self, read: Callable[[str], str], text: str, path: str) -> str:
        try:
            lark = read(text)
        except BadGrammar as error:
            raise BadGrammar(f"structural_tag.{path}.grammar: {error}") from None
        name = f"g{len(self.grammars)}"
        self.grammars.append({"name": name, "lark_grammar": lark})
        return f"@{name}"

    def _rule(self, body: str, options: str = "") -> str:
        return self._named("r", body, options)

    def _terminal(self, body: str) -> str:
        return self._named("T", body, "")

    def _named(self, letter: str, body: str, options: str) -> str:
        name = f"{letter}{self._names}"
        self._names += 1
        self.rules.append(f"{name}{options}: {body}")
        return name


_FLAGS = {"at_least_one", "stop_after_first"}
# What bounds free text. It is served without bounds alone.
_BOUNDS: Mapping[str, Any] = {"excludes": [], "max_tokens": None, "max_chars": None}


def _known(format: object, path: str, fields: set[str], neutral: Mapping[str, Any]) -> None:
    """Raise BadGrammar for a field that is not served, unless it has its neutral value."""
    assert isinstance(format, dict), "a format was matched as an object"
    for name, value in format.items():
        if name == "type" or name in fields or (name in neutral and value in (None, neutral[name])):
            continue
        _refuse(f"{path}.{name}", "is not served: leave it out")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _bare(pattern: str) -> str:
    """A pattern as it stands between slashes, on one line."""
    return _SLASH.sub(lambda found: r"\/" if found[0] == "/" else found[0], pattern).replace(
        "\n", r"\n"
    )


def _refuse(path: str, what: str) -> NoReturn:
    raise BadGrammar(f"structural_tag.{path} {what}")
