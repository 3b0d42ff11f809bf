"""Constraints on outputs by llguidance: JSON schemas, patterns, choices, grammars and tags."""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, consume_token_par, fill_next_token_bitmask_par

from weftline_engine.own.constraints.grammar_rules import BadGrammar
from weftline_engine.own.constraints.lark import json_text, of_choice, of_grammar, of_tag
from weftline_engine.own.constraints.schema_faults import fault
from weftline_engine.own.constraints.text_tokens import with_text_tokens
from weftline_engine.own.embedded.sample.constraint import BadConstraint, Matcher

# A JSON schema of this length (5,200 properties) compiles in 1.9 s, in a thread beside the steps.
# Its first mask takes 0.1 s, in which no step runs. The first mask of a regular expression takes
# 0.34 s at an eighth of the length, to which the server bounds patterns and grammars.
MOST_BYTES = 512 * 1024
# The most compiled constraints that are kept, because the `n` outputs of a request and the calls of
# an application have the same constraint. A copy takes 40 us.
MOST_COMPILED = 256
MOST_REASON = 1000  # characters of llguidance's reason in a message
_FORM = (
    'a constraint is one of {"json_schema": ...}, {"regex": "..."}, {"choice": ["...", ...]}, '
    '{"grammar": "..."} and {"structural_tag": {...}}'
)


class TokenMatcher:
    """A `Matcher` of weftline_engine.own.embedded.sample.constraint."""

    def __init__(self, matcher: LLMatcher, marks: tuple[int, ...]) -> None:
        self.matcher = matcher
        self._marks = marks  # tokens for whole marks of the model, such as <tool_call>

    @property
    def ended(self) -> bool:
        return self.matcher.is_stopped()

    @property
    def error(self) -> str:
        return self.matcher.get_error() if self.matcher.is_error() else ""

    def forced(self) -> list[int]:
        if self.matcher.is_error() or not (found := self.matcher.compute_ff_tokens()):
            return []
        mark = self.forced_mark
        return found if mark is None else [mark]

    @property
    def forced_mark(self) -> int | None:
        """The mark with which forced text begins. llguidance would spell it in several tokens, as
        no text that the model has seen does."""
        fitting = (mark for mark in self._marks if self.matcher.validate_tokens([mark]))
        return next(fitting, None)

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
        self._marks: tuple[int, ...] = ()
        self._executor = LLExecutor(len(os.sched_getaffinity(0)))
        self._vocabulary = vocabulary
        # The last used at the end. Refusals are kept too: finding the cause takes a while.
        self._compiled: OrderedDict[str, LLMatcher | BadConstraint] = OrderedDict()
        self._lock = threading.Lock()  # a thread compiles ahead of the steps

    def compile(self, constraint: str) -> TokenMatcher:
        """A matcher for an output under `constraint`. Raises BadConstraint if the text is not a
        constraint, or is too long or too complex."""
        if len(constraint.encode()) > MOST_BYTES:
            raise BadConstraint(f"the constraint is longer than {MOST_BYTES} bytes")
        with self._lock:
            found = self._compiled.get(constraint)
        if found is None:
            try:
                found = self._compile(constraint)
            except BadConstraint as refusal:
                found = refusal
        with self._lock:
            self._compiled[constraint] = found
            self._compiled.move_to_end(constraint)
            if len(self._compiled) > MOST_COMPILED:
                self._compiled.popitem(last=False)
        if isinstance(found, BadConstraint):
            raise BadConstraint(str(found))
        return TokenMatcher(found.deep_copy(), self._marks)

    def _compile(self, constraint: str) -> LLMatcher:
        value = _read(constraint)
        try:
            matcher = LLMatcher(self._tokenizer(), _grammar(value), log_level=0)
        except BadGrammar as error:
            raise BadConstraint(str(error)) from None
        if matcher.is_error():
            raise BadConstraint(f"the constraint cannot be followed: {self._cause(value, matcher)}")
        return matcher

    def _cause(self, value: dict[str, Any], matcher: LLMatcher) -> str:
        """Why a constraint cannot be followed, with the place in it where that is known."""
        match value:
            case {"json_schema": dict() as schema}:
                found = fault(
                    schema,
                    lambda part: self._reason(LLMatcher.grammar_from_json_schema(json_text(part))),
                    lambda pattern: self._reason(LLMatcher.grammar_from_regex(pattern)),
                )
                if found:
                    return found
            case {"regex": str(pattern)}:
                return f"the regex {pattern[:MOST_REASON]!r}: {_reason(matcher)}"
        return _reason(matcher)

    def _reason(self, grammar: str) -> str:
        """Why llguidance cannot follow a grammar; "" if it can."""
        return _reason(LLMatcher(self._tokenizer(), grammar, log_level=0))

    def _tokenizer(self) -> LLTokenizer:
        if self._read is None:
            try:
                text, self._marks = with_text_tokens(self._text, self._vocabulary)
                self._read = LLTokenizer(
                    text, n_vocab=self._vocabulary, eos_token=self._eos or None
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
        for row, one in enumerate(matchers):
            _prefer_mark(cast(TokenMatcher, one), words[row])
        return words

    def advance(self, matchers: Sequence[Matcher], tokens: Sequence[int]) -> None:
        found = [cast(TokenMatcher, one).matcher for one in matchers]
        consume_token_par(self._executor, list(zip(found, tokens, strict=True)))


def _prefer_mark(matcher: TokenMatcher, words: npt.NDArray[np.int32]) -> None:
    """Allow nothing but the mark with which forced text begins, where the mask lacks it."""
    mark = matcher.forced_mark
    if mark is not None and not words[mark // 32] >> (mark % 32) & 1:
        words[:] = 0
        words.view(np.uint32)[mark // 32] = 1 << (mark % 32)


def _reason(matcher: LLMatcher) -> str:
    """All that llguidance says, on one line: the cause may be on any of its lines."""
    return " ".join(matcher.get_error().split())[:MOST_REASON] if matcher.is_error() else ""


def _read(constraint: str) -> dict[str, Any]:
    """The object of a constraint's text. Raises BadConstraint."""
    try:
        value: Any = json.loads(constraint)
    except (ValueError, RecursionError) as error:
        raise BadConstraint(f"the constraint is not JSON ({error}); {_FORM}") from None
    if not isinstance(value, dict) or len(value) != 1:
        raise BadConstraint(_FORM)
    return value


def _grammar(value: dict[str, Any]) -> str:
    """llguidance's text for a constraint. Raises BadConstraint or BadGrammar."""
    match value:
        case {"json_schema": dict() | bool() as schema}:
            return LLMatcher.grammar_from_json_schema(json_text(schema))
        case {"regex": str(pattern)}:
            return LLMatcher.grammar_from_regex(pattern)
        case {"choice": [_, *_] as texts}:
            return LLMatcher.grammar_from_lark(of_choice(texts))
        case {"grammar": str(text)}:
            return LLMatcher.grammar_from_lark(of_grammar(text))
        case {"structural_tag": dict() as format}:
            return of_tag(format)
    raise BadConstraint(_FORM)
