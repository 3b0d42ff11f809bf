"""Kind `merge`: the server makes one list of several lists of hits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from weftline.contract.errors import WeftlineError
from weftline.contract.steps import Merge
from weftline_server.graph.primitive import Traits, Where
from weftline_server.lowering.item_kinds import ItemKind, hit_lists_of, hits_of, key_of
from weftline_server.lowering.step import Field, Says

FIRST_PLACE = 60  # what reciprocal ranks begin at, as in LlamaIndex's fusion


class MergeKind(ItemKind[Merge]):
    """The value has each document once, with its best score or the sum of its reciprocal ranks."""

    traits = Traits(where=Where.SERVER)
    says: ClassVar[Says] = {
        "by": Field("What makes two items the same: id or text.", "id"),
        "limit": Field("The most items that are kept.", 8),
        "rank": Field(
            "What comes first: the best score, the first in order, or the best sum of "
            "reciprocal ranks.",
            "reciprocal",
        ),
    }

    def gives(self, step: Merge) -> bool:
        return step.limit is None  # what a limit leaves out is known at the end only

    def inputs(self, step: Merge, given: Mapping[str, Any]) -> dict[str, Any]:
        hits_of(step, given["in"])
        return {}

    def result(self, step: Merge, given: Mapping[str, Any], result: Any) -> object:
        best: dict[Any, dict[str, Any]] = {}
        ranks: defaultdict[Any, float] = defaultdict(float)
        for hits in hit_lists_of(step, given["in"]):
            for place, hit in enumerate(hits):
                key = hit.get(step.by, hit["text"])
                ranks[key] += 1 / (FIRST_PLACE + place)
                if key not in best or hit.get("score", 0.0) > best[key].get("score", 0.0):
                    best[key] = hit
        if step.rank == "order":
            return list(best.values())[: step.limit]
        if step.rank == "reciprocal":
            best = {key: {**hit, "score": ranks[key]} for key, hit in best.items()}
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
