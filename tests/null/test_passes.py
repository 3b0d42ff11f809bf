"""What the passes find out about a graph, each question alone (Parrot section 5)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weftline.protocol import Call, Criterion, InOut, Message, Placeholder, Segment
from weftline_server import passes
from weftline_server.graph.graph import Graph, Node
from weftline_server.passes.depth import MOST_DEPTH
from weftline_server.passes.plan import Plan
from weftline_server.passes.prefixes import boundaries


def call(name: str, reads: tuple[str, ...] = (), text: str = "Do:") -> Node:
    """Call `name` reads variables and writes the variable of its own name."""
    prompt = (Segment(text=text), *(Segment(input=v) for v in reads), Segment(output="out"))
    holders = [Placeholder(name=v, in_out=InOut.IN, semantic_var_id=v) for v in reads]
    holders.append(Placeholder(name="out", in_out=InOut.OUT, semantic_var_id=name))
    return Node(name, Call(name=name, prompt=prompt, placeholders=tuple(holders)))


def graph(*nodes: Node) -> Graph:
    made = Graph()
    made.check(nodes)
    made.add(nodes)
    return made


def analyse(
    made: Graph, criteria: dict[str, Criterion], without: frozenset[str] = frozenset()
) -> Plan:
    """The plan of a whole graph."""
    plan = Plan(criteria)
    passes.analyse(made, plan, made.nodes, without=without)
    return plan


MAP_REDUCE = graph(call("m1"), call("m2"), call("m3"), call("sum", ("m1", "m2", "m3")))


def test_a_map_reduce_is_one_group_one_deep() -> None:
    """The maps feed one consumer, so they should finish together; the user awaits the sum."""
    plan = analyse(MAP_REDUCE, {})
    assert plan.depth == {"m1": 1, "m2": 1, "m3": 1, "sum": 0}
    assert plan.group == dict.fromkeys(("m1", "m2", "m3"), "sum@1")
    assert set(plan.objective.values()) == {Criterion.LATENCY}


def test_throughput_marks_the_whole_ancestry() -> None:
    """A reader of `sum` who wants throughput wants it of every call that feeds it."""
    plan = analyse(MAP_REDUCE, {"sum": Criterion.THROUGHPUT})
    assert set(plan.objective.values()) == {Criterion.THROUGHPUT}


def test_the_stricter_of_two_wins() -> None:
    """A call that feeds both a throughput and a latency reader is run for latency."""
    made = graph(call("a"), call("bulk", ("a",)), call("chat", ("a",)))
    plan = analyse(made, {"bulk": Criterion.THROUGHPUT, "chat": Criterion.LATENCY})
    assert plan.objective == {
        "a": Criterion.LATENCY,
        "bulk": Criterion.THROUGHPUT,
        "chat": Criterion.LATENCY,
    }


def test_a_bulk_reader_that_comes_later_slows_nobody_down() -> None:
    """Of a call that is for a chat already; only where nobody else reads it, it becomes bulk."""
    made = graph(call("a"), call("chat", ("a",)), call("b"))
    criteria: dict[str, Criterion] = {}
    plan = Plan(criteria)
    passes.analyse(made, plan, made.nodes)
    made.add([call("bulk", ("a", "b"))])
    criteria["bulk"] = Criterion.THROUGHPUT
    passes.analyse(made, plan, ["bulk"])
    assert (plan.objective["a"], plan.objective["b"]) == (Criterion.LATENCY, Criterion.THROUGHPUT)


def test_what_streams_below_must_be_whole_above() -> None:
    """Time to first token, or for each token, of a sink is the latency of its producers."""
    for wanted in (Criterion.TTFT, Criterion.TPOT):
        plan = analyse(graph(call("a"), call("b", ("a",))), {"b": wanted})
        assert plan.objective == {"a": Criterion.LATENCY, "b": wanted}


def test_depth_is_the_longest_way_to_a_sink() -> None:
    """A short cut to the sink does not make a call shallow."""
    made = graph(call("a"), call("b", ("a",)), call("c", ("a", "b")))
    assert analyse(made, {}).depth == {"a": 2, "b": 1, "c": 0}


def test_a_pass_can_be_switched_off() -> None:
    """A benchmark measures what a pass earns by leaving it out; the others run on."""
    plan = analyse(MAP_REDUCE, {}, without=frozenset({"groups"}))
    assert plan.group == {} and plan.depth["m1"] == 1


def test_prefix_hashes_agree_as_far_as_the_prompts_do() -> None:
    """Two calls that start with the same text share its hash, and no more than that."""
    one, two = boundaries(call("x", ("a",))), boundaries(call("y", ("b",)))
    assert one[0] == two[0]
    assert one[1] != two[1]


def test_equal_text_shares_however_it_is_cut() -> None:
    """Sharing is by text: a value sent along hashes like the constant it equals."""

    def made(*content: Segment, value: str | None = None) -> tuple[str, ...]:
        holders = [Placeholder(name="o", in_out=InOut.OUT, semantic_var_id="o")]
        if value is not None:
            holders.append(Placeholder(name="i", in_out=InOut.IN, value=value))
        prompt = (
            Message(role="user", content=content),
            Message(role="assistant", content=(Segment(output="o"),)),
        )
        return boundaries(Node("n", Call(name="n", prompt=prompt, placeholders=tuple(holders))))

    whole = made(Segment(text="one two"))
    cut = made(Segment(text="one"), Segment(input="i"), value=" two")
    assert whole[0] == cut[1]
    assert whole[-1] == cut[-1]


def test_only_what_a_new_call_changes_is_planned_anew() -> None:
    """Of a wide session, the new call and what it reads; of that, nothing that has started."""
    wide = graph(*(call(f"c{i}") for i in range(100)), call("mid", ("c7",)))
    plan = Plan({})
    passes.analyse(wide, plan, wide.nodes)
    wide.add([call("new", ("mid", "c3"))])
    assert set(passes.analyse(wide, plan, ["new"], {"c3"})) == {"new", "mid", "c7"}
    assert [plan.depth[id] for id in ("new", "mid", "c7", "c3", "c1")] == [0, 1, 2, 0, 0]


def test_maps_that_come_after_their_reduce_are_its_group() -> None:
    """A client may submit the last call first, and each map alone."""
    made = Graph()
    plan = Plan({})
    for node in (call("sum", ("m1", "m2", "m3")), call("m1"), call("m2"), call("m3")):
        made.add([node])
        passes.analyse(made, plan, [node.id])
    assert plan.group == dict.fromkeys(("m1", "m2", "m3"), "sum@1")
    assert plan.depth == {"sum": 0, "m1": 1, "m2": 1, "m3": 1}


def test_a_long_chain_grows_at_no_cost() -> None:
    """What is further away than the passes count is left alone; a criterion goes all the way up."""
    made = graph(call("c0"), *(call(f"c{i}", (f"c{i - 1}",)) for i in range(1, 50)))
    criteria: dict[str, Criterion] = {}
    plan = Plan(criteria)
    passes.analyse(made, plan, made.nodes)
    assert [plan.depth[f"c{i}"] for i in (49, 40, 33, 32, 0)] == [0, 9, MOST_DEPTH, MOST_DEPTH, 16]
    made.add([call("c50", ("c49",))])
    assert len(passes.analyse(made, plan, ["c50"])) == MOST_DEPTH + 2
    criteria["c50"] = Criterion.THROUGHPUT
    assert len(passes.analyse(made, plan, ["c50"])) == 51
    assert set(plan.objective.values()) == {Criterion.THROUGHPUT}


@given(st.data())
def test_growing_step_by_step_ends_in_the_plan_of_the_whole(data: st.DataObject) -> None:
    """Calls added one or two at a time and in any order, readers before those that they wait for,
    with criteria in between, are planned as if all came at once."""
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
            made.add([call(id, tuple(f"c{j}" for j in reads[int(id[1:])]))])
        waiting = waiting[len(changed) :]
        if data.draw(st.booleans()):
            watched = data.draw(st.sampled_from(sorted(made.nodes)))
            criteria[watched] = data.draw(st.sampled_from(Criterion))
            changed.append(watched)
        passes.analyse(made, plan, changed)
    whole = analyse(made, criteria)
    assert (plan.depth, plan.objective) == (whole.depth, whole.objective)
    assert plan.prefixes == whole.prefixes
    assert whole.depth == _by_definition(made)


def _by_definition(made: Graph) -> dict[str, int]:
    found: dict[str, int] = {}
    for id in reversed(made.topological()):
        found[id] = max((found[child] + 1 for child in made.downstream(id)), default=0)
    return found
