"""Bodies that repeat: for each item of a list, and round by round."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.null.asgi import Serve, call
from tests.null.steps.wire import branch, each, loop, run, states
from tests.null.test_switches import step
from weftline.contract.protocol import Segment
from weftline.contract.steps import Body, Each, Loop, Source, Step, Until
from weftline_server.config import ServerConfig
from weftline_server.lowering.kinds import KINDS
from weftline_server.lowering.kinds.prompt import lower_call
from weftline_server.runtime.registry import RegistryConfig
from weftline_server.session.budget import Budget

ASK = {"calls": [call("ask", "<{{input:item}}>{{output:answer}}", item="item", answer="answer")]}
LINES = call("plan", "b\na\nc{{output:subs}}", subs="subs")
SPLIT = {"var": "subs", "transforms": [{"op": "line_list"}]}
ADD = {"calls": [call("add", "+{{input:draft}}{{output:better}}", draft="draft", better="better")]}
BEGIN = call("begin", "a{{output:d0}}", d0="d0")
LONG = {"on": "better", "when": {"op": "starts", "value": "+++"}}
AGAIN = ({"draft": "d0"}, {"draft": "better"}, ADD, LONG)


async def test_the_body_runs_for_each_item_in_order(serve: Serve) -> None:
    """A call writes the list; a call reads the gathered one."""
    server = await serve()
    last = call("last", "{{input:all}}{{output:o}}", all="answers", o="o")
    split = {**each("subs", ASK, {"answer": "answers"}, name="subs"), "over": SPLIT}
    answer = await run(server, split, calls=[LINES, last], get=["answers", "o"])
    assert answer["values"]["answers"] == ["<b>", "<a>", "<c>"]
    assert answer["values"]["o"] == '["<b>", "<a>", "<c>"]'
    graph = answer["graph"]
    items = {one["name"]: one for one in graph["calls"] if one["owner"] is not None}
    [step] = graph["steps"]
    assert items.keys() == {"subs[0].ask", "subs[1].ask", "subs[2].ask"}
    assert {one["owner"] for one in items.values()} == {step["step_id"]}
    assert {one["depth"] for one in items.values()} == {2}
    assert len({one["group"] for one in items.values()} - {None}) == 1, "they finish together"
    assert step["outputs"][-1] == "answers"


@pytest.mark.parametrize("listed", [[], ["x"], [{"a": 1}, [2], 3, True]])
async def test_lists_of_any_length_and_items(serve: Serve, listed: list[Any]) -> None:
    """An empty list, and items of several JSON types."""
    server = await serve()
    answer = await run(server, each(listed, ASK, {"answer": "out"}), get=["out"])
    shown = {"x": "x", "{'a': 1}": '{"a": 1}', "[2]": "[2]", "3": "3", "True": "true"}
    assert answer["values"]["out"] == [f"<{shown[str(item)]}>" for item in listed]


PICKY = {
    "calls": [
        call("side", "{{input:item}}{{output:other}}", item="item", other="other"),
        call("ask", "{{input:item}}{{output:answer}}", item="item",
             answer={"in_out": "out", "semantic_var_id": "answer", "transforms": [{"op": "json"}]}),
    ]
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "out"),
    [({"on_error": "skip"}, [1, 3]), ({"on_error": "value", "otherwise": "none"}, [1, "none", 3])],
)
async def test_an_item_that_fails_is_left_out_or_replaced(
    serve: Serve, more: dict[str, Any], out: list[Any]
) -> None:
    """Both collected lists leave out the same items."""
    server = await serve()
    step = each(["1", "x", "3"], PICKY, {"answer": "out", "other": "also"}, **more)
    answer = await run(server, step, get=["out", "also"])
    assert answer["values"]["out"] == out
    assert answer["values"]["also"] == [str(one) for one in out]


async def test_an_error_names_the_first_failing_step_and_item(serve: Serve) -> None:
    """The second of three items fails: the error says `rows[1].ask`."""
    server = await serve()
    step = each(["1", "x", "3"], PICKY, {"answer": "out"}, name="rows")
    answer = await run(server, step, get=["out"])
    assert (answer["error"]["type"], answer["error"]["call"]) == ("TransformFailed", "rows[1].ask")


async def test_bodies_nest_and_read_what_is_around_them(serve: Serve) -> None:
    """An each in an each; the inner body reads its item, the outer item, and a global variable."""
    server = await serve()
    inner = {
        "calls": [
            call("ask", "{{input:x}}{{input:row}}{{input:g}}{{output:o}}",
                 x="x", row="row", g="subs", o="o"),
        ]
    }  # fmt: skip
    row = {"steps": [each(["1", "2"], inner, {"o": "os"}, item="x", name="cells")]}
    step = each(["p", "q"], row, {"os": "out"}, item="row", name="rows")
    answer = await run(
        server, step, calls=[call("g", "!{{output:subs}}", subs="subs")], get=["out"]
    )
    assert answer["values"]["out"] == [["1p!", "2p!"], ["1q!", "2q!"]]
    assert "rows[1].cells[0].ask" in states(answer)


async def test_a_branch_in_a_body_decides_for_each_item(serve: Serve) -> None:
    """Two items take different sides, and the other side of each is skipped."""
    server = await serve()
    body = {
        "calls": [
            call("long", "long {{input:item}}{{output:o}}", item="item", o="l"),
            call("short", "short {{input:item}}{{output:o}}", item="item", o="s"),
        ],
        "steps": [branch("item", {"l": {"op": "contains", "value": "aa"}}, "s", "picked")],
    }
    answer = await run(server, each(["a", "baa"], body, {"picked": "out"}), get=["out"])
    assert answer["values"]["out"] == ["short a", "long baa"]
    skipped = [name for name, state in states(answer).items() if state == "skipped"]
    assert skipped == ["each[0].long", "each[1].short"]


@pytest.mark.parametrize(("most", "out", "reason"), [(5, "+++a", "stop"), (2, "++a", "limit")])
async def test_a_loop_ends_with_its_predicate_or_at_its_most(
    serve: Serve, most: int, out: str, reason: str
) -> None:
    """Its graph shows the rounds that ran, and which of the two ended it."""
    server = await serve()
    step = loop(*AGAIN, most=most, out="final", name="improve")
    answer = await run(server, step, calls=[BEGIN], get=["final"])
    assert answer["values"]["final"] == out
    [found] = [one for one in answer["graph"]["steps"] if one["name"] == "improve"]
    assert found["finish_reason"] == reason
    rounds = [one["name"] for one in answer["graph"]["calls"] if one["owner"] is not None]
    assert rounds == [f"improve[{number}].add" for number in range(len(out) - 1)]


async def test_a_loop_carries_several_values(serve: Serve) -> None:
    """Two values are carried from round to round, and `result` names the loop's value."""
    server = await serve()
    body = {
        "calls": [
            call("a", "{{input:y}}{{output:o}}", y="y", o="x2"),
            call("b", "{{input:x}}.{{output:o}}", x="x", o="y2"),
        ]
    }
    until = {"on": "x2", "when": {"op": "equals", "value": "never"}}
    step = loop({"x": "d0", "y": "d0"}, {"x": "x2", "y": "y2"}, body, until, most=3, out="final")
    answer = await run(server, {**step, "result": "y"}, calls=[BEGIN], get=["final"])
    assert answer["values"]["final"] == "a.."
    assert "need 'result'" in (await run(server, step, calls=[BEGIN]))["error"]["message"]


