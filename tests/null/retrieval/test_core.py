"""The core of an items engine: ops in, batches, and the events of each op."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from weftline.contract.vectors import Vectors
from weftline_engine import api
from weftline_engine.services.retrieval import arrays
from weftline_engine.services.retrieval.core import InputRefused, Item, ItemsCore
from weftline_engine.services.retrieval.local import LocalItems
from weftline_engine.services.retrieval.plain_backends import (
    DIMENSIONS,
    MemoryTable,
    WordBackend,
    vector_of,
)
from weftline_engine.services.retrieval.result_cache import Results
from weftline_engine.services.retrieval.stores import StoreBackend, content_id
from weftline_server.commands.retrieval_tables import EmbedderSpec, factories


def op(id: str, kind: str, app: str = "a", **inputs: Any) -> api.Op:
    return api.Op(id=id, kind=kind, context=id, inputs=inputs, hints=api.Hints(application=app))


def values(events: Sequence[api.Event]) -> dict[str, Any]:
    return {one.op: one.value for one in events if isinstance(one, api.Finished)}


def errors(events: Sequence[api.Event]) -> dict[str, tuple[str, str]]:
    return {one.op: (one.error, one.message) for one in events if isinstance(one, api.Failed)}


def streaming(id: str, texts: list[str], *, open: bool = True) -> api.Op:
    return replace(op(id, "embed", items=texts), streams=True, open=open)


def reports(events: Sequence[api.Event]) -> list[tuple[int, list[Any]]]:
    """The items that were reported, with their vectors."""
    return [
        (one.offset, [pytest.approx(arrays.rows_of(row)[0]) for row in one.values])
        for one in events
        if isinstance(one, api.Items)
    ]


class Counted(WordBackend):
    """Remembers its batches, and fails at texts that say so."""

    def __init__(self) -> None:
        super().__init__("words")
        self.batches: list[list[Any]] = []

    def compute(self, kind: str, payloads: Sequence[Any]) -> Sequence[Any]:
        self.batches.append(list(payloads))
        if "fail" in payloads:
            raise RuntimeError("it fell over")
        return super().compute(kind, payloads)


def run(core: ItemsCore) -> list[api.Event]:
    events: list[api.Event] = []
    while core.busy:
        events += core.step()
    return events


def test_ops_share_a_batch() -> None:
    """Three ops of one text each are one batch; each gets its own vector back."""
    backend = Counted()
    core = ItemsCore(backend)
    for word in ("a", "b", "c"):
        core.submit(op(word, "embed", texts=[word]))
    found = values(run(core))
    assert backend.batches == [["a", "b", "c"]]
    for word in ("a", "b", "c"):
        assert np.array_equal(arrays.rows_of(found[word]), vector_of(word)[None])


def test_a_long_op_takes_several_batches() -> None:
    """Five texts in batches of at most two become one result."""
    backend = Counted()
    core = ItemsCore(backend, most_items=2)
    core.submit(op("long", "embed", texts=["a", "b", "c", "d", "e"]))
    found = arrays.rows_of(values(run(core))["long"])
    assert [len(batch) for batch in backend.batches] == [2, 2, 1]
    assert found.shape == (5, DIMENSIONS)


def test_a_failing_op_does_not_take_others_with_it() -> None:
    """The batch is computed again, op by op: only the op with the bad text fails."""
    core = ItemsCore(Counted())
    core.submit(op("good", "embed", texts=["a"]))
    core.submit(op("bad", "embed", texts=["fail"]))
    core.submit(op("fine", "embed", texts=["c"]))
    events = run(core)
    assert set(values(events)) == {"good", "fine"}
    assert errors(events) == {"bad": ("EngineFailed", "embed failed: it fell over")}


def test_ops_of_two_kinds_are_two_batches() -> None:
    """An embed and a rerank wait together, and each is computed by itself."""
    backend = Counted()
    core = ItemsCore(backend)
    core.submit(op("e", "embed", texts=["a"]))
    core.submit(op("r", "rerank", query="a b", texts=["b c", "b a"]))
    assert values(run(core))["r"] == {"scores": [0.5, 1.0]}
    assert len(backend.batches) == 2


def test_no_items_is_a_value() -> None:
    """An empty list of texts has an empty list of vectors, and no error."""
    core = ItemsCore(Counted())
    core.submit(op("none", "embed", texts=[]))
    assert values(run(core)) == {"none": Vectors()}


def test_cancelled_and_refused_ops_fail() -> None:
    """Each ends with its own error. Cancelling an unknown op does nothing."""
    core = ItemsCore(Counted())
    core.submit(op("gone", "embed", texts=["a"]))
    core.cancel("gone")
    core.cancel("never")
    core.submit(op("wrong", "embed", texts="a"))
    core.submit(op("no query", "rerank", texts=["a"]))
    assert errors(run(core)) == {
        "gone": ("Cancelled", "the op was cancelled"),
        "wrong": ("InvalidRequest", "embed takes a list of texts"),
        "no query": ("InvalidRequest", "rerank takes a query, which is text"),
    }
    assert not core.busy


def test_a_stream_of_items_is_reported_batch_by_batch() -> None:
    """Items are fed while earlier ones are computed; Finished has no value."""
    core = ItemsCore(Counted(), most_items=2)
    core.submit(streaming("x", ["a", "b", "c"]))
    first = core.step()
    assert reports(first) == [(0, [vector_of("a"), vector_of("b")])]
    assert reports(core.step()) == [(2, [vector_of("c")])]
    assert not core.busy, "it waits for more"
    core.feed("x", 2, ["c", "d"], last=False)  # "c" is known
    core.feed("x", 4, [], last=True)
    end = core.step()
    assert reports(end) == [(3, [vector_of("d")])] and values(end) == {"x": None}


def test_an_attempt_goes_on_behind_the_items_that_were_delivered() -> None:
    """Items that an earlier attempt has delivered are not computed again."""
    backend = Counted()
    core = ItemsCore(backend)
    core.submit(replace(streaming("x", ["a", "b", "c"], open=False), attempt=1, delivered=2))
    assert reports(run(core)) == [(2, [vector_of("c")])]
    assert backend.batches == [["c"]]


@pytest.mark.parametrize(
    ("fed", "message"),
    [
        ((4, ["x"]), "items from 4 on leave a gap after item 1"),
        ((1, [3]), "embed takes a list of texts"),
        ((1, "text"), "an op that streams takes a list of at most 100000 items"),
    ],
)
def test_items_that_do_not_fit_fail_their_op(fed: tuple[int, Any], message: str) -> None:
    """An op fails if it is fed with a gap, with too many items, or with anything but a list."""
    core = ItemsCore(Counted())
    core.submit(streaming("x", ["a"]))
    core.feed("x", *fed, last=False)
    core.feed("x", 1, ["b"], last=True)  # it has ended: nothing happens
    assert errors(run(core)) == {"x": ("InvalidRequest", message)}
    assert not core.busy


def test_equal_texts_of_a_tenant_are_computed_once() -> None:
    """In one op, in one batch, and later; another tenant's text is computed again."""
    backend = Counted()
    core = ItemsCore(backend)
    for id, texts, salt in (("x", ["a", "b", "a"], "s"), ("y", ["b"], "s"), ("z", ["b"], "t")):
        core.submit(replace(op(id, "embed", texts=texts), salt=salt))
    found = values(run(core))
    assert backend.batches == [["a", "b", "b"]]
    core.submit(replace(op("later", "embed", texts=["b", "c"]), salt="s"))
    assert values(run(core))["later"] != found["y"]
    assert backend.batches[1:] == [["c"]]
    plain = Counted()
    off = ItemsCore(plain, kept=0)
    off.submit(op("x", "embed", texts=["a"]))
    run(off)
    off.submit(op("y", "embed", texts=["a"]))
    run(off)
    assert plain.batches == [["a"], ["a"]]


