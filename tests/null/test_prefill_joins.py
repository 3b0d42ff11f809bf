"""Prompts that join a list are filled with its first items before the list is complete."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.null.test_passes import analyse, graph
from tests.null.test_passes_items import embed, lower, search, var
from tests.null.test_switches import CONFIG, step, words
from tests.simulator.world import world
from weftline.contract.protocol import Call, InOut, Message, Placeholder, Segment, SubmitBody
from weftline.contract.steps import Body, Each, Merge, Source
from weftline.contract.transforms import joined_items, joins_items
from weftline.contract.transforms import run as transformed
from weftline_engine.pretend.virtual_time import VirtualLoop, run
from weftline_server.graph.primitive import Flow, Task
from weftline_server.lowering.kinds import KINDS
from weftline_server.lowering.kinds.prompt import task_of
from weftline_server.session import events as ev
from weftline_server.session.session import ServerSession

JOIN = {"op": "join", "separator": "\n"}
TEXTS = {"op": "texts"}
LINES = {"op": "line_list"}
HITS = [{"text": "a"}, [{"text": "b"}, {"text": ""}]]


@given(
    st.sampled_from([None, JOIN, {"op": "join", "separator": ""}]),
    st.lists(st.text(max_size=5), max_size=5),
    st.integers(0, 5),
)
def test_the_text_of_the_first_items_begins_that_of_all(
    spec: dict[str, Any] | None, items: list[str], count: int
) -> None:
    """Whatever follows them, and also if nothing does."""
    whole = json.dumps(items, ensure_ascii=False) if spec is None else transformed([spec], items)
    assert joins_items([] if spec is None else [spec])
    assert whole.startswith(joined_items(spec, items[:count]))


@pytest.mark.parametrize("count", range(3))
def test_the_texts_of_the_first_hits_begin_those_of_all(count: int) -> None:
    """The joined text of the first hits is a prefix of the joined text of all hits."""
    assert joins_items([TEXTS])
    assert joined_items(TEXTS, HITS[:count]) == ("", "a", "a\n\nb\n\n")[count]
    assert transformed([TEXTS], HITS) == joined_items(TEXTS, HITS)
    assert joined_items(JOIN, [1]) == "", "the whole list fails, so nothing is known early"


def reader(out: str, *reads: tuple[str, tuple[Any, ...]], chat: bool = False) -> Task:
    """A call that reads variables through transforms; in a chat, each is a message of its own."""
    ins = tuple(
        Placeholder(name=f"i{n}", in_out=InOut.IN, semantic_var_id=name, transforms=transforms)
        for n, (name, transforms) in enumerate(reads)
    )
    said = Placeholder(name="o", in_out=InOut.OUT, semantic_var_id=out)
    inputs: Any = [Segment(input=one.name) for one in ins]
    prompt: Any = (*inputs, Segment(output="o"))
    if chat:
        prompt = (*inputs, Message(role="assistant", content=(Segment(output="o"),)))
    return task_of(out, Call(name=out, prompt=prompt, placeholders=(said, *ins)))


def each(over: Source, out: str = "all") -> Task:
    body = Body(calls=(step((Segment(input="item"),), "said", "item"),))
    return KINDS.lower_step(Each(over=over, body=body, collect={"said": out}), "", f"each-{out}")


def flow(*tasks: Task, without: frozenset[str] = frozenset()) -> list[Flow]:
    """The flows of the edges into the last task."""
    made = graph(*tasks)
    analyse(made, {}, without)
    return [read.flow for read in made.primitives[tasks[-1].primitives[0].id].reads]


def test_which_lists_are_read_item_by_item() -> None:
    """Results of an each, hits of queries that come one by one, and the lines of a text."""
    listed = each(Source(value=["a", "b"]))
    plan = reader("plan")
    queries = (plan, embed("vecs", var("plan", LINES)), search("hits", "vecs"))
    items, whole = [Flow.ITEMS], [Flow.WHOLE]
    assert flow(listed, reader("r", ("all", (JOIN,)))) == items
    assert flow(listed, reader("r", ("all", ()))) == items, "as JSON"
    assert flow(*queries, reader("r", ("hits", (TEXTS,)))) == items
    assert flow(plan, reader("r", ("plan", (LINES, JOIN)))) == items
    assert flow(listed, reader("r", ("all", (JOIN,))), without=frozenset({"joins"})) == whole
    assert flow(listed, reader("r", ("all", (JOIN, {"op": "strip"})))) == whole
    assert flow(listed, reader("r", ("all", (JOIN,)), ("all", ()))) == whole, "in two ways"
    assert flow(listed, reader("r", ("all", ()), chat=True)) == whole, "it is messages"
    merged = lower(Merge(in_=var("hits"), out="pool"), "", 0)
    assert flow(*queries, merged, reader("r", ("pool", (TEXTS,)))) == whole, "it is sorted"
    assert flow(plan, embed("v", var("q")), search("h", "v"), reader("r", ("h", (TEXTS,)))) == whole


def test_a_reader_is_told_of_the_first_results_in_their_order() -> None:
    """The second item ends first, and nothing is known. With the first, both are."""
    session = ServerSession("s", "", 0.0)
    tasks = (each(Source(value=["a", "b", "c"])), reader("r", ("all", (JOIN,))))
    session.handle(ev.TasksSubmitted(now=0.0, tasks=tasks))
    end(session, "each-all/0", ["a", "b", "c"])
    told = [end(session, f"each-all.{number}.c0/0", "said") for number in (1, 0, 2)]
    assert [ev.Fill("r/0") in actions for actions in told] == [False, True, True]


def end(session: ServerSession, primitive: str, value: Any) -> list[ev.Action]:
    session.handle(ev.PrimitiveSent(now=1.0, primitive=primitive, engine="e"))
    stop: Any = "stop"
    found = session.handle(
        ev.PrimitiveFinished(now=1.0, primitive=primitive, reason=stop, value=value)
    )
    session.validate()
    return found


def test_the_join_is_filled_while_the_last_item_is_written() -> None:
    """Three parts end one after the other, as their prompts have 20, 420 and 820 tokens. A prompt
    token takes 1 ms. When the last part ends, the 200 tokens of the others are in the cache.
    """

    parts = [words(600 * n, 20 + 400 * n).text for n in range(3)]
    body = Body(calls=(step((Segment(input="item"),), "said", "item", tokens=100),))
    over = Each(over=Source(value=parts), body=body, collect={"said": "all"})
    holder = Placeholder(name="all", in_out=InOut.IN, semantic_var_id="all", transforms=(JOIN,))
    made = step((words(1900, 20), Segment(input="all")), "final")
    final = replace(made, placeholders=(*made.placeholders, holder))

    async def main(loop: VirtualLoop, without: frozenset[str]) -> tuple[float, str]:
        async with world(loop, CONFIG, CONFIG, without=without) as made:
            session = made.driver.open("t")
            await made.driver.submit(session, SubmitBody(calls=(final,), steps=(over,)))
            await made.driver.readers.get(session, "final")
            session.validate()
            return made.now, session.variable("final").text

    early, text = run(lambda loop: main(loop, frozenset()))
    late, same = run(lambda loop: main(loop, frozenset({"joins"})))
    assert text == same != ""
    assert 0.19 < late - early < 0.25
