"""The requests that a retriever is about to make: the embedding of its query, and the search.

Both are sent ahead as steps of one graph, where the embedding model and the store are ours and at
one server. A retriever that asks for exactly that gets their results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from llama_index.core.indices.vector_store import VectorIndexRetriever
from llama_index.core.schema import QueryBundle
from llama_index.core.vector_stores.types import VectorStoreQueryMode
from llama_index.llms.weftline.provenance import Run

from weftline.adapters import Feed, Result, Server
from weftline.adapters.fields import ServerFields
from weftline.adapters.retrieval import Asked, vectors_of
from weftline.errors import InvalidRequest
from weftline.steps import Embed, Search, Source

DEFAULT_NODE_TOKENS = 1024  # LlamaIndex's, for a splitter that does not say it


def found_in(number: int) -> tuple[str, str]:
    """The variables of a query's embedding and of its hits, in graph `number` of a session."""
    return f"embedded_{number}", f"hits_{number}"


@dataclass(frozen=True, slots=True)
class Finding:
    """The two requests of a retriever that finds nodes by their embedding.

    `k` and `node_tokens` bound what it finds, if the index's splitter made the nodes.
    """

    retriever: Any  # a VectorIndexRetriever
    server: Server
    query: str
    node_tokens: int

    @property
    def k(self) -> int:
        """The most nodes that it finds."""
        return int(self.retriever.similarity_top_k)

    @property
    def embedding(self) -> Asked:
        """The request for the query's embedding."""
        asked: Asked = self.retriever._embed_model.asked([self.query])
        return asked

    def search(self, vector: list[float]) -> Asked:
        """The request for the nodes that are nearest to `vector`."""
        query = self.retriever._build_vector_store_query(QueryBundle(self.query, embedding=vector))
        asked: Asked = self.retriever._vector_store.asked(query)
        return asked

    def steps(self, embedded: str, hits: str, query: Source | None = None) -> tuple[Embed, Search]:
        """Both as steps of a graph, which write these variables. `query` replaces the query."""
        (embed,), (search,) = self.embedding.steps, self.search([0.0]).steps
        assert isinstance(embed, Embed) and isinstance(search, Search)
        return (
            replace(embed, in_=query or Source(value=self.query), out=embedded),
            replace(search, in_=Source(var=embedded), out=hits or None),
        )


def finding_of(retriever: Any, query: Any) -> Finding | None:
    """What `retriever` will ask for `query`; None where that is not certain, or not of a server."""
    if type(retriever) is not VectorIndexRetriever or not isinstance(query, QueryBundle):
        return None
    embeds: Any = retriever._embed_model
    store: Any = retriever._vector_store
    if not (is_served(embeds) and is_served(store)):
        return None
    at = embeds.server.server
    if (
        at.place != store.server.server.place
        or retriever._kwargs
        or query.embedding is not None
        or list(query.embedding_strs) != [query.query_str]
        or retriever._vector_store_query_mode is not VectorStoreQueryMode.DEFAULT
        or embeds.embeddings_cache
        or embeds.rate_limiter is not None
    ):
        return None
    splitters = (getattr(one, "chunk_size", None) for one in retriever._index._transformations)
    tokens = next((size for size in splitters if size), DEFAULT_NODE_TOKENS)
    finding = Finding(retriever, at, query.query_str, tokens)
    try:
        finding.steps("embedded", "hits")
    except (ValueError, InvalidRequest):
        return None  # the retriever will raise the same
    return finding


def is_served(model: Any) -> bool:
    """Whether an embedding model or a store is one of ours."""
    return isinstance(model, ServerFields) and hasattr(model, "asked")


class Found:
    """The results of a finding that was sent ahead. Each is given to one request."""

    def __init__(self, finding: Finding, embedded: Result, hits: Result) -> None:
        self._finding = finding
        self._left: dict[str, Result] = {"embedded": embedded, "hits": hits}
        self._embedded = embedded
        self._lock = Lock()

    def is_for(self, retriever: Any, query: str | None) -> bool:
        """Whether it has what `retriever` asks for the text `query`."""
        return self._finding.retriever is retriever and self._finding.query == query

    def covers(self, retriever: Any, query: Any) -> bool:
        """Whether what `retriever` asks for `query` was sent ahead: it is all of the query."""
        return True

    def claim(self, server: Server, asked: Asked) -> Result | None:
        """The result for a request equal to one of the finding's, if it is not claimed yet."""
        if server.place != self._finding.server.place:
            return None
        kind = "embedded" if asked == self._finding.embedding else "hits"
        if kind == "hits" and not self._is_search(asked):
            return None
        with self._lock:
            return self._left.pop(kind, None)

    def _is_search(self, asked: Asked) -> bool:
        done = self._embedded.value
        if not done.done() or done.cancelled() or done.exception() is not None:
            return False
        value: Mapping[str, Any] = done.result().value
        return asked == self._finding.search(vectors_of(value)[0])


class Lookup:
    """A finding that was sent ahead without a call after it.

    It joins the session of `run`. Without a run it has a session of its own, which ends with it.
    """

    complete = has_left = False

    def __init__(self, finding: Finding, run: Run | None) -> None:
        self._finding, self._run = finding, run
        self._feed = Feed(finding.server, joins=None if run is None else run.alias)
        self.found: Found | None = None

    def start(self) -> None:
        """Submit the embedding and the search."""
        run = self._run
        embedded, hits = names = found_in(0 if run is None else run.reserve(1))
        steps = self._finding.steps(embedded, hits)
        self._feed.send((), names, steps=steps, close=run is None)
        if run is not None:
            run.join(self._feed)
        results = self._feed.results
        self.found = Found(self._finding, results[embedded], results[hits])

    def leave(self) -> None:
        """Note that the retriever has ended."""
        self._feed.close()
