"""/v1/embeddings and /v1/rerank, as OpenAI's, Cohere's and Jina's clients call them."""

from __future__ import annotations

import base64
import math
from array import array
from typing import Any

import pytest

from tests.null.asgi import Serve, Server
from tests.null.retrieval.test_steps import engines
from weftline_engine.services.retrieval.local import LocalItems
from weftline_engine.services.retrieval.plain_backends import DIMENSIONS, WordBackend, vector_of


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
    assert floats["usage"] == {"prompt_tokens": 3, "total_tokens": 3}  # a word is a token here
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


@pytest.fixture
async def short(serve: Serve) -> Server:
    """A server whose embedder takes four words."""
    return await serve(also={"embedder": lambda: LocalItems(WordBackend("short", most=4))})


async def test_a_text_that_is_too_long_is_refused(short: Server) -> None:
    """It was cut without a word, so texts with different ends had equal vectors. The error has the
    index of the text and both lengths, in the words by which clients know it."""
    answer = await embed(short, input=["one two", "a b c d e f"])
    assert (answer["status"], answer["error"]["code"]) == (400, "context_length_exceeded")
    said = "text 1 has 6 tokens, and this model's maximum context length is 4 tokens"
    assert said in answer["error"]["message"]
    asked = {"query": "a b", "documents": ["c", "d e f"]}
    refused = await short.http.post("/v1/rerank", json=asked)
    assert (refused.status_code, refused.json()["error"]["code"]) == (
        400,
        "context_length_exceeded",
    )
    assert "text 1 has 5 tokens" in refused.json()["error"]["message"]
    assert short.service.engines.status().sessions == 0


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ({"truncate_prompt_tokens": -1}, 4),
        ({"truncate_prompt_tokens": 2}, 2),
        ({"truncate": "END"}, 4),
        ({"truncate": "end", "truncate_prompt_tokens": 3}, 3),
    ],
)
async def test_a_text_is_cut_where_the_request_says_so(
    short: Server, asked: dict[str, Any], kept: int
) -> None:
    """By vLLM's field or Cohere's. The usage counts what was read."""
    answer = await embed(short, input=["a b c d e f"], **asked)
    expected = vector_of(" ".join("abcdef"[:kept]))
    assert answer["data"][0]["embedding"] == pytest.approx(expected.tolist())
    assert answer["usage"]["prompt_tokens"] == kept


async def test_a_document_is_cut_where_the_request_says_so(short: Server) -> None:
    """The query stays whole. The word that fits it stands behind the cut."""
    asked = {"query": "x", "documents": ["a b c d x", "x a b c d e"], "truncate_prompt_tokens": -1}
    answer = (await short.http.post("/v1/rerank", json=asked)).json()
    assert [(one["index"], one["relevance_score"]) for one in answer["results"]] == [
        (1, 1.0),
        (0, 0.0),
    ]
    assert answer["meta"]["tokens"] == {"input_tokens": 8}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"truncate": "START"}, "texts are cut at their end: write END"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens must be -1, for what the model"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens is -1, or a number up to 4"),
    ],
)
async def test_a_cut_that_is_not_served(short: Server, asked: dict[str, Any], says: str) -> None:
    """It is a 400, and nothing is embedded."""
    answer = await embed(short, input="a", **asked)
    assert answer["status"] == 400 and says in answer["error"]["message"]


async def test_fields_of_other_apis_are_taken(server: Server) -> None:
    """LiteLLM's metadata, Cohere's input_type, and explicit nulls."""
    nulls = dict.fromkeys(("encoding_format", "dimensions", "user", "truncate", "model"))
    more = {"input_type": "search_query", "metadata": {"trace": "1"}}
    answer = await embed(server, input="whale", **nulls, **more)
    assert answer["status"] == 200
    assert answer["data"][0]["embedding"] == pytest.approx(vector_of("whale").tolist())


async def test_models_has_embedders_and_rerankers(server: Server) -> None:
    """Behind those that generate, so that the first one is the default of chats."""
    listed = (await server.http.get("/v1/models")).json()["data"]
    assert [one["id"] for one in listed] == ["null", "words"]
    assert (await server.http.get("/v1/models/words")).json() == listed[1]


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


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_documents_are_reranked_at_every_address(server: Server, path: str) -> None:
    """TEI's and vLLM's clients ask for /rerank."""
    body = {"query": "blue whale", "documents": ["red fox", "a blue whale"]}
    answer = (await server.http.post(path, json=body)).json()
    assert [one["index"] for one in answer["results"]] == [1, 0]
