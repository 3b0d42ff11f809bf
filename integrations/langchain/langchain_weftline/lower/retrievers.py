"""Retrievers that ask a model or other retrievers: their calls and searches join the graph."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.vectorstores import VectorStoreRetriever

from langchain_weftline.lower.classic import COMPRESSING, asking
from langchain_weftline.lower.compression import Compression
from langchain_weftline.lower.maps import Maps
from langchain_weftline.lower.searches import Searches, Terms, check_unheard, query_of
from langchain_weftline.lower.steps import Fork, Handler, Lowerer, Step, Steps
from langchain_weftline.lower.symbols import CannotCompile, is_list_of_texts, name_of
from langchain_weftline.retrieval.vectorstore import documents_of, unique_documents_of
from weftline.adapters.retrieval import Item

_MULTI_QUERY = "langchain_classic.retrievers.multi_query"


class Retrievers:
    """Lowers MultiQueryRetriever, EnsembleRetriever and ContextualCompressionRetriever.

    A retriever that callbacks want to hear of stays as it is: its runs are part of the run tree.
    """

    def __init__(self, lowering: Lowerer, searches: Searches, maps: Maps) -> None:
        self._lowering = lowering
        self._searches = searches
        self._handlers: Mapping[str, Handler] = MappingProxyType(
            {
                f"{_MULTI_QUERY}.MultiQueryRetriever": self._multi_query,
                "langchain_classic.retrievers.ensemble.EnsembleRetriever": self._ensemble,
                COMPRESSING: Compression(lowering, maps).retriever,
            }
        )

    def handler(self, cls: type[Any]) -> Handler | None:
        """The handler of exactly this class, by name, so that langchain-classic is not imported."""
        return self._handlers.get(f"{cls.__module__}.{cls.__qualname__}")

    def _multi_query(self, step: Step, value: Any) -> Steps:
        """A model writes several queries, and each is searched for."""
        retriever = step.runnable
        check_unheard(self._lowering, step)
        if retriever.verbose and logging.getLogger(_MULTI_QUERY).isEnabledFor(logging.INFO):
            raise CannotCompile(retriever, "LangChain logs its queries")
        chain = retriever.llm_chain
        if hasattr(chain, "output_key"):  # an LLMChain
            chain = asking(chain)
        terms, reason = self._terms(step.of(retriever.retriever))
        original = None
        if terms is not None and retriever.include_original:
            try:
                original = query_of(retriever, value)
            except CannotCompile as error:
                terms, reason = None, error.reason
        asked = step.of(chain, "queries")
        queries = yield from self._lowering.step(asked, {"question": value})
        if terms is None or not is_list_of_texts(queries):
            given = {"queries": queries, "original": value if retriever.include_original else None}
            retrieve = step.of(_Retrieve(retriever))
            return (yield from self._lowering.run(retrieve, given, reason))
        if original is None:
            return self._searches.found(step, terms, queries, unique_documents_of)
        found = [
            self._searches.found(step, terms, queries, _all_documents_of),
            self._searches.found(step.of(retriever, "original"), terms, original, documents_of),
        ]
        join = step.of(_Union(retriever))
        reason = "the client joins what the queries and the question have found"
        return (yield from self._lowering.run(join, found, reason))

    def _terms(self, step: Step) -> tuple[Terms | None, str]:
        """How the server searches for a query. If it cannot: None, and the reason."""
        if type(step.runnable) is not VectorStoreRetriever:
            return None, f"{name_of(step.runnable)} searches in the client for each query"
        try:
            return self._searches.terms(step), "its chain may give something else than texts"
        except CannotCompile as error:
            return None, error.reason

    def _ensemble(self, step: Step, value: Any) -> Steps:
        """Several retrievers search for one query, and their results are ranked together.

        The client's own retrievers are asked one after the other, as in LangChain.
        """
        ensemble = step.runnable
        check_unheard(self._lowering, step)
        retrievers = dict(enumerate(ensemble.retrievers))
        own = [number for number, one in retrievers.items() if self._is_clients(step.of(one))]
        if len(own) == len(retrievers):
            raise CannotCompile(ensemble, "its retrievers are in the client")
        parts = {
            number: self._lowering.step(step.of(one, f"retriever[{number}]"), value)
            for number, one in retrievers.items()
            if number not in own
        }
        if own:
            ask = step.of(_Ask([retrievers[number] for number in own]))
            parts[own[0]] = self._lowering.run(ask, value, "these retrievers are in the client")
        order = sorted(parts)
        found = dict(zip(order, (yield Fork(tuple(parts[key] for key in order))), strict=True))
        rank = step.of(_Rank(ensemble, own))
        return (yield from self._lowering.run(rank, found, "the client ranks what was found"))

    def _is_clients(self, step: Step) -> bool:
        """Whether LangChain asks this retriever."""
        retriever = step.runnable
        if not isinstance(retriever, BaseRetriever) or self.handler(type(retriever)) is not None:
            return False
        return self._terms(step)[0] is None


class _Retrieve(Runnable[Mapping[str, Any], list[Document]]):
    """The searches of a MultiQueryRetriever, for queries that the server has written."""

    def __init__(self, retriever: Any) -> None:
        self.name = type(retriever).__name__
        self._retriever = retriever

    def invoke(
        self, input: Mapping[str, Any], config: RunnableConfig | None = None, **_: Any
    ) -> list[Document]:
        base = self._retriever.retriever
        lists = [base.invoke(query, config) for query in _queries(input)]
        return _union(self._retriever, lists)

    async def ainvoke(
        self, input: Mapping[str, Any], config: RunnableConfig | None = None, **_: Any
    ) -> list[Document]:
        base = self._retriever.retriever
        lists = await asyncio.gather(*(base.ainvoke(query, config) for query in _queries(input)))
        return _union(self._retriever, lists)


class _Union(Runnable[Sequence[list[Document]], list[Document]]):
    """Joins what a MultiQueryRetriever has found, each document once."""

    def __init__(self, retriever: Any) -> None:
        self.name = type(retriever).__name__
        self._retriever = retriever

    def invoke(
        self, input: Sequence[list[Document]], config: RunnableConfig | None = None, **_: Any
    ) -> list[Document]:
        return _union(self._retriever, input)


class _Ask(Runnable[Any, list[Any]]):
    """Asks several retrievers of the client."""

    def __init__(self, retrievers: Sequence[Any]) -> None:
        self.name = ", ".join(type(retriever).__name__ for retriever in retrievers)
        self._retrievers = retrievers

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> list[Any]:
        return [retriever.invoke(input, config) for retriever in self._retrievers]

    async def ainvoke(
        self, input: Any, config: RunnableConfig | None = None, **_: Any
    ) -> list[Any]:
        return await asyncio.gather(*(one.ainvoke(input, config) for one in self._retrievers))


class _Rank(Runnable[Mapping[int, list[Any]], list[Document]]):
    """Ranks the documents that the retrievers of an EnsembleRetriever have found. The input has a
    list for each number of a retriever. The lists of the client's own retrievers, whose numbers are
    `own`, are together under the first of these numbers.
    """

    def __init__(self, ensemble: Any, own: Sequence[int]) -> None:
        self.name = type(ensemble).__name__
        self._ensemble = ensemble
        self._own = own

    def invoke(
        self, input: Mapping[int, list[Any]], config: RunnableConfig | None = None, **_: Any
    ) -> list[Document]:
        found = dict(input)
        if self._own:
            found |= dict(zip(self._own, found[self._own[0]], strict=True))
        lists = [[_document(one) for one in found[number]] for number in sorted(found)]
        ranked: list[Document] = self._ensemble.weighted_reciprocal_rank(lists)
        return ranked


def _document(found: Any) -> Any:
    return Document(page_content=found) if isinstance(found, str) else found


def _queries(given: Mapping[str, Any]) -> list[str]:
    original = given["original"]
    return [*given["queries"], *([] if original is None else [original])]


def _union(retriever: Any, lists: Sequence[list[Document]]) -> list[Document]:
    documents: list[Document] = retriever.unique_union([doc for docs in lists for doc in docs])
    return documents


def _all_documents_of(lists: Sequence[Sequence[Item]]) -> list[Document]:
    return [document for hits in lists for document in documents_of(hits)]
