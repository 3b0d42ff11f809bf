"""Constraints on outputs by llguidance: a JSON schema, a regular expression, a choice of texts."""

from __future__ import annotations

import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher, LLTokenizer, StructTag
from llguidance.numpy import allocate_token_bitmask, consume_token_par, fill_next_token_bitmask_par

from weftline_engine.embedded.sample.constraint import BadConstraint, Matcher

# Measured on a busy core: a JSON schema of this length (900 properties) compiles in 0.27 s. A
# regular expression compiles in 0.04 s, and its first mask takes 0.34 s. No step runs meanwhile.
MOST_BYTES = 64 * 1024
# The most compiled constraints that are kept, because the `n` outputs of a request and the calls of
# an application have the same constraint. A copy takes 40 us.
MOST_COMPILED = 256
# Enough for eight levels of indentation. Without this bound SmolLM2, which had to write an empty
# object, wrote 160 tokens of spaces.
_SPACE = r"[ \n\t]{0,40}"
_FORM = 'a constraint is {"json_schema": ...}, {"regex": "..."} or {"choice": ["...", ...]}'


class TokenMatcher:
    """A `Matcher` of weftline_engine.embedded.sample.constraint."""

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher

    @property
    def ended(self) -> bool:
        return self.matcher.is_stopped()

    @property
    def error(self) -> str:
        return self.matcher.get_error() if self.matcher.is_error() else ""

    def forced(self) -> list[int]:
        return [] if self.matcher.is_error() else self.matcher.compute_ff_tokens()

    def allowed(self, tokens: Sequence[int]) -> int:
        return 0 if self.matcher.is_error() else self.matcher.validate_tokens(list(tokens))


class TokenGrammars:
    """The `Grammars` of a tokenizer.json with `vocabulary` tokens, of which `eos` end an output.

    The tokenizer is read at the first constraint (1.3 s for 49,152 tokens), because most servers
    never get one. If llguidance cannot read it, only requests with constraints fail.
    """

    def __init__(self, tokenizer: str, vocabulary: int, eos: Sequence[int]) -> None:
        self._text = tokenizer
        self._eos = list(eos)
        self._read: LLTokenizer | None = None
        self._executor = LLExecutor(len(os.sched_getaffinity(0)))
        self._vocabulary = vocabulary
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()  # the last used at the end
        self._lock = threading.Lock()  # a thread compiles ahead of the steps

    def compile(self, constraint: str) -> TokenMatcher:
        """A matcher for an output under `constraint`. Raises BadConstraint if the text is not a
        constraint, or is too long or too complex."""
        if len(constraint.encode()) > MOST_BYTES:
            raise BadConstraint(f"the constraint is longer than {MOST_BYTES} bytes")
        with self._lock:
            found = self._compiled.get(constraint)
        if found is None:
            found = self._compile(constraint)
        with self._lock:
            self._compiled[constraint] = found
            self._compiled.move_to_end(constraint)
            if len(self._compiled) > MOST_COMPILED:
                self._compiled.popitem(last=False)
        return TokenMatcher(found.deep_copy())

    def _compile(self, constraint: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer(), _grammar(constraint), log_level=0)
        if matcher.is_error():
            reason = matcher.get_error().strip().partition("\n")[0][:300]
            raise BadConstraint(f"the constraint cannot be followed: {reason}")
        return matcher

    def _tokenizer(self) -> LLTokenizer:
        if self._read is None:
            try:
                self._read = LLTokenizer(
                    self._text, n_vocab=self._vocabulary, eos_token=self._eos or None
                )
            except ValueError as error:
                raise BadConstraint(
                    f"this model's tokenizer cannot follow constraints: {error}"
                ) from error
        return self._read

    def masks(self, matchers: Sequence[Matcher]) -> npt.NDArray[np.int32]:
        words = allocate_token_bitmask(len(matchers), self._vocabulary)
        found = [(cast(TokenMatcher, one).matcher, row) for row, one in enumerate(matchers)]
        fill_next_token_bitmask_par(self._executor, found, words)
        return words

    def advance(self, matchers: Sequence[Matcher], tokens: Sequence[int]) -> None:
        found = [cast(TokenMatcher, one).matcher for one in matchers]
        consume_token_par(self._executor, list(zip(found, tokens, strict=True)))


