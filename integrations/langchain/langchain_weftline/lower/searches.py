"""Retrievers over a store of the server: each one's embedding and search are steps of the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from langchain_core.runnables.config import get_callback_manager_for_config
from langchain_core.vectorstores import VectorStoreRetriever

from langchain_weftline.lower.steps import Fetch, Handler, Lowerer, Step, Steps
from langchain_weftline.lower.symbols import CannotCompile, Local, Make, Ref, Unknown
from langchain_weftline.lower.texts import can_be_sent
from langchain_weftline.model.answers import new_variable
from langchain_weftline.retrieval.vectorstore import (
    StoreInServer,
    WeftlineVectorStore,
    documents_of,
)
from langchain_weftline.trace.audience import hears_retrievers
from weftline.adapters import Server
from weftline.contract import steps
from weftline.errors import WeftlineError

_DEFAULT_K = 4  # of LangChain's vector stores
_STEP = "retriever: "  # begins the steps' names: the server's errors name the step that failed


@dataclass(frozen=True, slots=True)
class Terms:
    """Where a retriever searches, and what it wants to find."""

    store: StoreInServer
    k: int
    filter: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SearchDraft:
    """The search of one retriever. The hits become the variable `var`.

    The `query` is a text, or a variable of the server, which may be a list of texts.
    """

    var: str
    query: str | Ref
    embedded: str
    name: str
    terms: Terms

    @property
    def reads(self) -> tuple[str, ...]:
        """The variable of its query, if the server has it."""
        return (self.query.var,) if isinstance(self.query, Ref) else ()

    def steps(self) -> tuple[steps.Embed, steps.Search]:
        """The two steps of the submit."""
        if isinstance(self.query, Ref):
            source = steps.Source(var=self.query.var, transforms=self.query.transforms)
        else:
            source = steps.Source(value=self.query)
        embedder = self.terms.store.embedder
        embed = embedder.step(source, self.embedded, f"{_STEP}embed{self.name}")
        search = steps.Search(
            in_=steps.Source(var=self.embedded),
            out=self.var,
            store=self.terms.store.name,
            k=self.terms.k,
            filter=dict(self.terms.filter),
            name=f"{_STEP}search{self.name}",
        )
        return embed, search


class StepDraft(Protocol):
    """One or more steps of the graph before they are submitted. The steps make the variable
    `var`."""

    @property
    def var(self) -> str:
        """The variable that they make."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The variables that they read."""

    def steps(self) -> tuple[steps.Step, ...]:
        """The steps of the submit."""


class Searches:
    """Lowers retrievers, and collects in `drafts` the steps that are not submitted yet."""

    def __init__(self, lowering: Lowerer, mint: Callable[[], str] = new_variable) -> None:
        self._lowering = lowering
        self._mint = mint
        self.drafts: list[StepDraft] = []
        self.server: Server | None = None  # of all searches so far

    @property
    def handlers(self) -> Mapping[type, Handler]:
        return {VectorStoreRetriever: self._retriever}

    def _retriever(self, step: Step, value: Any) -> Steps:
        """A retriever of a vector store, if the server holds the store and embeds the query."""
        terms = self.terms(step)
        if isinstance(value, Local):
            value = yield Fetch(value)
        return self.found(step, terms, query_of(step.runnable, value), documents_of)

    def terms(self, step: Step) -> Terms:
        """The terms by which the retriever `step` searches. Raises CannotCompile if the server
        cannot search so."""
        retriever: VectorStoreRetriever = step.runnable
        kept = retriever.vectorstore
        if type(kept) is not WeftlineVectorStore:
            raise CannotCompile(retriever, f"its store {type(kept).__name__!r} is in the client")
        store = kept.in_server
        if store is None:
            raise CannotCompile(retriever, "the client embeds its queries")
        if self._lowering.mode.is_ahead:
            raise CannotCompile(retriever, "LangChain runs it, and the server the calls ahead")
        if self.server is not None and self.server.place != store.server.place:
            raise CannotCompile(retriever, "another store of the chain has another server")
        if is_heard(step):
            raise CannotCompile(retriever, "callbacks hear of it")
        k, filter = _terms(retriever)
        return Terms(store, k, filter)

    def found(self, step: Step, terms: Terms, query: str | Ref, make: Make) -> Ref:
        """The hits of a search for `query`, a text or a list of texts, made into documents."""
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
        return Ref(draft.var, is_text=False, make=make)

    def taken(self) -> list[StepDraft]:
        """The steps that are submitted now."""
        drafts, self.drafts = self.drafts, []
        return drafts

    def state(self) -> tuple[list[StepDraft], Server | None]:
        return list(self.drafts), self.server

    def restore(self, state: tuple[list[StepDraft], Server | None]) -> None:
        """Forget what was lowered since `state`."""
        self.drafts, self.server = state


def is_of_search(failure: WeftlineError) -> bool:
    """Whether a retriever has failed, which then raises the server's error as it is."""
    return failure.call is not None and failure.call.startswith(_STEP)


def name_at(path: tuple[str, ...]) -> str:
    """The place in the chain, as the end of a step's name."""
    place = "".join(char if char.isprintable() else " " for char in ".".join(path))[:100]
    return f" for {place}" if place else ""


def is_heard(step: Step) -> bool:
    """Whether callbacks hear of retrievers. LangChain then runs the retriever, and tells the
    callbacks."""
    handlers = get_callback_manager_for_config(step.config).handlers
    return hears_retrievers(handlers)


def check_unheard(lowering: Lowerer, step: Step) -> None:
    """Raise CannotCompile for a retriever that LangChain runs: ahead of it, or for callbacks."""
    if lowering.mode.is_ahead:
        raise CannotCompile(step.runnable, "LangChain runs it, and the server the calls ahead")
    if is_heard(step):
        raise CannotCompile(step.runnable, "callbacks hear of it")


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
        return ""  # in a plan: the run has it
    if isinstance(value, Ref) and value.is_text and value.make is None:
        return value
    if type(value) is str and can_be_sent(value):
        return value
    raise CannotCompile(retriever, "its query is not one text")
