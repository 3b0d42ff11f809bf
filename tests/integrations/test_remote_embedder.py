"""An embedder and a reranker behind HTTP. A weftline server is the endpoint of another one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.integrations.conftest import served
from tests.integrations.recording import recorded
from weftline import Client
from weftline.errors import InvalidRequest
from weftline.kit.retrieval_requests import vectors_of
from weftline_engine import api
from weftline_engine.remote.openai.endpoint import EndpointConfig
from weftline_engine.services.retrieval.plain_backends import vector_of
from weftline_engine.services.retrieval.remote_items import RemoteConfig, RemoteItems
from weftline_server.commands.retrieval_tables import from_tables

TEXTS = ["a red fox", "a blue whale", "a red whale", "a loom", "a shuttle"]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with served("--embedder", "null") as url:
        yield url


async def value(engine: RemoteItems, kind: str, **inputs: Any) -> api.Event:
    engine.submit(api.Op(id=kind, kind=kind, context=kind, inputs=inputs))
    async with asyncio.timeout(30):
        async for events in engine.events():
            for event in events:
                if isinstance(event, (api.Finished, api.Failed)):
                    return event
    raise AssertionError("the engine ended")


def test_a_server_embeds_and_reranks_at_another(endpoint: str, tmp_path: Path) -> None:
    """Its tables name the endpoint; texts go out in requests of two."""
    config = tmp_path / "weftline.toml"
    with recorded(endpoint) as proxy:
        tables = f'connect = "{proxy.url}/v1"\nmodel = "null"\nbatch = 2\n'
        config.write_text(
            f'[[embedder]]\nname = "far"\n{tables}\n[[reranker]]\nname = "judge"\n{tables}'
        )
        with (
            served("--config", str(config)) as url,
            Client(url) as client,
            client.session() as session,
        ):
            found = vectors_of(session.embed(TEXTS, engine="far").get())
            top = session.rerank(TEXTS, "blue whale", k=1, engine="judge").get()
        assert np.allclose(found, [vector_of(text) for text in TEXTS])
        assert [one["text"] for one in top] == ["a blue whale"]
        sent = [body["input"] for body in proxy.bodies("/v1/embeddings")]
        assert sorted(map(len, sent)) == [1, 1, 2, 2], "one text at the start, then five"
        assert all(body["model"] == "null" for body in proxy.bodies("/v1/rerank"))


async def test_an_endpoint_that_is_not_there_is_said() -> None:
    """The engine does not start, and the message has the address."""
    config = EndpointConfig(url="http://127.0.0.1:9/v1")
    engine = RemoteItems(RemoteConfig(name="far", kind="embed", endpoint=config))
    with pytest.raises(api.EngineDied, match=r"far at http://127.0.0.1:9/v1 did not .*reach"):
        await engine.start()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "the endpoint sent 0 results with 'embedding' for 1 texts"),
        ([{"index": 0, "embedding": ["x"]}], "a vector that is not a list of numbers"),
        ([{"index": 0, "embedding": [float("nan")]}], "a vector that is not a list of numbers"),
        ([{"index": 1, "embedding": [1.0]}], "1 results with 'embedding' for 1 texts"),
    ],
)
async def test_an_answer_that_is_wrong_fails_the_op(data: list[Any], message: str) -> None:
    """The first answer is right. The second one is not, and never becomes a vector."""
    answers = [[{"index": 0, "embedding": [1.0]}], data]

    async def embeddings(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer key"
        return web.json_response({"data": answers.pop(0)})

    app = web.Application()
    app.router.add_post("/v1/embeddings", embeddings)
    async with TestServer(app) as server:
        there = EndpointConfig(url=str(server.make_url("/v1")), key="key")
        engine = RemoteItems(RemoteConfig(name="far", kind="embed", endpoint=there))
        await engine.start()
        failed = await value(engine, "embed", texts=["a"])
        assert isinstance(failed, api.Failed) and failed.error == "EngineFailed"
        assert message in failed.message
        refused = await value(engine, "embed", texts="a")
        assert isinstance(refused, api.Failed) and refused.error == "InvalidRequest"
        await engine.close()


async def test_tokens_are_those_that_the_endpoint_counts() -> None:
    """They were a fourth of the characters. The field that cuts texts is sent on."""
    asked: list[dict[str, Any]] = []

    async def embeddings(request: web.Request) -> web.Response:
        asked.append(await request.json())
        data = [{"index": at, "embedding": [1.0]} for at in range(len(asked[-1]["input"]))]
        return web.json_response({"data": data, "usage": {"prompt_tokens": 7, "total_tokens": 7}})

    app = web.Application()
    app.router.add_post("/v1/embeddings", embeddings)
    async with TestServer(app) as server:
        there = EndpointConfig(url=str(server.make_url("/v1")))
        engine = RemoteItems(RemoteConfig(name="far", kind="embed", endpoint=there, batch=2))
        await engine.start()
        found = await value(engine, "embed", texts=["a", "b", "c"], truncate_prompt_tokens=-1)
        await engine.close()
    assert isinstance(found, api.Finished) and found.usage.prompt_tokens == 14
    assert [one.get("truncate_prompt_tokens") for one in asked] == [None, -1, -1]


async def test_a_reranker_that_speaks_as_tei_does() -> None:
    """It refuses Jina's `documents`, takes `texts`, and answers with a list, the best first."""
    asked: list[Any] = []

    async def rerank(request: web.Request) -> web.Response:
        body = await request.json()
        asked.append(body.get("texts"))
        if "texts" not in body:
            return web.Response(status=422, text="missing field `texts`")
        scores = [{"index": at, "score": len(text) / 8} for at, text in enumerate(body["texts"])]
        return web.json_response(sorted(scores, key=lambda one: -one["score"]))

    app = web.Application()
    app.router.add_post("/rerank", rerank)
    async with TestServer(app) as server:
        there = EndpointConfig(url=str(server.make_url("/")).rstrip("/"))
        engine = RemoteItems(RemoteConfig(name="judge", kind="rerank", endpoint=there))
        await engine.start()
        found = await value(engine, "rerank", query="a", texts=["ab", "abcd", "a"])
        assert isinstance(found, api.Finished) and found.value == {"scores": [0.25, 0.5, 0.125]}
        assert asked == [None, ["weft"], ["ab", "abcd", "a"]]
        await engine.close()


async def test_a_reranker_that_takes_neither_form_says_the_first_reason() -> None:
    """Both known forms of a request are tried. The message is the answer to the first."""

    async def rerank(request: web.Request) -> web.Response:
        jina = "documents" in await request.json()
        return web.json_response({"message": "no query" if jina else "no documents"}, status=400)

    app = web.Application()
    app.router.add_post("/rerank", rerank)
    async with TestServer(app) as server:
        there = EndpointConfig(url=str(server.make_url("/")).rstrip("/"))
        engine = RemoteItems(RemoteConfig(name="judge", kind="rerank", endpoint=there))
        with pytest.raises(api.EngineDied, match=r"judge at .* answered 400: no query"):
            await engine.start()


def test_settings_that_do_not_fit() -> None:
    """An address without a scheme, and a batch of 0, are refused before anything starts."""
    for table in ({"connect": "host:8000"}, {"connect": "http://host", "batch": 0}):
        with pytest.raises(InvalidRequest):
            [spec] = from_tables({"embedder": [table]})
            spec.factory()
