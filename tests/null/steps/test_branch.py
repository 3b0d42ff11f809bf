"""Branches: a predicate takes one side; what only the others need is skipped or stopped."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.null.asgi import Serve, call
from tests.null.steps.wire import branch, each, loop, run, states
from tests.null.test_switches import measured, step, words
from tests.simulator.world import World
from weftline.contract.protocol import Call, InOut, Placeholder, Segment, SubmitBody
from weftline.contract.steps import Body, Branch, Case, Each, Source
from weftline.errors import InvalidRequest, TransformFailed
from weftline.predicates import MAX_DEPTH, check, holds
from weftline_engine.pretend.null import LatencyProfile, NullConfig
from weftline_engine.services.retrieval.local import LocalItems
from weftline_engine.services.retrieval.plain_backends import MemoryTable, WordBackend
from weftline_engine.services.retrieval.stores import StoreBackend
from weftline_server.config import ServerConfig
from weftline_server.lowering.control.sides import gated
from weftline_server.lowering.kinds import KINDS
from weftline_server.lowering.kinds.prompt import lower_call
from weftline_server.observe.view import value_view
from weftline_server.session.task import RunState

# A call takes longer than all that could start beside it.
SLOW = NullConfig(latency=LatencyProfile(step_s=0.02))
NUMBER = {"op": "contains", "value": "number"}
SIDES = (
    call("count", "one {{output:numbers}}", numbers="numbers"),
    call("plan", "first {{output:outline}}", outline="outline"),
    call("tell", "{{input:outline}}two {{output:words}}", outline="outline", words="words"),
)
READ = call("read", "so {{input:answer}}{{output:said}}", answer="answer", said="said")


@pytest.mark.parametrize(
    ("kind", "said", "skipped"),
    [("a number", "so one ", {"plan", "tell"}), ("a word", "so first two ", {"count"})],
)
async def test_one_side_is_taken_and_the_others_are_skipped(
    serve: Serve, kind: str, said: str, skipped: set[str]
) -> None:
    """The skipped side goes up to where nothing else reads it. It costs nothing."""
    server = await serve()
    route = branch({"value": kind}, {"numbers": NUMBER}, "words", "answer", name="route")
    answer = await run(server, route, calls=(*SIDES, READ), get=["said"])
    assert answer["values"] == {"said": said}
    found = states(answer)
    assert {name for name, state in found.items() if state == "skipped"} == skipped
    assert {name for name, state in found.items() if state == "done"} == found.keys() - skipped
    for one in answer["graph"]["calls"]:
        assert (one["output_tokens"] == 0) == (one["name"] in skipped)
        assert one["error"] is None
    variables = {one["semantic_var_id"]: one for one in answer["graph"]["variables"]}
    side = "numbers" if "count" in skipped else "words"
    assert variables[side]["state"] == "skipped"
    metrics = (await server.http.get("/metrics")).text
    assert 'engine="null",model="null",state="skipped"' not in metrics


async def test_the_value_says_how_its_side_was_generated(serve: Serve) -> None:
    """A watch tells the call, the tokens and the finish reason of the side, of any depth."""
    server = await serve()
    session = await server.session()
    inner = branch({"value": "a number"}, {"numbers": NUMBER}, "words", "inner")
    outer = branch({"value": "no"}, {"outline": NUMBER}, "inner", "answer", name="outer")
    await server.submit(session, *SIDES, steps=[inner, outer])
    assert (await server.get(session, "answer")).json()["value"] == "one "
    found = server.driver.registry.find("local", session)
    side, answer = value_view(found, "numbers"), value_view(found, "answer")
    assert side["finish_reason"] == "stop"
    assert answer.pop("taken") == "numbers" and answer.pop("step_id")
    assert answer == {**side, "semantic_var_id": "answer"}


ROUTE = (
    step((words(0, 20),), "kind", tokens=50),
    step((words(500, 400),), "yes"),
    step((words(2000, 400),), "no"),
)
TRUTHY = Branch(
    on=Source(var="kind"), cases=(Case(when={"op": "truthy"}, take="yes"),), default="no", out="won"
)


async def routed(made: World, submit: SubmitBody, out: str) -> tuple[float, set[str]]:
    """The seconds until `out` is there, and the calls that were given to an engine to generate."""
    session = made.driver.open("t")
    await made.driver.submit(session, submit)
    await made.driver.readers.get(session, out)
    told = [run for run in session.tasks.values() if any(one.sent is not None for one in run.steps)]
    return made.now, {run.task.name.rpartition(".")[2] for run in told if run.task.call}


def test_a_side_is_filled_early_and_generates_nothing_before_the_decision() -> None:
    """A call of 50 tokens decides between two calls. Each has 400 tokens of instructions, which
    take 0.4 s to fill, on the other engine. The side that is not taken generates nothing.
    """
    flat = partial(routed, submit=SubmitBody(calls=ROUTE, steps=(TRUTHY,)), out="won")
    early, late = measured(flat, 2), measured(flat, 2, "prefill_early")
    assert early[1] == late[1] == {"kind", "yes"}
    assert late[0] - early[0] > 0.35


def test_a_side_in_a_body_generates_nothing_before_the_decision() -> None:
    """The branch is in the body of an `each`, and in another graph the `each` is on a side."""
    body = Body(calls=ROUTE, steps=(TRUTHY,))
    one = Each(over=Source(value=["a"]), body=body, collect={"won": "all"})
    inside = measured(partial(routed, submit=SubmitBody(steps=(one,)), out="all"), 2)
    assert inside[1] == {"kind", "yes"}
    listed = Each(
        over=Source(value=["a", "b"]), body=Body(calls=ROUTE[2:]), collect={"no": "list"}, name="l"
    )
    submit = SubmitBody(calls=ROUTE[:2], steps=(replace(TRUTHY, default="list"), listed))
    assert measured(partial(routed, submit=submit, out="won"), 2)[1] == {"kind", "yes"}


async def test_a_skipped_variable_says_so(serve: Serve) -> None:
    """To a get, and to a call that comes later. A client cannot set it."""
    server = await serve()
    session = await server.session()
    route = branch({"value": "a number"}, {"numbers": NUMBER}, "words", "answer")
    await server.submit(session, *SIDES, steps=[route])
    assert (await server.get(session, "answer")).json()["value"] == "one "
    error = (await server.get(session, "words")).json()["error"]
    assert (error["type"], error["message"]) == (
        "Skipped",
        "variable 'words' was skipped: no branch took it",
    )
    late = call("late", "{{input:w}}{{output:x}}", w="words", x="x")
    await server.submit(session, late)
    error = (await server.get(session, "x")).json()["error"]
    assert (error["type"], error["call"]) == ("Skipped", "late")
    put = await server.http.put(f"/v1/session/{session}/variable/words", json={"value": "x"})
    assert put.status_code == 409
    server.driver.registry.find("local", session).validate()


async def test_what_another_call_reads_is_not_skipped(serve: Serve) -> None:
    """A call on an untaken side still runs if a call outside of the branch reads its output."""
    server = await serve()
    route = branch({"value": "a number"}, {"numbers": NUMBER}, "words", "answer")
    other = call("other", "also {{input:outline}}{{output:x}}", outline="outline", x="x")
    answer = await run(server, route, calls=(*SIDES, other), get=["answer", "x"])
    assert answer["values"] == {"answer": "one ", "x": "also first "}
    assert states(answer)["plan"] == "done" and states(answer)["tell"] == "skipped"


async def test_a_side_that_has_begun_is_stopped(serve: Serve) -> None:
    """Both sides were submitted before the branch, and run when it is decided."""
    server = await serve(NullConfig(latency=LatencyProfile(step_s=60)))
    session = await server.session()
    route = branch("kind", {"numbers": NUMBER}, "words", "answer")
    await server.submit(session, *SIDES)
    await server.submit(session, steps=[route])
    found = server.driver.registry.find("local", session)
    tasks = {run.task.name: run for run in found.tasks.values()}
    while tasks["plan"].state is not RunState.RUNNING:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await server.http.put(f"/v1/session/{session}/variable/kind", json={"value": "number"})
    while tasks["plan"].state is RunState.RUNNING:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert {name: run.state.value for name, run in tasks.items()} == {
        "count": "running",
        "plan": "skipped",
        "tell": "skipped",
        "branch": "waiting",
    }
    [member] = server.driver.dispatcher.members
    assert len(member.ops.works) == 1
    found.validate()


async def test_a_side_may_fail_before_the_decision(serve: Serve) -> None:
    """The failure counts only if the side is taken."""
    server = await serve()
    bad = call("bad", "x {{output:o}}", o={"in_out": "out", "semantic_var_id": "numbers",
                                          "transforms": [{"op": "json"}]})  # fmt: skip
    good = call("good", "fine {{output:o}}", o="words")
    for kind, found in (("word", "fine "), ("number", None)):
        session = await server.session()
        route = branch("kind", {"numbers": NUMBER}, "words", "answer", name="route")
        await server.submit(session, bad, good)
        await server.submit(session, steps=[route])
        assert (await server.get(session, "numbers")).json()["error"]["call"] == "bad"
        await server.http.put(f"/v1/session/{session}/variable/kind", json={"value": kind})
        answer = (await server.get(session, "answer")).json()
        assert answer.get("value") == found
        assert found is not None or answer["error"]["call"] == "bad"
        server.driver.registry.find("local", session).validate()


@pytest.mark.parametrize("without", [frozenset(), frozenset({"speculate"})], ids=["", "waits"])
async def test_a_branch_that_cannot_decide_skips_its_sides(
    serve: Serve, without: frozenset[str]
) -> None:
    """What it was asked about has failed. So has the branch, but no side has."""
    server = await serve(config=ServerConfig(without=without))
    session = await server.session()
    bad = call("bad", "{{input:x}}{{output:o}}", x="x", o={"in_out": "out",
               "semantic_var_id": "kind", "transforms": [{"op": "json"}]})  # fmt: skip
    route = branch("kind", {"numbers": NUMBER}, "words", "answer", name="route", after=["x"])
    later = call("later", "{{input:x}}{{input:outline}}{{output:y}}", x="x", outline="outline",
                 y="y")  # fmt: skip
    side = call("side", "{{input:y}}{{output:numbers}}", y="y", numbers="numbers")
    await server.submit(session, bad, later, side, *SIDES[1:], steps=[route])
    await server.http.put(f"/v1/session/{session}/variable/x", json={"value": "no JSON"})
    error = (await server.get(session, "answer")).json()["error"]
    assert (error["type"], error["call"]) == ("TransformFailed", "bad")
    for variable in ("numbers", "words"):
        found = (await server.get(session, variable)).json()
        assert found.get("error", {"type": "Skipped"})["type"] == "Skipped"
    graph = await server.graph(session)
    found_states = {one["name"]: one["state"] for one in (*graph["calls"], *graph["steps"])}
    assert found_states["bad"] == found_states["route"] == "failed"
    assert "failed" not in {found_states[name] for name in ("later", "side", "plan", "tell")}
    server.driver.registry.find("local", session).validate()


async def test_a_side_that_fails_leaves_what_was_needed_to_decide(serve: Serve) -> None:
    """The branch has decided and then fails with its side. Its decision stays."""
    server = await serve(config=ServerConfig(without=frozenset({"speculate"})))
    session = await server.session()
    both = call("both", "{{input:bad}}{{input:list}}{{output:words}}", bad="bad", list="list",
                words="words")  # fmt: skip
    bad = call("bad", "{{input:x}}{{output:o}}", x="x", o={"in_out": "out",
               "semantic_var_id": "bad", "transforms": [{"op": "json"}]})  # fmt: skip
    body = {"calls": [call("item", "an {{input:x}}{{input:one}}{{output:own}}", one="one", x="x",
                           own="own")]}  # fmt: skip
    listed = each(["item"], body, {"own": "list"}, item="one", name="list")
    route = branch({"value": "a word"}, {"numbers": NUMBER}, "words", "answer", name="route")
    number = call("count", "one {{output:numbers}}", numbers="numbers")
    await server.submit(session, both, bad, number, steps=[listed, route])
    await server.http.put(f"/v1/session/{session}/variable/x", json={"value": "x "})
    assert (await server.get(session, "answer")).json()["error"]["call"] == "bad"
    assert (await server.get(session, "list")).json()["value"] == ["an x item"]
    server.driver.registry.find("local", session).validate()


async def test_a_predicate_on_a_wrong_type_is_no_default(serve: Serve) -> None:
    """The branch fails. It does not take the default."""
    server = await serve()
    route = branch({"value": ["a"]}, {"numbers": {"op": "starts", "value": "n"}}, "words", "answer",
                   name="route")  # fmt: skip
    answer = await run(server, route, calls=SIDES, get=["answer"])
    assert (answer["error"]["type"], answer["error"]["call"]) == ("TransformFailed", "route")
    assert answer["error"]["message"] == (
        "predicate 'starts' asks about text, and the value is list"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cases": []}, "a branch has 1 to 64 cases"),
        ({"cases": [{"when": {"op": "like"}, "take": "a"}]}, "one of equals, in, contains"),
        ({"cases": [{"when": NUMBER, "take": "a b"}]}, "take 'a b' is not an id"),
        ({"default": "answer"}, "waits for its own output"),
        ({"on": {"var": "x", "transforms": [{"op": "eval"}]}}, "unknown transform 'eval'"),
        ({"on": {"value": "x", "transforms": [{"op": "strip"}]}}, "transforms go with a variable"),
    ],
)
async def test_a_wrong_branch_is_refused(serve: Serve, change: Any, message: str) -> None:
    """Each mistake of a branch is refused at submit, with what is wrong."""
    server = await serve()
    route = {**branch({"value": "x"}, {"numbers": NUMBER}, "words", "answer"), **change}
    answer = await run(server, route, calls=SIDES)
    assert message in answer["error"]["message"]


YES: list[tuple[dict[str, Any], Any]] = [
    ({"op": "equals", "value": "ok"}, "ok"),
    ({"op": "equals", "value": 2}, 2.0),
    ({"op": "equals", "value": None}, None),
    ({"op": "python", "is": "==", "value": 1}, True),
    ({"op": "python", "is": "contains", "value": "a"}, {"a": 1}),
    ({"op": "in", "value": ["a", 1]}, 1),
    ({"op": "contains", "value": "b"}, "abc"),
    ({"op": "contains", "value": 2}, [1, 2]),
    ({"op": "starts", "value": "a"}, "abc"),
    ({"op": "ends", "value": "c"}, "abc"),
    ({"op": "matches", "value": "b+c"}, "abbc"),
    ({"op": "compare", "is": "<=", "value": 3}, 3),
    ({"op": "compare", "is": ">", "value": "a"}, "b"),
    ({"op": "empty"}, []),
    ({"op": "empty"}, ""),
    ({"op": "truthy"}, [0]),
    ({"op": "not", "of": {"op": "truthy"}}, 0),
    ({"op": "all", "of": [{"op": "starts", "value": "a"}, {"op": "ends", "value": "c"}]}, "ac"),
    ({"op": "any", "of": [{"op": "starts", "value": "x"}, {"op": "ends", "value": "c"}]}, "ac"),
    ({"op": "equals", "value": "yes", "transforms": [{"op": "strip"}]}, " yes "),
]
NO: list[tuple[dict[str, Any], Any]] = [
    ({"op": "equals", "value": True}, False),
    ({"op": "python", "is": "==", "value": "1"}, 1),
    ({"op": "python", "is": "in", "value": []}, 1),
    ({"op": "in", "value": ["a", 1]}, 2),
    ({"op": "contains", "value": True}, [1]),
    ({"op": "matches", "value": "^b"}, "ab"),
    ({"op": "compare", "is": "<", "value": 3}, 3),
    ({"op": "empty"}, {"a": 1}),
    ({"op": "all", "of": [{"op": "truthy"}, {"op": "empty"}]}, "a"),
]
MISFITS: list[tuple[dict[str, Any], Any]] = [
    ({"op": "equals", "value": "1"}, 1),
    ({"op": "equals", "value": 1}, True),
    ({"op": "in", "value": ["a"]}, 1),
    ({"op": "contains", "value": "b"}, 3),
    ({"op": "contains", "value": 1}, "1"),
    ({"op": "ends", "value": "c"}, None),
    ({"op": "matches", "value": "c"}, ["c"]),
    ({"op": "matches", "value": "c"}, "\ud800"),
    ({"op": "compare", "is": "<", "value": 3}, "2"),
    ({"op": "python", "is": "<", "value": 3}, "2"),
    ({"op": "python", "is": "in", "value": "abc"}, 1),
    ({"op": "python", "is": "contains", "value": 1}, "1"),
    ({"op": "empty"}, 0),
    ({"op": "truthy", "transforms": [{"op": "json"}]}, "no json"),
]


@pytest.mark.parametrize(("spec", "value", "answer"), [
    *((*one, True) for one in YES), *((*one, False) for one in NO)])  # fmt: skip
def test_a_predicate_answers(spec: dict[str, Any], value: Any, answer: bool) -> None:
    """Each kind of predicate, with values for which it holds and values for which it does not."""
    check(spec)
    assert holds(spec, value) is answer


@pytest.mark.parametrize(("spec", "value"), MISFITS)
def test_a_predicate_does_not_guess(spec: dict[str, Any], value: Any) -> None:
    """A value of the wrong type is an error, not False."""
    check(spec)
    with pytest.raises(TransformFailed):
        holds(spec, value)


def nested(depth: int) -> dict[str, Any]:
    return {"op": "truthy"} if depth == 1 else {"op": "not", "of": nested(depth - 1)}


@pytest.mark.parametrize(
    "spec",
    [
        "truthy",
        {},
        {"op": "truthy", "value": 1},
        {"op": "equals"},
        {"op": "starts", "value": 1},
        {"op": "in", "value": []},
        {"op": "in", "value": "abc"},
        {"op": "matches", "value": "(?=a)"},
        {"op": "compare", "is": "~", "value": 1},
        {"op": "compare", "is": "<", "value": [1]},
        {"op": "python", "is": "is", "value": 1},
        {"op": "python", "is": "in", "value": 1},
        {"op": "python", "is": "==", "value": {}},
        {"op": "python", "value": 1},
        {"op": "all", "of": []},
        {"op": "any", "of": {"op": "truthy"}},
        {"op": "any", "of": [{"op": "truthy"}] * 64},
        {"op": "contains", "value": "x" * 5000},
        {"op": "truthy", "transforms": [{"op": "none such"}]},
        nested(MAX_DEPTH + 1),
    ],
)
def test_a_wrong_predicate_is_refused(spec: Any) -> None:
    """Unknown, incomplete, too large or too deep ones. The deepest allowed one is taken."""
    check(nested(MAX_DEPTH))
    with pytest.raises(InvalidRequest):
        check(spec)


@pytest.mark.parametrize("without", [frozenset[str](), frozenset({"speculate"})])
async def test_a_side_s_steps_run_before_the_decision_unless_that_is_left_out(
    serve: Serve, without: frozenset[str]
) -> None:
    """With speculation they run beside the call that decides. Its calls never do."""
    engines = {"words": lambda: LocalItems(WordBackend("words"))}
    server = await serve(SLOW, ServerConfig(without=without), also=engines)
    route = branch("kind", {"numbers": NUMBER}, "vectors", "answer", name="route")
    found = {"kind": "embed", "in": {"value": ["a"]}, "out": "vectors", "name": "embed"}
    asked = call("ask", "it is a number {{output:kind}}", kind="kind")
    answer = await run(server, found, route, calls=(asked, SIDES[0], READ), get=["said"])
    assert answer["values"] == {"said": "so one "}
    calls = {one["name"]: one for one in answer["graph"]["calls"]}
    steps = {one["name"]: one for one in answer["graph"]["steps"]}
    decided = calls["ask"]["steps"][0]["finished_s"]
    assert calls["count"]["steps"][0]["queued_s"] >= decided
    assert states(answer)["embed"] == ("skipped" if without else "done")
    begun = steps["embed"]["queued_s"]
    assert (begun is None or begun >= decided) == bool(without)


async def test_a_side_that_changes_a_store_waits_for_the_decision(serve: Serve) -> None:
    """The documents of the side that is not taken are never added; its embedding may be made."""
    table = MemoryTable()
    engines = {
        "words": lambda: LocalItems(WordBackend("words")),
        "docs": lambda: LocalItems(StoreBackend("docs", table)),
    }
    server = await serve(also=engines)
    steps: list[dict[str, Any]] = []
    for side in ("numbers", "words"):
        steps.append({"kind": "embed", "in": {"value": [side]}, "out": f"{side}-vectors"})
        read = {"var": f"{side}-vectors"}
        steps.append({"kind": "ingest", "in": read, "store": "docs", "out": side})
    route = branch("kind", {"numbers": NUMBER}, "words", "answer", name="route")
    asked = call("ask", "it is a number {{output:kind}}", kind="kind")
    answer = await run(server, *steps, route, calls=[asked], get=["answer"])
    assert answer["values"]["answer"]["count"] == 1
    [document] = table.fetch("local", table.matching("local", {}))
    assert document.text == "numbers"


@pytest.mark.parametrize("kind", ["a number", "a word"])
async def test_a_body_that_changes_a_store_waits_for_the_decision(serve: Serve, kind: str) -> None:
    """Each side adds documents in the body of a list. Those of the other side are never added."""
    table = MemoryTable()
    server = await serve(SLOW, also=_stores(table))
    sides = [
        each([f"{side}-a", f"{side}-b"], _adds("item"), {"added": side})
        for side in ("numbers", "words")
    ]
    route = branch("kind", {"numbers": NUMBER}, "words", "answer", name="route")
    asked = call("ask", f"it is {kind} {{{{output:kind}}}}", kind="kind")
    answer = await run(server, *sides, route, calls=[asked], get=["answer"])
    assert [one["count"] for one in answer["values"]["answer"]] == [1, 1]
    taken = "numbers" if "number" in kind else "words"
    assert _texts(table) == [f"{taken}-a", f"{taken}-b"]


async def test_a_loop_that_changes_a_store_waits_for_the_decision(serve: Serve) -> None:
    """Each side adds a document in the first round of a loop. The other side adds none."""
    table = MemoryTable()
    server = await serve(SLOW, also=_stores(table))
    again = call("again", "{{input:item}}{{output:more}}", item="item", more="more")
    until = {"on": "more", "when": {"op": "truthy"}}
    sides = [
        loop({"item": f"{side}-text"}, {"item": "more"}, {**_adds("item"), "calls": [again]}, until,
             most=1, out=side, name=side)
        for side in ("numbers", "words")
    ]  # fmt: skip
    calls = [
        call("ask", "it is a number {{output:kind}}", kind="kind"),
        call("one", "a{{output:t}}", t="numbers-text"),
        call("two", "b{{output:t}}", t="words-text"),
    ]
    route = branch("kind", {"numbers": NUMBER}, "words", "answer", name="route")
    answer = await run(server, *sides, route, calls=calls, get=["answer"])
    assert answer["values"]["answer"].strip() == "a"
    assert [text.strip() for text in _texts(table)] == ["a"]


@pytest.mark.parametrize(
    ("first", "second", "added"),
    [("number", "number", ["shared"]), ("word", "number", ["shared"]), ("word", "word", [])],
)
@pytest.mark.parametrize("without", [frozenset[str](), frozenset({"speculate"})])
async def test_what_sides_of_two_branches_share_waits_for_both(
    serve: Serve, without: frozenset[str], first: str, second: str, added: list[str]
) -> None:
    """Documents that two sides read are added if one of the sides is taken."""
    table = MemoryTable()
    server = await serve(SLOW, ServerConfig(without=without), also=_stores(table))
    shared = _adds(None, "shared")["steps"]
    asked = [
        call("ask1", f"a {first} {{{{output:kind1}}}}", kind1="kind1"),
        call("ask2", f"a {second} {{{{output:kind2}}}}", kind2="kind2"),
    ]
    sides = [
        call(f"side{n}", "{{input:added}}{{output:o}}", added="added", o=f"s{n}") for n in (1, 2)
    ]
    plain = call("plain", "no{{output:other}}", other="other")
    routes = [
        branch(f"kind{n}", {f"s{n}": NUMBER}, "other", f"answer{n}", name=f"route{n}")
        for n in (1, 2)
    ]
    answer = await run(
        server, *shared, *routes, calls=[*asked, *sides, plain], get=["answer1", "answer2"]
    )
    said = answer["values"]
    assert ["count" in said["answer1"], "count" in said["answer2"]] == [
        first == "number",
        second == "number",
    ]
    assert _texts(table) == added


async def test_a_branch_that_cannot_decide_leaves_what_another_one_needs(serve: Serve) -> None:
    """The documents are added for the branch that can decide."""
    table = MemoryTable()
    server = await serve(SLOW, also=_stores(table))
    shared = _adds(None, "shared")["steps"]
    sides = [
        call(f"side{n}", "{{input:added}}{{output:o}}", added="added", o=f"s{n}") for n in (1, 2)
    ]
    plain = call("plain", "no{{output:other}}", other="other")
    routes = [
        branch({"value": "number"}, {"s1": NUMBER}, "other", "answer1", name="route1"),
        branch("kind", {"s2": {"op": "compare", "is": ">", "value": 1}}, "other", "answer2"),
    ]
    asked = call("ask", "a word {{output:kind}}", kind="kind")
    answer = await run(server, *shared, *routes, calls=[asked, *sides, plain], get=["answer1"])
    assert "count" in answer["values"]["answer1"], answer
    assert _texts(table) == ["shared"]


def _stores(table: MemoryTable) -> dict[str, Any]:
    return {
        "words": lambda: LocalItems(WordBackend("words")),
        "docs": lambda: LocalItems(StoreBackend("docs", table)),
    }


def _adds(variable: str | None, text: str = "") -> dict[str, Any]:
    """Steps that add one document, whose text is that of the variable, or `text`."""
    source = {"value": [text]} if variable is None else {"var": variable}
    return {
        "steps": [
            {"kind": "embed", "in": source, "out": "vectors"},
            {"kind": "ingest", "in": {"var": "vectors"}, "store": "docs", "out": "added"},
        ]
    }


def _texts(table: MemoryTable) -> list[str]:
    found = table.fetch("local", table.matching("local", {}))
    return sorted(document.text for document in found)


def test_only_what_serves_undecided_sides_alone_waits() -> None:
    """Not what decides, what another task or the client may read, or a task of another branch."""
    names = ("kind", "a", "b", "both", "shared", "other", "free")
    reads = {"a": ["both"], "b": ["both", "shared"], "other": ["shared"]}
    tasks = [lower_call(_reading(name, *reads.get(name, ())), "", name) for name in names]
    route = Branch(
        on=Source(var="kind"), cases=(Case(when=NUMBER, take="a"),), default="b", out="answer"
    )
    tasks.append(KINDS.lower_step(route, "", "route"))
    after = {task.id: task.primitives[0].after for task in gated(tasks)}
    assert {name for name, waits in after.items() if waits} == {"a", "b", "both"}
    assert after["both"] == ("route/0",)


def _reading(name: str, *variables: str) -> Call:
    ins = [Placeholder(name=v, in_out=InOut.IN, semantic_var_id=v) for v in variables]
    out = Placeholder(name="o", in_out=InOut.OUT, semantic_var_id=name)
    prompt = (Segment(text="x"), *(Segment(input=v) for v in variables), Segment(output="o"))
    return Call(name=name, prompt=prompt, placeholders=(*ins, out))
