"""A LlamaIndex pipeline over the server's embedder and store: one request, and the plain nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.ingestion import DocstoreStrategy, IngestionCache, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import TextNode, TransformComponent
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.embeddings.weftline import WeftlineEmbedding
from llama_index.llms.weftline.ahead import ingestion as ingesting
from llama_index.vector_stores.weftline import WeftlineVectorStore

from tests.integrations.conftest import RETRIEVES
from tests.integrations.recording import Recording
from weftline.errors import WeftlineError
from weftline.kit import RunFeed

SUBMIT = "/v1/submit"
OPTIONS = RETRIEVES


@pytest.fixture
def recording(recording: Recording) -> Iterator[Recording]:
    yield recording
    WeftlineVectorStore().delete_nodes([f"n{k}-0" for k in range(10)])


class Last(TransformComponent):
    """A transformation behind the embedding, so that nothing is sent ahead."""

    def __call__(self, nodes: Any, **kwargs: Any) -> Any:
        return nodes


def nodes(count: int = 10) -> list[TextNode]:
    texts = (f"The fox number {n} is red. " * (n % 3 + 1) for n in range(count))
    return [TextNode(text=text, id_=f"n{k}", metadata={"k": k}) for k, text in enumerate(texts)]


def pipeline(ahead: bool, batch: int = 4, **how: Any) -> IngestionPipeline:
    embeds = WeftlineEmbedding(embed_batch_size=batch)
    steps = [SentenceSplitter(chunk_size=64, chunk_overlap=0, id_func=named), embeds]
    made = {"vector_store": WeftlineVectorStore(), **how}
    return IngestionPipeline(transformations=[*steps, *([] if ahead else [Last()])], **made)


def named(index: int, document: Any) -> str:
    """Ids of chunks that are equal in every run."""
    return f"{document.node_id}-{index}"


def run(made: IngestionPipeline, given: Any, is_async: bool = False, **how: Any) -> list[Any]:
    found = asyncio.run(made.arun(nodes=given, **how)) if is_async else made.run(nodes=given, **how)
    return [node.to_dict() for node in found]


def posted(recording: Recording) -> list[str]:
    return [path for verb, path, _ in recording.requests if verb == "POST"]


def kept(count: int = 10) -> list[Any]:
    """What the store has, by id, and what it finds."""
    store = WeftlineVectorStore()
    found = store.get_nodes([f"n{k}-0" for k in range(count)])
    return [node.to_dict() for node in found]


ASYNC = pytest.mark.parametrize("is_async", [False, True], ids=["run", "arun"])


@ASYNC
def test_a_pipeline(recording: Recording, is_async: bool) -> None:
    """Ten nodes in batches of four: one request, where the plain pipeline makes four."""
    plain = run(pipeline(False), nodes(), is_async)
    assert posted(recording) == [SUBMIT] * 4
    before = kept()
    WeftlineVectorStore().delete_nodes([one["id_"] for one in plain])
    recording.requests.clear()
    assert run(pipeline(True), nodes(), is_async) == plain
    assert posted(recording) == [SUBMIT]
    assert kept() == before and len(before) == 10
    [body] = recording.bodies(SUBMIT)[:1]
    assert [step["kind"] for step in body["steps"]] == ["embed", "ingest"] and body["close"]


@ASYNC
def test_a_pipeline_of_several_portions(
    recording: Recording, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each portion is a request. The store gets nothing before all of them are embedded.

    The requests may arrive in any order.
    """
    monkeypatch.setattr(ingesting, "MAX_NODES", 4)
    made = run(pipeline(True), nodes(), is_async)
    assert posted(recording) == [SUBMIT] * 3
    assert [one["id_"] for one in made] == [one["id_"] for one in kept()]
    bodies = recording.bodies(SUBMIT)[:3]
    reads = [step["in"]["var"] for body in bodies for step in body["steps"] if "store" in step]
    assert sorted(reads) == ["whole_0_0", "whole_0_1", "whole_0_2"]


