"""LangChain's embeddings, vector store and reranker over a server, and LangChain's own suites."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_tests.integration_tests import (
    EmbeddingsIntegrationTests,
    VectorStoreIntegrationTests,
)
from langchain_tests.unit_tests import EmbeddingsUnitTests

from langchain_weftline import WeftlineEmbeddings, WeftlineRerank, WeftlineVectorStore
from tests.integrations.conftest import RETRIEVES, served
from tests.integrations.recording import recorded
from weftline.errors import ContextTooLong, InvalidRequest, WeftlineError

TEXTS = ["a red fox", "a blue whale", "a red whale"]
OPTIONS = RETRIEVES
pytestmark = pytest.mark.usefixtures("default_url")


@pytest.fixture(scope="module")
def other() -> Iterator[str]:
    """A second server, whose store has vectors of another width."""
    with served(*RETRIEVES) as url:
        yield url


class _Embeddings:
    @property
    def embeddings_class(self) -> type[WeftlineEmbeddings]:
        return WeftlineEmbeddings


class TestEmbeddings(_Embeddings, EmbeddingsIntegrationTests):
    """LangChain's integration suite of embeddings."""


class TestEmbeddingsUnit(_Embeddings, EmbeddingsUnitTests):
    """LangChain's unit suite of embeddings."""

    @property
    def init_from_env_params(self):
        environment = {"WEFTLINE_BASE_URL": "http://there/v1", "WEFTLINE_API_KEY": "key"}
        return environment, {}, {"base_url": "http://there", "api_key": "key"}


def test_a_text_that_is_too_long() -> None:
    """It is an error that has the lengths, and not a vector of its beginning, unless the
    application lets texts be cut: then the store cuts alike when it adds and when it searches."""
    long = "fox " * 9000 + "whale"
    with pytest.raises(ContextTooLong, match=r"text 1 has 9001 tokens, .* length is 8192 tokens"):
        WeftlineEmbeddings().embed_documents(["fox", long])
    with pytest.raises(ContextTooLong):
        WeftlineVectorStore().add_texts([long])
    cut = WeftlineEmbeddings(truncate_prompt_tokens=-1)
    assert cut.embed_query(long) == cut.embed_query("fox")
    store = WeftlineVectorStore(cut)
    ids = store.add_texts([long])
    assert [one.page_content for one in store.similarity_search(long, k=1)] == [long]
    store.delete(ids)


class TestServerEmbeds(VectorStoreIntegrationTests):
    """LangChain's suite of vector stores; the server embeds."""

    @pytest.fixture
    def vectorstore(self) -> Iterator[WeftlineVectorStore]:
        yield from emptied(WeftlineVectorStore())


class TestClientEmbeds(VectorStoreIntegrationTests):
    """The suite again, with embeddings of the suite in the client: vectors of another width."""

    @pytest.fixture
    def vectorstore(self, other: str) -> Iterator[WeftlineVectorStore]:
        yield from emptied(WeftlineVectorStore(self.get_embeddings(), base_url=other))


def emptied(store: WeftlineVectorStore) -> Iterator[WeftlineVectorStore]:
    """Yield the store, and delete its documents after the test."""
    yield store
    store.delete([hit.id for hit in store.similarity_search("a", k=1000)])


@pytest.fixture
def store() -> Iterator[WeftlineVectorStore]:
    yield from emptied(WeftlineVectorStore())


def test_adding_and_finding_take_a_request_each(store: WeftlineVectorStore, url: str) -> None:
    """Each is a submit with two steps, which closes its session."""
    with recorded(url) as proxy:
        there = WeftlineVectorStore(base_url=proxy.url)
        there.add_texts(TEXTS, [{"n": n} for n in range(3)])
        assert [one.page_content for one in there.similarity_search("red whale", k=1)] == TEXTS[2:]
        bodies = proxy.bodies("/v1/submit")
        assert [[step["kind"] for step in body["steps"]] for body in bodies] == [
            ["embed", "ingest"],
            ["embed", "search"],
        ]
        assert all(body["close"] for body in bodies)
        assert len(proxy.requests) == 2


