"""What the passes find in a graph, one question at a time (Parrot section 5)."""

from __future__ import annotations

import graphlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weftline.contract.protocol import Call, Criterion, InOut, Message, Placeholder, Segment
from weftline.errors import CyclicGraph
from weftline_server import passes
from weftline_server.graph.addition import Addition
from weftline_server.graph.graph import Graph
from weftline_server.graph.primitive import Flow, Read, Task
from weftline_server.lowering.kinds.prompt import task_of
from weftline_server.passes.depth import MOST_DEPTH
from weftline_server.passes.plan import Plan

V = TypeVar("V")


def call(name: str, reads: tuple[str, ...] = (), text: str = "Do:") -> Task:
    """Build a call that reads variables and writes the variable of its own name."""
    prompt = (Segment(text=text), *(Segment(input=v) for v in reads), Segment(output="out"))
    holders = [Placeholder(name=v, in_out=InOut.IN, semantic_var_id=v) for v in reads]
    holders.append(Placeholder(name="out", in_out=InOut.OUT, semantic_var_id=name))
    return task_of(name, Call(name=name, prompt=prompt, placeholders=tuple(holders)))


def boundaries(task: Task) -> tuple[str, ...]:
    """Return the prefix hashes of a call with one output."""
    body = task.primitives[0].body
    assert body is not None
    return body.boundaries()


def named(found: Mapping[str, V]) -> dict[str, V]:
    """Return the findings about the only primitive of each call, by the call's name."""
    assert all(id.endswith("/0") for id in found)
    return {id.removesuffix("/0"): value for id, value in found.items()}


def graph(*nodes: Task) -> Graph:
    made = Graph()
    made.check(Addition.of(nodes))
    made.add(Addition.of(nodes))
    return made


def analyse(
    made: Graph, criteria: dict[str, Criterion], without: frozenset[str] = frozenset()
) -> Plan:
    """Return the plan of a whole graph."""
    plan = Plan(criteria)
    passes.analyse(made, plan, made.primitives, without=without)
    return plan


MAP_REDUCE = graph(call("m1"), call("m2"), call("m3"), call("sum", ("m1", "m2", "m3")))


def test_a_map_reduce_is_one_group_one_deep() -> None:
    """The maps feed one consumer, so they should finish together. The user waits for the sum."""
    plan = analyse(MAP_REDUCE, {})
    assert named(plan.depth) == {"m1": 1, "m2": 1, "m3": 1, "sum": 0}
    assert named(plan.group) == dict.fromkeys(("m1", "m2", "m3"), "sum@1")
    assert set(plan.objective.values()) == {Criterion.LATENCY}


def test_two_producers_are_a_group_and_one_is_none() -> None:
    """Two calls that feed one consumer finish together. A lone one has nothing to finish with."""
    pair = analyse(graph(call("a"), call("b"), call("join", ("a", "b"))), {})
    assert named(pair.group) == {"a": "join@1", "b": "join@1"}
    assert analyse(graph(call("a"), call("join", ("a",))), {}).group == {}


def test_throughput_marks_the_whole_ancestry() -> None:
    """A reader of `sum` with throughput sets throughput for every call that feeds it."""
    plan = analyse(MAP_REDUCE, {"sum": Criterion.THROUGHPUT})
    assert set(plan.objective.values()) == {Criterion.THROUGHPUT}


def test_the_stricter_of_two_wins() -> None:
    """A call that feeds a throughput and a latency reader is run for latency."""
    made = graph(call("a"), call("bulk", ("a",)), call("chat", ("a",)))
    plan = analyse(made, {"bulk": Criterion.THROUGHPUT, "chat": Criterion.LATENCY})
    assert named(plan.objective) == {
        "a": Criterion.LATENCY,
        "bulk": Criterion.THROUGHPUT,
        "chat": Criterion.LATENCY,
    }


