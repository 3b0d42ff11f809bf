"""Other libraries' clients of embeddings and reranking: langchain-openai's and Cohere's."""

from __future__ import annotations

import cohere
import openai
import pytest
from langchain_openai import OpenAIEmbeddings

from langchain_weftline import WeftlineEmbeddings
from tests.integrations.recording import recorded
from weftline_engine.services.retrieval.plain_backends import vector_of

OPTIONS = ("--embedder", "null")

TEXTS = ["a red fox", "a blue whale", "a red whale"]


def embeddings(url: str, **how: object) -> OpenAIEmbeddings:
    """OpenAI's embeddings that send texts, because OpenAI's token ids are not the embedder's."""
    told = {"model": "null", "base_url": f"{url}/v1", "api_key": "none", **how}
    return OpenAIEmbeddings(check_embedding_ctx_length=False, **told)  # type: ignore[arg-type]


async def test_langchain_s_openai_embeddings(url: str) -> None:
    """They give the server's vectors, in requests of as many texts as they are told."""
    with recorded(url) as proxy:
        theirs = embeddings(proxy.url, chunk_size=2)
        found = theirs.embed_documents(TEXTS)
        sent = [body["input"] for body in proxy.bodies("/v1/embeddings")]
    assert sent == [TEXTS[:2], TEXTS[2:]]
    ours = WeftlineEmbeddings(base_url=url)
    assert found == ours.embed_documents(TEXTS)
    assert found[1] == pytest.approx(vector_of(TEXTS[1]).tolist())
    there = embeddings(url)
    assert there.embed_query(TEXTS[1]) == found[1]
    assert await there.aembed_documents(TEXTS) == found
    assert len(embeddings(url, dimensions=16).embed_query("a")) == 16


def test_token_ids_are_refused_with_what_to_do(url: str) -> None:
    """OpenAIEmbeddings of LangChain sends token ids: the error names the setting to change."""
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client,
        pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"),
    ):
        client.embeddings.create(model="null", input=[[1, 2], [3]])


@pytest.mark.parametrize("made", [cohere.Client, cohere.ClientV2], ids=["v1", "v2"])
def test_cohere_s_clients_rerank(url: str, made: type[cohere.Client | cohere.ClientV2]) -> None:
    """Both of Cohere's own clients read the answer of /v1/rerank."""
    client = made("none", base_url=url)
    top = client.rerank(model="null", query="blue whale", documents=TEXTS, top_n=2)
    assert [(one.index, one.relevance_score) for one in top.results] == [(1, 1.0), (2, 0.5)]
