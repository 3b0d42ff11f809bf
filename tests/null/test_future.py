"""The retention of a finished output's context, as far as the session's graph decides it."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from weftline.contract.protocol import Call, InOut, Placeholder, Segment
from weftline_engine.api import FinishReason, Usage
from weftline_server.graph.graph import Graph
from weftline_server.graph.primitive import Task
from weftline_server.lowering.kinds.prompt import task_of
from weftline_server.runtime.future import want
from weftline_server.schedule.memory.keeper import Want
from weftline_server.session import events as ev
from weftline_server.session.reuse import Reuse
from weftline_server.session.session import ServerSession

SYSTEM = "You are one of many reviewers of this text. " * 4


def call(name: str, *parts: str) -> Task:
    """Build a call of these parts: `<x` is an input from variable x, `>x` an output into it."""
    prompt, holders = [], []
    for part in parts:
        if part[0] in "<>":
            way = InOut.IN if part[0] == "<" else InOut.OUT
            prompt.append(Segment(input=part[1:]) if way is InOut.IN else Segment(output=part[1:]))
            holders.append(Placeholder(name=part[1:], in_out=way, semantic_var_id=part[1:]))
        else:
            prompt.append(Segment(text=part))
    return task_of(name, Call(name=name, prompt=tuple(prompt), placeholders=tuple(holders)))


def made(*nodes: Task, stays: bool = False) -> ServerSession:
    session = ServerSession("s", "t", 0.0, stays=stays)
    session.handle(ev.TasksSubmitted(now=0.0, tasks=nodes))
    return session


def finish(session: ServerSession, name: str, index: int = 0, text: str = "x" * 40) -> Want | None:
    """Run output `index` of a call in one second. Return what its context is wanted for."""
    session.handle(ev.PrimitiveSent(now=1.0, primitive=f"{name}/{index}", engine="e"))
    session.handle(ev.TextGenerated(now=1.5, primitive=f"{name}/{index}", text=text))
    usage = Usage(prompt_tokens=90, cached_tokens=0, output_tokens=10, started=0.0, filled=0.0)
    session.handle(
        ev.PrimitiveFinished(
            now=1.0,
            primitive=f"{name}/{index}",
            reason=FinishReason.LENGTH,
            usage=usage,
            value=text,
        )
    )
    return want(session, f"{name}/{index}")


def test_the_last_answer_has_no_reader() -> None:
    """Nothing reads the only call of a session, so its context has no next use."""
    assert finish(made(call("a", "Do: ", ">x")), "a") is None


def test_a_second_output_continues_the_first() -> None:
    """It reads the whole context at once. When it has ended too, neither context is needed."""
    session = made(call("a", "Do: ", ">x", " and ", ">y"))
    assert finish(session, "a") == Want(pause_s=0.0)
    assert finish(session, "a", 1) is None
    assert want(session, "a/0") is None


def test_a_chat_that_goes_on_reads_prompt_and_answer() -> None:
    """The next turn is the first prompt, its answer by variable, and more text. It reads the whole
    context as soon as it can start, which is now.
    """
    session = made(call("a", SYSTEM, ">x"), call("b", SYSTEM, "<x", " Go on. ", ">y"))
    assert finish(session, "a") == Want(tokens=None, pause_s=0.0)


def test_maps_with_a_common_prefix_keep_only_the_prefix() -> None:
    """176 of 176 + 44 + 40 characters are common: 67 of the 100 tokens. They are kept until the
    last map.
    """
    maps = [call(f"m{i}", SYSTEM, f"{i}" * 44, f">v{i}") for i in range(3)]
    session = made(*maps)
    assert finish(session, "m0") == Want(tokens=67, pause_s=0.0)
    assert finish(session, "m1") == Want(tokens=67, pause_s=0.0)
    assert finish(session, "m2") is None
    assert want(session, "m0/0") is None


def test_a_reader_that_has_to_wait_comes_later() -> None:
    """`c` starts after `b`, which starts now: one call from here, a second, as `a` took. With one
    more call between them it is two seconds.
    """
    first, between = call("a", SYSTEM, ">x"), call("b", "Other: ", "<x", ">y")
    session = made(first, between, call("c", SYSTEM, "<y", ">z"))
    assert finish(session, "a", text="x" * 44) == Want(tokens=80, pause_s=1.0)
    more = call("b2", "More: ", "<y", ">y2"), call("c", SYSTEM, "<y2", ">z")
    session = made(first, between, *more)
    assert finish(session, "a", text="x" * 44) == Want(tokens=80, pause_s=2.0)


def test_a_graph_of_layers_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven layers of six calls, each of which reads the layer before: 6 ** 6 ways, 37 calls."""
    calls = [call("first", SYSTEM, ">first")]
    calls += [call(f"c0_{i}", f"{i} ", f">v0_{i}") for i in range(6)]
    for layer in range(1, 7):
        before = [f"<v{layer - 1}_{i}" for i in range(6)]
        calls += [call(f"c{layer}_{i}", f"{i} ", *before, f">v{layer}_{i}") for i in range(6)]
    session = made(*calls, call("last", SYSTEM, *(f"<v6_{i}" for i in range(6)), ">end"))
    looked: list[str] = []
    upstream = Graph.upstream

    def counted(self: Graph, id: str) -> Collection[str]:
        looked.append(id)
        return upstream(self, id)

    monkeypatch.setattr(Graph, "upstream", counted)
    assert finish(session, "first", text="x" * 44) == Want(tokens=80, pause_s=7.0)
    assert len(looked) == len(set(looked)) == 37


def test_a_prefix_of_a_few_tokens_is_not_kept() -> None:
    """The calls share only a short constant text, which is not worth a pinned context."""
    session = made(call("a", "Sum: ", "1" * 300, ">x"), call("b", "Sum: ", "2" * 300, ">y"))
    assert finish(session, "a") is None


def test_an_open_session_is_expected_by_its_habit() -> None:
    """An agent's next turn is not in the graph yet. Its time is unknown, so the session's habit
    decides.
    """
    assert finish(made(call("a", "Do: ", ">x"), stays=True), "a") == Want()


def test_without_the_prefix_pass_nothing_is_known() -> None:
    """The next use of a shared prompt is not predicted."""
    session = ServerSession("s", "t", 0.0, frozenset({"prefix"}), stays=False)
    nodes = call("a", SYSTEM, ">x"), call("b", SYSTEM, "<x", ">y")
    session.handle(ev.TasksSubmitted(now=0.0, tasks=nodes))
    assert finish(session, "a") is None


def test_an_ended_call_reads_nothing_more() -> None:
    """The index forgets a call with its last hash, so that it holds the live calls alone."""
    reuse = Reuse()
    reuse.add("a", ["1", "2"])
    reuse.add("b", ["1", "3"])
    assert reuse.readers(["1", "2"]) == (2, ("a",))
    reuse.end("a")
    assert reuse.readers(["1", "2"]) == (1, ("b",))
    reuse.end("b")
    assert reuse.readers(["1"]) is None and not reuse._readers


def test_an_empty_segment_ends_where_the_one_before_it_does() -> None:
    """A call with an empty value has one hash twice. It is forgotten like any other."""
    reuse = Reuse()
    reuse.add("a", ["1", "1", "2"])
    assert reuse.readers(["1", "1", "2"]) == (3, ("a",))
    reuse.end("a")
    assert reuse.readers(["1"]) is None and not reuse._readers
