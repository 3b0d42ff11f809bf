"""LlamaIndex's embedding, vector store and reranker over a server: a whole query engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.vector_stores import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)
from llama_index.embeddings.weftline import WeftlineEmbedding
from llama_index.llms.weftline import Weftline
from llama_index.postprocessor.weftline import WeftlineRerank
from llama_index.vector_stores.weftline import WeftlineVectorStore

from tests.integrations.conftest import RETRIEVES
from weftline import Client
from weftline.errors import ContextTooLong

TEXTS = ["a red fox", "a blue whale", "a red whale"]
OPTIONS = RETRIEVES
pytestmark = pytest.mark.usefixtures("default_url")


@pytest.fixture
def index() -> Iterator[VectorStoreIndex]:
    documents = [
        Document(text=text, doc_id=f"d{n}", metadata={"n": n}) for n, text in enumerate(TEXTS)
    ]
    store = WeftlineVectorStore()
    context = StorageContext.from_defaults(vector_store=store)
    yield VectorStoreIndex.from_documents(documents, context, embed_model=WeftlineEmbedding())
    for n in range(3):
        store.delete(f"d{n}")


def test_a_query_engine(index: VectorStoreIndex) -> None:
    """Search, rerank and answer. The prompt, which the model echoes, holds the best text alone."""
    engine = index.as_query_engine(
        llm=Weftline(context_window=4000, max_tokens=200),
        similarity_top_k=3,
        node_postprocessors=[WeftlineRerank(top_n=1)],
    )
    answer = engine.query("blue whale")
    [source] = answer.source_nodes
    assert source.node.get_content() == "a blue whale" and source.node.metadata == {"n": 1}
    assert "a blue whale" in str(answer) and "a red fox" not in str(answer)


def test_a_text_that_is_too_long() -> None:
    """It is an error, unless the application lets texts be cut."""
    long = "fox " * 9000
    with pytest.raises(ContextTooLong, match="text 0 has 9000 tokens"):
        WeftlineEmbedding().get_text_embedding(long)
    cut = WeftlineEmbedding(truncate_prompt_tokens=-1)
    assert cut.get_query_embedding(long) == cut.get_query_embedding("fox")


async def test_an_index_is_opened_again(index: VectorStoreIndex) -> None:
    """Nodes come back whole, by the async way too, and filters hold."""
    again = VectorStoreIndex.from_vector_store(WeftlineVectorStore(), WeftlineEmbedding())
    filters = MetadataFilters(filters=[MetadataFilter(key="n", value=0)])
    found = await again.as_retriever(similarity_top_k=3, filters=filters).aretrieve("a red whale")
    assert [(one.node.get_content(), one.node.ref_doc_id) for one in found] == [("a red fox", "d0")]
    assert 0 < found[0].score < 1


async def test_nodes_are_read_and_deleted(index: VectorStoreIndex) -> None:
    """By filter, by id and by document, with the plain methods and the coroutines."""
    store = WeftlineVectorStore()
    filters = MetadataFilters(filters=[MetadataFilter(key="ref_doc_id", value="d1")])
    [node] = store.get_nodes(filters=filters)
    assert node.get_content() == "a blue whale"
    assert await store.aget_nodes([node.node_id]) == [node]
    await store.adelete("d1")
    assert store.get_nodes([node.node_id]) == []
    [other] = await store.aget_nodes(
        filters=MetadataFilters(filters=[MetadataFilter(key="n", value=2)])
    )
    store.delete_nodes([other.node_id])
    assert await store.aget_nodes([other.node_id]) == []


def test_documents_of_other_clients_are_nodes() -> None:
    """A document that the SDK added comes back as a node with its text and metadata."""
    with Client() as client, client.session() as session:
        items = [{"id": "o", "text": "a loom", "metadata": {"n": 9}}]
        session.ingest(session.embed(items), store="default").get()
    store = WeftlineVectorStore()
    [node] = store.get_nodes(["o"])
    assert (node.node_id, node.get_content(), node.metadata) == ("o", "a loom", {"n": 9})
    store.delete_nodes(["o"])


async def test_an_embedding_model() -> None:
    """One text, several texts and a query have the same vectors, sync and async."""
    model = WeftlineEmbedding()
    vectors = model.get_text_embedding_batch(TEXTS)
    assert await model.aget_text_embedding_batch(TEXTS) == vectors
    assert model.get_query_embedding(TEXTS[1]) == vectors[1]
    assert await model.aget_query_embedding(TEXTS[1]) == vectors[1]
    assert WeftlineEmbedding(base_url="http://there/v1/").base_url == "http://there"


async def test_nodes_are_reranked() -> None:
    """The best two nodes come back with new scores. Without a query there is an error."""
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in TEXTS]
    rerank = WeftlineRerank(top_n=2)
    found = rerank.postprocess_nodes(nodes, query_str="blue whale")
    assert [(one.node.get_content(), one.score) for one in found] == [
        ("a blue whale", 1.0),
        ("a red whale", 0.5),
    ]
    assert await rerank.apostprocess_nodes(nodes, query_str="blue whale") == found
    with pytest.raises(ValueError, match="needs the query"):
        rerank.postprocess_nodes(nodes)


def test_what_a_store_cannot_do_is_refused() -> None:
    """A filter that is no equality is an error, never ignored."""
    store = WeftlineVectorStore()
    greater = MetadataFilter(key="n", value=1, operator=FilterOperator.GT)
    with pytest.raises(ValueError, match="exact match"):
        store.get_nodes(filters=MetadataFilters(filters=[greater]))
    either = MetadataFilters(
        filters=[MetadataFilter(key="n", value=1)], condition=FilterCondition.OR
    )
    with pytest.raises(ValueError, match="all must hold"):
        store.get_nodes(filters=either)
    with pytest.raises(ValueError, match="searches by an embedding"):
        store.query(VectorStoreQuery(query_str="a"))
    with pytest.raises(ValueError, match="not ids"):
        store.query(VectorStoreQuery(query_embedding=[1.0], node_ids=["a"]))
