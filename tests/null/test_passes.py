"""What the passes find out about a graph, each question alone (Parrot section 5)."""

from __future__ import annotations

from weftline.protocol import Call, Criterion, InOut, Message, Placeholder, Segment
from weftline_server.graph.graph import Graph, Node
from weftline_server.passes import analyse
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
