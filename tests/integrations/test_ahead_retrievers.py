"""Retrievers that ask a model: LangChain runs them, and the server begins their calls at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import LLMChainExtractor
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.tracers.base import BaseTracer
from langchain_core.tracers.schemas import Run

from langchain_weftline import ChatWeftline, accelerate
from tests.integrations.program_table import Shelf
from tests.integrations.recording import Recording

SUBMIT, CHAT = "/v1/submit", "/v1/chat/completions"


class Tree(BaseTracer):
    """The run tree, as nested names, types, inputs and errors."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: Run | None = None

    def _persist_run(self, run: Run) -> None:
        self.ended = run

    def of(self, name: str) -> Any:
        """The tree below the run `name`."""
        assert self.ended is not None
        return next(found for found in _all(self.ended) if found[0] == name)


def _shape(run: Run) -> tuple[Any, ...]:
    return run.name, run.run_type, run.error, [_shape(child) for child in run.child_runs]


def _all(run: Run) -> Iterator[tuple[Any, ...]]:
    yield _shape(run)
    for child in run.child_runs:
        yield from _all(child)


class Broken(BaseRetriever):
    """A retriever that fails."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        raise LookupError("no shelf")


def compressing(recording: Recording, base: BaseRetriever, **how: Any) -> Any:
    llm = ChatWeftline(base_url=recording.url, temperature=0, max_retries=0)
    extract = LLMChainExtractor.from_llm(llm, **how)
    return ContextualCompressionRetriever(base_compressor=extract, base_retriever=base)


def posted(recording: Recording) -> list[str]:
    return [path for verb, path, _ in recording.requests if verb == "POST"]


@pytest.mark.parametrize("is_async", [False, True], ids=["invoke", "ainvoke"])
def test_the_run_tree_is_the_plain_one(recording: Recording, is_async: bool) -> None:
    """All calls go in one request, and callbacks hear of each step as they do without it."""

    def run(chain: Any) -> tuple[Any, Any]:
        tree = Tree()
        config: Any = {"callbacks": [tree]}
        if is_async:
            found = asyncio.run(chain.ainvoke("What crosses?", config))
        else:
            found = chain.invoke("What crosses?", config)
        return found, tree.of("ContextualCompressionRetriever")

    retriever = compressing(recording, Shelf())
    plain = run(retriever)
    assert posted(recording) == [CHAT, CHAT]
    recording.requests.clear()
    assert run(accelerate(retriever)) == plain
    assert posted(recording) == [SUBMIT]
    (body,) = recording.bodies(SUBMIT)
    assert len(body["calls"]) == 2


def test_a_function_that_makes_the_input_runs_once(recording: Recording) -> None:
    """A function of the user is never called to find the calls: they are made one by one."""
    asked: list[str] = []

    def make(query: str, document: Document) -> Any:
        asked.append(document.page_content)
        return {"question": query, "context": document.page_content}

    accelerate(compressing(recording, Shelf(), get_input=make)).invoke("What crosses?")
    assert posted(recording) == [CHAT, CHAT]
    assert len(asked) == 2


def test_a_retriever_that_fails_begins_nothing(recording: Recording) -> None:
    """The client's error is raised, and no request was sent."""
    with pytest.raises(LookupError, match="no shelf"):
        accelerate(compressing(recording, Broken())).invoke("What crosses?")
    assert posted(recording) == []
