"""Kind `merge`: the server makes one list of several lists of hits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weftline.contract.errors import WeftlineError
from weftline.contract.steps import Merge
from weftline_server.graph.primitive import Traits, Where
from weftline_server.lowering.item_kinds import ItemKind, hits_of, key_of


class MergeKind(ItemKind[Merge]):
    """The value has each document once, with its best score; the best first."""

    traits = Traits(where=Where.SERVER)

    def gives(self, step: Merge) -> bool:
        return step.limit is None  # what a limit leaves out is known at the end only

    def inputs(self, step: Merge, given: Mapping[str, Any]) -> dict[str, Any]:
        hits_of(step, given["in"])
        return {}

    def result(self, step: Merge, given: Mapping[str, Any], result: Any) -> object:
        best: dict[Any, Mapping[str, Any]] = {}
        for hit in hits_of(step, given["in"]):
            key = hit.get(step.by, hit["text"])
            if key not in best or hit.get("score", 0.0) > best[key].get("score", 0.0):
                best[key] = hit
        # Ties stay in the order of arrival.
        return sorted(best.values(), key=lambda hit: -hit.get("score", 0.0))[: step.limit]

    def so_far(self, step: Merge, items: Sequence[Any], known: Sequence[Any]) -> tuple[Any, ...]:
        """The documents of some lists of hits that are not among the `known` ones."""
        try:
            hits = hits_of(step, list(items))
        except WeftlineError:
            return ()
        seen = {key_of(one["text"]) for one in known}
        fresh = {key_of(hit["text"]): hit for hit in reversed(hits)}
        return tuple(hit for key, hit in reversed(fresh.items()) if key not in seen)
