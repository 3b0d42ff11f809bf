"""When a call waits for its siblings: decided without threads, on clocks that the tests set."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event, Thread, get_ident
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolCall
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send

from langchain_weftline.run.siblings import Group, Limits, is_parked
from langchain_weftline.run.supersteps import Due, Task, edges_of, is_resumed, sends_in, tools_in
from tests.integrations.graph_table import State

CALL: ToolCall = {"name": "look", "args": {}, "id": "1", "type": "tool_call"}
LIMITS = Limits(progress=1.0, longest=3.0, look=0.25)


@dataclass(eq=False)
class Call:
    """A call that waits."""

    since: float = 0.0
    room: float = 100


def test_a_call_that_is_alone_has_no_company() -> None:
    """Its own branch has called, so nothing is expected, and it is the only one that arrives."""
    group: Group[Call] = Group()
    group.expect("mine", 0.0)
    group.forget("mine")
    group.arriving = 1
    assert not group.has_company(0.0, LIMITS, is_starting=False)


def test_calls_wait_for_a_branch_that_shows_progress() -> None:
    """They go when it has called, or when it has shown no progress for a second."""
    group: Group[Call] = Group()
    group.waiting.append(first := Call())
    group.expect("other", 0.0)
    assert group.take_due(0.5, LIMITS, False) == []
    assert group.left(0.5, LIMITS) == 0.5
    group.expect("other", 0.75)
    assert group.take_due(1.5, LIMITS, False) == []
    assert group.take_due(1.75, LIMITS, False) == [first]
    group.waiting.append(second := Call(since=2.0))
    group.expect("other", 2.0)
    group.forget("other")
    assert group.take_due(2.0, LIMITS, False) == [second]


def test_no_call_waits_longer_than_the_longest_time() -> None:
    """Branches that go on showing progress do not hold it up."""
    group: Group[Call] = Group()
    group.waiting.append(call := Call())
    for now in (0.0, 0.9, 1.8, 2.7):
        group.expect("busy", now)
        assert group.take_due(now, LIMITS, False) == []
    assert group.left(2.7, LIMITS) == pytest.approx(0.3)
    assert group.take_due(3.0, LIMITS, False) == [call]


def test_calls_go_when_no_further_one_has_room() -> None:
    """With `max_concurrency` of two, the third branch starts when one of them has its answer."""
    group: Group[Call] = Group()
    group.expect("third", 0.0)
    group.waiting.append(Call(room=2))
    assert group.take_due(0.0, LIMITS, False) == []
    group.waiting.append(Call(room=2))
    assert len(group.take_due(0.0, LIMITS, False)) == 2


def test_calls_wait_for_a_starter_and_look_once_more() -> None:
    """A run that starts others is waited for until it waits for them, and a moment longer."""
    group: Group[Call] = Group()
    group.waiting.append(call := Call())
    assert group.take_due(0.5, LIMITS, True) == []
    assert group.take_due(0.7, LIMITS, False) == []
    assert group.left(0.7, LIMITS) == 0.25  # it looks again, and not more often than this
    assert group.take_due(0.75, LIMITS, False) == [call]
    group.waiting.append(call)
    assert group.take_due(1.0, LIMITS, True) == [call]  # it has gone on by itself for too long


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["expect", "forget"])), max_size=30)
)
def test_a_call_is_due_within_its_limits(events: list[tuple[str, str]]) -> None:
    """Whatever happens, a waiting call goes when nothing is expected, and after three seconds."""
    group: Group[Call] = Group()
    group.waiting.append(call := Call())
    latest: dict[str, float] = {}
    now = 0.0
    for branch, event in events:
        now += 0.25
        if event == "expect":
            group.expect(branch, now)
            latest[branch] = now
        else:
            group.forget(branch)
            latest.pop(branch, None)
        is_coming = any(now - seen < LIMITS.progress for seen in latest.values())
        due = group.take_due(now, LIMITS, False)
        assert due == ([] if is_coming and now < LIMITS.longest else [call])
        if due:
            return
    assert group.take_due(now + LIMITS.longest, LIMITS, False) == [call]


def test_a_thread_is_parked_while_it_waits_for_another_one() -> None:
    """A thread that waits for an event is parked, and so is one that has ended. This one is not."""
    ready, over = Event(), Event()

    def wait() -> None:
        ready.set()
        over.wait(30.0)

    thread = Thread(target=wait)
    thread.start()
    ready.wait(30.0)
    assert thread.ident is not None
    while not is_parked(thread.ident):  # it has set the event, and is about to wait
        pass
    over.set()
    thread.join()
    assert is_parked(thread.ident)
    assert not is_parked(get_ident())


def sent(step: int, name: str) -> Task:
    return Task(step, (name,), is_sent=True)


def pulled(step: int, name: str) -> Task:
    return Task(step, (name,), is_sent=False)


def test_tasks_of_a_step_are_due_until_they_have_started() -> None:
    """Two by `Send` and one by an edge. Those of a step that is over are due no more."""
    due = Due()
    due.add(2, frozenset({"c"}), 1)
    due.add(2, frozenset(), 1)
    assert due.start(sent(2, "b"))
    due.add(3, frozenset({"d", "e"}), 0)  # the first one has ended already
    assert due.start(pulled(2, "c"))
    assert not due.start(sent(2, "a"))
    assert due.start(pulled(3, "d"))
    assert not due.start(pulled(4, "f"))
    assert due.steps == {}


def test_tasks_by_send_start_first() -> None:
    """If a node starts in the step without one, the answer's tools are called elsewhere."""
    due = Due()
    due.add(2, frozenset(), tools_in({"messages": [AIMessage("", tool_calls=[CALL, CALL])]}))
    assert not due.start(pulled(2, "after_model"))
    said = {"messages": [HumanMessage("Hi"), AIMessage("", tool_calls=[CALL, CALL])]}
    due.add(3, frozenset(), tools_in([Command(update=said)]))
    assert due.start(sent(3, "tools"))
    assert not due.start(sent(3, "tools"))
    assert tools_in({"messages": [HumanMessage("Hi")]}) == tools_in("Hi") == 0


