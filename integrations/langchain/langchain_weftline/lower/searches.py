"""Retrievers over a store of the server: each one's embedding and search are steps of the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.vectorstores import VectorStoreRetriever

from langchain_weftline.lower.chain_steps import ChainStep, Handler, Lowerer
from langchain_weftline.lower.drafts import MergeDraft, RerankDraft, SearchDraft, StepDraft, Terms
from langchain_weftline.lower.symbols import CannotCompile, Ref, Unknown, ValueKind
from langchain_weftline.lower.texts import can_be_sent
from langchain_weftline.model.answers import new_variable
from langchain_weftline.retrieval.rerank import WeftlineRerank
from langchain_weftline.retrieval.vectorstore import WeftlineRetriever, WeftlineVectorStore
from weftline.contract import steps
from weftline.kit import Server

_DEFAULT_K = 4  # of LangChain's vector stores


class Searches:
    """Lowers retrievers, and collects in `drafts` the steps that are not submitted yet."""

    def __init__(self, lowering: Lowerer, mint: Callable[[], str] = new_variable) -> None:
        self._lowering = lowering
        self._mint = mint
        self.drafts: list[StepDraft] = []
        self.server: Server | None = None  # of all searches so far

    @property
    def handlers(self) -> Mapping[type, Handler]:
        return {VectorStoreRetriever: self._retriever, WeftlineRetriever: self._retriever}

    def _retriever(self, step: ChainStep, value: Any) -> Any:
        """A retriever of a vector store, if the server holds the store and embeds the query."""
        terms = self.terms(step)
        return self.found(step, terms, query_of(step.runnable, value), ValueKind.DOCUMENTS)

    def terms(self, step: ChainStep) -> Terms:
        """The terms by which the retriever `step` searches. Raises CannotCompile if the server
        cannot search so."""
        retriever: VectorStoreRetriever = step.runnable
        kept = retriever.vectorstore
        if type(kept) is not WeftlineVectorStore:
            raise CannotCompile(retriever, f"its store {type(kept).__name__!r} is in the client")
        if type(retriever) is not WeftlineRetriever:
            raise CannotCompile(retriever, "it was not made by the store's as_retriever()")
        store = kept.in_server
        if store is None:
            raise CannotCompile(retriever, "the client embeds its queries")
        if self.server is not None and self.server.place != store.server.place:
            raise CannotCompile(retriever, "another store of the chain has another server")
        k, filter = _terms(retriever)
        return Terms(store, k, filter)

    def found(self, step: ChainStep, terms: Terms, query: str | Ref, kind: ValueKind) -> Ref:
        """The hits of a search for `query`, a text or a list of texts."""
        draft = SearchDraft(
            var=self._mint(),
            query=query,
            embedded=self._mint(),
            name=name_at(step.path),
            terms=terms,
        )
        self.drafts.append(draft)
        self.server = terms.store.server
        why = f"embed, and search in store {terms.store.name!r}"
        self._lowering.note(step, why, in_server=True)
        return Ref(draft.var, is_text=False, kind=kind)

    def listed(self, step: ChainStep, found: Ref) -> str:
        """The variable of one list of the documents, each once, in the order of their lists."""
        if found.kind is not ValueKind.UNIQUE_DOCUMENTS:
            return found.var
        draft = MergeDraft(self._mint(), (found.var,), name_at(step.path), {"rank": "order"})
        self.drafts.append(draft)
        return draft.var

    def fused(self, step: ChainStep, found: Sequence[Ref], weights: Sequence[float], c: int) -> Ref:
        """The documents of several retrievers by their weighted reciprocal ranks."""
        hits = tuple(self.listed(step, one) for one in found)
        # LangChain counts places from 1.
        how = {"by": "text", "rank": "reciprocal", "weights": tuple(weights), "first": c + 1}
        draft = MergeDraft(self._mint(), hits, name_at(step.path), how)
        draft.steps()
        self.drafts.append(draft)
        self._lowering.note(step, "rank what was found", in_server=True)
        return Ref(draft.var, is_text=False, kind=ValueKind.DOCUMENTS)

    def reranked(
        self, step: ChainStep, rerank: WeftlineRerank, found: Ref, query: str | Ref
    ) -> Ref:
        """The best of the documents that were found. Raises CannotCompile if the reranker is at
        another server."""
        assert self.server is not None, "a search has found them"
        if rerank.server.server.place != self.server.place:
            raise CannotCompile(rerank, "the store has another server")
        if rerank.top_n is not None and rerank.top_n > steps.MAX_K:
            raise CannotCompile(rerank, "its top_n is more than a rerank keeps")
        draft = RerankDraft(
            var=self._mint(),
            hits=self.listed(step, found),
            query=query,
            server=rerank.server.server,
            engine=rerank.model,
            k=rerank.top_n,
            name=name_at(step.path),
        )
        self.drafts.append(draft)
        self._lowering.note(step, "rerank what was found", in_server=True)
        return Ref(draft.var, is_text=False, kind=ValueKind.DOCUMENTS)

    def state(self) -> tuple[list[StepDraft], Server | None]:
        return list(self.drafts), self.server

    def restore(self, state: tuple[list[StepDraft], Server | None]) -> None:
        """Forget what was lowered since `state`."""
        self.drafts, self.server = state


def name_at(path: tuple[str, ...]) -> str:
    """The place in the chain, as the end of a step's name."""
    place = "".join(char if char.isprintable() else " " for char in ".".join(path))[:100]
    return f" for {place}" if place else ""


def _terms(retriever: VectorStoreRetriever) -> tuple[int, Mapping[str, Any]]:
    """How many documents are wanted, and what their metadata must hold."""
    if retriever.search_type != "similarity":
        raise CannotCompile(retriever, f"the client searches by {retriever.search_type!r}")
    terms = dict(retriever.search_kwargs)
    k, filter = terms.pop("k", _DEFAULT_K), terms.pop("filter", None) or {}
    if terms:
        raise CannotCompile(retriever, f"its search has the argument {next(iter(terms))!r}")
    if type(k) is not int or not 1 <= k <= steps.MAX_K or type(filter) is not dict:
        raise CannotCompile(retriever, "its k or its filter is not what a search takes")
    return k, filter


def query_of(retriever: Any, value: Any) -> str | Ref:
    """The query of a search. Raises CannotCompile where it is not surely one text."""
    if isinstance(value, Unknown):
        raise CannotCompile(retriever, "its query is known only in the run")
    if isinstance(value, Ref) and value.is_text and value.kind is None:
        return value
    if type(value) is str and can_be_sent(value):
        return value
    raise CannotCompile(retriever, "its query is not one text")
