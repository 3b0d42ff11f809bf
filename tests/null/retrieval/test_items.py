"""Lists travel item by item: from a call that still writes to embed, search, merge and rerank."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.null.asgi import Serve, Server, call
from tests.null.retrieval.test_steps import TEXTS, filled, run, step, text
from tests.waits import WAIT_S
from weftline.contract.transforms.regexes import Regex
from weftline_engine import api
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullMode
from weftline_engine.services.retrieval.local import LocalItems
from weftline_engine.services.retrieval.plain_backends import MemoryTable, WordBackend
from weftline_engine.services.retrieval.stores import StoreBackend
from weftline_server.config import ServerConfig

SLOW = LatencyProfile(step_s=0.002)  # a word; the steps' engines take no time


class Watched(WordBackend):
    """Remembers each batch, with what the call had written by then."""

    def __init__(self) -> None:
        super().__init__("words")
        self.seen: list[tuple[list[Any], str]] = []
        self.written: Callable[[], str] = str

    def describe(self) -> api.Description:
        """Two texts take as long one by one as together."""
        return replace(super().describe(), batch_profile=((2, 64, 0.1),))

    def compute(self, kind: str, payloads: Sequence[Any]) -> Sequence[Any]:
        self.seen.append((list(payloads), self.written()))
        return super().compute(kind, payloads)


class Split:
    """A server whose call writes `reply`, and the batches of its embedder."""

    def __init__(self, server: Server, backend: Watched) -> None:
        self.server = server
        self.backend = backend

        def written() -> str:
            sessions = list(server.driver.registry)
            variables = sessions[-1].variables if sessions else {}
            return variables["queries"].text if "queries" in variables else ""

        backend.written = written

    async def ask(
        self, op: str | None, *steps: Any, get: Sequence[str], max_tokens: int = 64
    ) -> dict[str, Any]:
        """Embed and search the list of the call, which its own transform or the step's makes."""
        sampling = {"max_tokens": max_tokens}
        plan = call("plan", "{{output:queries}}", queries="queries")
        out: dict[str, Any] = {
            "name": "queries",
            "in_out": "out",
            "semantic_var_id": "queries",
            "sampling": sampling,
        }
        read: dict[str, Any] = {"var": "queries"}
        (out if op == "json" else read)["transforms"] = [{"op": op}]
        plan["placeholders"] = [out]
        answer = await run(
            self.server,
            {**step("embed", [], "qvecs"), "in": read},
            step("search", "qvecs", "hits", store="docs", k=1),
            *steps,
            calls=[plan],
            get=["queries", *get],
        )
        body: dict[str, Any] = answer.json()
        return body


@pytest.fixture
def split(serve: Serve) -> Callable[..., Any]:
    async def start(reply: str, *without: str) -> Split:
        backend, table = Watched(), MemoryTable()
        config = NullConfig(mode=NullMode.SCRIPT, script=(("", reply),), latency=SLOW)
        also = {
            "embedder": lambda: LocalItems(backend, kept=0),
            "store": lambda: LocalItems(StoreBackend("docs", table)),
        }
        server = await serve(config, ServerConfig(without=frozenset(without)), also=also)
        await filled(server)
        backend.seen.clear()
        return Split(server, backend)

    return start


@pytest.mark.parametrize(
    ("op", "reply"),
    [
        ("line_list", "red fox\nblue whale\nred whale"),
        ("comma_list", "red fox, blue whale, red whale"),
        ("json", '["red fox", "blue whale", "red whale"]'),
        ("markdown_list", "- red fox\n- blue whale\n- red whale"),
    ],
)
async def test_an_item_is_embedded_before_the_next_is_decoded(
    split: Callable[..., Any], op: str, reply: str
) -> None:
    """The embedder gets each item alone, while the call has not begun the item after the next."""
    made = await split(reply)
    found = await made.ask(op, get=["hits"])
    assert [hits[0]["text"] for hits in found["values"]["hits"]] == TEXTS
    assert [batch for batch, _ in made.backend.seen] == [[text] for text in TEXTS]
    first, second = made.backend.seen[0][1], made.backend.seen[1][1]
    assert "fox" in first and not first.rstrip("]").endswith("blue whale")
    assert "red whale" not in second.replace("red fox", "")


async def test_without_batch_each_item_is_alone(split: Callable[..., Any]) -> None:
    """The embedder takes the items of a list one by one, as the call writes them."""
    made = await split("red fox\nblue whale\nred whale", "batch")
    found = await made.ask("line_list", get=["hits"])
    assert [hits[0]["text"] for hits in found["values"]["hits"]] == TEXTS
    batches = [batch for batch, _ in made.backend.seen]
    assert batches == [[one] for one in TEXTS]


async def test_reranking_begins_before_the_last_query_is_written(
    split: Callable[..., Any],
) -> None:
    """The hits of the first query are scored early; the order of the result is that of all."""
    made = await split("red fox\nblue whale\nred whale")
    steps = (
        step("merge", "hits", "pool"),
        {**step("rerank", "pool", "top", k=2), "query": text("a red whale")},
    )
    found = await made.ask("line_list", *steps, get=["pool", "top"])
    assert [hit["text"] for hit in found["values"]["top"]] == ["red whale", "red fox"]
    scored = [batch for batch, _ in made.backend.seen if isinstance(batch[0], tuple)]
    assert scored[0] == [("a red whale", "red fox")], "the first hit, alone"
    assert "red whale" not in made.backend.seen[1][1].replace("red fox", "")
    assert len(found["values"]["pool"]) == 3


