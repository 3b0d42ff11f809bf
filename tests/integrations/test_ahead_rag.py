"""A compiled chain that answers from what its retriever finds: in the server, and in FAISS."""

from __future__ import annotations

import asyncio
from operator import itemgetter
from typing import Any

import pytest
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.vectorstores import VectorStoreRetriever

from langchain_weftline import ChatWeftline, WeftlineVectorStore, accelerate
from langchain_weftline.ahead.explanation import Requests
from tests.integrations.conftest import RETRIEVES
from tests.integrations.recording import Recording
from weftline.errors import WeftlineError

OPTIONS = RETRIEVES

TEXTS = ["Rome lies on the Tiber.", "The weft crosses the warp.", "Soup is hot."]
QUESTION = "What crosses the warp?"
ASK = ChatPromptTemplate.from_template("Answer from this.\n{context}\n\nQuestion: {question}")
CHAT, SUBMIT = "/v1/chat/completions", "/v1/submit"


def format_docs(docs: list[Document]) -> str:
    return "\n\n".join(doc.page_content for doc in docs)


def rag(retriever: Any, recording: Recording, form: Any = format_docs) -> Any:
    llm = ChatWeftline(base_url=recording.url, temperature=0, max_tokens=64)
    found = {"context": retriever | form, "question": RunnablePassthrough()}
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
    """The client searches, and nothing begins before that: the one call is an ordinary request."""
    plain = rag(faiss, recording)
    compiled = accelerate(plain)
    expected = plain.invoke(QUESTION)
    assert sent(recording) == [("POST", CHAT)]
    assert all(text in expected for text in format_docs(faiss.invoke(QUESTION)).split("\n\n"))
    recording.requests.clear()
    if is_async:
        assert asyncio.run(compiled.ainvoke(QUESTION)) == expected
    else:
        assert compiled.invoke(QUESTION) == expected
    assert sent(recording) == [("POST", CHAT)]


def test_explain_names_what_the_client_runs(
    recording: Recording, faiss: VectorStoreRetriever
) -> None:
    """It gives the reason for each step, and sends nothing."""
    explained = accelerate(rag(faiss, recording)).explain(QUESTION)
    why = {step.step: step.why for step in explained.in_client}
    assert why["VectorStoreRetriever"] == "its store 'FAISS' is in the client"
    assert "RunnableLambda 'format_docs'" in why
    assert why["ChatWeftline"] == "its prompt is known only in the run"
    assert recording.requests == []


@pytest.fixture(scope="module")
def store(url: str) -> WeftlineVectorStore:
    store = WeftlineVectorStore(base_url=url)
    store.add_texts(TEXTS, [{"n": n} for n in range(3)])
    return store


def retriever(recording: Recording, **terms: Any) -> VectorStoreRetriever:
    there = WeftlineVectorStore(base_url=recording.url)
    return there.as_retriever(search_kwargs={"k": 2, **terms})


def numbered(docs: list[Document]) -> str:
    """A function that the server cannot run."""
    return "\n".join(f"{at}: {doc.page_content} {doc.metadata}" for at, doc in enumerate(docs))


@pytest.mark.parametrize("is_async", [False, True], ids=["invoke", "ainvoke"])
@pytest.mark.parametrize("form", [format_docs, numbered])
def test_a_store_of_the_server(
    recording: Recording, store: WeftlineVectorStore, form: Any, is_async: bool
) -> None:
    """Embedding and search are one submit, with the call if the server formats what it found."""
    plain = rag(retriever(recording), recording, form)
    compiled = accelerate(plain)
    expected = plain.invoke(QUESTION)
    assert TEXTS[1] in expected and sent(recording) == [("POST", SUBMIT), ("POST", CHAT)]
    recording.requests.clear()
    if is_async:
        assert asyncio.run(compiled.ainvoke(QUESTION)) == expected
    else:
        assert compiled.invoke(QUESTION) == expected
    by_the_server = form is format_docs
    assert sent(recording) == [("POST", SUBMIT)] + [("POST", CHAT)] * (not by_the_server)
    (body,) = recording.bodies(SUBMIT)
    steps = [(step["kind"], step["name"]) for step in body["steps"]]
    assert steps == [("embed", "embed for context"), ("search", "search for context")]
    assert len(body.get("calls", ())) == by_the_server
    explained = compiled.explain(QUESTION)
    told = {step.step: (step.in_server, step.why) for step in explained.steps}
    assert told["WeftlineRetriever"] == (True, "embed, and search in store 'default'")
    assert told[f"RunnableLambda '{form.__name__}'"][0] is by_the_server
    assert explained.before == Requests(2, 2, is_least=not by_the_server)
    assert explained.after.count == 1 + (not by_the_server)


def test_the_question_is_rewritten_in_the_same_request(
    recording: Recording, store: WeftlineVectorStore
) -> None:
    """A call writes the query, and the answer has its sources."""
    llm = ChatWeftline(base_url=recording.url, temperature=0, max_tokens=64)
    query = ChatPromptTemplate.from_template("Rewrite: {question}") | llm | StrOutputParser()
    sources = RunnableParallel(docs=query | retriever(recording), question=itemgetter("question"))
    answer = {
        "context": itemgetter("docs") | RunnableLambda(format_docs),
        "question": itemgetter("question"),
    }
    chain = sources.assign(answer=answer | ASK | llm | StrOutputParser())
    given = {"question": QUESTION}
    expected = chain.invoke(given)
    assert len(expected["docs"]) == 2 and expected["docs"][0].metadata["n"] == 1
    recording.requests.clear()
    assert accelerate(chain).invoke(given) == expected
    assert sent(recording) == [("POST", SUBMIT)]
    assert list(accelerate(chain).stream(given))[-1] is not None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"search_type": "mmr"}, "the client searches by 'mmr'"),
        ({"search_kwargs": {"k": 2, "fetch": 1}}, "its search has the argument 'fetch'"),
        ({"search_kwargs": {"k": 0}}, "its k or its filter is not what a search takes"),
    ],
)
def test_what_a_search_step_cannot_do_stays_in_the_client(
    recording: Recording, change: dict[str, Any], why: str
) -> None:
    """A retriever with such a setting runs in the client, and `explain` names the setting."""
    changed = retriever(recording).model_copy(update=change)
    explained = accelerate(rag(changed, recording)).explain(QUESTION)
    [said] = [step.why for step in explained.in_client if "Retriever" in step.step]
    assert said == why


@pytest.mark.parametrize("form", [format_docs, numbered])
@pytest.mark.parametrize("calls", [1, 2])
def test_a_store_that_is_not_there(recording: Recording, form: Any, calls: int) -> None:
    """The error is the store's own, whatever else the submit has."""
    there = WeftlineVectorStore(base_url=recording.url, store="none").as_retriever()
    chain = RunnableParallel({f"a{n}": rag(there, recording, form) for n in range(calls)})
    with pytest.raises(WeftlineError, match="there is no store 'none'") as plain:
        chain.invoke(QUESTION)
    with pytest.raises(type(plain.value), match="there is no store 'none'"):
        accelerate(chain).invoke(QUESTION)