async def test_cancelling_the_step_ends_its_items(serve: Serve) -> None:
    """The tasks that the step has added are cancelled with it."""
    server = await serve()
    session = await server.session()
    body = {"calls": [call("ask", "{{input:item}}{{input:g}}{{output:answer}}",
                           item="item", g="later", answer="answer")]}  # fmt: skip
    step = each(["1", "2"], body, {"answer": "out"})
    submitted = (await server.submit(session, steps=[step])).json()
    found = server.driver.registry.find("local", session)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(found.tasks) == 3, (submitted, found.story())
    id = submitted["steps"][0]["step_id"]
    await server.http.delete(f"/v1/session/{session}/call/{id}")
    assert [run.state.value for run in found.tasks.values()] == ["cancelled"] * 3
    found.validate()


async def test_an_unknown_variable_of_a_body_is_reported(serve: Serve) -> None:
    """A body that reads a variable without a producer ends as NoProducer, and does not wait."""
    server = await serve()
    body = {"calls": [call("ask", "{{input:g}}{{output:answer}}", g="nowhere", answer="answer")]}
    answer = await run(server, each(["1"], body, {"answer": "out"}), get=["out"])
    assert answer["error"]["type"] == "NoProducer" and "'nowhere'" in answer["error"]["message"]


async def test_budgets_count_items_and_rounds(serve: Serve) -> None:
    """Each item and each round counts as calls of the session's budget."""
    budget = Budget(calls=10)
    server = await serve(config=ServerConfig(registry=RegistryConfig(budget=budget)))
    answer = await run(server, each(["x"] * 10, ASK, {"answer": "out"}, name="many"), get=["out"])
    assert (answer["error"]["type"], answer["error"]["call"]) == ("BudgetExceeded", "many")
    step = loop(*AGAIN[:3], {**LONG, "when": {"op": "empty"}}, most=20, out="final", name="ever")
    answer = await run(server, step, calls=[BEGIN], get=["final"])
    assert answer["error"]["type"] == "BudgetExceeded"