@pytest.mark.parametrize("fits", [True, False])
async def test_the_pattern_of_a_reranks_query_runs_elsewhere(
    split: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, fits: bool
) -> None:
    """It ran on the event loop when the first hits came. One that did not fit ended the session as
    an error of the server. Hits are scored early as before.
    """
    made = await split("red fox\nblue whale\nred whale")
    monkeypatch.setattr(Regex, "apply", None)  # of this process; a worker has its own
    pattern = {"op": "regex", "regex": "about (.*)", "output_keys": ["q"]}
    query = {"var": "asked", "transforms": [pattern, {"op": "get", "key": "q"}]}
    merge = step("merge", "hits", "pool")
    rerank = {**step("rerank", "pool", "top", k=2), "query": query}
    said = "about a red whale" if fits else "nothing"
    text_step = {"kind": "text", "parts": [{"value": said}], "out": "asked"}
    found = await made.ask("line_list", text_step, merge, rerank, get=["top"])
    if not fits:
        assert (found["error"]["type"], found["error"]["call"]) == ("TransformFailed", "top")
        return
    assert [hit["text"] for hit in found["values"]["top"]] == ["red whale", "red fox"]
    scored = [batch for batch, _ in made.backend.seen if isinstance(batch[0], tuple)]
    assert all(query == "a red whale" for batch in scored for query, _ in batch)


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_the_list_is_as_long_as_the_call_makes_it(
    split: Callable[..., Any], count: int
) -> None:
    """One, two or five queries of a model give as many lists of hits."""
    made = await split("\n".join(f"query number{i}" for i in range(count)))
    found = await made.ask("line_list", get=["hits"])
    assert len(found["values"]["hits"]) == count


async def test_bad_json_fails_behind_good_items(split: Callable[..., Any]) -> None:
    """The items before the mistake were embedded in vain. Crossing brackets are no JSON list."""
    made = await split('["red fox", }{ nothing')
    error = (await made.ask("json", get=["hits"]))["error"]
    assert (error["type"], error["call"]) == ("InvalidRequest", "qvecs")
    assert [batch for batch, _ in made.backend.seen] == [["red fox"]]


async def test_an_item_that_is_cut_off_is_not_sent_early(split: Callable[..., Any]) -> None:
    """max_tokens ends the text in its second item; the whole text's transform says what it is."""
    made = await split('["red fox", "blue whale and')
    found = await made.ask("json", get=["hits"])
    assert found["values"]["queries"] == ["red fox", "blue whale and"]
    assert len(found["values"]["hits"]) == 2
    (_, early), (_, late) = made.backend.seen
    assert early.endswith((",", "blue"))
    assert late.endswith("and"), "only when the text has ended"


async def test_white_space_behind_an_item_is_no_part_of_the_last_one(
    split: Callable[..., Any],
) -> None:
    """The line list strips its text: a line is an item when another one follows."""
    made = await split("red fox \n")
    found = await made.ask("line_list", get=["hits"])
    assert [batch for batch, _ in made.backend.seen] == [["red fox"]]
    assert found["values"]["hits"][0][0]["text"] == "red fox"


async def test_a_search_waits_for_its_ingest_though_items_stream(
    split: Callable[..., Any],
) -> None:
    """Each query is embedded early; the search starts when the texts are in the store."""
    made = await split("red fox\ngreen newt")
    slow: dict[str, Any] = {"kind": "embed", "name": "new", "in": {"value": ["green newt"]}}
    steps = (
        {**slow, "out": "newvecs"},
        step("ingest", "newvecs", "indexed", store="docs"),
        step("search", "qvecs", "late", store="docs", k=1, after=["indexed"]),
    )
    found = await made.ask("line_list", *steps, get=["late"])
    assert [hits[0]["text"] for hits in found["values"]["late"]] == ["red fox", "green newt"]


class Dies(LocalItems):
    """An embedder whose process ends once, after it has reported two items."""

    died = False

    async def events(self) -> AsyncIterator[list[api.Event]]:
        reported = 0
        async for events in super().events():
            yield events
            reported += sum(len(one.values) for one in events if isinstance(one, api.Items))
            if reported >= 2 and not type(self).died:
                type(self).died = True
                raise api.EngineDied("it was killed")


async def test_items_of_a_dead_engine_are_kept(serve: Serve) -> None:
    """Six texts, two a batch: the second attempt computes the four that were not delivered."""
    backend = Watched()
    Dies.died = False
    server = await serve(also={"embedder": lambda: Dies(backend, most_items=2, kept=0)})
    words = ["one", "two", "three", "four", "five", "six"]
    async with asyncio.timeout(WAIT_S):
        answer = await run(server, step("embed", words, "vecs"), get=["vecs"])
    value: Mapping[str, Any] = answer.json()["values"]["vecs"]
    assert [item["text"] for item in value["items"]] == words and value["dimensions"] == 32
    computed = [word for batch, _ in backend.seen for word in batch]
    assert Dies.died and sorted(computed) == sorted(words), "each text once"
