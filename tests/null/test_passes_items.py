"""The passes over steps: order, pipeline and batch, and those that an operator names."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.null.test_passes import analyse, call, graph
from weftline.contract.protocol import Placeholder
from weftline.contract.steps import (
    Body,
    ClientStep,
    Each,
    Embed,
    FunctionStep,
    Ingest,
    Loop,
    Merge,
    Rerank,
    Search,
    Source,
    Step,
    Text,
    Until,
)
from weftline_server import passes
from weftline_server.graph.addition import Addition
from weftline_server.graph.graph import Graph
from weftline_server.graph.primitive import Effects, Flow, Task
from weftline_server.lowering.kinds import KINDS
from weftline_server.lowering.kinds.prompt import task_of
from weftline_server.passes import InvalidFindings
from weftline_server.passes.plan import Findings, Plan

LINES = ({"op": "line_list"},)


def var(name: str, *transforms: Any) -> Source:
    return Source(var=name, transforms=tuple(transforms))


def embed(out: str, source: Source, batch: int | None = 4) -> Task:
    return lower(Embed(in_=source, out=out), "minilm", batch)


def search(out: str, read: str, *after: str, store: str = "docs") -> Task:
    return lower(Search(in_=var(read), out=out, store=store, after=after), store, 1)


def ingest(out: str, read: str, *after: str, store: str = "docs") -> Task:
    return lower(Ingest(in_=var(read), out=out, store=store, after=after), store, 1)


def lower(step: Step, resource: str, batch: int | None) -> Task:
    return KINDS.lower_step(step, resource, batch=batch)


def flows(made: Graph, *without: str) -> dict[tuple[str, str], str]:
    """The flow of each edge: from a variable to the variable that its reader writes."""
    analyse(made, {}, frozenset(without))
    return {
        (read.variable, primitive.writes[0]): str(read.flow)
        for primitive in made.primitives.values()
        for read in primitive.reads
    }


def streaming(made: Graph) -> set[str]:
    return {
        primitive.writes[0]
        for primitive in made.primitives.values()
        if primitive.items is not None and primitive.items.streams
    }


def queries(transforms: tuple[dict[str, str], ...] = ()) -> Task:
    task = call("queries")
    assert task.call is not None
    holders = tuple(replace(one, transforms=transforms) for one in task.call.placeholders)
    return task_of("queries", replace(task.call, placeholders=holders))


def advanced() -> Graph:
    """A call writes queries; their hits are merged and reranked."""
    return graph(
        queries(),
        embed("vecs", var("queries", *LINES)),
        search("hits", "vecs"),
        lower(Merge(in_=var("hits"), out="pool"), "", None),
        lower(Rerank(in_=var("pool"), query=Source(value="q"), out="top"), "minilm", 4),
    )


def test_items_travel_from_the_call_to_the_reranker() -> None:
    """Every edge of advanced RAG carries items, from the generated queries to the reranked hits."""
    made = advanced()
    assert flows(made) == {
        ("queries", "vecs"): "items",
        ("vecs", "hits"): "items",
        ("hits", "pool"): "items",
        ("pool", "top"): "items",
    }
    assert streaming(made) == {"vecs", "hits", "pool", "top"}


def test_no_pass_over_the_edges_finds_more_when_they_have_run() -> None:
    """The passes stop early, and yet leave nothing behind: each of them has nothing to add."""
    made = advanced()
    more = [call("said", ("top",)), search("again", "vecs", "hits"), embed("more", var("said"))]
    made.add(Addition.of(more))
    plan = analyse(made, {})
    changed = {id: made.downstream(id) for id in made.primitives}
    for name, (run, _) in passes.FLOWS.items():
        assert run(made, plan, changed).rewritten == {}, name
    flows_of = {one.flow for primitive in made.primitives.values() for one in primitive.reads}
    assert flows_of == {Flow.ITEMS, Flow.WHOLE}  # the order between two searches is gone


def test_each_pass_can_be_left_out() -> None:
    """Without pipeline no item enters the chain; without batch none goes on behind the embedder."""
    assert set(flows(advanced(), "pipeline").values()) == {"whole"}
    edges = flows(advanced(), "batch")
    assert edges.pop(("queries", "vecs")) == "items" and set(edges.values()) == {"whole"}


@pytest.mark.parametrize(("count", "flow"), [(4, "whole"), (5, "items")])
def test_a_list_beyond_the_efficient_batch_is_split(count: int, flow: str) -> None:
    """Four texts are computed as fast together; the fifth starts a second batch."""
    made = graph(embed("vecs", Source(value=["x"] * count)), search("hits", "vecs"))
    assert flows(made) == {("vecs", "hits"): flow}


def test_what_is_not_made_of_items_stays_whole() -> None:
    """Transforms behind the vectors, a limit, an ingest, a tool call and an engine of whole ops."""
    after_transform = lower(
        Search(in_=var("vecs", {"op": "string"}), out="hits", store="docs"), "docs", 1
    )
    cases: list[tuple[list[Task], tuple[str, str]]] = [
        ([queries(), embed("vecs", var("queries"))], ("queries", "vecs")),
        ([queries(), embed("vecs", var("queries", *LINES), None)], ("queries", "vecs")),
        ([embed("vecs", Source(value=["x"] * 9)), after_transform], ("vecs", "hits")),
        ([embed("vecs", Source(value=["x"] * 9)), ingest("done", "vecs")], ("vecs", "done")),
    ]
    for tasks, edge in cases:
        assert flows(graph(*tasks))[edge] == "whole", edge
    limited = lower(Merge(in_=var("hits"), out="pool", limit=3), "", None)
    top = lower(Rerank(in_=var("pool"), query=Source(value="q"), out="top"), "minilm", 4)
    chain = [queries(LINES), embed("vecs", var("queries")), search("hits", "vecs"), limited, top]
    edges = flows(graph(*chain))
    assert edges["queries", "vecs"] == "items", "the call's own transform makes the list"
    assert (edges["hits", "pool"], edges["pool", "top"]) == ("items", "whole")


def test_a_step_that_joins_later_takes_items_too() -> None:
    """A search that is added after the pass has run also reads items one by one."""
    made = graph(queries(), embed("vecs", var("queries", *LINES)))
    plan = Plan({})
    passes.analyse(made, plan, made.primitives)
    later = search("hits", "vecs")
    made.check(Addition.of([later]))
    made.add(Addition.of([later]))
    passes.analyse(made, plan, [later.primitives[0].id])
    assert made.primitives[later.primitives[0].id].reads[0].flow is Flow.ITEMS


def test_started_steps_are_left_alone() -> None:
    """The pass does not change the flow of a step that has started."""
    made = advanced()
    plan = Plan({}, started=set(made.primitives))
    passes.analyse(made, plan, made.primitives)
    assert not streaming(made)


def stored() -> list[Task]:
    """Two ingests and two searches; all wait for the first ingest, and one for an embed."""
    return [
        embed("vecs", Source(value=["x"])),
        ingest("one", "vecs"),
        ingest("other", "vecs", "one", store="more"),
        search("found", "vecs", "one"),
        search("again", "vecs", "found", "q"),
        embed("q", Source(value="q")),
    ]


def test_order_is_kept_where_one_store_is_written() -> None:
    """A search waits for an ingest into its own store, also behind a search between the two.
    Without the pass, every order is kept.
    """
    edges = flows(graph(*stored()))
    assert edges["one", "found"] == edges["found", "again"] == "order"
    assert {("one", "other"), ("q", "again")}.isdisjoint(edges)
    kept = flows(graph(*stored()), "order")
    assert {kept[edge] for edge in [("one", "other"), ("q", "again")]} == {"order"}


def body(*steps: Step) -> Body:
    return Body(steps=steps)


def test_order_is_kept_where_steps_between_lead_to_a_store() -> None:
    """An embedding waits for the ingest, because what reads it searches; so does a search behind a
    list or a loop that ingests, or a text that waited for the ingest.
    """
    adds = body(Ingest(in_=var("vecs"), store="docs", out="added"))
    listed = Each(over=Source(value=["x"]), body=adds, collect={"added": "all"})
    until = Until(on="added", when={"op": "truthy"})
    rounds = Loop(carry={"c": "vecs"}, next={"c": "added"}, body=adds, until=until, most=1,
                  out="all")  # fmt: skip
    text = Text(parts=(Source(value="x"),), out="text", after=("one",))
    late = Embed(in_=Source(value="q"), out="q", after=("one",))
    tasks = [embed("vecs", Source(value=["x"])), ingest("one", "vecs"), lower(text, "", None)]
    edges = flows(graph(*tasks, lower(late, "minilm", 4), search("found", "q"),
                        search("again", "vecs", "text")))  # fmt: skip
    assert edges["one", "q"] == edges["one", "text"] == edges["text", "again"] == "order"
    for step in (listed, rounds):
        made = graph(tasks[0], lower(step, "", None), search("found", "vecs", "all"),
                     search("else", "vecs", "all", store="more"))  # fmt: skip
        edges = flows(made)
        assert edges["all", "found"] == edges["all", "else"] == "order", "it may write anywhere"
    edges = flows(graph(*tasks[:2], lower(late, "minilm", 4), search("found", "q", store="more")))
    assert ("one", "q") not in edges


@pytest.mark.parametrize("effects", ["none", "idempotent"])
@pytest.mark.parametrize("kind", ["client", "function"])
def test_order_is_kept_where_a_function_may_change_anything(kind: str, effects: Any) -> None:
    """Where it changes something is not known. Without effects it orders nothing before a search,
    and after an ingest it may read what was added.
    """
    made: dict[str, Any] = {"client": ClientStep, "function": partial(FunctionStep, function="f")}
    before = lower(made[kind](out="did", effects=effects), "f", None)
    tasks = [embed("vecs", Source(value=["x"])), ingest("one", "vecs"), before]
    behind = lower(made[kind](out="saw", effects=effects, after=("one",)), "f", None)
    edges = flows(graph(*tasks, search("found", "vecs", "did"), behind))
    assert (("did", "found") in edges) == (effects == "idempotent")
    assert edges["one", "saw"] == "order"


def test_what_happens_once_keeps_its_order() -> None:
    """Also in another place; and so does a step behind a variable that a client sets."""
    once, behind = ingest("sent", "x"), search("found", "y", "sent", "ready", store="more")
    primitive = replace(once.primitives[0], effects=Effects.ONCE)
    edges = flows(graph(replace(once, primitives=(primitive,)), behind))
    assert edges["sent", "found"] == edges["ready", "found"] == "order"


def test_a_pass_may_not_leave_out_a_value() -> None:
    """A rewrite that drops an input, or changes the effects, is refused whole."""
    made = graph(queries(), embed("vecs", var("queries", *LINES)))
    [id] = [one.id for one in made.primitives.values() if one.kind == "embed"]
    bare = made.primitives[id].reading(())
    with pytest.raises(InvalidFindings, match="must read all values that it needs"):
        passes.apply(made, Plan({}), Findings(rewritten={id: bare}))
    once = replace(made.primitives[id], effects=Effects.ONCE)
    with pytest.raises(InvalidFindings, match="neither kind nor effects"):
        passes.apply(made, Plan({}), Findings(rewritten={id: once}))
    assert made.primitives[id].reads


def test_a_placeholder_of_a_call_is_no_list() -> None:
    """A call that reads the list gets its text as it comes: that is another flow."""
    reader = call("answer", ("queries",))
    assert isinstance(reader.call and reader.call.placeholders[0], Placeholder)
    assert flows(graph(queries(), reader)) == {("queries", "answer"): "stream"}
