"""Vectors, texts with their vectors, and their JSON.

Embedders make vectors, embed and mean steps make embedded texts of them, and search and ingest
steps read these. Each hands the values on as they are. JSON is made of them for clients, records,
prompts and transforms, and is read where it comes from a client or a record.
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

FLOAT_BYTES = 4


class Vectors:
    """Rows of `width` float32 numbers. `data` holds them one after the other.

    Vectors never change. The class is no dataclass, which msgspec would write field by field.
    Raises ValueError for data that is not whole rows.
    """

    __slots__ = ("data", "width")

    def __init__(self, data: bytes = b"", width: int = 1) -> None:
        if width < 1 or len(data) % (FLOAT_BYTES * width):
            count = len(data) / FLOAT_BYTES
            raise ValueError(f"'vectors' holds {count:g} numbers, which {width} does not divide")
        self.data = data
        self.width = width

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vectors):
            return NotImplemented
        return self.width == other.width and self.data == other.data

    def __hash__(self) -> int:
        return hash((self.data, self.width))

    def __repr__(self) -> str:
        return f"<{len(self)} vectors of {self.width} numbers>"

    @classmethod
    def of(cls, rows: Iterable[Iterable[float]]) -> Self:
        """These rows. Raises ValueError unless all have one width."""
        made = [array("f", row) for row in rows]
        widths = {len(row) for row in made} or {1}
        if len(widths) > 1 or 0 in widths:
            raise ValueError(f"vectors of widths {sorted(widths)}")
        return cls(b"".join(made), widths.pop())

    @classmethod
    def joined(cls, parts: Iterable[Vectors]) -> Self:
        """The rows of all parts. Raises ValueError unless all have one width."""
        found = list(parts)
        widths = {part.width for part in found} or {1}
        if len(widths) > 1:
            raise ValueError(f"vectors of widths {sorted(widths)}")
        return cls(b"".join(part.data for part in found), widths.pop())

    @classmethod
    def from_json(cls, value: Mapping[str, Any], most: int | None = None) -> Self:
        """The vectors of an embed step's value. Raises ValueError for anything else, and for more
        than `most` rows, which are not decoded."""
        text, width = value.get("vectors"), value.get("dimensions")
        if not isinstance(text, str) or not isinstance(width, int) or width < 1:
            raise ValueError("a vector is base64 text in 'vectors' and a number in 'dimensions'")
        size = FLOAT_BYTES * width
        if most is not None and len(text) * 3 // 4 - 2 > most * size:
            raise ValueError(f"more than {most} vectors")
        try:
            data = base64.b64decode(text, validate=True)
        except ValueError:
            raise ValueError("'vectors' is not base64 text of float32 numbers") from None
        return cls(data, width)

    def to_json(self) -> dict[str, Any]:
        """`vectors` as base64 text, and their `dimensions`."""
        return {"vectors": base64.b64encode(self.data).decode(), "dimensions": self.width}

    def __len__(self) -> int:
        return len(self.data) // (FLOAT_BYTES * self.width)

    def __getitem__(self, some: slice) -> Vectors:
        """Some of the rows."""
        start, end, step = some.indices(len(self))
        assert step == 1, "rows stand side by side"
        size = FLOAT_BYTES * self.width
        return Vectors(self.data[start * size : end * size], self.width)

    def rows(self) -> list[array[float]]:
        """Each row as numbers."""
        numbers = array("f", self.data)
        return [numbers[at : at + self.width] for at in range(0, len(numbers), self.width)]


@dataclass(frozen=True, slots=True)
class Embedded:
    """Items, and a vector for each; `single` says that one text was embedded, and not a list."""

    items: list[dict[str, Any]]
    vectors: Vectors
    single: bool = False

    @classmethod
    def from_json(cls, value: object, most: int | None = None) -> Self:
        """The embedded texts that an object describes. Raises ValueError for anything else, and for
        more than `most` vectors, which are not decoded."""
        if not isinstance(value, dict) or "items" not in value:
            raise ValueError("embedded texts are an object with 'items' and their 'vectors'")
        vectors = Vectors.from_json(value, most)
        return cls(value["items"], vectors, bool(value.get("single")))

    def to_json(self) -> dict[str, Any]:
        return {"items": self.items, "single": self.single, **self.vectors.to_json()}


def as_json(value: object) -> object:
    """Embedded texts as JSON: the `default` of Python's encoder."""
    if isinstance(value, Embedded):
        return value.to_json()
    raise TypeError(f"{type(value).__name__} is not JSON")


def plain(value: Any) -> Any:
    """A session's value as JSON alone: embedded texts, also those of a list, become objects."""
    if isinstance(value, Embedded):
        return value.to_json()
    if isinstance(value, list) and any(isinstance(one, (Embedded, list)) for one in value):
        return [plain(one) for one in value]
    return value
