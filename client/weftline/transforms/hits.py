"""The transform that joins the texts of retrieved documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from weftline.errors import TransformFailed
from weftline.transforms.base import MAX_OPTION_CHARS, Transform, refuse


@dataclass(frozen=True, slots=True)
class Texts(Transform):
    """The texts of hits or items, in their order, joined by `separator`.

    Several queries give a list of lists. Their hits are joined in the order of the lists.
    """

    op: ClassVar[str] = "texts"
    separator: str = "\n\n"

    def __post_init__(self) -> None:
        if not isinstance(self.separator, str) or len(self.separator) > MAX_OPTION_CHARS:
            refuse(f"texts takes 'separator', at most {MAX_OPTION_CHARS} characters")

    def apply(self, value: Any) -> Any:
        return self.separator.join(_texts(value, nested=True))

    def joined(self, items: Sequence[Any]) -> str:
        """The texts so far. There is no separator at the end."""
        return str(self.apply(list(items)))


def _texts(value: Any, *, nested: bool) -> Iterator[str]:
    if not isinstance(value, list):
        raise TransformFailed("texts reads a list of hits or items")
    for one in value:
        if isinstance(one, list) and nested:
            yield from _texts(one, nested=False)
        elif isinstance(one, dict) and isinstance(one.get("text"), str):
            yield one["text"]
        else:
            raise TransformFailed("texts reads hits or items, each an object with a 'text'")