def test_a_later_bulk_reader_slows_no_call_down() -> None:
    """A call that a chat already reads stays latency. It becomes bulk only without
    another reader.
    """
    made = graph(call("a"), call("chat", ("a",)), call("b"))
    criteria: dict[str, Criterion] = {}
    plan = Plan(criteria)
    passes.analyse(made, plan, made.primitives)
    made.add(Addition.of([call("bulk", ("a", "b"))]))
    criteria["bulk"] = Criterion.THROUGHPUT
    passes.analyse(made, plan, ["bulk/0"])
    assert (plan.objective["a/0"], plan.objective["b/0"]) == (
        Criterion.LATENCY,
        Criterion.THROUGHPUT,
    )


def test_a_streaming_sink_makes_its_producers_latency() -> None:
    """Time to first token or time per token at a sink means latency for its producers."""
    for wanted in (Criterion.TTFT, Criterion.TPOT):
        plan = analyse(graph(call("a"), call("b", ("a",))), {"b": wanted})
        assert named(plan.objective) == {"a": Criterion.LATENCY, "b": wanted}


def test_depth_is_the_longest_way_to_a_sink() -> None:
    """A short path to the sink does not make a call shallow."""
    made = graph(call("a"), call("b", ("a",)), call("c", ("a", "b")))
    assert named(analyse(made, {}).depth) == {"a": 2, "b": 1, "c": 0}


def test_a_pass_can_be_switched_off() -> None:
    """A benchmark measures what a pass gains by switching it off. The others still run."""
    plan = analyse(MAP_REDUCE, {}, without=frozenset({"groups"}))
    assert plan.group == {} and plan.depth["m1/0"] == 1


def test_prefix_hashes_agree_as_far_as_the_prompts_do() -> None:
    """Two calls that start with the same text share its hash, and no further hash."""
    one, two = boundaries(call("x", ("a",))), boundaries(call("y", ("b",)))
    assert one[0] == two[0]
    assert one[1] != two[1]


def test_equal_text_shares_however_it_is_cut() -> None:
    """Sharing is by text: a value sent along hashes like an equal constant."""

    def made(*content: Segment, value: str | None = None) -> tuple[str, ...]:
        holders = [Placeholder(name="o", in_out=InOut.OUT, semantic_var_id="o")]
        if value is not None:
            holders.append(Placeholder(name="i", in_out=InOut.IN, value=value))
        prompt = (
            Message(role="user", content=content),
            Message(role="assistant", content=(Segment(output="o"),)),
        )
        return boundaries(task_of("n", Call(name="n", prompt=prompt, placeholders=tuple(holders))))

    whole = made(Segment(text="one two"))
    cut = made(Segment(text="one"), Segment(input="i"), value=" two")
    assert whole[0] == cut[1]
    assert whole[-1] == cut[-1]


def test_only_what_a_new_call_changes_is_planned_anew() -> None:
    """In a wide session, only the new call and its producers are planned. Of one that has started
    only the objective may change, and nothing of one that has ended.
    """
    wide = graph(*(call(f"c{i}") for i in range(100)), call("mid", ("c7",)))
    plan = Plan({})
    passes.analyse(wide, plan, wide.primitives)
    wide.add(Addition.of([call("new", ("mid", "c3", "c4"))]))
    plan.started |= {"c3/0", "c4/0"}
    plan.ended.add("c4/0")
    assert set(passes.analyse(wide, plan, ["new/0"])) == {"new/0", "mid/0", "c7/0", "c3/0"}
    assert [plan.depth[f"{id}/0"] for id in ("new", "mid", "c7", "c3", "c1")] == [0, 1, 2, 0, 0]


def team(files: int, cycles: int) -> list[Task]:
    """Parrot's Figure 18: a design, the files, then in each cycle a review and a revision of each
    file, which read all files.
    """
    numbers = range(files)
    made = [call("design"), *(call(f"c0_{n}", ("design",)) for n in numbers)]
    for cycle in range(cycles):
        known = ("design", *(f"c{cycle}_{n}" for n in numbers))
        made += [call(f"r{cycle}_{n}", known) for n in numbers]
        made += [call(f"c{cycle + 1}_{n}", (*known, f"r{cycle}_{n}")) for n in numbers]
    return made


