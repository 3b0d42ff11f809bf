"""Constraints on outputs by llguidance: a JSON schema, a regular expression, a choice of texts."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, consume_token_par, fill_next_token_bitmask_par

from weftline_engine.embedded.constraint import BadConstraint, Matcher

# A schema of this length compiles in about 0.1 s, during which no step runs.
MOST_BYTES = 64 * 1024
_FORM = 'a constraint is {"json_schema": ...}, {"regex": "..."} or {"choice": ["...", ...]}'


class TokenMatcher:
    """A `Matcher` of weftline_engine.embedded.constraint."""

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher

    @property
    def ended(self) -> bool:
        return self.matcher.is_stopped()

    @property
    def error(self) -> str:
        return self.matcher.get_error() if self.matcher.is_error() else ""


class TokenGrammars:
    """The `Grammars` of a tokenizer.json, for so many tokens, of which `eos` end.

    The tokenizer is read when the first constraint comes: most servers never see one, and a model
    whose tokenizer llguidance cannot read serves everything else.
    """

    def __init__(self, tokenizer: str, vocabulary: int, eos: Sequence[int]) -> None:
        self._text = tokenizer
        self._eos = list(eos)
        self._read: LLTokenizer | None = None
        self._executor = LLExecutor(len(os.sched_getaffinity(0)))
        self._vocabulary = vocabulary

    def compile(self, constraint: str) -> TokenMatcher:
        """Raises BadConstraint for what is no constraint, too long or too complex."""
        if len(constraint.encode()) > MOST_BYTES:
            raise BadConstraint(f"the constraint is longer than {MOST_BYTES} bytes")
        matcher = LLMatcher(self._tokenizer(), _grammar(constraint), log_level=0)
        if matcher.is_error():
            reason = matcher.get_error().strip().partition("\n")[0][:300]
            raise BadConstraint(f"the constraint cannot be followed: {reason}")
        return TokenMatcher(matcher)

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


def _grammar(constraint: str) -> str:
    """llguidance's text for a constraint. Raises BadConstraint where it has another form."""
    try:
        value: Any = json.loads(constraint)
    except (ValueError, RecursionError) as error:
        raise BadConstraint(f"the constraint is not JSON ({error}); {_FORM}") from None
    match value:
        case {"json_schema": dict() | bool() as schema, **rest} if not rest:
            return LLMatcher.grammar_from_json_schema(json.dumps(schema))
        case {"regex": str(pattern), **rest} if not rest:
            return LLMatcher.grammar_from_regex(pattern)
        case {"choice": [_, *_] as texts, **rest} if not rest:
            if not all(isinstance(text, str) and text for text in texts):
                raise BadConstraint("every choice must be a text that is not empty")
            # JSON's strings are those of the grammar's language.
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, texts)))
    raise BadConstraint(_FORM)