def test_scores_filters_and_vectors(store: WeftlineVectorStore) -> None:
    """The store finds by text, by vector and by filter, with LangChain's scores. Equal texts keep
    their ids."""
    ids = store.add_texts(TEXTS, [{"red": "red" in text} for text in TEXTS])
    assert store.add_texts(TEXTS, [{"red": "red" in text} for text in TEXTS]) == ids
    [(best, score), *_] = store.similarity_search_with_score("a red whale", k=3)
    assert (best.id, best.metadata) == (ids[2], {"red": True})
    assert score == pytest.approx(1.0)
    found = store.similarity_search("a red whale", filter={"red": False})
    assert [one.page_content for one in found] == TEXTS[1:2]
    vector = WeftlineEmbeddings().embed_query("a red fox")
    assert store.similarity_search_by_vector(vector, k=1)[0].id == ids[0]
    relevant = store.similarity_search_with_relevance_scores("a red fox", k=1)
    assert relevant[0][1] == pytest.approx(1.0)
    retriever = store.as_retriever(search_kwargs={"k": 1, "filter": {"red": True}})
    assert [one.page_content for one in retriever.invoke("whale")] == TEXTS[2:]


def test_documents_are_deleted_by_a_filter(store: WeftlineVectorStore) -> None:
    """By metadata or by id; an unknown id is no error, and a delete of everything is."""
    store.add_texts(TEXTS, [{"n": n} for n in range(3)], ids=["a", "b", "c"])
    assert store.delete(filter={"n": 1}) and store.delete(["c", "unknown"])
    assert [one.id for one in store.get_by_ids(["c", "b", "a"])] == ["a"]
    with pytest.raises(ValueError, match="delete takes ids or a filter"):
        store.delete()


async def test_the_async_methods(store: WeftlineVectorStore) -> None:
    """The coroutines of store, embeddings and retriever do what the plain methods do."""
    made = await WeftlineVectorStore.afrom_texts(TEXTS, ids=["a", "b", "c"])
    assert [one.id for one in await made.asimilarity_search("blue", k=1)] == ["b"]
    vector = await WeftlineEmbeddings().aembed_query("a red fox")
    assert [one.id for one in await made.asimilarity_search_by_vector(vector, k=1)] == ["a"]
    assert (await made.as_retriever().ainvoke("a red fox"))[0].id == "a"
    await made.adelete(filter={"none": 1}, ids=["a"])
    assert [one.id for one in await made.aget_by_ids(["a", "b"])] == ["b"]


def test_many_texts_are_added_in_portions(
    store: WeftlineVectorStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts that exceed one request's size are several requests; the ids stay in order."""
    monkeypatch.setattr("weftline.kit.retrieval_requests.MAX_CHARS", 25)
    with recorded(url) as proxy:
        there = WeftlineVectorStore(base_url=proxy.url)
        ids = there.add_texts(TEXTS, ids=["a", "b", "c"])
        assert ids == ["a", "b", "c"] and len(proxy.bodies("/v1/submit")) == 2
    assert there.add_texts([]) == []


def test_errors_say_what_is_wrong(store: WeftlineVectorStore) -> None:
    """Another embedder, an unknown store and an unknown embedder are named in the message."""
    store.add_texts(["a"])
    with pytest.raises(InvalidRequest, match="the store holds vectors of 32 numbers and got 4"):
        WeftlineVectorStore(DeterministicFakeEmbedding(size=4)).similarity_search("a")
    with pytest.raises(WeftlineError, match="there is no store 'none': use one of default"):
        WeftlineVectorStore(store="none").similarity_search("a")
    with pytest.raises(WeftlineError, match="there is no embedder 'none'"):
        WeftlineEmbeddings(model="none").embed_query("a")
    with pytest.raises(ValueError, match="1 texts came with 2 ids"):
        store.add_texts(["a"], ids=["1", "2"])


async def test_documents_are_reranked() -> None:
    """The best two come back with their scores, and the given documents are not changed."""
    documents = [Document(text, id=str(at)) for at, text in enumerate(TEXTS)]
    rerank = WeftlineRerank(top_n=2)
    found = rerank.compress_documents(documents, "blue whale")
    assert [(one.id, one.metadata) for one in found] == [
        ("1", {"relevance_score": 1.0}),
        ("2", {"relevance_score": 0.5}),
    ]
    assert await rerank.acompress_documents(documents, "blue whale") == found
    assert documents[1].metadata == {} and rerank.compress_documents([], "a") == []