@pytest.mark.parametrize("cycles", [1, 3])
def test_each_stage_of_a_team_is_a_group(cycles: int) -> None:
    """A review is read by one revision alone, and yet all reviews of a cycle are one group. So are
    the files. The design is alone, and the client reads each of the last files.
    """
    plan = analyse(graph(*team(4, cycles)), {})
    stages: dict[str, set[str]] = {}
    for name, group in named(plan.group).items():
        stages.setdefault(group, set()).add(name)
    expected = {f"{kind}{cycle}_" for kind in "cr" for cycle in range(cycles)}
    assert {frozenset(one) for one in stages.values()} == {
        frozenset(f"{stage}{n}" for n in range(4)) for stage in expected
    }


def test_a_team_that_comes_call_by_call_has_the_same_groups() -> None:
    """More readers of the same files leave the group of the files as it is, so an engine gets no
    other hints. The search for stages does not begin again for each reader.
    """
    made, plan, steps = Graph(), Plan({}), []
    for node in team(8, 2):
        made.add(Addition.of([node]))
        before = named(plan.group)
        passes.analyse(made, plan, [f"{node.id}/0"])
        after = named(plan.group)
        steps.append(sorted(one for one in before if before[one] != after[one]))
    stages: dict[str, set[str]] = {}
    for name, group in named(plan.group).items():
        stages.setdefault(group, set()).add(name)
    expected = [{f"{kind}{cycle}_{n}" for n in range(8)} for cycle in (0, 1) for kind in "cr"]
    assert sorted(map(sorted, stages.values())) == sorted(map(sorted, expected))
    # Only the first call of a stage moves what is above it.
    moves = {at: moved for at, moved in enumerate(steps) if moved}
    assert all((at - 1) % 8 in (0, 1) for at in moves), moves


def test_stages_that_are_one_to_one_belong_to_the_nearest_reader() -> None:
    """Three chains of three calls feed a sum: each stage is a group. Of two pairs that are joined
    before, each pair is a group by itself. A chain is none.
    """
    chains = [call(f"a{n}") for n in range(3)]
    chains += [call(f"b{n}", (f"a{n}",)) for n in range(3)]
    chains += [call(f"c{n}", (f"b{n}",)) for n in range(3)]
    plan = analyse(graph(*chains, call("sum", ("c0", "c1", "c2"))), {})
    expected = {
        f"{stage}{n}": f"sum@{level}" for level, stage in enumerate("cba", 1) for n in range(3)
    }
    assert named(plan.group) == expected
    tree = [*map(call, "abcd"), call("ab", ("a", "b")), call("cd", ("c", "d"))]
    pairs = analyse(graph(*tree, call("all", ("ab", "cd"))), {})
    joins = {"a": "ab@2", "b": "ab@2", "c": "cd@2", "d": "cd@2", "ab": "all@1", "cd": "all@1"}
    assert named(pairs.group) == joins
    assert analyse(graph(call("a"), call("b", ("a",)), call("c", ("b",))), {}).group == {}


def test_answers_without_an_input_in_common_are_apart() -> None:
    """Two questions of a session have nothing to do with each other."""
    apart = [call("a"), call("b"), call("x", ("a",)), call("y", ("b",))]
    assert analyse(graph(*apart), {}).group == {}


def test_layers_that_read_each_other_come_from_the_end() -> None:
    """Each of sixteen layers of five calls reads the whole layer before. Paths from the first layer
    to the last are too many to be followed one by one.
    """
    made, plan = Graph(), Plan({})
    for layer in reversed(range(16)):
        reads = tuple(f"c{layer - 1}_{n}" for n in range(5)) if layer else ()
        nodes = [call(f"c{layer}_{n}", reads) for n in range(5)]
        made.add(Addition.of(nodes))
        passes.analyse(made, plan, [f"{node.id}/0" for node in nodes])
    groups = named(plan.group)
    assert len(groups) == 75 and len(set(groups.values())) == 15