def _json(schema: dict[str, Any] | bool) -> str:
    """The text of a schema whose values have at most `_SPACE` between their parts."""
    if not isinstance(schema, dict):
        return json.dumps(schema)
    return json.dumps({"x-guidance": {"whitespace_pattern": _SPACE}, **schema})


def _grammar(constraint: str) -> str:
    """llguidance's text for a constraint. Raises BadConstraint if it has another form."""
    try:
        value: Any = json.loads(constraint)
    except (ValueError, RecursionError) as error:
        raise BadConstraint(f"the constraint is not JSON ({error}); {_FORM}") from None
    match value:
        case {"json_schema": dict() | bool() as schema, **rest} if not rest:
            return LLMatcher.grammar_from_json_schema(_json(schema))
        case {"regex": str(pattern), **rest} if not rest:
            return LLMatcher.grammar_from_regex(pattern)
        case {"choice": [_, *_] as texts, **rest} if not rest:
            if not all(isinstance(text, str) and text for text in texts):
                raise BadConstraint("every choice must be a non-empty text")
            # The grammar's language has the strings of JSON.
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, texts)))
        case {"structural_tag": dict() as tags, **rest} if not rest:
            return _tagged(tags)
    raise BadConstraint(_FORM)


# A slash ends a pattern in the grammar's language, unless a backslash stands before it.
_ESCAPED = re.compile(r"\\.|/", re.DOTALL)


def _escape(found: re.Match[str]) -> str:
    return r"\/" if found[0] == "/" else found[0]


def _tagged(form: dict[str, Any]) -> str:
    """The grammar of JSON values between fixed texts, such as tool calls. Raises BadConstraint.

    `tags` are {"begin", "schema", "end"}. With a `trigger` the text is free until the trigger
    appears, and one of the tags follows. Without it the text consists of tags with `separator`
    between them, or is `otherwise`: a JSON schema, a pattern or a choice. `stop_after_first` allows
    only one tag.
    """
    match form:
        case {"tags": [_, *_] as tags}:
            pass
        case _:
            raise BadConstraint("a structural_tag needs tags")
    try:
        parts = [(tag["begin"], _json(tag["schema"]), tag["end"]) for tag in tags]
    except (KeyError, TypeError):
        raise BadConstraint("a tag needs begin, schema and end") from None
    if (trigger := form.get("trigger")) is not None:
        made = [StructTag(trigger=trigger, begin=b, grammar=g, end=e) for b, g, e in parts]
        return LLMatcher.grammar_from_lark(StructTag.to_grammar(made, assume_special=False))
    rules = [
        f"t{i}: {json.dumps(begin)} j{i} {json.dumps(end)}\nj{i}: %json {schema}"
        for i, (begin, schema, end) in enumerate(parts)
    ]
    one = " | ".join(f"t{i}" for i in range(len(parts)))
    between = json.dumps(form.get("separator", ""))
    more = "" if form.get("stop_after_first") else f" ({between} tag)*"
    start = f"start: tag{more}"
    match form.get("otherwise"):
        case None:
            pass
        case {"json_schema": schema}:
            start += f" | other\nother: %json {_json(schema)}"
        case {"regex": str(pattern)}:
            bare = re.sub(
                r"\\.|/", lambda m: m[0] if m[0][0] == "\\" else r"\/", pattern, flags=re.S
            )
            start += f" | OTHER\nOTHER: /{bare}/"
        case {"choice": list() as texts}:
            start += "".join(f" | {json.dumps(text)}" for text in texts)
        case _:
            raise BadConstraint(_FORM)
    return LLMatcher.grammar_from_lark("\n".join([start, f"tag: {one}", *rules]))