@pytest.mark.parametrize(("without", "computed"), [((), ["a"]), (("dedupe",), ["a", "a"])])
def test_dedupe_can_be_left_out(
    without: tuple[str, ...], computed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--without dedupe` reaches the embedder of the settings, which then keeps no result."""
    seen: list[str] = []
    compute = WordBackend.compute

    def counted(backend: WordBackend, kind: str, payloads: Sequence[Any]) -> Sequence[Any]:
        seen.extend(payloads)
        return compute(backend, kind, payloads)

    monkeypatch.setattr(WordBackend, "compute", counted)
    spec = EmbedderSpec(name="words", model="null", start="eager")
    engine = factories([spec], frozenset(without))["embedder:words"]()
    assert isinstance(engine, LocalItems)
    for id in ("x", "y"):
        engine.core.submit(op(id, "embed", texts=["a"]))
        run(engine.core)
    assert seen == computed


def test_a_few_results_are_kept() -> None:
    """When the cache is full, the least recently used result is dropped."""
    found = Results(2)
    keys = [Results.key("s", "embed", text) for text in "abc"]
    for key in keys:
        found.put(key, key)
        found.get(keys[0])
    assert len(found) == 2 and found.get(keys[1]) is None


def test_the_longest_texts_of_an_op_are_computed_first() -> None:
    """So texts of like length share a batch. The result is in the order of the op."""
    backend = Counted()
    core = ItemsCore(backend, most_items=2)
    texts = ["aa", "b " * 8, "c", "d " * 9]
    core.submit(op("x", "embed", texts=texts))
    found = arrays.rows_of(values(run(core))["x"])
    assert backend.batches == [[texts[3], texts[1]], ["aa", "c"]]
    assert np.array_equal(found, np.stack([vector_of(text) for text in texts]))


def test_events_are_numbered() -> None:
    """Two ops have four events, and the numbers have no gap."""
    core = ItemsCore(Counted())
    core.submit(op("x", "embed", texts=["a"]))
    core.submit(op("y", "embed", texts=["b"]))
    assert [one.sequence for one in run(core)] == [1, 2, 3, 4]


def store() -> ItemsCore:
    return ItemsCore(StoreBackend("docs", MemoryTable()))


def ingest(id: str, texts: Sequence[str], tenant: str = "t", **more: Any) -> api.Op:
    found = arrays.vectors_of([vector_of(text) for text in texts])
    items = [{"text": text, "metadata": {"n": len(text)}} for text in texts]
    return op(id, "ingest", tenant=tenant, **{"items": items, "vectors": found, **more})


def search(id: str, text: str, k: int, tenant: str = "t", **more: Any) -> api.Op:
    found = arrays.vectors_of([vector_of(text)])
    return op(id, "search", tenant=tenant, k=k, vectors=found, **more)


def test_a_store_finds_what_it_was_given() -> None:
    """The nearest documents come first. A filter and the tenant limit what is found."""
    core = store()
    core.submit(ingest("in", ["red fox", "blue whale", "red whale"]))
    core.submit(search("out", "red fox", 2))
    core.submit(search("filtered", "red fox", 5, filter={"n": 10}))
    core.submit(search("other", "red fox", 5, tenant="u"))
    found = values(run(core))
    assert found["in"]["count"] == 3
    [hits] = found["out"]["hits"]
    assert [hit["text"] for hit in hits] == ["red fox", "red whale"]
    assert hits[0]["score"] == pytest.approx(1.0) and hits[0]["metadata"] == {"n": 7}
    assert hits[0]["id"] == content_id("red fox", {"n": 7})
    assert [hit["text"] for hit in found["filtered"]["hits"][0]] == ["blue whale"]
    assert found["other"] == {"hits": [[]]}, "a tenant sees its own documents"


def test_ingest_is_idempotent() -> None:
    """The same texts again change nothing; the last of two equal ids counts."""
    core = store()
    core.submit(ingest("one", ["a", "b", "a"]))
    core.submit(ingest("two", ["b", "a"]))
    core.submit(search("all", "a", 9))
    found = values(run(core))
    assert (found["one"]["count"], found["two"]["count"]) == (2, 2)
    assert len(found["all"]["hits"][0]) == 2


def test_documents_are_fetched_and_deleted_by_id() -> None:
    """An id that is not in the store counts for nothing."""
    core = store()
    core.submit(ingest("in", ["a", "b"]))
    core.submit(op("d", "delete", tenant="t", ids=[content_id("a", {"n": 1}), "unknown"]))
    ids = [content_id(text, {"n": 1}) for text in "ba"]
    core.submit(op("f", "fetch", tenant="t", ids=ids))
    found = values(run(core))
    assert found["d"] == {"count": 1}
    assert [item["text"] for item in found["f"]["items"]] == ["b"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"vectors": "AACAPw=="}, "vectors are wanted, not a str"),
        ({"items": []}, "0 texts came with 1 vectors"),
        ({"items": [{"text": 1}]}, "an item has a 'text', and an object as its 'metadata'"),
        ({"vectors": Vectors.of([[1, math.nan]])}, "a vector holds NaN or infinity"),
        (
            {"vectors": Vectors.of([[1, 1, 1, 1]])},
            "the store holds vectors of 32 numbers and got 4: use the embedder that filled it",
        ),
    ],
)
def test_what_does_not_fit_is_refused(inputs: dict[str, Any], message: str) -> None:
    """A refused ingest leaves the store as it was."""
    core = store()
    core.submit(ingest("first", ["a"]))
    core.submit(ingest("bad", ["b"], **inputs))
    core.submit(search("all", "a", 9))
    events = run(core)
    assert errors(events) == {"bad": ("InvalidRequest", message)}
    assert len(values(events)["all"]["hits"][0]) == 1


@pytest.mark.parametrize("k", [0, 1001, "3", None])
def test_k_has_bounds(k: Any) -> None:
    """A search for 0, for 1,001 or for no number of documents is refused."""
    core = store()
    core.submit(search("s", "a", k))
    assert errors(run(core)) == {"s": ("InvalidRequest", "k must be between 1 and 1000")}


def test_a_vector_is_read_as_it_was() -> None:
    """Rows become vectors and rows again exactly. A value without vectors is refused."""
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(arrays.rows_of(arrays.vectors_of(rows)), rows)
    with pytest.raises(InputRefused, match="vectors are wanted, not a NoneType"):
        arrays.rows_of(None)


def test_items_know_their_length() -> None:
    """An item carries its number of tokens, by which batches are formed."""
    assert WordBackend("w").items(op("x", "embed", texts=["a red fox"])) == [Item("a red fox", 3)]
