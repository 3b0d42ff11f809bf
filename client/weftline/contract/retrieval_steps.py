"""The steps of embedders, rerankers and stores, as frozen dataclasses.

"Texts" means one text, or a list of texts or items. An item is an object with a `text`, and may
have an `id` and `metadata`. "Embedded texts" is one value: the items with their vectors. A search
reads that value and returns hits, which are items with a `score`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal

from weftline.contract.errors import InvalidRequest
from weftline.contract.step_base import MAX_K, MAX_PARTS, Parts, Reading, Source, StepBase


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed(Reading):
    """Embeds texts with the embedder `engine`. None means the first one.

    A text that is longer than the model takes fails the step, or is cut to
    `truncate_prompt_tokens`. -1 cuts it to what the model takes.
    """

    kind: Literal["embed"] = field(default_factory=lambda: "embed")
    engine: str | None = None
    truncate_prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest(Reading):
    """Adds embedded texts to `store`, or replaces those with equal ids.

    An ingest may run again, because a second run has no further effect. With `items` an ingest
    stores these items with the vectors, one for each, in place of the texts that were embedded.

    An item without an id gets the hash of its content. The value is {"ids": [...], "count": n}.
    """

    store: str
    items: Source | None = None
    kind: Literal["ingest"] = field(default_factory=lambda: "ingest")

    @property
    def sources(self) -> Mapping[str, Source]:
        """What it reads: the vectors, and the items if they are others."""
        return {"in": self.in_} if self.items is None else {"in": self.in_, "items": self.items}


@dataclass(frozen=True, slots=True, kw_only=True)
class Search(Reading):
    """Finds the `k` documents of `store` that are nearest to an embedded text, best first.

    The value is a list of hits. If a list of texts was embedded, it is one such list for each text.
    `filter` has metadata that a document must have.
    """

    store: str
    kind: Literal["search"] = field(default_factory=lambda: "search")
    k: int = 4
    filter: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(Reading):
    """Merges lists of hits into one list that has each document once: its first hit, with a score.

    Two hits are the same document if they have equal ids, with `by` "text" equal texts, and with
    "node" the text and the metadata of equal nodes of LlamaIndex. At most `limit` hits are kept.

    `rank` says what the scores are, and the best one comes first. "score" is a document's best one.
    "order" is that too, but the hits stay in the order of the lists. With "reciprocal" a
    document's score is the sum of weight / (`first` + its place in each list), where the first
    place is 0. With "relative" and "distribution" it is the sum of weight * s / `share`. There s is
    0 to 1 between the worst and the best score of a list, or between three standard deviations
    below and above the mean.

    `beside` has more lists, of other searches. Where each search has a list for each query, the
    lists of the first query come first. `weights` has a weight for `in` and for each of `beside`.
    """

    kind: Literal["merge"] = field(default_factory=lambda: "merge")
    by: Literal["id", "text", "node"] = "id"
    limit: int | None = None
    rank: Literal["score", "order", "reciprocal", "relative", "distribution"] = "score"
    beside: tuple[Source, ...] = ()
    weights: tuple[float, ...] = ()  # empty: each is 1
    first: int = 60
    share: int = 1

    def __post_init__(self) -> None:
        StepBase.__post_init__(self)  # super() fails here: slots=True makes a new class
        if len(self.beside) >= MAX_PARTS:
            raise InvalidRequest(f"a merge has at most {MAX_PARTS} inputs", param="beside")
        if self.weights and len(self.weights) != 1 + len(self.beside):
            raise InvalidRequest("a merge has one weight for each input", param="weights")
        if not all(isfinite(weight) for weight in self.weights):
            raise InvalidRequest("weights are finite numbers", param="weights")
        for name in ("first", "share"):
            if not 1 <= getattr(self, name) <= MAX_K:
                raise InvalidRequest(f"{name} must be between 1 and {MAX_K}", param=name)

    @property
    def sources(self) -> Mapping[str, Source]:
        """What it reads: `in`, and the others by their numbers."""
        return {"in": self.in_, **{str(at): one for at, one in enumerate(self.beside, 1)}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerank(Reading):
    """Keeps the `k` hits or texts that the reranker `engine` scores best for `query`.

    A text that is too long fails the step, or is cut as in an Embed.
    """

    query: Source
    kind: Literal["rerank"] = field(default_factory=lambda: "rerank")
    engine: str | None = None
    k: int | None = None  # None keeps all
    truncate_prompt_tokens: int | None = None

    @property
    def sources(self) -> Mapping[str, Source]:
        """What it reads: the texts and the query."""
        return {"in": self.in_, "query": self.query}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean(Parts):
    """The mean of the vectors of its `parts`, which are embedded texts: one vector to search with.

    Together the parts have at most 256 vectors, all of one width. The value is an embedded text: a
    search for it gives one list of hits.
    """

    kind: Literal["mean"] = field(default_factory=lambda: "mean")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete(Reading):
    """Deletes documents of `store` by their ids. The value is {"count": n}.

    With a `filter` it also deletes the documents whose metadata matches the filter.
    """

    store: str
    kind: Literal["delete"] = field(default_factory=lambda: "delete")
    filter: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch(Reading):
    """Reads the documents of `store` with the given ids, in that order. Unknown ids are left out.

    With a `filter` the documents whose metadata matches follow, in the order of their ids.
    """

    store: str
    kind: Literal["fetch"] = field(default_factory=lambda: "fetch")
    filter: dict[str, Any] = field(default_factory=dict, hash=False)
