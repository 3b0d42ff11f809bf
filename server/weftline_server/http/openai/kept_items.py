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
# The items of a response's input are numbered from here on, and those of its output from 0 on.
FIRST_OF_INPUT = 0x8000

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


def item_id(prefix: str, response: str, number: int) -> str:
    """The id of an item of a response, by which the response is found."""
    return f"{prefix}_{response.removeprefix('resp_')}{number:04x}"


def kept_items(
    given: str | Sequence[Json], taken: Collection[str] = (), response: str | None = None
) -> list[Json]:
    """The items of an input as they are kept: that of a `response`, or one that is added to a
    conversation. One keeps its id, unless that is `taken`."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    known = set(taken)
    return [_kept(item, known, response, at) for at, item in enumerate(given, FIRST_OF_INPUT)]


def _kept(item: Json, taken: set[str], response: str | None, number: int) -> Json:
    kind = item.get("type") or "message"
    made = {**item, "type": kind}
    id = item.get("id")
    if not isinstance(id, str) or not 0 < len(id) <= MOST_ID or id in taken:
        prefix = _PREFIX.get(kind, "item")
        id = item_id(prefix, response, number) if response else f"{prefix}_{uuid.uuid4().hex}"
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
