"""Kinds `ingest`, `delete` and `fetch`: a store gets, loses and gives documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weftline.contract.errors import InvalidRequest
from weftline.contract.steps import Delete, Fetch, Ingest
from weftline_server.graph.primitive import Effects, Traits
from weftline_server.lowering.item_kinds import embedded_of, items_of
from weftline_server.lowering.step import Field, Says, StepKind, named


class IngestKind(StepKind[Ingest]):
    """A repetition has no further effect, because items have ids."""

    says: ClassVar[Says] = {
        "items": Field(
            "The items that are stored, one for each vector.",
            {"value": [{"text": "The Rhine rises in the Alps."}]},
        ),
    }

    def effects(self, step: Ingest) -> Effects:
        return Effects.IDEMPOTENT

    def inputs(self, step: Ingest, given: Mapping[str, Any]) -> dict[str, Any]:
        """Vectors, and the items that are stored with them."""
        embedded = embedded_of(step, given["in"])
        items = items_of(step, given["items"]) if "items" in given else embedded.items
        if len(items) != len(embedded.items):
            raise InvalidRequest(
                f"{named(step)} has {len(items)} items for {len(embedded.items)} vectors: give one "
                "for each",
                param="items",
            )
        return {"items": items, "vectors": embedded.vectors}


class DeleteKind(StepKind[Delete]):
    """The value counts what was deleted."""

    def effects(self, step: Delete) -> Effects:
        return Effects.IDEMPOTENT

    def inputs(self, step: Delete, given: Mapping[str, Any]) -> dict[str, Any]:
        return _ids(step, given)


class FetchKind(StepKind[Fetch]):
    """The value is the documents."""

    traits = Traits(operation="retrieval")

    def inputs(self, step: Fetch, given: Mapping[str, Any]) -> dict[str, Any]:
        return _ids(step, given)

    def result(self, step: Fetch, given: Mapping[str, Any], result: Any) -> object:
        return result["items"]


def _ids(step: Delete | Fetch, given: Mapping[str, Any]) -> dict[str, Any]:
    ids = given["in"]
    if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
        raise InvalidRequest(f"{named(step)} takes a list of ids", param="in")
    return {"ids": ids, "filter": step.filter}
