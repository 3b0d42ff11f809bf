"""Kind `rerank`: a reranker scores texts for a query, and the best are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from weftline.contract.errors import InvalidRequest
from weftline.contract.steps import Rerank
from weftline_server.graph.primitive import Traits
from weftline_server.lowering.item_kinds import ItemKind, cutting, items_of, texts_of
from weftline_server.lowering.step import Field, Says, named


class RerankKind(ItemKind[Rerank]):
    """The value is a list of items with their scores, the best first."""

    traits = Traits(operation="retrieval")
    engine = "reranker"
    says: ClassVar[Says] = {
        "k": Field("The most items that are kept.", 4),
        "query": Field("What the items are compared with.", {"var": "question"}),
    }

    def gives(self, step: Rerank) -> bool:
        return False  # the order of the items is known at the end only

    def inputs(self, step: Rerank, given: Mapping[str, Any]) -> dict[str, Any]:
        query = given["query"]
        if not isinstance(query, str):
            raise InvalidRequest(f"{named(step)} takes a query that is text", param="query")
        return {"query": query, "texts": texts_of(step, given["in"]), **cutting(step)}

    def rest(self, step: Rerank, given: Mapping[str, Any]) -> dict[str, Any]:
        return {**given, **cutting(step)}

    def result(self, step: Rerank, given: Mapping[str, Any], result: Any) -> object:
        items = items_of(step, given["in"])
        scored = zip(result["scores"], range(len(items)), strict=True)
        best = sorted(scored, key=lambda one: (-one[0], one[1]))[: step.k]
        return [{**items[at], "score": score} for score, at in best]

    def whole(self, results: Sequence[Any]) -> dict[str, Any]:
        return {"scores": list(results)}
