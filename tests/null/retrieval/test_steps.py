"""Steps in a graph, over HTTP: embed, ingest, search, merge and rerank beside calls."""

from __future__ import annotations

import base64
from array import array
from typing import Any

import httpx2
import pytest

from tests.null.asgi import Serve, Server, call
from weftline.contract.vectors import Vectors
from weftline_engine.services.retrieval.local import LocalItems
from weftline_engine.services.retrieval.plain_backends import MemoryTable, WordBackend
from weftline_engine.services.retrieval.stores import StoreBackend
from weftline_server.config import ServerConfig
from weftline_server.runtime.registry import RegistryConfig
from weftline_server.session.budget import Budget

TEXTS = ["red fox", "blue whale", "red whale"]


def engines() -> dict[str, Any]:
    """An embedder `words` and a store `docs`."""
    table = MemoryTable()
    return {
        "embedder": lambda: LocalItems(WordBackend("words")),
        "store": lambda: LocalItems(StoreBackend("docs", table)),
    }


@pytest.fixture
async def server(serve: Serve) -> Server:
    return await serve(also=engines())


def step(kind: str, read: Any, out: str, **more: Any) -> dict[str, Any]:
    """A step on the wire; text as `read` names a variable, anything else is a constant."""
    source = {"var": read} if isinstance(read, str) else {"value": read}
    return {"kind": kind, "name": out, "in": source, "out": out, **more}


def text(value: str) -> dict[str, Any]:
    return {"value": value}


async def run(server: Server, *steps: Any, calls: Any = (), **more: Any) -> httpx2.Response:
    return await server.http.post(
        "/v1/submit", json={"steps": steps, "calls": calls, "close": True, **more}
    )


async def filled(server: Server) -> None:
    """Put TEXTS into the store."""
    answer = await run(
        server,
        step("embed", TEXTS, "vecs"),
        step("ingest", "vecs", "indexed", store="docs"),
        get=["indexed"],
    )
    assert answer.json()["values"]["indexed"]["count"] == 3


async def test_a_question_is_answered_from_a_store_in_one_submit(server: Server) -> None:
    """Ingest, embed, search and a call that reads the hits: one graph, one request."""
    ask = call("answer", "{{input:hits}} {{output:out}}", hits="hits", out="out")
    answer = await run(
        server,
        step("embed", TEXTS, "vecs"),
        step("ingest", "vecs", "indexed", store="docs"),
        {**step("embed", [], "qvec"), "in": text("a red fox")},
        step("search", "qvec", "hits", store="docs", k=1, after=["indexed"]),
        calls=[ask],
        get=["hits", "out"],
        graph=True,
    )
    body = answer.json()
    [hit] = body["values"]["hits"]
    assert hit["text"] == "red fox" and hit["score"] == pytest.approx(0.816, abs=1e-3)
    assert '"text": "red fox"' in body["values"]["out"]
    steps = {one["name"]: one for one in body["graph"]["steps"]}
    assert {name: (one["kind"], one["state"]) for name, one in steps.items()} == {
        "vecs": ("embed", "done"),
        "indexed": ("ingest", "done"),
        "qvec": ("embed", "done"),
        "hits": ("search", "done"),
    }
    assert [steps[n]["resource"] for n in ("vecs", "hits")] == ["words", "docs"]
    assert steps["indexed"]["effects"] == "idempotent"
    assert [one["out"] for one in body["steps"]] == ["vecs", "indexed", "qvec", "hits"]
    edges = {(edge["semantic_var_id"]) for edge in body["graph"]["edges"]}
    assert edges == {"vecs", "indexed", "qvec", "hits"}


async def test_a_repeated_request_runs_its_steps_once(server: Server) -> None:
    """Two requests with one key: both get the answer, and the metrics count each step once. The
    graph names the vectors, and does not hold them.
    """
    steps = [step("embed", TEXTS, "vecs"), step("ingest", "vecs", "indexed", store="docs")]
    body = {"steps": steps, "get": ["indexed"], "graph": True, "close": True}
    headers = {"Idempotency-Key": "k"}
    first, again = [
        await server.http.post("/v1/submit", json=body, headers=headers) for _ in range(2)
    ]
    assert first.json()["values"]["indexed"]["count"] == 3
    assert again.text == first.text and again.headers["idempotency-replayed"] == "true"
    metrics = (await server.http.get("/metrics")).text
    assert 'weftline_steps_total{engine="embedder",kind="embed",state="done"} 1.0' in metrics
    assert 'weftline_steps_total{engine="store",kind="ingest",state="done"} 1.0' in metrics
    [vecs] = [v for v in first.json()["graph"]["variables"] if v["semantic_var_id"] == "vecs"]
    assert vecs["state"] == "ready" and len(first.text) < 4000


