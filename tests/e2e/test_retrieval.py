"""A real embedder and a real store behind the server: MiniLM, and sqlite-vec in a file."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import httpx2
import pytest
from openai import OpenAI

from weftline import Client
from weftline.contract.vectors import Vectors
from weftline.local import local_server
from weftline_engine import api
from weftline_engine.services.retrieval.config import StoreConfig
from weftline_engine.transport.process import ProcessEngine

TEXTS = [
    "The shuttle carries the weft through the shed.",
    "A loom holds the warp threads under tension.",
    "Rust is a disease of wheat.",
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores") / "docs.db"


@pytest.fixture(scope="module")
def url(store: Path) -> Iterator[str]:
    """A server with a slowly echoing model, MiniLM and a store in one file."""
    echo = ("--engine", "null", "--null-step-s", "0.05")
    with local_server(*echo, "--embedder", "minilm", "--store", f"sqlite:{store}") as url:
        yield url


def test_texts_are_found_by_their_meaning(url: str) -> None:
    """The nearest text shares no word with the question."""
    with Client(url) as client, client.session() as session:
        indexed = session.ingest(session.embed(TEXTS), store="default")
        query = session.embed("crop illness")
        hits = session.search(query, store="default", k=3, after=[indexed]).get()
        assert hits[0]["text"] == TEXTS[2]
        assert [hit["score"] for hit in hits] == sorted((h["score"] for h in hits), reverse=True)
        best = session.rerank(TEXTS, "what carries the weft?", k=1).get()
        assert best[0]["text"] == TEXTS[0]


def asked(url: str, text: str, op: str, tokens: int = 100) -> dict[str, Any]:
    """A call writes queries, which are embedded and searched; the whole answer."""
    out = {"in_out": "out", "name": "o", "semantic_var_id": "queries"}
    call = {
        "name": "plan",
        "prompt": f"{text}{{{{output:o}}}}",
        "placeholders": [{**out, "sampling": {"max_tokens": tokens}}],
    }
    listed = {"var": "queries", "transforms": [{"op": op}]}
    steps = [
        {"kind": "embed", "in": {"value": TEXTS}, "out": "vecs"},
        {"kind": "ingest", "in": {"var": "vecs"}, "store": "default", "out": "indexed"},
        {"kind": "embed", "name": "embed", "in": listed, "out": "q"},
        {"kind": "search", "in": {"var": "q"}, "store": "default", "k": 1, "out": "hits",
         "after": ["indexed"]},
    ]  # fmt: skip
    body = {"calls": [call], "steps": steps, "get": ["hits"], "graph": True, "close": True}
    found: dict[str, Any] = httpx2.post(f"{url}/v1/submit", json=body, timeout=60).json()
    return found


QUERIES = ["crop illness", "tight threads", "what crosses the shed", "a pest of grain", "tension"]
BEST = [TEXTS[2], TEXTS[1], TEXTS[0], TEXTS[2], TEXTS[1]]


@pytest.mark.parametrize("count", [2, 5])
def test_a_query_is_embedded_before_the_next_one_is_written(url: str, count: int) -> None:
    """By the real embedder, for fewer and for more queries than the three that are usual."""
    answer = asked(url, "\n".join(QUERIES[:count]), "line_list")
    assert [hits[0]["text"] for hits in answer["values"]["hits"]] == BEST[:count]
    written = answer["graph"]["calls"][0]["steps"][0]["finished_s"]
    [embed] = [one for one in answer["graph"]["steps"] if one["outputs"] == ["q"]]
    assert embed["started_s"] < written < embed["finished_s"]


def test_a_list_that_is_cut_or_broken(url: str) -> None:
    """A text that ends inside an item is what its transform says; bad JSON fails the step."""
    cut = asked(url, '["crop illness", "tight threads"]', "json", tokens=3)
    assert [hits[0]["text"] for hits in cut["values"]["hits"]] == BEST[:2], "the parser closes it"
    broken = asked(url, "no list of queries at all", "json")
    assert (broken["error"]["type"], broken["error"]["call"]) == ("TransformFailed", "embed")


def test_openai_s_client_embeds(url: str) -> None:
    """Texts of one request have the same vectors as alone, within float32."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    both = client.embeddings.create(model="minilm", input=TEXTS[:2])
    alone = client.embeddings.create(model="minilm", input=TEXTS[1], encoding_format="float")
    assert len(both.data) == 2 and len(both.data[0].embedding) == 384
    assert both.data[1].embedding == pytest.approx(alone.data[0].embedding, abs=1e-5)
    client.close()


def embedder_of(store: Path) -> int:
    """The process of MiniLM whose server has this store. Other servers may have one, too."""
    found = subprocess.run(
        ["pgrep", "-f", "weftline_engine.services.retrieval.items_host.*--name minilm"],
        capture_output=True,
        text=True,
        check=True,
    )
    for pid in map(int, found.stdout.split()):
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        [parent] = [line.split()[1] for line in status if line.startswith("PPid:")]
        if str(store) in Path(f"/proc/{parent}/cmdline").read_text():
            return pid
    raise AssertionError("the server has no embedder")


def test_an_embedder_that_dies_is_started_again(url: str, store: Path) -> None:
    """Its child is killed. The server is ready again when the new one has loaded."""
    os.kill(embedder_of(store), signal.SIGKILL)
    while httpx2.get(f"{url}/health/ready").status_code != 503:
        sleep(0.01)  # until the server has noticed
    while httpx2.get(f"{url}/health/ready").status_code != 200:
        sleep(0.2)
    with Client(url) as client, client.session() as session:
        assert session.embed("again").get()["dimensions"] == 384


async def test_a_store_outlives_its_process(tmp_path: Path) -> None:
    """What one process has ingested, the next one finds."""
    config = StoreConfig(name="docs", path=tmp_path / "docs.db")
    vector = {"vectors": Vectors.of([[1, 0]])}
    document = {"id": "1", "text": "kept", "metadata": {"page": 3, "draft": True}}
    ops: dict[str, dict[str, Any]] = {
        "ingest": {"items": [document]},
        "search": {"k": 1, "filter": {"draft": True}},
    }
    values = []
    for kind, inputs in ops.items():
        engine = ProcessEngine(config)
        await engine.start()
        engine.submit(
            api.Op(id=kind, kind=kind, context=kind, inputs={"tenant": "t", **vector, **inputs})
        )
        async with asyncio.timeout(30):
            async for events in engine.events():
                if ended := [one for one in events if isinstance(one, api.Finished)]:
                    values.append(ended[0].value)
                    break
        await engine.close()
    assert values == [
        {"ids": ["1"], "count": 1},
        {"hits": [[{**document, "score": pytest.approx(1.0)}]]},
    ]


async def test_a_file_that_is_no_store_is_said(tmp_path: Path) -> None:
    """The server does not start, with one sentence."""
    bad = tmp_path / "notes.txt"
    bad.write_text("this is no database, and longer than a header of SQLite would be" * 20)
    engine = ProcessEngine(StoreConfig(name="docs", path=bad))
    with pytest.raises(api.EngineDied, match=r"notes.txt cannot be used as a store: .*not a data"):
        await engine.start()
