"""What the step `merge` makes of lists of hits, as LangChain and LlamaIndex fuse them.

Scores are added in the order of the lists, as the frameworks add them, so that the sums are equal
to the last bit. The server computes the step, and adapters what follows from its value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

from weftline.contract.retrieval_steps import Merge
from weftline.contract.transforms.hits import identity_of

Hit = Mapping[str, Any]
Lists = Sequence[Sequence[Hit]]  # of one input
_DEVIATIONS = 3  # from the mean of a list's scores to 0 and to 1, as in LlamaIndex's fusion


def lists_of(value: Sequence[Any]) -> Lists:
    """The lists of an input: one for each query. Hits that stand alone are one list."""
    return value if all(isinstance(one, list) for one in value) else [value]


def fused(step: Merge, inputs: Sequence[Lists]) -> list[dict[str, Any]]:
    """The documents, each once. Raises TransformFailed for what is no node, if `by` says so."""
    kept: dict[Any, Hit] = {}
    scores: defaultdict[Any, float] = defaultdict(float)
    for hits, weight in _weighted(step, inputs):
        for hit, part in zip(hits, _parts(step, hits, weight), strict=True):
            key = identity_of(hit) if step.by == "node" else hit.get(step.by, hit["text"])
            is_first = key not in kept
            kept.setdefault(key, hit)
            if step.rank in ("score", "order"):
                scores[key] = part if is_first else max(part, scores[key])
            else:
                scores[key] += part
    found = [_scored(hit, scores[key]) for key, hit in kept.items()]
    if step.rank != "order":
        found.sort(key=lambda hit: -hit.get("score", 0.0))  # ties stay in the order of arrival
    return found[: step.limit]


def _weighted(step: Merge, inputs: Sequence[Lists]) -> Iterable[tuple[Sequence[Hit], float]]:
    """All lists with their weights: the first list of each input, then the second ones."""
    weights = step.weights or (1.0,) * len(inputs)
    by_input = [
        [(hits, weight) for hits in lists] for lists, weight in zip(inputs, weights, strict=True)
    ]
    return (one for one in chain.from_iterable(zip_longest(*by_input)) if one is not None)


def _scored(hit: Hit, score: float) -> dict[str, Any]:
    """The hit with its score. A hit that had none, and gets none, stays as it is."""
    return dict(hit) if score == hit.get("score", 0.0) else {**hit, "score": score}


def _parts(step: Merge, hits: Sequence[Hit], weight: float) -> list[float]:
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
