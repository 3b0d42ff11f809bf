"""The items of responses and conversations as they are kept: their ids, and pages of them."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from weftline.contract.errors import InvalidRequest

Json = dict[str, Any]
MOST_ID = 128  # characters of an id that a client gives to an item

# How the ids of items begin.
_PREFIX: Mapping[str, str] = MappingProxyType(
    {
        "message": "msg",
        "function_call": "fc",
        "function_call_output": "fco",
        "custom_tool_call": "ctc",
        "custom_tool_call_output": "ctco",
        "reasoning": "rs",
    }
)


class Order(StrEnum):
    """Which items of a list come first: the oldest, or the newest."""

    ASC = "asc"
    DESC = "desc"


def kept_items(given: str | Sequence[Json], taken: Collection[str] = ()) -> list[Json]:
    """The items of an input as they are kept. One keeps its id, unless that is `taken`."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    known = set(taken)
    return [_kept(item, known) for item in given]


def _kept(item: Json, taken: set[str]) -> Json:
    kind = item.get("type") or "message"
    made = {**item, "type": kind}
    id = item.get("id")
    if not isinstance(id, str) or not 0 < len(id) <= MOST_ID or id in taken:
        id = f"{_PREFIX.get(kind, 'item')}_{uuid.uuid4().hex}"
    taken.add(id)
    made["id"] = id
    if kind == "reasoning":
        made["summary"] = item.get("summary") or []
    elif kind in _PREFIX:
        made["status"] = item.get("status") or "completed"
    if kind == "message" and isinstance(item["content"], str):
        made["content"] = [_part(item["role"], item["content"])]
    return made


def _part(role: str, text: str) -> Json:
    if role != "assistant":
        return {"type": "input_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def page(items: Sequence[Json], order: Order, after: str | None, limit: int) -> Json:
    """The items that follow `after`, in this order. Raises InvalidRequest for an unknown one."""
    listed = items[::-1] if order is Order.DESC else items
    start = 0
    if after is not None:
        places = (at for at, one in enumerate(listed, 1) if one["id"] == after)
        start = next(places, 0)
        if not start:
            raise InvalidRequest(f"after: there is no item {after[:64]!r}", param="after")
    data = listed[start : start + limit]
    return list_of(data, has_more=start + limit < len(listed))


def list_of(data: Sequence[Json], *, has_more: bool = False) -> Json:
    """A list as OpenAI's API gives it."""
    return {
        "object": "list",
        "data": list(data),
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }
