"""Accelerated graphs that keep their threads in SQLite: states and histories of the plain graph."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnablePassthrough
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph

from langchain_weftline import accelerate
from tests.integrations.ahead_chains import CHAT, SUBMIT, model, sent
from tests.integrations.graph_table import RULES as RULES
from tests.integrations.graph_table import State, ask, chapters
from tests.integrations.recording import Recording

THREAD: Any = {"configurable": {"thread_id": "a"}}
LAST = "Warm and cold colours differ."


def graph_of(llm: Any, saver: Any) -> Any:
    """Two nodes of two calls each. The graph stops before the second one."""
    polish = RunnablePassthrough.assign(answer=ask(llm, "Polish {flaw}"))
    made = StateGraph(State)
    made.add_node("write", chapters(llm))
    made.add_node(
        "merge", polish.assign(draft=ask(llm, "Merge {answer}")).pick(["answer", "draft"])
    )
    made.add_edge(START, "write")
    made.add_edge("write", "merge")
    return made.compile(checkpointer=saver, interrupt_before=["merge"])


def plain(recording: Recording, saver: Any) -> Any:
    return graph_of(model(recording, provenance=False), saver)


def ours(recording: Recording, saver: Any) -> Any:
    return accelerate(graph_of(model(recording), saver))


def told(state: Any) -> tuple[Any, ...]:
    """All of a snapshot but its ids and its time."""
    tasks = [(task.name, task.error, task.interrupts, task.result) for task in state.tasks]
    return state.values, state.next, state.metadata, tasks, state.parent_config is None


def turn(graph: Any) -> list[Any]:
    """A run, an update from outside, and the rest of the run: each state, and the history."""
    found = [graph.invoke({"topic": "looms"}, THREAD), told(graph.get_state(THREAD))]
    graph.update_state(THREAD, {"flaw": "Fill: seven chapters."})
    found += [graph.invoke(None, THREAD), told(graph.get_state(THREAD))]
    return [*found, *map(told, graph.get_state_history(THREAD))]


async def aturn(graph: Any) -> list[Any]:
    """The same, in coroutines."""
    found = [await graph.ainvoke({"topic": "looms"}, THREAD), told(await graph.aget_state(THREAD))]
    await graph.aupdate_state(THREAD, {"flaw": "Fill: seven chapters."})
    found += [await graph.ainvoke(None, THREAD), told(await graph.aget_state(THREAD))]
    return [*found, *[told(state) async for state in graph.aget_state_history(THREAD)]]


def check(states: list[list[Any]], recording: Recording) -> None:
    """Equal states, of which the last one has the merged text. Each node of ours is one request."""
    expected, found = states
    assert found == expected
    assert found[2]["draft"] == LAST and found[1][1] == ("merge",)
    assert [state[1] for state in found[4:]] == [
        (),
        ("merge",),
        ("merge",),
        ("write",),
        ("__start__",),
    ]
    assert sent(recording) == [CHAT] * 4 + [SUBMIT] * 2


def test_a_thread_in_sqlite(recording: Recording, tmp_path: Path) -> None:
    """Every state of the thread, its metadata and its history are those of the plain graph."""
    states: list[list[Any]] = []
    for make in (plain, ours):
        with SqliteSaver.from_conn_string(str(tmp_path / f"{make.__name__}.db")) as saver:
            states.append(turn(make(recording, saver)))
    check(states, recording)


async def test_a_thread_in_sqlite_in_coroutines(recording: Recording, tmp_path: Path) -> None:
    states: list[list[Any]] = []
    for make in (plain, ours):
        path = str(tmp_path / f"{make.__name__}.db")
        async with AsyncSqliteSaver.from_conn_string(path) as saver:
            states.append(await aturn(make(recording, saver)))
    check(states, recording)


async def test_a_thread_in_memory_in_coroutines(recording: Recording) -> None:
    """`aget_state` and `aget_state_history` with LangGraph's own saver."""
    states = [await aturn(make(recording, InMemorySaver())) for make in (plain, ours)]
    check(states, recording)


@pytest.mark.parametrize("first", [plain, ours])
def test_the_other_graph_goes_on_with_a_thread(
    recording: Recording, tmp_path: Path, first: Any
) -> None:
    """A thread that one graph has left in a file is finished by the other, in a new connection."""
    path = tmp_path / "threads.db"
    second = ours if first is plain else plain
    with SqliteSaver.from_conn_string(str(path)) as saver:
        first(recording, saver).invoke({"topic": "looms"}, THREAD)
    with closing(sqlite3.connect(path)) as connection:
        [(count,)] = connection.execute("SELECT count(*) FROM checkpoints").fetchall()
    assert count == 3
    with SqliteSaver.from_conn_string(str(path)) as saver:
        graph = second(recording, saver)
        assert told(graph.get_state(THREAD))[1] == ("merge",)
        assert graph.invoke(None, THREAD)["draft"] == LAST
        assert len(list(graph.get_state_history(THREAD))) == 4
