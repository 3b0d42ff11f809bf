"""What the passes find out about a graph, each question alone (Parrot section 5)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weftline.protocol import Call, Criterion, InOut, Message, Placeholder, Segment
from weftline_server import passes
from weftline_server.graph.graph import Graph, Node
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
    passes.analyse(made, plan, passes.affected(made, made.nodes, set()), without)
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


def test_what_streams_below_must_be_whole_above() -> None:
    """Time to first token of a sink is the latency of its producers."""
    plan = analyse(graph(call("a"), call("b", ("a",))), {"b": Criterion.TTFT})
    assert plan.objective == {"a": Criterion.LATENCY, "b": Criterion.TTFT}


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
    more = [call("new", ("mid", "c3"))]
    wide.add(more)
    assert set(passes.affected(wide, ["new"], {"c3"})) == {"new", "mid", "c7"}


@given(st.data())
def test_growing_step_by_step_ends_in_the_plan_of_the_whole(data: st.DataObject) -> None:
    """Calls added one at a time, with readers in between, are planned as if all came at once."""
    made = Graph()
    criteria: dict[str, Criterion] = {}
    plan = Plan(criteria)
    for i in range(data.draw(st.integers(1, 9))):
        earlier = [f"c{j}" for j in range(i)]
        reads = data.draw(st.lists(st.sampled_from(earlier), unique=True)) if earlier else []
        node = call(f"c{i}", tuple(reads))
        made.check([node])
        made.add([node])
        changed = [node.id]
        if data.draw(st.booleans()):
            watched = data.draw(st.sampled_from([*earlier, node.id]))
            criteria[watched] = data.draw(st.sampled_from(Criterion))
            changed.append(watched)
        passes.analyse(made, plan, passes.affected(made, changed, set()))
    whole = analyse(made, criteria)
    assert (plan.depth, plan.objective) == (whole.depth, whole.objective)
    assert plan.prefixes == whole.prefixes
