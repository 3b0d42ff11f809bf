"""The requests that a retriever is about to make: the embedding of its query, and the search.

The two requests are sent ahead as steps of one graph, where the embedding model and the store are
ours and at one server. A retriever that asks for exactly that gets their results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from llama_index.core.base.embeddings.base import mean_agg
from llama_index.core.indices.vector_store import VectorIndexRetriever
from llama_index.core.schema import QueryBundle
from llama_index.core.vector_stores.types import VectorStoreQueryMode
from llama_index.llms.weftline.plan.node_rerank import RankedNodes, rank_step, rerank_of
from llama_index.llms.weftline.trace.run_provenance import SessionRun

from weftline.contract.steps import Embed, Mean, Search, Source, Step
from weftline.errors import InvalidRequest
from weftline.kit import Result, RunFeed, Server
from weftline.kit.retrieval_requests import AnswerSteps, vectors_of
from weftline.kit.server_fields import ServerFields

DEFAULT_NODE_TOKENS = 1024  # LlamaIndex's, for a splitter that does not say it
MAX_TEXTS = 16  # that are embedded for one query


def found_in(number: int) -> str:
    """The variable of a query's hits, in graph `number` of a session."""
    return f"hits_{number}"


def ranked_in(number: int) -> str:
    """The variable of a query's best hits, in graph `number` of a session."""
    return f"ranked_{number}"


def embedded_in(number: int, texts: Sequence[str]) -> list[str]:
    """The variables of the embeddings of a query's texts, in graph `number` of a session."""
    return [f"embedded_{number}", *(f"embedded_{number}_{at}" for at in range(1, len(texts)))]


@dataclass(frozen=True, slots=True)
class NodeSearch:
    """The requests of a retriever that finds nodes by their embedding.

    The finding embeds each of `texts`, which are the query alone or, for HyDE, a passage and the
    query. The search takes the mean of their vectors. `k` and `node_tokens` bound what the search
    finds, if the index's splitter made the nodes. `rerank` ranks the nodes, if an engine's first
    postprocessor is a WeftlineRerank.
    """

    retriever: Any  # a VectorIndexRetriever
    server: Server
    query: str
    texts: tuple[str, ...]
    node_tokens: int
    rerank: Any = None

    @property
    def k(self) -> int:
        """The most nodes that it finds, and keeps."""
        found = int(self.retriever.similarity_top_k)
        return found if self.rerank is None else min(found, self.rerank.top_n)

    def embedding(self, text: str) -> AnswerSteps:
        asked: AnswerSteps = self.retriever._embed_model.asked([text])
        return asked

    def search(self, vectors: list[list[float]]) -> AnswerSteps:
        """The request for the nodes that are nearest to the mean of `vectors`."""
        bundle = QueryBundle(self.query, embedding=mean_agg(vectors))
        query = self.retriever._build_vector_store_query(bundle)
        asked: AnswerSteps = self.retriever._vector_store.asked(query)
        return asked

    def steps(
        self, embedded: Sequence[str], hits: str, sources: Sequence[Source] = ()
    ) -> tuple[Step, ...]:
        """All as steps of a graph, which write these variables. `sources` replace the texts."""
        sources = sources or [Source(value=text) for text in self.texts]
        (embed,), (search,) = self.embedding(self.texts[0]).steps, self.search([[0.0]]).steps
        assert isinstance(embed, Embed) and isinstance(search, Search)
        made: list[Step] = [
            replace(embed, in_=source, out=name)
            for source, name in zip(sources, embedded, strict=True)
        ]
        near = embedded[0]
        if len(embedded) > 1:
            near = f"mean_{embedded[0]}"
            made.append(Mean(parts=tuple(Source(var=name) for name in embedded), out=near))
        return (*made, replace(search, in_=Source(var=near), out=hits or None))

    def ranking(
        self, hits: str, ranked: str | None, query: Source | None = None
    ) -> tuple[Step, ...]:
        """The step that ranks the hits, if the variable `ranked` is to be written."""
        if ranked is None:
            return ()
        return (rank_step(self.rerank, query or Source(value=self.query), hits, ranked),)


@dataclass(frozen=True, slots=True)
class SearchGraph:
    """A finding as steps, and their variables: its embeddings, its hits, and the best of them."""

    finding: NodeSearch
    embedded: tuple[str, ...]
    hits: str
    ranked: str | None  # if it ranks

    @classmethod
    def of(cls, finding: NodeSearch, number: int) -> SearchGraph:
        """The finding in graph `number` of a session."""
        ranked = None if finding.rerank is None else ranked_in(number)
        return cls(finding, tuple(embedded_in(number, finding.texts)), found_in(number), ranked)

    @property
    def read(self) -> str:
        """The variable that the engine's calls read."""
        return self.ranked or self.hits

    @property
    def watch(self) -> tuple[str, ...]:
        """All that the client waits for."""
        return (*self.embedded, self.hits, *([] if self.ranked is None else [self.ranked]))

    def steps(self) -> tuple[Step, ...]:
        """The steps that write the variables."""
        found = self.finding.steps(self.embedded, self.hits)
        return (*found, *self.finding.ranking(self.hits, self.ranked))

    def found(self, results: Mapping[str, Result]) -> NodeHits:
        """The results of the finding."""
        ranked = None if self.ranked is None else results[self.ranked]
        embedded = [results[name] for name in self.embedded]
        return NodeHits(self.finding, embedded, results[self.hits], ranked)