def test_the_first_tasks_of_a_graph_have_any_step() -> None:
    """In a later turn of a thread the first step has a higher number."""
    due = Due()
    due.add(None, frozenset({"a", "b"}), 0)
    assert not due.start(pulled(6, "__start__"))
    assert due.start(pulled(7, "a"))
    assert not due.start(pulled(7, "b"))
    other = Due()
    other.add(None, frozenset({"a", "b"}), 0)
    assert not other.start(pulled(7, "c"))  # the run goes on elsewhere


def test_the_edges_of_a_graph() -> None:
    """Edges without a condition, also of an inner graph. A deferred node starts later."""
    inner = StateGraph(State)
    inner.add_node("x", lambda state: {})
    inner.add_edge(START, "x")
    made = StateGraph(State)
    for name in ("a", "b"):
        made.add_node(name, lambda state: {})
        made.add_edge(START, name)
    made.add_node("late", lambda state: {}, defer=True)
    made.add_node("inner", inner.compile())
    made.add_edge("a", "late")
    made.add_edge("b", "inner")
    made.add_edge("b", END)
    assert dict(edges_of(made.compile())) == {
        ("__start__",): {"a", "b"},
        ("a",): set(),
        ("b",): {"inner"},
        ("inner", "__start__"): {"x"},
    }


@pytest.mark.parametrize(
    ("outputs", "count"),
    [
        ([Send("a", 1), Send("a", 2), "b"], 2),
        (Command(goto=[Send("a", 1)]), 1),
        (Send("a", 1), 1),
        (Command(goto="a"), 0),
        ({"a": Send("a", 1)}, 0),
        (None, 0),
    ],
)
def test_the_sends_of_an_output(outputs: Any, count: int) -> None:
    """Only those that LangGraph will start count."""
    assert sends_in(outputs) == count


@pytest.mark.parametrize(
    ("value", "expected"), [(None, True), (Command(resume=1), True), ({}, False)]
)
def test_an_input_that_resumes(value: Any, expected: bool) -> None:
    """Then the graph does not begin with its first nodes."""
    assert is_resumed(value) is expected