async def test_steps_count_against_the_budget(serve: Serve) -> None:
    """A session may have three calls and steps. Four are refused, and none of them runs."""
    config = ServerConfig(registry=RegistryConfig(budget=Budget(calls=3)))
    server = await serve(config=config, also=engines())
    session = await server.session()
    many = [step("embed", [str(n)], f"v{n}") for n in range(4)]
    answer = await server.submit(session, steps=many)
    assert answer.json()["error"]["type"] == "BudgetExceeded"
    assert (await server.graph(session))["steps"] == []
    assert (await server.submit(session, steps=many[:3])).status_code == 200


async def test_several_queries_are_merged_and_reranked(server: Server) -> None:
    """Three queries, their hits without repetition, and the two that fit the question best."""
    await filled(server)
    answer = await run(
        server,
        step("embed", ["fox", "whale", "red"], "qvecs"),
        step("search", "qvecs", "hits", store="docs", k=2),
        step("merge", "hits", "pool"),
        {**step("rerank", "pool", "top", k=2), "query": text("blue whale")},
        get=["hits", "pool", "top"],
        graph=True,
    )
    values = answer.json()["values"]
    assert [len(hits) for hits in values["hits"]] == [2, 2, 2]
    assert sorted(hit["text"] for hit in values["pool"]) == sorted(TEXTS)
    assert [(hit["text"], hit["score"]) for hit in values["top"]] == [
        ("blue whale", 1.0),
        ("red whale", 0.5),
    ]
    [merge] = [one for one in answer.json()["graph"]["steps"] if one["kind"] == "merge"]
    assert (merge["engine"], merge["state"]) == ("server", "done")


def hits(*found: tuple[str, float]) -> list[dict[str, Any]]:
    return [{"id": id, "text": f"text {id}", "score": score} for id, score in found]


LISTS = [hits(("a", 0.9), ("b", 0.8), ("c", 0.7)), hits(("c", 0.95), ("d", 0.1)), hits(("c", 0.2))]


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        ("score", [("c", 0.95), ("a", 0.9), ("b", 0.8), ("d", 0.1)]),
        ("order", [("a", 0.9), ("b", 0.8), ("c", 0.95), ("d", 0.1)]),
        (
            "reciprocal",
            [("c", 1 / 62 + 1 / 60 + 1 / 60), ("a", 1 / 60), ("b", 1 / 61), ("d", 1 / 61)],
        ),
    ],
)
async def test_a_merge_ranks_documents(
    server: Server, rank: str, expected: list[tuple[str, float]]
) -> None:
    """By their best scores, by the order of the lists, or by their places in all lists, of which
    the first is 0. Equal ones stay in the order of arrival."""
    answer = await run(server, step("merge", LISTS, "pool", rank=rank), get=["pool"])
    pool = answer.json()["values"]["pool"]
    assert [(hit["id"], hit["score"]) for hit in pool] == expected
    answer = await run(server, step("merge", LISTS, "pool", rank=rank, limit=2), get=["pool"])
    assert answer.json()["values"]["pool"] == pool[:2]


async def test_a_generated_list_is_searched(server: Server) -> None:
    """A call writes three queries as lines; the embed step reads them through a transform."""
    await filled(server)
    lines = call("plan", "fox\nwhale\n{{output:queries}}", queries="queries")
    split = {"var": "queries", "transforms": [{"op": "line_list"}]}
    answer = await run(
        server,
        {**step("embed", [], "qvecs"), "in": split},
        step("search", "qvecs", "hits", store="docs", k=1),
        calls=[lines],
        get=["hits"],
    )
    assert [hit[0]["text"] for hit in answer.json()["values"]["hits"]] == ["red fox", "red whale"]