def test_portions_that_arrive_in_another_order(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last request comes before the second one, and waits for what that one makes."""
    follow = RunFeed._follow

    async def late(feed: RunFeed, draft: Any) -> None:
        while draft.watch == ("embedded_0_1",) and len(posted(recording)) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the proxy records in a thread of its own
        await follow(feed, draft)

    monkeypatch.setattr(ingesting, "MAX_NODES", 4)
    monkeypatch.setattr(RunFeed, "_follow", late)
    made = run(pipeline(True), nodes())
    assert posted(recording) == [SUBMIT] * 3
    assert [one["id_"] for one in made] == [one["id_"] for one in kept()]


def test_docstore_and_cache(recording: Recording) -> None:
    """A second run makes no request for what has not changed, and replaces what has."""
    documents = [Document(text=f"Fox number {n}.", doc_id=f"n{n}") for n in range(3)]
    made = pipeline(
        True, docstore=SimpleDocumentStore(), docstore_strategy=DocstoreStrategy.UPSERTS
    )
    made.run(documents=documents)
    recording.requests.clear()
    assert made.run(documents=documents) == [] and posted(recording) == []
    documents[1] = Document(text="Another text.", doc_id="n1")
    assert [node.get_content() for node in made.run(documents=documents)] == ["Another text."]
    assert posted(recording) == [SUBMIT, SUBMIT], "a deletion, and the new chunk"
    assert [one["text"] for one in kept(3)] == ["Fox number 0.", "Another text.", "Fox number 2."]


def test_a_cached_embedding(recording: Recording) -> None:
    """The cache has the nodes, so only the store is asked."""
    cache = IngestionCache()
    first = run(pipeline(True, cache=cache), nodes(3))
    recording.requests.clear()
    assert run(pipeline(True, cache=cache), nodes(3)) == first
    [body] = recording.bodies(SUBMIT)
    assert [step["kind"] for step in body["steps"]] == ["ingest"]


@pytest.mark.parametrize(
    ("embedder", "store"), [("nowhere", "default"), ("default", "nowhere")], ids=["model", "store"]
)
def test_an_error_is_that_of_the_plain_pipeline(
    recording: Recording, embedder: str, store: str
) -> None:
    """The graph is refused, then the plain request. Nothing is stored."""

    def failure(*rest: Any) -> tuple[type, str]:
        steps = [WeftlineEmbedding(embedder), *rest]
        made = IngestionPipeline(
            transformations=steps, vector_store=WeftlineVectorStore(store=store)
        )
        with pytest.raises(WeftlineError) as failed:
            made.run(nodes=nodes(3))
        return type(failed.value), str(failed.value)

    assert failure() == failure(Last())
    assert kept(3) == []


def documents(count: int = 10) -> list[Document]:
    made = (Document(text=one.text, doc_id=one.node_id, metadata=one.metadata) for one in nodes())
    return list(made)[:count]


def index(given: list[Document], **how: Any) -> VectorStoreIndex:
    split = SentenceSplitter(chunk_size=64, chunk_overlap=0, id_func=named)
    return VectorStoreIndex.from_documents(
        given,
        StorageContext.from_defaults(vector_store=WeftlineVectorStore()),
        embed_model=WeftlineEmbedding(embed_batch_size=4),
        transformations=[split],
        **how,
    )


def test_an_index(recording: Recording) -> None:
    """Its methods have no span, so it asks for one thing after the other: three batches of texts,
    then the store. The store has what a pipeline of the same steps puts in."""
    run(pipeline(True), documents())
    before = kept()
    WeftlineVectorStore().delete_nodes([one["id_"] for one in before])
    recording.requests.clear()
    index(documents())
    assert posted(recording) == [SUBMIT] * 4
    assert kept() == before and len(before) == 10


def test_nodes_that_have_vectors(recording: Recording) -> None:
    """They are stored with them; the others are embedded first."""
    vector = WeftlineEmbedding().get_text_embedding("red")
    given = [TextNode(text="a", id_="n0-0", embedding=vector), TextNode(text="b", id_="n1-0")]
    recording.requests.clear()
    context = StorageContext.from_defaults(vector_store=WeftlineVectorStore())
    VectorStoreIndex(given, storage_context=context, embed_model=WeftlineEmbedding())
    kinds = [[step["kind"] for step in body["steps"]] for body in recording.bodies(SUBMIT)]
    assert kinds == [["embed"], ["ingest"]] and len(kept()) == 2