def test_a_stage_may_come_in_pieces() -> None:
    """The reader first, then each chain by itself, its end first."""
    made, plan = Graph(), Plan({})
    order = [call("sum", ("b0", "b1")), *(call(f"b{n}", (f"a{n}",)) for n in range(2))]
    for node in [*order, call("a0"), call("a1")]:
        made.add(Addition.of([node]))
        passes.analyse(made, plan, [f"{node.id}/0"])
    groups = {"b0": "sum@1", "b1": "sum@1", "a0": "sum@2", "a1": "sum@2"}
    assert named(plan.group) == groups


def test_maps_that_come_after_their_reduce_are_its_group() -> None:
    """A client may submit the last call first, and each map by itself."""
    made = Graph()
    plan = Plan({})
    for node in (call("sum", ("m1", "m2", "m3")), call("m1"), call("m2"), call("m3")):
        made.add(Addition.of([node]))
        passes.analyse(made, plan, [f"{node.id}/0"])
    assert named(plan.group) == dict.fromkeys(("m1", "m2", "m3"), "sum@1")
    assert named(plan.depth) == {"sum": 0, "m1": 1, "m2": 1, "m3": 1}


def test_a_long_chain_grows_at_no_cost() -> None:
    """Calls further away than the passes count are left alone. A criterion still goes all the way
    up.
    """
    made = graph(call("c0"), *(call(f"c{i}", (f"c{i - 1}",)) for i in range(1, 50)))
    criteria: dict[str, Criterion] = {}
    plan = Plan(criteria)
    passes.analyse(made, plan, made.primitives)
    assert [plan.depth[f"c{i}/0"] for i in (49, 40, 33, 32, 0)] == [
        0,
        9,
        MOST_DEPTH,
        MOST_DEPTH,
        16,
    ]
    made.add(Addition.of([call("c50", ("c49",))]))
    assert len(passes.analyse(made, plan, ["c50/0"])) == MOST_DEPTH + 2
    criteria["c50"] = Criterion.THROUGHPUT
    assert len(passes.analyse(made, plan, ["c50/0"])) == 51
    assert set(plan.objective.values()) == {Criterion.THROUGHPUT}


@settings(deadline=None)
@given(st.data())
def test_a_graph_grown_step_by_step_has_the_plan_of_the_whole(data: st.DataObject) -> None:
    """Calls are added one or two at a time in any order, readers before their producers, with
    criteria in between. The plan equals that of all calls at once.
    """
    made = Graph()
    criteria: dict[str, Criterion] = {}
    plan = Plan(criteria)
    count = data.draw(st.integers(1, 9))
    reads = [
        data.draw(st.lists(st.sampled_from(range(i)), unique=True)) if i else []
        for i in range(count)
    ]
    waiting = data.draw(st.permutations(range(count)))
    while waiting:
        changed = [f"c{i}" for i in waiting[: data.draw(st.integers(1, 2))]]
        for id in changed:
            made.add(Addition.of([call(id, tuple(f"c{j}" for j in reads[int(id[1:])]))]))
        waiting = waiting[len(changed) :]
        changed = [f"{id}/0" for id in changed]
        if data.draw(st.booleans()):
            watched = data.draw(st.sampled_from(sorted(made.tasks)))
            criteria[watched] = data.draw(st.sampled_from(Criterion))
            changed.append(f"{watched}/0")
        passes.analyse(made, plan, changed)
    whole = analyse(made, criteria)
    assert (plan.depth, plan.objective) == (whole.depth, whole.objective)
    assert plan.prefixes == whole.prefixes
    assert whole.depth == _by_definition(made)


def _by_definition(made: Graph) -> dict[str, int]:
    found: dict[str, int] = {}
    below = {id: made.downstream(id) for id in made.primitives}
    for id in graphlib.TopologicalSorter(below).static_order():
        found[id] = max((found[child] + 1 for child in made.downstream(id)), default=0)
    return found


