"""A step that changes something outside the graph runs if something needs it, and only then."""

from __future__ import annotations

from typing import Any

import pytest

from tests.null.asgi import Serve, call
from tests.null.steps.wire import branch, each, loop, run, states
from weftline_engine.pretend.null import LatencyProfile, NullConfig
from weftline_engine.services.retrieval.local import LocalItems
from weftline_engine.services.retrieval.plain_backends import MemoryTable, WordBackend
from weftline_engine.services.retrieval.stores import StoreBackend
from weftline_server.config import ServerConfig

# A call takes longer than all that could start beside it.
SLOW = NullConfig(latency=LatencyProfile(step_s=0.005))
NUMBER = {"op": "contains", "value": "number"}
NOTHING = frozenset[str]()

# Adds one document. Its reader stands in a body.
ADD = (
    {"kind": "embed", "in": {"value": ["shared"]}, "out": "vectors", "name": "embed"},
    {"kind": "ingest", "in": {"var": "vectors"}, "store": "docs", "out": "added", "name": "add"},
)
# Two ways in which a side needs the document, and what the side says.
READS = call("side", "so {{input:added}}{{output:said}}", added="added", said="said")
FOLLOWS = {"kind": "search", "in": {"var": "vectors"}, "store": "docs", "after": ["added"],
           "out": "said", "name": "side"}  # fmt: skip
PLAIN = call("plain", "no{{output:other}}", other="other")


def body(side: dict[str, Any], on: str = "kind") -> dict[str, Any]:
    """A branch in a body. Its one side needs the document, the other one does not."""
    route = branch(on, {"said": NUMBER}, "other", "answer", name="route")
    is_call = "kind" not in side
    return {
        "calls": [call("ask", "it is {{input:item}}{{output:kind}}", item="item", kind="kind"),
                  PLAIN, *([side] if is_call else [])],
        "steps": [route, *([] if is_call else [side])],
    }  # fmt: skip


def stores(table: MemoryTable) -> dict[str, Any]:
    return {
        "words": lambda: LocalItems(WordBackend("words")),
        "docs": lambda: LocalItems(StoreBackend("docs", table)),
    }


def held(table: MemoryTable) -> list[str]:
    found = table.fetch("local", table.matching("local", {}))
    return [document.text for document in found]


@pytest.mark.parametrize("without", [NOTHING, frozenset({"speculate"})], ids=["", "waits"])
@pytest.mark.parametrize("side", [READS, FOLLOWS], ids=["reads", "follows"])
@pytest.mark.parametrize(
    "items",
    [["word", "word"], ["word", "number"], ["number", "number"], []],
    ids=["none", "one", "both", "empty"],
)
async def test_a_side_in_the_body_of_an_each_needs_what_is_outside(
    serve: Serve, items: list[str], side: dict[str, Any], without: frozenset[str]
) -> None:
    """The document is added, once, if an item takes the side; else it is not."""
    table = MemoryTable()
    server = await serve(SLOW, ServerConfig(without=without), also=stores(table))
    listed = each([f"a {one}" for one in items], body(side), {"answer": "all"}, name="all")
    answer = await run(server, *ADD, listed, get=["all"])
    taken = [one == "number" for one in items]
    assert ["no" not in str(one) for one in answer["values"]["all"]] == taken
    assert held(table) == (["shared"] if any(taken) else [])
    assert states(answer)["add"] == ("done" if any(taken) else "skipped")


@pytest.mark.parametrize("side", [READS, FOLLOWS], ids=["reads", "follows"])
@pytest.mark.parametrize("kind", ["word", "number"])
async def test_a_side_in_the_body_of_a_loop_needs_what_is_outside(
    serve: Serve, kind: str, side: dict[str, Any]
) -> None:
    """Two rounds that take it share the document; no round takes it, and it is never added."""
    table = MemoryTable()
    server = await serve(SLOW, also=stores(table))
    inner = body(side)
    inner["calls"].append(call("again", "{{input:item}}{{output:more}}", item="item", more="more"))
    begin = call("begin", f"a {kind}{{{{output:first}}}}", first="first")
    until = {"on": "answer", "when": {"op": "equals", "value": "never"}}
    if side is FOLLOWS and kind == "number":
        until = {"on": "answer", "when": {"op": "equals", "value": ["never"]}}
    rounds = loop({"item": "first"}, {"item": "more"}, inner, until, most=2, out="last")
    answer = await run(server, *ADD, rounds, calls=[begin], get=["last"])
    assert answer["values"]["last"].strip() == f"a {kind}"
    assert held(table) == (["shared"] if kind == "number" else [])
    assert states(answer)["add"] == ("done" if kind == "number" else "skipped")


