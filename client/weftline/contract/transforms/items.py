"""Reads the complete items of a list that is still being generated, and joins their texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from weftline.contract.errors import WeftlineError
from weftline.contract.transforms.base import Transform, ValueFlow
from weftline.contract.transforms.specs import read

# The whole text is read again for each line that ends. A longer text gives no more items early.
MOST_CHARS = 1 << 15


def gives_items(specs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these transforms make a list of a text, whose items are known one by one."""
    return _last(specs) is not None


def closed_items(specs: Sequence[Mapping[str, Any]], text: str) -> list[Any]:
    """The complete items at the beginning of the list, for a `text` that is not complete.

    The items are a prediction. The final list is what the transforms make of the whole text.
    """
    last = _last(specs)
    if last is None or len(text) > MOST_CHARS:
        return []
    try:
        return last.closed(text)
    except WeftlineError:
        return []


def joins_items(specs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these transforms join the items of a list into a text, in order.

    If so, the text of the first items is known before the list is complete. Without transforms a
    list enters a prompt as JSON, which is such a text.
    """
    return not specs or type(read(specs[-1])).joined is not Transform.joined


def joined_items(spec: Mapping[str, Any] | None, items: Sequence[Any]) -> str:
    """The beginning of the text of a list that begins with `items`. A `spec` of None means JSON.

    The beginning is a prediction. The final text is made from the whole list.
    """
    if not items:
        return ""
    if spec is None:
        return "[" + ", ".join(json.dumps(item, ensure_ascii=False) for item in items)
    try:
        return read(spec).joined(items)
    except WeftlineError:
        return ""


def _last(specs: Sequence[Mapping[str, Any]]) -> Transform | None:
    if not specs:
        return None
    *before, last = [read(spec) for spec in specs]
    if any(one.flow is not ValueFlow.STREAM for one in before):
        return None
    return None if type(last).closed is Transform.closed else last