def piped(*specs: dict[str, str]) -> Graph:
    """Let `b` read what `a` writes through the output's transforms `specs`."""
    out = Placeholder(
        name="out", in_out=InOut.OUT, semantic_var_id="a", transforms=tuple(map(dict, specs))
    )
    made = Call(name="a", prompt=(Segment(text="Do:"), Segment(output="out")), placeholders=(out,))
    return graph(task_of("a", made), call("b", ("a",)))


def test_an_edge_streams_where_nothing_needs_the_whole_value() -> None:
    """Unchanged text streams. JSON has to be whole. Without the pass every edge is whole."""
    for made, without, flow in (
        (piped(), frozenset[str](), Flow.STREAM),
        (piped({"op": "json"}), frozenset(), Flow.WHOLE),
        (piped(), frozenset({"flow"}), Flow.WHOLE),
    ):
        analyse(made, {}, without)
        assert made.primitives["b/0"].reads == (Read("a", flow),)


def test_a_producer_that_comes_later_streams_too() -> None:
    """The reader was planned before its variable had a producer."""
    made = graph(call("b", ("a",)))
    plan = Plan({})
    passes.analyse(made, plan, ["b/0"])
    assert made.primitives["b/0"].reads == (Read("a", Flow.WHOLE),)
    made.add(Addition.of([call("a")]))
    passes.analyse(made, plan, ["a/0"])
    assert made.primitives["b/0"].reads == (Read("a", Flow.STREAM),)


def test_findings_are_applied_whole_or_not_at_all() -> None:
    """With one bad finding of any sort among good ones, the graph and the plan stay as
    they were.
    """
    made = graph(call("a"), call("b", ("a",)))
    plan = Plan({}, started={"a/0"})
    a, b = made.primitives["a/0"], made.primitives["b/0"]
    later = replace(b, work=7)
    bad = [
        passes.Findings(depth={"b/0": 1, "nobody": 1}),
        passes.Findings(depth={"b/0": 1}, rewritten={"b/0": later, "nobody": b}),
        passes.Findings(depth={"b/0": 1}, rewritten={"b/0": later, "a/0": a}),
        passes.Findings(depth={"b/0": 1}, rewritten={"b/0": replace(b, writes=("other",))}),
    ]
    for findings in bad:
        with pytest.raises(passes.InvalidFindings):
            passes.apply(made, plan, findings)
        assert made.primitives["b/0"] is b and not plan.depth
    with pytest.raises(CyclicGraph):
        passes.apply(made, plan, passes.Findings(rewritten={"b/0": replace(b, after=("b/0",))}))
    assert made.primitives["b/0"] is b and list(made.downstream("b/0")) == []
    passes.apply(made, plan, passes.Findings(depth={"b/0": 1}, rewritten={"b/0": later}))
    assert made.primitives["b/0"] is later
    assert plan.depth == {"b/0": 1}


def test_outputs_of_one_call_are_one_step_of_the_graph() -> None:
    """Two primitives in a row have the same depth, no group of their own, and the
    sink's objective.
    """
    prompt = (Segment(output="x"), Segment(text=" and "), Segment(output="y"))
    outputs = (Placeholder(name=v, in_out=InOut.OUT, semantic_var_id=v) for v in "xy")
    made = graph(task_of("two", Call(name="two", prompt=prompt, placeholders=tuple(outputs))))
    plan = analyse(made, {"y": Criterion.TPOT, "x": Criterion.THROUGHPUT})
    assert plan.depth == {"two/0": 0, "two/1": 0}
    assert plan.objective == {"two/0": Criterion.TPOT, "two/1": Criterion.TPOT}
    assert plan.group == {}
    assert made.primitives["two/1"].reads == (Read("x", Flow.STREAM),)
    assert made.primitives["two/1"].after == ("two/0",)
    assert plan.prefixes["two/0"] == plan.prefixes["two/1"][:1]
    assert [len(plan.prefixes[id]) for id in ("two/0", "two/1")] == [1, 3]