def deep(levels: int) -> dict[str, Any]:
    """An each with that many bodies in one another."""
    body = ASK if levels == 1 else {"steps": [deep(levels - 1)]}
    name = "answer" if levels == 1 else f"out{levels - 1}"
    return each(["x"], body, {name: f"out{levels}"})


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (each("x y", ASK, {"answer": "out"}), "is not an id"),
        (each(["x"], {}, {"answer": "out"}), "a body has a call or a step"),
        (each(["x"], ASK, {}), "collects at least one variable"),
        (each(["x"], ASK, {"other": "out"}), "the body of 'each' does not write 'other'"),
        (each(["x"], ASK, {"answer": "out"}, item="answer"), "which it is given: rename one"),
        (each(["x"], ASK, {"answer": "out"}, max_items=0), "max_items must be in 1 to 10,000"),
        (each(["x"], ASK, {"answer": "out"}, max_items=10**6), "max_items must be in"),
        (each(["x"], ASK, {"answer": "out"}, on_error="value"), "'otherwise' goes with"),
        (each(["x"], ASK, {"answer": "out"}, out="o"), "writes the variables of 'collect'"),
        (each(["x"], {"calls": [{**ASK["calls"][0], "model": "none"}]}, {"answer": "out"}), "none"),
        (each(["x"], {"calls": ASK["calls"] * 2}, {"answer": "out"}), "written by two calls"),
        (each(["x"], {"steps": [{"kind": "client", "out": "a"}]}, {"a": "out"}), "a client step"),
        (each("out", ASK, {"answer": "out"}), "waits for its own output"),
        (deep(5), "bodies nest at most 4 deep"),
        (loop(*AGAIN, most=0, out="final"), "most must be in 1 to 1,000"),
        (loop({"draft": "d0"}, {"drft": "better"}, ADD, LONG, most=2), "have the same names"),
        (loop(*AGAIN[:2], ASK, LONG, most=2), "does not write 'better'"),
        (loop(*AGAIN[:3], {**LONG, "on": "verdict"}, most=2), "does not write 'verdict'"),
    ],
)  # fmt: skip
async def test_a_wrong_body_is_refused_and_nothing_runs(
    serve: Serve, step: dict[str, Any], message: str
) -> None:
    """The whole submit is refused, so its plain call does not run either. Four levels are
    allowed."""
    server = await serve()
    assert "values" in await run(server, deep(4), get=["out4"])
    session = await server.session()
    refused = await server.submit(session, BEGIN, steps=[step])
    assert refused.status_code in (400, 404, 422) and message in refused.json()["error"]["message"]
    assert (await server.graph(session))["calls"] == []


@pytest.mark.parametrize(
    ("value", "more", "error", "message"),
    [
        ("text", {}, "TransformFailed", "each takes a list, and the value is a str"),
        ([1, None], {}, "TransformFailed", "an item of the list is null"),
        ([1, 2, 3], {"max_items": 2}, "InvalidRequest", "the list has 3 items, and max_items is 2"),
    ],
)
async def test_a_wrong_list_fails_the_step(
    serve: Serve, value: Any, more: dict[str, Any], error: str, message: str
) -> None:
    """The list is known only when the step runs, so it fails then and names itself."""
    server = await serve()
    step = {**each([], ASK, {"answer": "out"}, **more), "over": {"value": value}}
    answer = await run(server, step, get=["out"])
    assert (answer["error"]["type"], answer["error"]["call"]) == (error, "each")
    assert message in answer["error"]["message"]


def test_the_work_of_a_body_counts_before_its_items_are_there() -> None:
    """An application whose list is still written has its items to go: four, unless fewer are
    certain. A loop has one round. A list in a body counts with its own items.
    """
    asked = step((Segment(input="item"),), "said", "item", tokens=30)
    one = Body(calls=(asked,))
    [item] = lower_call(asked, "", "c").primitives
    unknown = Each(over=Source(var="list"), body=one, collect={"said": "all"})
    few = replace(unknown, max_items=3)
    known = replace(unknown, over=Source(value=["a", "b"]))
    nested = replace(unknown, over=Source(var="lists"), body=Body(steps=(unknown,)),
                     collect={"all": "whole"})  # fmt: skip
    again = Loop(carry={"item": "a"}, next={"item": "said"}, body=one, most=3,
                 until=Until(on="said", when={"op": "truthy"}))  # fmt: skip

    def work(made: Step) -> int:
        return sum(one.work for one in KINDS.lower_step(made, "", "s").primitives)

    assert item.work >= 30
    assert work(unknown) == 2 + 4 * item.work
    assert work(few) == 2 + 3 * item.work
    assert work(known) == 2 + 2 * item.work
    assert work(nested) == 2 + 4 * work(unknown)
    assert work(again) == 2 + item.work
