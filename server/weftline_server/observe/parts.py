"""A large JSON object in parts, each made in a few milliseconds: other requests are served between
two of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from weftline.contract.vectors import as_json

PART = 128  # calls or items of a part, which take 2 to 5 ms

to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=as_json).encode


@dataclass(frozen=True, slots=True)
class More:
    """Some more items of a list."""

    items: list[Any]


# A field with its value, or with more items of it. None is a pause.
Parts = Iterator[tuple[str, Any] | None]


def in_parts(field: str, items: Iterable[Any]) -> Parts:
    """A list, a part of it at a time; an empty one, too."""
    found: list[Any] = []
    for item in items:
        found.append(item)
        if len(found) == PART:
            yield field, More(found)
            found = []
    yield field, More(found)


def whole(parts: Parts) -> dict[str, Any]:
    """The object at once."""
    made: dict[str, Any] = {}
    for part in parts:
        if part is None:
            continue
        field, value = part
        if isinstance(value, More):
            made.setdefault(field, []).extend(value.items)
        else:
            made[field] = value
    return made


async def texts(parts: Parts) -> AsyncGenerator[str, None]:
    """The object as JSON, with a turn of the event loop for each part of a list, and each pause."""
    inside = ""  # the list that is open
    before, is_empty = "{", True
    for part in parts:
        if part is None:
            await asyncio.sleep(0)
            continue
        field, value = part
        if inside and field != inside:
            before, inside = "]" + before, ""
        if not isinstance(value, More):
            yield f"{before}{to_json(field)}:{to_json(value)}"
        else:
            if inside != field:
                yield f"{before}{to_json(field)}:["
                inside, is_empty = field, True
            if value.items:
                yield ("" if is_empty else ",") + to_json(value.items)[1:-1]
                is_empty = False
            await asyncio.sleep(0)
        before = ","
    yield ("]" if inside else "") + ("{}" if before == "{" else "}")


async def json_text(parts: Parts) -> str:
    """The object as JSON, made in many turns of the event loop."""
    return "".join([one async for one in texts(parts)])
