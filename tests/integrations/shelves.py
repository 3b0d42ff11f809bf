"""Texts, retrievers and chains around them, for the tests of compiled retrievers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from langchain_classic.retrievers import MultiQueryRetriever
from langchain_community.vectorstores import FAISS
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough

from langchain_weftline import ChatWeftline, WeftlineVectorStore
from tests.integrations.conftest import served
from tests.integrations.recording import Recording

STORE = ("--embedder", "null", "--store", "memory")  # an embedder without weights
TEXTS = ["Rome lies on the Tiber.", "The weft crosses the warp.", "Soup is hot.", "Rome is old."]
QUESTION = "What crosses the warp?"
ASK = ChatPromptTemplate.from_template("Answer from this.\n{context}\n\nQuestion: {question}")
QUERIES = PromptTemplate.from_template("{question}\nRome\n\nsoup is what")
SET = "/v1/session/variable"


def fill(url: str) -> None:
    """Put the texts into the server's store."""
    WeftlineVectorStore(base_url=url).add_texts(TEXTS, [{"n": n} for n in range(len(TEXTS))])


@contextmanager
def filled() -> Iterator[str]:
    """A server that echoes prompts and has the texts in a store."""
    with served(*STORE) as url:
        fill(url)
        yield url


def model(recording: Recording, **options: Any) -> ChatWeftline:
    options = {"temperature": 0, "max_tokens": 64, "max_retries": 0, **options}
    return ChatWeftline(base_url=recording.url, **options)


def in_server(recording: Recording, **terms: Any) -> BaseRetriever:
    store = WeftlineVectorStore(base_url=recording.url)
    return store.as_retriever(search_kwargs={"k": 2, **terms})


def in_client(texts: Sequence[str] = TEXTS, k: int = 2) -> BaseRetriever:
    store = FAISS.from_texts(list(texts), DeterministicFakeEmbedding(size=16))
    return store.as_retriever(search_kwargs={"k": k})


def several(recording: Recording, base: BaseRetriever | None = None, **how: Any) -> Any:
    """A retriever that searches for each query of a model; by default in the server's store."""
    found = in_server(recording) if base is None else base
    return MultiQueryRetriever.from_llm(found, model(recording), prompt=QUERIES, **how)


class Shelf(BaseRetriever):
    """A retriever that finds what it is asked for, or fails for one query."""

    refused: str = ""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        if query == self.refused:
            raise LookupError(f"nothing on {query}")
        return [Document(f"About {query[:20]}."), Document("On all shelves.")]


def format_docs(docs: list[Document]) -> str:
    return "\n\n".join(doc.page_content for doc in docs)


def rag(found: Any, recording: Recording, **options: Any) -> Any:
    given = {"context": found, "question": RunnablePassthrough()}
    return given | ASK | model(recording, **options) | StrOutputParser()


def sent(recording: Recording) -> list[str]:
    """The requests that carry work."""
    paths = [path for verb, path, _ in recording.requests if verb in ("POST", "PUT")]
    recording.requests.clear()
    return [SET if "/variable/" in path else path for path in paths]


def run(chain: Any, is_async: bool, config: Any = None) -> Any:
    """What the chain says to the question."""
    return (
        asyncio.run(chain.ainvoke(QUESTION, config)) if is_async else chain.invoke(QUESTION, config)
    )
