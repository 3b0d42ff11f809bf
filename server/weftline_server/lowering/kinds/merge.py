"""Kind `merge`: the server makes one list of several lists of hits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, ClassVar

from weftline.contract.errors import WeftlineError
from weftline.contract.steps import Merge
from weftline.contract.transforms.hits import identity_of
from weftline_server.graph.primitive import Traits, Where
from weftline_server.lowering.item_kinds import ItemKind, hit_lists_of, hits_of, key_of
from weftline_server.lowering.step import Field, Says

Hit = dict[str, Any]
# What is added to a document's score for its hit in each place of a list.
Parts = list[float]
_DEVIATIONS = 3  # from the mean of a list's scores to 0 and to 1, as in LlamaIndex's fusion


class MergeKind(ItemKind[Merge]):
    """The value has each document once. Scores are added in the order of the lists, as LangChain
    and LlamaIndex add them, so that the sums are equal to the last bit."""

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
        kept: dict[Any, Hit] = {}
        scores: defaultdict[Any, float] = defaultdict(float)
        for hits, weight in _weighted(step, given):
            for hit, part in zip(hits, _parts(step, hits, weight), strict=True):
                key = _key(step, hit)
                first = key not in kept
                kept.setdefault(key, hit)
                if step.rank in ("score", "order"):
                    scores[key] = part if first else max(part, scores[key])
                else:
                    scores[key] += part
        found = [_scored(hit, scores[key]) for key, hit in kept.items()]
        if step.rank != "order":
            found.sort(key=lambda hit: -hit.get("score", 0.0))  # ties stay in order of arrival
        return found[: step.limit]

    def so_far(self, step: Merge, items: Sequence[Any], known: Sequence[Any]) -> tuple[Any, ...]:
        """The documents of some lists of hits that are not among the `known` ones."""
        try:
            hits = hits_of(step, list(items))
        except WeftlineError:
            return ()
        seen = {key_of(one["text"]) for one in known}
        fresh = {key_of(hit["text"]): hit for hit in reversed(hits)}
        return tuple(hit for key, hit in reversed(fresh.items()) if key not in seen)


def _weighted(step: Merge, given: Mapping[str, Any]) -> Iterable[tuple[list[Hit], float]]:
    """All lists with their weights: the first list of each input, then the second ones."""
    weights = step.weights or (1.0,) * len(step.sources)
    by_input = [
        [(hits, weight) for hits in hit_lists_of(step, given[name])]
        for name, weight in zip(step.sources, weights, strict=True)
    ]
    return (one for one in chain.from_iterable(zip_longest(*by_input)) if one is not None)


def _key(step: Merge, hit: Hit) -> Any:
    """What equal documents have in common. Raises TransformFailed for what is no node."""
    return identity_of(hit) if step.by == "node" else hit.get(step.by, hit["text"])


def _scored(hit: Hit, score: float) -> Hit:
    """The hit with its score. A hit that had none, and gets none, stays as it is."""
    return hit if score == hit.get("score", 0.0) else {**hit, "score": score}


def _parts(step: Merge, hits: list[Hit], weight: float) -> Parts:
    """What each hit of a list adds to its document's score."""
    scores = [hit.get("score", 0.0) for hit in hits]
    match step.rank:
        case "score" | "order":
            return scores
        case "reciprocal":
            return [weight / (step.first + place) for place in range(len(hits))]
        case "relative":
            least, most = min(scores, default=0.0), max(scores, default=0.0)
        case "distribution":
            mean = sum(scores) / max(1, len(scores))
            spread = (sum((one - mean) ** 2 for one in scores) / max(1, len(scores))) ** 0.5
            least, most = mean - _DEVIATIONS * spread, mean + _DEVIATIONS * spread
    if most == least:
        return [(1.0 if most > 0 else 0.0) * weight / step.share] * len(hits)
    return [(one - least) / (most - least) * weight / step.share for one in scores]