def finding_of(retriever: Any, query: Any) -> NodeSearch | None:
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
        or not 0 < len(query.embedding_strs) <= MAX_TEXTS
        or retriever._vector_store_query_mode is not VectorStoreQueryMode.DEFAULT
        or embeds.embeddings_cache
        or getattr(embeds, "rate_limiter", None) is not None
    ):
        return None
    splitters = (getattr(one, "chunk_size", None) for one in retriever._index._transformations)
    tokens = next((size for size in splitters if size), DEFAULT_NODE_TOKENS)
    finding = NodeSearch(retriever, at, query.query_str, tuple(query.embedding_strs), tokens)
    try:
        finding.steps(embedded_in(0, finding.texts), "hits")
    except (ValueError, InvalidRequest):
        return None  # the retriever will raise the same
    return finding


def finding_of_engine(engine: Any, query: Any) -> NodeSearch | None:
    """What the engine's retriever will ask, and the reranking of what it finds."""
    finding = finding_of(engine.retriever, query)
    if finding is None:
        return None
    rerank = rerank_of(engine._node_postprocessors, finding.server)
    return replace(finding, rerank=rerank)


def is_served(model: Any) -> bool:
    """Whether an embedding model or a store is one of ours."""
    return isinstance(model, ServerFields) and hasattr(model, "asked")


class NodeHits:
    """The results of a finding that was sent ahead. Each is given to one request."""

    def __init__(
        self,
        finding: NodeSearch,
        embedded: Sequence[Result],
        hits: Result,
        ranked: Result | None = None,
    ) -> None:
        self._finding = finding
        self._ranked = (
            None if ranked is None else RankedNodes(finding.rerank, finding.query, hits, ranked)
        )
        self._embedded = tuple(embedded)
        self._left = [*zip(finding.texts, embedded, strict=True)]
        self._hits: Result | None = hits
        self._lock = Lock()

    def is_for(self, retriever: Any, query: Any) -> bool:
        """Whether it has what `retriever` asks for the query."""
        ours = self._finding
        return (
            ours.retriever is retriever
            and isinstance(query, QueryBundle)
            and (query.query_str, *query.embedding_strs) == (ours.query, *ours.texts)
        )

    def covers(self, retriever: Any, query: Any) -> bool:
        """Whether what `retriever` asks for `query` was sent ahead: it is all of the query."""
        return True

    def claim(self, server: Server, asked: AnswerSteps) -> Result | None:
        """The result for a request equal to one of the finding's, if it is not claimed yet."""
        ranked = None if self._ranked is None else self._ranked.claim(server, asked)
        if ranked is not None:
            return ranked
        if server.place != self._finding.server.place:
            return None
        with self._lock:
            for at, (text, result) in enumerate(self._left):
                if asked == self._finding.embedding(text):
                    del self._left[at]
                    return result
            if not self._is_search(asked):
                return None
            hits, self._hits = self._hits, None
            return hits

    def _is_search(self, asked: AnswerSteps) -> bool:
        done = [result.value for result in self._embedded]
        if any(not d.done() or d.cancelled() or d.exception() is not None for d in done):
            return False
        values: list[Mapping[str, Any]] = [one.result().value for one in done]
        return asked == self._finding.search([vectors_of(value)[0] for value in values])


class LoneSearch:
    """A finding that was sent ahead without a call after it.

    The finding joins the session of `run`. Without a run the finding has a session of its own,
    which ends with the finding.
    """

    complete = has_left = False
    askings: Sequence[Any] = ()

    def __init__(self, finding: NodeSearch, run: SessionRun | None) -> None:
        self._finding, self._run = finding, run
        self._feed = RunFeed(finding.server, joins=None if run is None else run.alias)
        self.found: NodeHits | None = None

    def start(self) -> None:
        """Submit the embeddings, the search and the reranking."""
        run = self._run
        search = SearchGraph.of(self._finding, 0 if run is None else run.reserve(1))
        self._feed.send((), search.watch, steps=search.steps(), close=run is None)
        if run is not None:
            run.join(self._feed)
        self.found = search.found(self._feed.results)

    def leave(self) -> None:
        """Note that the retriever has ended."""
        self._feed.close()