async def test_what_a_body_always_reads_does_not_wait(serve: Serve) -> None:
    """Its item needs the document before and beside its branch, so it is certain from the start."""
    table = MemoryTable()
    server = await serve(SLOW, also=stores(table))
    inner = body(READS)
    inner["calls"].append(call("always", "{{input:added}}{{output:seen}}", added="added",
                               seen="seen"))  # fmt: skip
    asked = call("list", "a word{{output:list}}", list={"in_out": "out", "semantic_var_id": "list",
                 "transforms": [{"op": "line_list"}]})  # fmt: skip
    listed = each("list", inner, {"answer": "all"}, name="all")
    answer = await run(server, *ADD, listed, calls=[asked], get=["all"])
    graph = answer["graph"]
    [add] = [one for one in graph["steps"] if one["name"] == "add"]
    [list_] = [one for one in graph["calls"] if one["name"] == "list"]
    assert add["queued_s"] < list_["steps"][0]["finished_s"]
    assert held(table) == ["shared"]


async def test_an_item_that_came_early_is_not_certain(serve: Serve) -> None:
    """The first item takes the side while the model writes the next ones. Items that came early may
    not be in the list, so the document is added when the list is complete.
    """
    table = MemoryTable()
    server = await serve(SLOW, also=stores(table))
    lines = "\n".join(["a number"] + ["one of many a word"] * 8)
    asked = call("list", lines + "{{output:list}}", list={"in_out": "out", "semantic_var_id":
                 "list", "transforms": [{"op": "line_list"}]})  # fmt: skip
    inner = {
        "calls": [READS, PLAIN],
        "steps": [branch("item", {"said": NUMBER}, "other", "answer")],
    }
    answer = await run(server, *ADD, each("list", inner, {"answer": "all"}), calls=[asked],
                       get=["all"])  # fmt: skip
    assert ["so" in one for one in answer["values"]["all"]] == [True] + [False] * 8
    graph = answer["graph"]
    [add] = [one for one in graph["steps"] if one["name"] == "add"]
    [written] = [one for one in graph["calls"] if one["name"] == "list"]
    [first] = [one for one in graph["calls"] if one["name"] == "each[0].plain"]
    end = written["steps"][0]["finished_s"]
    assert first["submitted_s"] < end <= add["queued_s"]


async def test_an_each_that_fails_needs_nothing(serve: Serve) -> None:
    """Its list is no list. The document that only its sides could need is not added."""
    table = MemoryTable()
    server = await serve(SLOW, also=stores(table))
    asked = call("list", "a number{{output:list}}", list="list")
    listed = each("list", body(READS), {"answer": "all"}, name="all")
    answer = await run(server, *ADD, listed, calls=[asked], get=["all"])
    assert answer["error"]["call"] == "all"
    assert held(table) == []


@pytest.mark.parametrize("kind", ["word", "number"])
async def test_a_side_that_has_failed_is_still_a_side(serve: Serve, kind: str) -> None:
    """The reader fails before its branch is decided. If it is not taken, nothing is added."""
    table = MemoryTable()
    server = await serve(SLOW, also=stores(table))
    bad = call("bad", "x{{output:bad}}", bad={"in_out": "out", "semantic_var_id": "bad",
               "transforms": [{"op": "json"}]})  # fmt: skip
    side = call("side", "{{input:bad}}{{input:added}}{{output:said}}", bad="bad", added="added",
                said="said")  # fmt: skip
    asked = call("ask", "it is now and here a " + kind + "{{output:kind}}", kind="kind")
    route = branch("kind", {"said": NUMBER}, "other", "answer", name="route")
    keep = call("keep", "{{input:bad}}{{output:kept}}", bad="bad", kept="kept")
    answer = await run(server, *ADD, route, calls=[bad, keep, side, asked, PLAIN], get=["answer"])
    assert ("error" in answer) == (kind == "number")
    assert held(table) == (["shared"] if kind == "number" else [])