async def test_documents_are_fetched_and_deleted(server: Server) -> None:
    """Of three documents one is deleted. The fetch after it finds the others, in its order of
    ids."""
    items = [{"id": str(n), "text": text, "metadata": {"n": n}} for n, text in enumerate(TEXTS)]
    answer = await run(
        server,
        step("embed", items, "vecs"),
        step("ingest", "vecs", "indexed", store="docs"),
        step("delete", ["1"], "gone", store="docs", after=["indexed"]),
        step("fetch", ["2", "1", "0"], "left", store="docs", after=["gone"]),
        get=["gone", "left"],
    )
    values = answer.json()["values"]
    assert values["gone"] == {"count": 1}
    assert values["left"] == [items[2], items[0]]


async def test_tenants_do_not_see_each_other(serve: Serve) -> None:
    """Two tenants use one store under one name."""
    config = ServerConfig(keys={"key-a": "a", "key-b": "b"})
    server = await serve(config=config, also=engines(), headers={"Authorization": "Bearer key-a"})
    await filled(server)
    query = (
        {**step("embed", [], "q"), "in": text("fox")},
        step("search", "q", "hits", store="docs"),
    )
    found = {}
    for key in ("key-a", "key-b"):
        server.http.headers["Authorization"] = f"Bearer {key}"
        found[key] = (await run(server, *query, get=["hits"])).json()["values"]["hits"]
    assert len(found["key-a"]) == 3 and found["key-b"] == []


@pytest.mark.parametrize(
    ("bad", "status", "type", "message"),
    [
        (
            step("search", "q", "hits", store="nowhere"),
            404,
            "UnknownStore",
            "there is no store 'nowhere': use one of docs",
        ),
        (
            step("embed", ["a"], "v", engine="big"),
            404,
            "UnknownModel",
            "there is no embedder 'big': use one of words",
        ),
        (
            step("embed", [1], "v"),
            400,
            "InvalidRequest",
            "embed 'v' takes texts, or objects with a 'text', not '1'",
        ),
        (
            step("search", ["fox"], "hits", store="docs"),
            400,
            "InvalidRequest",
            "search 'hits' takes embedded texts: read the output of an embed step "
            "(embedded texts are an object with 'items' and their 'vectors')",
        ),
        (
            {**step("embed", ["a"], "v"), "in": {"value": ["a"], "transforms": [{"op": "strip"}]}},
            400,
            "InvalidRequest",
            "transforms go with a variable, not with a value",
        ),
        (step("merge", ["a"], "v", limit=0), 400, "InvalidRequest", "limit must be between 1 and"),
    ],
)
async def test_a_bad_step_adds_nothing(
    server: Server, bad: dict[str, Any], status: int, type: str, message: str
) -> None:
    """All or none: the good step beside it does not run either."""
    session = await server.session()
    answer = await server.submit(session, steps=[step("embed", ["a"], "good"), bad])
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (status, type)
    assert error["message"].startswith(message)
    if status == 404:
        assert error["call"] == bad["out"], "the step at fault is named"
    assert (await server.graph(session))["steps"] == []


async def test_a_value_that_does_not_fit_fails_its_step_and_those_below(server: Server) -> None:
    """The error names the first step that failed."""
    session = await server.session()
    steps = [step("embed", "given", "v"), step("ingest", "v", "indexed", store="docs")]
    assert (await server.submit(session, steps=steps)).status_code == 200
    await server.http.put(f"/v1/session/{session}/variable/given", json={"value": {"a": 1}})
    error = (await server.get(session, "indexed")).json()["error"]
    assert (error["type"], error["call"]) == ("InvalidRequest", "v")


async def test_an_engine_that_fails_an_op_fails_the_step(server: Server) -> None:
    """Vectors of another width than those in the store: the store refuses."""
    await filled(server)
    other = {"items": [{"text": "x"}], "vectors": "AACAPwAAgD8=", "dimensions": 2}
    answer = await run(
        server, {**step("ingest", [], "bad", store="docs"), "in": {"value": other}}, get=["bad"]
    )
    assert answer.status_code == 400
    assert "the store holds vectors of 32 numbers and got 2" in answer.json()["error"]["message"]


async def test_a_step_can_be_cancelled(server: Server) -> None:
    """It waits for a variable that nobody sets."""
    session = await server.session()
    submitted = await server.submit(session, steps=[step("embed", "never", "v")])
    [made] = submitted.json()["steps"]
    done = await server.http.delete(f"/v1/session/{session}/call/{made['step_id']}")
    assert done.status_code in (200, 204), done.text
    assert (await server.get(session, "v")).json()["error"]["type"] == "Cancelled"


