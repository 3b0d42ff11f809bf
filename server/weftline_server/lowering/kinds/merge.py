"""Kind `merge`: the server makes one list of several lists of hits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from weftline.contract.errors import WeftlineError
from weftline.contract.hit_fusion import fused
from weftline.contract.steps import Merge
from weftline_server.graph.primitive import Traits, Where
from weftline_server.lowering.item_kinds import ItemKind, hit_lists_of, hits_of, key_of
from weftline_server.lowering.step import Field, Says


class MergeKind(ItemKind[Merge]):
    """The value has each document once, with the score that its lists give it."""

    traits = Traits(where=Where.SERVER)
    says: ClassVar[Says] = {
        "by": Field("What makes two items the same: id, text or node.", "id"),
        "limit": Field("The most items that are kept.", 8),
        "rank": Field(
            "What comes first: the best score, the first in order, or the best sum of "
            "reciprocal ranks, of relative scores or of scores by their distribution.",
            "reciprocal",
        ),
        "beside": Field("More lists of hits, of other searches.", [{"var": "others"}]),
        "weights": Field("The weight of `in`, and of each of `beside`.", [0.5, 0.5]),
        "first": Field("What a reciprocal rank counts for the first place.", 60),
        "share": Field("What relative scores are divided by, such as the queries' number.", 4),
    }

    def gives(self, step: Merge) -> bool:
        return step.limit is None  # what a limit leaves out is known at the end only

    def inputs(self, step: Merge, given: Mapping[str, Any]) -> dict[str, Any]:
        for name in step.sources:
            hits_of(step, given[name])
        return {}

    def result(self, step: Merge, given: Mapping[str, Any], result: Any) -> object:
        return fused(step, [hit_lists_of(step, given[name]) for name in step.sources])

    def so_far(self, step: Merge, items: Sequence[Any], known: Sequence[Any]) -> tuple[Any, ...]:
        """The documents of some lists of hits that are not among the `known` ones."""
        try:
            hits = hits_of(step, list(items))
        except WeftlineError:
            return ()
        seen = {key_of(one["text"]) for one in known}
        fresh = {key_of(hit["text"]): hit for hit in reversed(hits)}
        return tuple(hit for key, hit in reversed(fresh.items()) if key not in seen)
