"""Converts lists item by item between a session's values and an op that streams.

What is fed early is advice: the op's result is put together from the results of the items that the
whole value has. An item that was fed and is not in the value costs time only.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from weftline.errors import InvalidRequest, WeftlineError
from weftline.steps import Embed, Rerank, Search, Step
from weftline_server.lowering.step import hits_of, items_of

FLOAT_BYTES = 4


def fed(step: Step, items: Sequence[Any]) -> list[Any]:
    """What the engine gets of these items of the input, up to the first that does not fit."""
    found: list[Any] = []
    for item in items:
        try:
            found += _fed(step, item)
        except WeftlineError:
            break  # the step fails with this error when its whole input is there
    return found


def _fed(step: Step, item: Any) -> list[Any]:
    match step:
        case Search():
            if not isinstance(item, dict) or not {"vectors", "dimensions"} <= item.keys():
                raise InvalidRequest("a search takes embedded texts", param="in")
            return [{name: item[name] for name in ("vectors", "dimensions")}]
        case _:
            return [one["text"] for one in items_of(step, [item])]


def wanted(step: Step, inputs: Mapping[str, Any]) -> list[Any]:
    """The items of an op's whole inputs, in the form in which they are fed."""
    if not isinstance(step, Search):
        return list(inputs["texts"])
    width = inputs["dimensions"]
    raw = base64.b64decode(inputs["vectors"])
    size = width * FLOAT_BYTES
    return [
        {"vectors": base64.b64encode(raw[at : at + size]).decode(), "dimensions": width}
        for at in range(0, len(raw), size)
    ]


def streamed_inputs(step: Step, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of an op that streams, without its items."""
    held = ("vectors", "dimensions") if isinstance(step, Search) else ("texts",)
    return {name: value for name, value in inputs.items() if name not in held}


def whole(step: Step, results: Sequence[Any]) -> dict[str, Any]:
    """The value of an op from the results of its items, as the engine would have given it."""
    match step:
        case Embed():
            if not results:
                return {"vectors": "", "dimensions": 1}
            raw = b"".join(base64.b64decode(one["vectors"]) for one in results)
            return {
                "vectors": base64.b64encode(raw).decode(),
                "dimensions": results[0]["dimensions"],
            }
        case Rerank():
            return {"scores": list(results)}
        case _:
            return {"hits": list(results)}


def passed_on(step: Step, items: Sequence[Any], results: Sequence[Any]) -> tuple[Any, ...]:
    """What the next step takes of these items: embedded texts, or the hits of each query."""
    if isinstance(step, Embed):
        return tuple({"item": i, **r} for i, r in zip(items, results, strict=True))
    return tuple(results)


def hits_so_far(step: Step, lists: Sequence[Any], known: Sequence[Any]) -> tuple[Any, ...]:
    """The documents of some lists of hits that are not among the `known` ones."""
    try:
        hits = hits_of(step, list(lists))
    except WeftlineError:
        return ()
    seen = {key_of(one["text"]) for one in known}
    fresh = {key_of(hit["text"]): hit for hit in reversed(hits)}
    return tuple(hit for key, hit in reversed(fresh.items()) if key not in seen)


def key_of(item: Any) -> str:
    """Equal items have equal keys."""
    return item if isinstance(item, str) else json.dumps(item, sort_keys=True)
