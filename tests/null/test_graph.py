"""Graphs grow call by call, without cycles and without second producers."""

from __future__ import annotations

import graphlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.contract.protocol import Call, InOut, Placeholder, Segment
from weftline.errors import AlreadySet, CyclicGraph, DuplicateProducer, InvalidRequest
from weftline_server.graph.addition import Addition
from weftline_server.graph.graph import Graph
from weftline_server.graph.primitive import Task
from weftline_server.lowering.kinds.prompt import task_of


def node(name: str, reads: str = "", writes: str = "") -> Task:
    """Build a call that reads and writes variables of one letter each."""
    prompt = tuple(Segment(input=f"i_{v}") for v in reads)
    prompt += (Segment(text="x"), *(Segment(output=f"o_{v}") for v in writes))
    inputs = (Placeholder(name=f"i_{v}", in_out=InOut.IN, semantic_var_id=v) for v in reads)
    outputs = (Placeholder(name=f"o_{v}", in_out=InOut.OUT, semantic_var_id=v) for v in writes)
    return task_of(name, Call(name=name, prompt=prompt, placeholders=(*outputs, *inputs)))


def ordered(graph: Graph) -> list[str]:
    """Every primitive after all primitives that it waits for."""
    above = {id: graph.upstream(id) for id in graph.primitives}
    return list(graphlib.TopologicalSorter(above).static_order())


def test_outputs_come_in_the_order_of_the_prompt() -> None:
    """The first output is the first one of the prompt, in whatever order placeholders
    are listed.
    """
    assert node("a", reads="pq", writes="zyx").writes == ("z", "y", "x")


def test_a_diamond_in_topological_order() -> None:
    """The sink is submitted first, and the order still has producers first."""
    graph = Graph()
    nodes = [node("d", "bc", "d"), node("b", "a", "b"), node("c", "a", "c"), node("a", "", "a")]
    graph.check(Addition.of(nodes))
    graph.add(Addition.of(nodes))
    assert ordered(graph) == ["a/0", "b/0", "c/0", "d/0"]
    assert list(graph.upstream("d/0")) == ["b/0", "c/0"]
    assert list(graph.downstream("a/0")) == ["b/0", "c/0"]


@pytest.mark.parametrize(
    ("nodes", "error", "param"),
    [
        ([node("a", "x", "x")], CyclicGraph, "a"),
        ([node("a", "y", "x"), node("b", "x", "y")], CyclicGraph, "a"),
        ([node("a", "", "x"), node("b", "", "x")], DuplicateProducer, "x"),
        ([node("a", "", "old")], DuplicateProducer, None),
        ([node("a", "", "s")], AlreadySet, "s"),
        ([node("a", "x", "")], InvalidRequest, "a"),
    ],
    ids=["self loop", "two calls", "one submit", "old", "set", "no output"],
)
def test_an_invalid_graph_is_refused(
    nodes: list[Task], error: type[Exception], param: str | None
) -> None:
    """Each refusal names the variable or call at fault and leaves the graph unchanged."""
    graph = Graph()
    graph.add(Addition.of([node("first", "", "old")]))
    with pytest.raises(error) as caught:
        graph.check(Addition.of(nodes), {"s"})
    assert param is None or caught.value.param == param  # type: ignore[attr-defined]
    assert list(graph.tasks) == ["first"]


def test_a_cycle_through_an_older_call() -> None:
    """An old call waits for y. A new call that makes y from the old call's x closes a cycle."""
    graph = Graph()
    graph.add(Addition.of([node("old", "y", "x")]))
    with pytest.raises(CyclicGraph):
        graph.check(Addition.of([node("new", "x", "y")]))


def test_a_chain_of_ten_thousand_does_not_recurse() -> None:
    """Depth is bounded by memory, not by Python's recursion limit."""
    chain = [chain_link(i) for i in range(10_000)]
    graph = Graph()
    graph.check(Addition.of(chain))
    graph.add(Addition.of(chain))
    assert ordered(graph)[-1] == "n9999/0"


def chain_link(i: int) -> Task:
    """Call i reads what call i - 1 writes."""
    prompt = (Segment(input="i"), Segment(output="o"))
    holders = (
        Placeholder(name="i", in_out=InOut.IN, semantic_var_id=f"v{i - 1}"),
        Placeholder(name="o", in_out=InOut.OUT, semantic_var_id=f"v{i}"),
    )
    return task_of(f"n{i}", Call(name="n", prompt=prompt, placeholders=holders))


@given(st.lists(st.tuples(st.text("abcdef", max_size=3), st.sampled_from("abcdef")), max_size=8))
def test_cycles_are_those_that_graphlib_finds(calls: list[tuple[str, str]]) -> None:
    """Each accepted call leaves a topological order, and nothing else is refused."""
    graph = Graph()
    taken: dict[str, str] = {}
    kept: dict[str, str] = {}
    for number, (reads, writes) in enumerate(calls):
        if writes in taken:
            continue
        name = f"c{number}"
        trial = {**kept, name: reads}
        producers = {**taken, writes: name}
        sorter = graphlib.TopologicalSorter(
            {c: {producers[v] for v in r if v in producers} for c, r in trial.items()}
        )
        try:
            sorter.prepare()
            acyclic = True
        except graphlib.CycleError:
            acyclic = False
        new = node(name, "".join(dict.fromkeys(reads)), writes)
        if not acyclic:
            with pytest.raises(CyclicGraph):
                graph.check(Addition.of([new]))
            continue
        graph.check(Addition.of([new]))
        graph.add(Addition.of([new]))
        kept, taken = trial, producers
    assert sorted(ordered(graph)) == sorted(f"{name}/0" for name in kept)
