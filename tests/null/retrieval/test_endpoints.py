"""/v1/embeddings and /v1/rerank, as OpenAI's, Cohere's and Jina's clients call them."""

from __future__ import annotations

import base64
import math
from array import array
from typing import Any

import pytest

from tests.null.asgi import Serve, Server
from tests.null.retrieval.test_steps import engines
from weftline_engine.retrieval.memory import DIMENSIONS, vector_of


@pytest.fixture
async def server(serve: Serve) -> Server:
    return await serve(also=engines())


async def embed(server: Server, **body: Any) -> dict[str, Any]:
    answer = await server.http.post("/v1/embeddings", json=body)
    return {"status": answer.status_code, **answer.json()}


async def test_embeddings_as_floats_and_as_base64(server: Server) -> None:
    """Both forms hold the same numbers; the session of the request is closed."""
    floats = await embed(server, input=["red fox", "whale"], model="words")
    assert (floats["object"], floats["model"]) == ("list", "words")
    assert [one["index"] for one in floats["data"]] == [0, 1]
    assert floats["data"][0]["embedding"] == pytest.approx(vector_of("red fox").tolist())
    assert floats["usage"]["prompt_tokens"] == floats["usage"]["total_tokens"] > 0
    encoded = await embed(server, input="whale", encoding_format="base64")
    numbers = array("f")
    numbers.frombytes(base64.b64decode(encoded["data"][0]["embedding"]))
    assert numbers.tolist() == floats["data"][1]["embedding"]
    assert server.service.engines.status().sessions == 0


async def test_fewer_dimensions_have_length_one(server: Server) -> None:
    """A vector that is cut to fewer dimensions is scaled to length 1 again."""
    [cut] = (await embed(server, input="a red fox and a whale", dimensions=16))["data"]
    assert len(cut["embedding"]) == 16
    assert math.hypot(*cut["embedding"]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"input": []}, 400, "input holds 1 to 2048 texts, not 0"),
        ({"input": ["a"] * 2049}, 400, "input holds 1 to 2048 texts, not 2049"),
        ({"input": [[1, 2]]}, 400, "input holds token ids"),
        ({"input": [1, 2]}, 400, "input holds token ids"),
        ({"input": [None]}, 400, "input"),
        ({"input": "a", "dimensions": 0}, 400, "dimensions must be between 1 and 65536"),
        (
            {"input": "a", "dimensions": 64},
            400,
            f"the model gives {DIMENSIONS} numbers for a text, not 64",
        ),
        ({"input": "a", "model": "big"}, 404, "there is no embedder 'big': use one of words"),
    ],
)
async def test_what_does_not_fit_is_refused(
    server: Server, body: dict[str, Any], status: int, message: str
) -> None:
    """A bad request opens no session."""
    answer = await embed(server, **body)
    assert answer["status"] == status and answer["error"]["message"].startswith(message)
    assert server.service.engines.status().sessions == 0


async def test_documents_are_reranked(server: Server) -> None:
    """Documents may be texts or objects, and are returned if the request asks for them."""
    body = {
        "model": "words",
        "query": "blue whale",
        "documents": ["red fox", {"text": "a blue whale"}, "red whale"],
        "top_n": 2,
        "return_documents": True,
    }
    answer = (await server.http.post("/v1/rerank", json=body)).json()
    assert answer["model"] == "words"
    assert answer["results"] == [
        {"index": 1, "relevance_score": 1.0, "document": {"text": "a blue whale"}},
        {"index": 2, "relevance_score": 0.5, "document": {"text": "red whale"}},
    ]


@pytest.mark.parametrize("documents", [[], [{"title": "no text"}]])
async def test_documents_have_text(server: Server, documents: list[Any]) -> None:
    """A request without documents, or with one without text, is a 400 that names the field."""
    body = {"query": "a", "documents": documents}
    answer = await server.http.post("/v1/rerank", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "documents"
