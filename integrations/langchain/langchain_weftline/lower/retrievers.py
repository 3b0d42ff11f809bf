"""Retrievers that ask a model or other retrievers: their calls and searches begin early.

LangChain runs the retrievers. It joins and ranks what they find.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from langchain_core.prompts import BasePromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.vectorstores import VectorStoreRetriever

from langchain_weftline.chat_models import ChatWeftline
from langchain_weftline.lower.chain_steps import ChainStep, Handler, Lowerer
from langchain_weftline.lower.classic import COMPRESSING, asking, question_of_each
from langchain_weftline.lower.drafts import Terms
from langchain_weftline.lower.maps import Maps
from langchain_weftline.lower.searches import Searches, query_of
from langchain_weftline.lower.symbols import (
    AnswerMessage,
    CannotCompile,
    HoleText,
    Ref,
    ValueKind,
    is_list_of_texts,
    name_of,
)
from langchain_weftline.retrieval.rerank import WeftlineRerank
from langchain_weftline.retrieval.vectorstore import WeftlineRetriever
from weftline.errors import InvalidRequest

_DOCUMENTS = (ValueKind.DOCUMENTS, ValueKind.UNIQUE_DOCUMENTS)
_JOINED = "LangChain joins what the queries and the question have found"
_KEPT = "LangChain keeps of the documents what the model says"


class Retrievers:
    """Lowers MultiQueryRetriever, EnsembleRetriever and ContextualCompressionRetriever."""

    def __init__(self, lowering: Lowerer, searches: Searches, maps: Maps) -> None:
        self._lowering = lowering
        self._searches = searches
        self._maps = maps
        # What compressing retrievers ask about each document, by the names of their runs.
        self.compressing: dict[str, Any] = {}
        self._handlers: Mapping[str, Handler] = MappingProxyType(
            {
                "langchain_classic.retrievers.multi_query.MultiQueryRetriever": self._multi_query,
                "langchain_classic.retrievers.ensemble.EnsembleRetriever": self._ensemble,
                COMPRESSING: self._compression,
            }
        )

    def handler(self, cls: type[Any]) -> Handler | None:
        """The handler of exactly this class, by name, so that langchain-classic is not imported."""
        return self._handlers.get(f"{cls.__module__}.{cls.__qualname__}")

    def _multi_query(self, step: ChainStep, value: Any) -> Any:
        """A model writes several queries, and each is searched for."""
        retriever = step.runnable
        chain = retriever.llm_chain
        if hasattr(chain, "output_key"):  # an LLMChain
            chain = asking(chain)
        queries = self._lowering.step(step.of(chain, "queries"), {"question": value})
        terms, reason = self._terms(step.of(retriever.retriever))
        if terms is None:
            return self._lowering.unknown(step, reason)
        if retriever.include_original:
            original = query_of(retriever, value)
            self._searches.found(
                step.of(retriever, "original"), terms, original, ValueKind.DOCUMENTS
            )
        if not is_list_of_texts(queries):
            return self._lowering.unknown(step, "its chain may give something else than texts")
        found = self._searches.found(step, terms, queries, ValueKind.UNIQUE_DOCUMENTS)
        return self._lowering.unknown(step, _JOINED) if retriever.include_original else found

    def _terms(self, step: ChainStep) -> tuple[Terms | None, str]:
        """How the server searches for a query. If it cannot: None, and the reason."""
        if type(step.runnable) not in (VectorStoreRetriever, WeftlineRetriever):
            return None, f"{name_of(step.runnable)} searches in the client for each query"
        try:
            return self._searches.terms(step), ""
        except CannotCompile as error:
            return None, error.reason

    def _ensemble(self, step: ChainStep, value: Any) -> Any:
        """Several retrievers search for one query, and what they find is ranked."""
        ensemble = step.runnable
        found = [
            self._lowering.part(step.of(retriever, f"retriever[{number}]"), value)
            for number, retriever in enumerate(ensemble.retrievers)
        ]
        if not all(isinstance(one, Ref) and one.kind in _DOCUMENTS for one in found):
            return self._lowering.unknown(step, "LangChain ranks what was found")
        if ensemble.id_key is not None:
            return self._lowering.unknown(
                step, f"its documents are told apart by {ensemble.id_key!r}"
            )
        try:
            return self._searches.fused(step, found, ensemble.weights, ensemble.c)
        except InvalidRequest:
            return self._lowering.unknown(step, "its weights or its c is not what a merge takes")

    def _compression(self, step: ChainStep, value: Any) -> Any:
        """The documents are reranked, or a model is asked about each document by itself.

        Where the server has found the documents, it goes on as soon as it has them.
        """
        compressing = step.runnable
        base = compressing.base_retriever
        if not isinstance(base, BaseRetriever):
            raise CannotCompile(compressing, "what finds its documents is no retriever")
        found = self._lowering.step(step.of(base, "found"), value)
        if type(compressing.base_compressor) is WeftlineRerank:
            return self._reranked(step, found, value)
        chain = _asking(compressing)
        if not isinstance(found, Ref) or found.kind is not ValueKind.DOCUMENTS:
            self.compressing[step.config.get("run_name") or compressing.get_name()] = chain
            return self._lowering.unknown(step, "its documents are known only in the run")
        if not isinstance(value, (str, HoleText)) and not (
            isinstance(value, Ref) and value.is_text
        ):
            raise CannotCompile(compressing, "its query is not one text")
        texts: Runnable[Any, Any] = RunnableSequence(chain.first, *chain.middle)

        def body(item: Ref) -> Any:
            text = item.then({"op": "path", "keys": ["text"]}, is_text=True)
            given = {"question": value, "context": text}
            answer = self._lowering.part(ChainStep(texts, step.config), given)
            return answer.text if isinstance(answer, AnswerMessage) else answer

        hits = Ref(found.var, found.transforms, is_text=False)
        self._maps.over(step.of(chain, "compress"), hits, body)
        return self._lowering.unknown(step, _KEPT)

    def _reranked(self, step: ChainStep, found: Any, value: Any) -> Any:
        """The documents that a WeftlineRerank keeps."""
        if not isinstance(found, Ref) or found.kind not in _DOCUMENTS:
            return self._lowering.unknown(step, "its documents are known only in the run")
        query = query_of(step.runnable, value)
        return self._searches.reranked(step, step.runnable.base_compressor, found, query)


def _asking(compressing: Any) -> Any:
    """The prompt, model and parser that a compressing retriever runs on each document.

    Raises CannotCompile where LangChain does something else.
    """
    chain = question_of_each(compressing)
    if chain is None:
        name = type(compressing.base_compressor).__name__
        raise CannotCompile(compressing, f"its {name} is not among those that are known")
    if type(chain) is not RunnableSequence or len(chain.steps) != 3:
        raise CannotCompile(compressing, "its chain is of another class than usual")
    prompt, model, _ = chain.steps
    while isinstance(model, RunnableBindingBase):
        model = model.bound
    if not isinstance(prompt, BasePromptTemplate) or type(model) is not ChatWeftline:
        raise CannotCompile(compressing, "its chain does not ask a ChatWeftline")
    return chain
