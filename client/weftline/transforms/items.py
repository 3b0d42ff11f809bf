"""The items of a list that is still being generated: those that no later text can change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weftline.errors import WeftlineError
from weftline.transforms.base import Flow, Transform
from weftline.transforms.specs import parse

# The text is read again for each line that ends. A longer one gives no more items early.
MOST_CHARS = 1 << 15


def gives_items(specs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a text through these transforms is a list whose items can be told one by one."""
    return _last(specs) is not None


def closed_items(specs: Sequence[Mapping[str, Any]], text: str) -> list[Any]:
    """The first items of the list that `text` and what follows it will give, as far as they are
    complete. Advice: the whole text's transforms decide what the list is.
    """
    last = _last(specs)
    if last is None or len(text) > MOST_CHARS:
        return []
    try:
        return last.closed(text)
    except WeftlineError:
        return []


def _last(specs: Sequence[Mapping[str, Any]]) -> Transform | None:
    if not specs:
        return None
    *before, last = [parse(spec) for spec in specs]
    if any(one.flow is not Flow.STREAM for one in before):
        return None
    return None if type(last).closed is Transform.closed else last
