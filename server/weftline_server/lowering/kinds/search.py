"""Kind `search`: a store finds the documents that are nearest to each embedded text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weftline.contract.steps import Search
from weftline_server.graph.primitive import Traits
from weftline_server.lowering.item_kinds import ItemKind, embedded_of
from weftline_server.lowering.step import Field, Says


class SearchKind(ItemKind[Search]):
    """The value is a list of hits, or one list for each of several texts."""

    traits = Traits(operation="retrieval")
    says: ClassVar[Says] = {
        "k": Field("The most items that are found.", 4),
    }

    ordered = True
    whole_inputs = frozenset({"vectors"})

    def inputs(self, step: Search, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"vectors": embedded_of(step, given["in"]).vectors, **self.rest(step, {})}

    def rest(self, step: Search, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"k": step.k, "filter": step.filter}

    def result(self, step: Search, given: Mapping[str, Any], result: Any) -> object:
        hits = result["hits"]
        return hits[0] if embedded_of(step, given["in"]).single and hits else hits

    def fed_item(self, step: Search, item: Any) -> list[Any]:
        return [embedded_of(step, item).vectors]

    def wanted(self, inputs: Mapping[str, Any]) -> list[Any]:
        found = inputs["vectors"]
        return [found[at : at + 1] for at in range(len(found))]
