"""Kind `embed`: an embedder makes a vector of each text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weftline.contract.steps import Embed
from weftline.contract.vectors import Embedded, Vectors
from weftline_server.graph.primitive import Traits
from weftline_server.lowering.item_kinds import ItemKind, cutting, items_of, texts_of


class EmbedKind(ItemKind[Embed]):
    """The value holds the items with their vectors; `single` says that it is of one text."""

    traits = Traits(operation="embeddings")
    engine = "embedder"

    def inputs(self, step: Embed, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"texts": texts_of(step, given["in"]), **cutting(step)}

    def rest(self, step: Embed, given: Mapping[str, Any]) -> dict[str, Any]:
        return {**given, **cutting(step)}

    def result(self, step: Embed, given: Mapping[str, Any], result: Any) -> object:
        return Embedded(items_of(step, given["in"]), result, isinstance(given["in"], str))

    def whole(self, results: Sequence[Any]) -> Vectors:
        return Vectors.joined(results)

    def passed_on(self, items: Sequence[Any], results: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(Embedded([i], r) for i, r in zip(items, results, strict=True))
