"""The items of a list that is still being generated: those that no later text can change, and the
text that they make together.
"""

from __future__ import annotations

import json
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


def joins_items(specs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these transforms of a list make a text of its items, one behind the other, so that
    the text of the first items is known before the list is complete.

    Without transforms a list enters a prompt as JSON, which is such a text.
    """
    return not specs or type(parse(specs[-1])).joined is not Transform.joined


def joined_items(spec: Mapping[str, Any] | None, items: Sequence[Any]) -> str:
    """The beginning of the text that a list makes which begins with `items`; None is JSON. Advice:
    the text of the whole list decides.
    """
    if not items:
        return ""
    if spec is None:
        return "[" + ", ".join(json.dumps(item, ensure_ascii=False) for item in items)
    try:
        return parse(spec).joined(items)
    except WeftlineError:
        return ""


def _last(specs: Sequence[Mapping[str, Any]]) -> Transform | None:
    if not specs:
        return None
    *before, last = [parse(spec) for spec in specs]
    if any(one.flow is not Flow.STREAM for one in before):
        return None
    return None if type(last).closed is Transform.closed else last
