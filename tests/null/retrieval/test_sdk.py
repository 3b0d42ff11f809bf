"""The SDK's steps: `session.embed`, `ingest`, `search`, `merge`, `rerank`, `fetch`, `delete`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest

from tests.null.asgi import Serve
from tests.null.retrieval.test_steps import TEXTS, engines
from weftline import AsyncClient, Input, Output, semantic_function
from weftline.contract.steps import Source
from weftline.contract.transforms import run
from weftline.errors import InvalidRequest, TransformFailed


@semantic_function
def ask(
    context=Input(transforms=[{"op": "texts"}]),  # noqa: B008
    answer=Output(max_tokens=8),  # noqa: B008
):
    """By {{input:context}} say {{output:answer}}"""


@pytest.fixture
async def client(serve: Serve) -> AsyncIterator[AsyncClient]:
    server = await serve(also=engines())
    async with AsyncClient("http://t", transport=httpx2.ASGITransport(server.app)) as made:
        yield made


async def test_a_rag_program_is_one_request(client: AsyncClient) -> None:
    """Ingest, search and answer; only the last value is asked for."""
    async with client.session() as session:
        indexed = session.ingest(session.embed(TEXTS), store="docs")
        hits = session.search(session.embed("red whale"), store="docs", k=1, after=[indexed])
        answer = ask(hits)
        assert await answer.get() == "By red whale say "
        graph = await session.graph()
        assert [one["state"] for one in graph["steps"]] == ["done"] * 4
        assert [one["state"] for one in graph["calls"]] == ["done"]


async def test_every_step_has_a_method(client: AsyncClient) -> None:
    """Ingest, search, merge, rerank, delete and fetch in one session, in their order."""
    items = [{"id": f"d{n}", "text": text, "metadata": {"n": n}} for n, text in enumerate(TEXTS)]
    async with client.session() as session:
        indexed = session.ingest(session.embed(items, engine="words"), store="docs")
        queries = session.embed(["fox", "whale"])
        hits = session.search(queries, store="docs", k=2, filter={"n": 2}, after=[indexed])
        top = session.rerank(session.merge(hits, by="text", limit=5), "red", k=1, engine="words")
        assert [hit["id"] for hit in await top.get()] == ["d2"]
        mean = session.mean(session.embed("red"), session.embed(["fox", "fox"]))
        assert [hit["id"] for hit in await session.search(mean, store="docs", k=1).get()] == ["d0"]
        gone = session.delete(["d2"], store="docs", after=[top])
        left = session.fetch(["d1", "d2"], store="docs", after=[gone])
        assert [item["id"] for item in await left.get()] == ["d1"]
        assert await gone.get() == {"count": 1}


async def test_documents_are_read_and_deleted_by_their_metadata(client: AsyncClient) -> None:
    """A filter adds to the ids. Without ids and a filter nothing is chosen."""
    items = [{"id": f"d{n}", "text": text, "metadata": {"n": n}} for n, text in enumerate(TEXTS)]
    async with client.session() as session:
        indexed = session.ingest(session.embed(items), store="docs")
        both = session.fetch(["d0"], store="docs", filter={"n": 2}, after=[indexed])
        assert [item["id"] for item in await both.get()] == ["d0", "d2"]
        assert await session.delete(store="docs").get() == {"count": 0}
        assert await session.delete(store="docs", filter={"n": 1}).get() == {"count": 1}
        left = session.fetch(["d0", "d1", "d2"], store="docs")
        assert [item["id"] for item in await left.get()] == ["d0", "d2"]


async def test_a_variable_of_another_session_is_refused(client: AsyncClient) -> None:
    """The mistake is an error of the client, before a request is sent."""
    async with client.session() as first, client.session() as second:
        with pytest.raises(InvalidRequest, match="a variable of another session"):
            second.embed(first.variable())


def test_a_source_is_a_variable_or_a_value() -> None:
    """Neither and both are refused."""
    with pytest.raises(InvalidRequest, match="exactly one of 'var' and 'value'"):
        Source()
    with pytest.raises(InvalidRequest, match="exactly one of 'var' and 'value'"):
        Source(var="v", value=1)


@pytest.mark.parametrize("value", ["text", [1], [{"no": "text"}], [[[{"text": "deep"}]]]])
def test_texts_reads_hits_only(value: object) -> None:
    """The transform fails for a text, for numbers, and for objects without a text."""
    with pytest.raises(TransformFailed, match="texts reads"):
        run([{"op": "texts"}], value)


def test_texts_follow_one_another() -> None:
    """Several queries give lists of hits."""
    hits = [[{"text": "a"}], [], [{"text": "b"}, {"text": "c"}]]
    assert run([{"op": "texts", "separator": "-"}], hits) == "a-b-c"


def test_unique_texts_are_those_of_unlike_documents() -> None:
    """A document that two queries find stands once, and another one with its text stays."""
    one = {"id": "1", "text": "a", "metadata": {}, "score": 0.9}
    again, other = {**one, "score": 0.1}, {**one, "id": "2"}
    spec = {"op": "texts", "separator": "-", "unique": True}
    assert run([spec], [[one, {"text": "b"}], [again, other]]) == "a-b-a"
    with pytest.raises(InvalidRequest, match="'unique', true or false"):
        run([{**spec, "unique": "yes"}], [])