async def test_a_server_without_engines_says_how_to_get_them(serve: Serve) -> None:
    """The message is the table of the configuration that is missing."""
    server = await serve()
    for kind, more, what in (("embed", {}, "embedder"), ("search", {"store": "x"}, "store")):
        answer = await run(server, step(kind, "v", "out", **more))
        assert answer.status_code == 404
        assert answer.json()["error"]["message"] == (
            f"this server has no {what}: start it with a table [[{what}]] in its configuration"
        )


async def test_items_are_stored_in_place_of_the_texts_that_were_embedded(server: Server) -> None:
    """A text is found by what was embedded, and read as what was stored."""
    items = [{"id": "a", "text": "shown a"}, {"id": "b", "text": "shown b"}]
    ingest = step("ingest", "vecs", "indexed", store="docs", items={"value": items})
    answer = await run(
        server,
        step("embed", ["red fox", "blue whale"], "vecs"),
        ingest,
        {**step("embed", [], "qvec"), "in": text("a blue whale")},
        step("search", "qvec", "hits", store="docs", k=1, after=["indexed"]),
        get=["indexed", "hits"],
    )
    values = answer.json()["values"]
    assert values["indexed"] == {"ids": ["a", "b"], "count": 2}
    assert [(hit["id"], hit["text"]) for hit in values["hits"]] == [("b", "shown b")]


async def test_there_is_an_item_for_each_vector(server: Server) -> None:
    """An ingest of three vectors with one item is refused."""
    ingest = step("ingest", "vecs", "indexed", store="docs", items={"value": [{"text": "x"}]})
    answer = await run(server, step("embed", TEXTS, "vecs"), ingest, get=["indexed"])
    assert answer.status_code == 400
    assert "has 1 items for 3 vectors: give one for each" in answer.json()["error"]["message"]


def vectors_of(value: dict[str, Any]) -> list[list[float]]:
    return [row.tolist() for row in Vectors.from_json(value).rows()]


async def test_a_mean_of_vectors(server: Server) -> None:
    """The mean of a list and a text: a search with it gives one list of hits."""
    await filled(server)
    answer = await run(
        server,
        step("embed", ["red fox", "red whale"], "both"),
        {**step("embed", [], "one"), "in": text("blue whale")},
        {"kind": "mean", "parts": [{"var": "both"}, {"var": "one"}], "out": "mean"},
        step("search", "mean", "hits", store="docs", k=1),
        get=["both", "one", "mean", "hits"],
    )
    got = answer.json()["values"]
    rows = [*vectors_of(got["both"]), *vectors_of(got["one"])]
    expected = array("f", (sum(column) / 3 for column in zip(*rows, strict=True)))
    assert vectors_of(got["mean"]) == [list(expected)]
    assert got["mean"]["items"] == [{"text": "red fox"}] and got["mean"]["single"]
    assert [hit["text"] for hit in got["hits"]] == ["red whale"]


def embedded(vectors: Any, dimensions: Any) -> dict[str, Any]:
    return {"value": {"items": [{"text": "a"}], "vectors": vectors, "dimensions": dimensions}}


ONE = base64.b64encode(array("f", [1.0, 2.0]).tobytes()).decode()


@pytest.mark.parametrize(
    ("parts", "wrong"),
    [
        ([embedded(ONE, 2), embedded(ONE, 1)], "1 to 256 vectors, all of one width"),
        ([embedded(ONE, 3)], "'vectors' holds 2 numbers, which 3 does not divide"),
        ([embedded(ONE, 0)], "a number in 'dimensions'"),
        ([embedded(ONE, "2")], "a number in 'dimensions'"),
        ([embedded("", 2)], "1 to 256 vectors, all of one width"),
        ([embedded("no base64", 2)], "is not base64 text"),
        ([embedded(7, 2)], "a vector is base64 text"),
        ([embedded(ONE, 2)] * 257, "a mean has 1 to 256 parts"),
    ],
    ids=["widths", "cut", "zero", "text", "none", "base64", "number", "many"],
)
async def test_a_mean_takes_vectors_of_one_width(
    server: Server, parts: list[Any], wrong: str
) -> None:
    answer = await run(server, {"kind": "mean", "parts": parts, "out": "m"}, get=["m"])
    assert answer.status_code == 400
    assert wrong in answer.json()["error"]["message"]
