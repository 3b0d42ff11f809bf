"""Real llama-servers that embed and rerank, behind our server: those of an address, and those that
our server starts for a GGUF file of an `[[embedder]]` or `[[reranker]]` table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import numpy as np
import pytest

from tests.gguf_chats import FAMILIES, write_chat_gguf
from tests.guarded_server import guarded_server
from tests.ports import free_port
from weftline.local import local_server

TEXTS = ["The shuttle carries the weft.", "Two whales", "é", "a long text " * 20]
START_S = 120


@contextmanager
def pooled(program: str, model: Path, *arguments: str) -> Iterator[str]:
    """The address of a llama-server with one thread. It ends with the test."""
    port = free_port()
    command = [
        program, "--model", str(model), *arguments,
        "--threads", "1", "--port", str(port), "--parallel", "2", "--ctx-size", "1024",
    ]  # fmt: skip
    with guarded_server(command, f"http://127.0.0.1:{port}", START_S) as served:
        yield served


@pytest.fixture(scope="module")
def pooling(llama_server: str, half_gguf: Path) -> Iterator[str]:
    """A llama-server that embeds."""
    with pooled(llama_server, half_gguf, "--embeddings", "--pooling", "mean") as url:
        yield url


@pytest.fixture(scope="module")
def ranker(smollm2_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that reranks with random weights: a Qwen3 with two classes."""
    path = tmp_path_factory.mktemp("ranker") / "ranker.gguf"
    tokenizer = smollm2_directory / "tokenizer.json"
    return write_chat_gguf(path, FAMILIES["qwen3"], tokenizer, classes=("yes", "no"))


@pytest.fixture(scope="module")
def ranking(llama_server: str, ranker: Path) -> Iterator[str]:
    """A llama-server that reranks."""
    with pooled(llama_server, ranker, "--reranking") as url:
        yield url


def vectors(url: str, model: str, texts: list[str] = TEXTS) -> np.ndarray:
    body = {"model": model, "input": texts}
    answer = httpx2.post(f"{url}/embeddings", json=body, timeout=120).json()
    return np.array([one["embedding"] for one in answer["data"]])


def vectors_one_by_one(url: str, model: str) -> np.ndarray:
    """llama-server computes the texts of a request side by side or not, as they happen to arrive.
    That changed numbers of a vector by up to 0.13."""
    return np.concatenate([vectors(url, model, [text]) for text in TEXTS])


def test_llama_server_embeds(pooling: str, tmp_path: Path) -> None:
    """The vectors are those that llama-server gives by itself."""
    file = tmp_path / "weftline.toml"
    file.write_text(
        '[[engine]]\nengine = "null"\n'
        f'[[embedder]]\nname = "far"\nconnect = "{pooling}"\nmodel = "any"\nbatch = 2\n'
    )
    with local_server("--config", str(file)) as url:
        found = vectors(f"{url}/v1", "far")
    assert found.shape == (len(TEXTS), 576)
    np.testing.assert_allclose(found, vectors(pooling, "any"), atol=1e-3)


def scores(url: str, model: str) -> dict[str, float]:
    """The score of each text for one query, the best first."""
    body = {"model": model, "query": "Who carries the weft?", "documents": TEXTS}
    rows = httpx2.post(f"{url}/rerank", json=body, timeout=120).json()["results"]
    best = sorted(rows, key=lambda one: -one["relevance_score"])
    return {TEXTS[one["index"]]: one["relevance_score"] for one in best}


def test_llama_server_reranks(ranking: str, tmp_path: Path) -> None:
    """The scores and the order are those that llama-server gives by itself."""
    file = tmp_path / "weftline.toml"
    file.write_text(
        '[[engine]]\nengine = "null"\n'
        f'[[reranker]]\nname = "far"\nconnect = "{ranking}"\nmodel = "any"\nbatch = 2\n'
    )
    expected = scores(ranking, "any")
    assert len(set(expected.values())) == len(TEXTS)
    with local_server("--config", str(file)) as url:
        found = scores(f"{url}/v1", "far")
    assert list(found) == list(expected)
    np.testing.assert_allclose(list(found.values()), list(expected.values()), atol=1e-3)


def test_our_server_starts_llama_servers_for_two_files(
    llama_server: str, half_gguf: Path, ranker: Path, pooling: str, ranking: str, tmp_path: Path
) -> None:
    """An embedder and a reranker of GGUF files give the same vectors and scores, and serve a graph
    as every engine of their kinds does. A text that is too long is refused in a sentence."""
    shared = f'llama_server = "{llama_server}"\nbatch = 2\n'
    one = '"--threads", "1"'
    file = tmp_path / "weftline.toml"
    file.write_text(
        '[[engine]]\nengine = "null"\n'
        f'[[embedder]]\nname = "own"\nmodel = "{half_gguf}"\n{shared}'
        f'llama_arguments = ["--pooling", "mean", {one}]\nstart = "eager"\n'
        f'[[reranker]]\nname = "judge"\nmodel = "{ranker}"\n{shared}llama_arguments = [{one}]\n'
    )
    with local_server("--config", str(file)) as url:
        # It computes longer batches than the other server, and so rounds otherwise.
        own, expected = vectors_one_by_one(f"{url}/v1", "own"), vectors_one_by_one(pooling, "any")
        np.testing.assert_allclose(own, expected, atol=1e-2)
        ranks, others = scores(f"{url}/v1", "judge"), scores(ranking, "any")
        assert list(ranks) == list(others)
        np.testing.assert_allclose(list(ranks.values()), list(others.values()), atol=1e-2)
        body = {"model": "own", "input": ["weft " * 4000]}
        refused = httpx2.post(f"{url}/v1/embeddings", json=body, timeout=120)
        assert refused.status_code == 400, refused.text
        assert "more than the 2,048 tokens that own takes at once: split it" in refused.text
