"""A compiled chain that answers from what its retriever finds: in the server, and in FAISS."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import VectorStoreRetriever

from langchain_weftline import ChatWeftline, compile_chain
from tests.integrations.conftest import served
from tests.integrations.recording import Recording, recorded

TEXTS = ["Rome lies on the Tiber.", "The weft crosses the warp.", "Soup is hot."]
QUESTION = "What crosses the warp?"
ASK = ChatPromptTemplate.from_template("Answer from this.\n{context}\n\nQuestion: {question}")
CHAT, SUBMIT, SET = "/v1/chat/completions", "/v1/submit", "PUT"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that echoes prompts, with an embedder without weights and a store in memory."""
    with served("--embedder", "null", "--store", "memory") as url:
        yield url


@pytest.fixture
def recording(url: str) -> Iterator[Recording]:
    with recorded(url) as recording:
        yield recording


def format_docs(docs: list[Document]) -> str:
    return "\n\n".join(doc.page_content for doc in docs)


def rag(retriever: Any, recording: Recording) -> Any:
    llm = ChatWeftline(base_url=recording.url, temperature=0, max_tokens=64)
    found = {"context": retriever | format_docs, "question": RunnablePassthrough()}
    return found | ASK | llm | StrOutputParser()


def sent(recording: Recording) -> list[tuple[str, str]]:
    """The requests that carry work: what they are, and where they went to."""
    return [(verb, path) for verb, path, _ in recording.requests if verb == "POST"]


@pytest.fixture(scope="module")
def faiss() -> VectorStoreRetriever:
    store = FAISS.from_texts(TEXTS, DeterministicFakeEmbedding(size=16))
    return store.as_retriever(search_kwargs={"k": 2})


@pytest.mark.parametrize("is_async", [False, True], ids=["invoke", "ainvoke"])
def test_faiss_in_this_process(
    recording: Recording, faiss: VectorStoreRetriever, is_async: bool
) -> None:
    """The client searches, and one submit has the call, which gives the plain chain's answer."""
    plain = rag(faiss, recording)
    compiled = compile_chain(plain)
    expected = plain.invoke(QUESTION)
    assert sent(recording) == [("POST", CHAT)]
    assert all(text in expected for text in format_docs(faiss.invoke(QUESTION)).split("\n\n"))
    recording.requests.clear()
    if is_async:
        assert asyncio.run(compiled.ainvoke(QUESTION)) == expected
    else:
        assert compiled.invoke(QUESTION) == expected
    assert sent(recording) == [("POST", SUBMIT)]


def test_explain_names_what_the_client_runs(
    recording: Recording, faiss: VectorStoreRetriever
) -> None:
    explained = compile_chain(rag(faiss, recording)).explain(QUESTION)
    parts = {(".".join(step.path), step.step) for step in explained.in_client}
    assert {("context", "VectorStoreRetriever"), ("context", "RunnableLambda 'format_docs'")} <= {
        (path.split(".")[0], step) for path, step in parts
    }, str(explained)
    assert [step.step for step in explained.in_server if "call" in step.why] == ["ChatWeftline"]
    assert recording.requests == []
