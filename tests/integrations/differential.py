"""Helpers that compare a transform with the framework's own parser, on many texts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from weftline.errors import TransformFailed

ALPHABET = '{}[]",:\\n`-*.0123456789 \n\t\r eEtfu\x0b\xa0٣'

Act = Callable[[], Any]
Words = Callable[[Any], str]


def mutated(seed: int, count: int, seeds: Sequence[str], edits: int = 6) -> Iterator[str]:
    """The seeds, then `count` texts made from them by a few edits each."""
    yield from seeds
    rng = random.Random(seed)
    for _ in range(count):
        text = rng.choice(seeds)
        for _ in range(rng.randint(1, edits)):
            at, way = rng.randint(0, len(text)), rng.random()
            if way < 0.3:
                text = text[:at] + text[at + rng.randint(1, 3) :]
            elif way < 0.7:
                text = text[:at] + rng.choice(ALPHABET) + text[at:]
            elif way < 0.85:
                text = text[:at]
            else:
                text = text[:at] + rng.choice(seeds) + text[at:]
        yield text


def outcomes(
    failures: Mapping[type[Exception], Words], shown: Words = repr
) -> Callable[[Act], tuple[str, str]]:
    """A function that gives the repr of an act's result, so that 1, 1.0 and True differ, or its
    failure.

    `failures` has the parsers' exceptions and how to describe each. The first that fits counts.
    """

    def outcome(act: Act) -> tuple[str, str]:
        try:
            return "value", shown(act())
        except TransformFailed as failure:
            return "failure", failure.message
        except tuple(failures) as failure:
            said = next(words for kind, words in failures.items() if isinstance(failure, kind))
            return "failure", said(failure)

    return outcome


def named(failure: Exception) -> str:
    """The message of one of Python's own exceptions, as a transform reports it."""
    return f"{type(failure).__name__}: {failure}"


def without_link(failure: Exception) -> str:
    """The message of LangChain's OutputParserException, without the link to its documentation."""
    return str(failure).partition("\nFor troubleshooting")[0]
