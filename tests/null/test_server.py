"""Submit, get and graph over HTTP on the null engine, which echoes its prompt."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.null.asgi import Serve, call
from tests.waits import until
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullMode
from weftline_server.config import ServerConfig
from weftline_server.http.direct import Direct


async def test_dependent_calls_run_in_the_server(serve: Serve) -> None:
    """One submit and one get: the second call's prompt contains the first call's answer."""
    server = await serve()
    session = await server.session()
    answer = await server.submit(
        session,
        call("draft", "Draft {{input:t}}.{{output:d}}", t={"in_out": "in", "value": "cats"}, d="d"),
        call("final", "Polish: {{input:d}}{{output:f}}", d="d", f="f"),
    )
    assert answer.status_code == 200
    assert [c["outputs"] for c in answer.json()["calls"]] == [{"d": "d"}, {"f": "f"}]
    got = await server.get(session, "f")
    assert got.json() == {"semantic_var_id": "f", "status": "ready", "value": "Polish: Draft cats."}


async def test_the_graph_shows_what_the_server_saw(serve: Serve) -> None:
    """Calls, edges, depths and groups. The client never read the intermediate value."""
    server = await serve()
    session = await server.session()
    maps = [call(f"map{i}", f"Chunk {i}.{{{{output:m}}}}", m=f"m{i}") for i in range(2)]
    join = call("sum", "{{input:a}}{{input:b}}{{output:s}}", a="m0", b="m1", s="s")
    await server.submit(session, *maps, join)
    assert (await server.get(session, "s")).json()["value"] == "Chunk 0.Chunk 1."
    graph = await server.graph(session)
    calls = {c["name"]: c for c in graph["calls"]}
    assert [calls[n]["depth"] for n in ("map0", "map1", "sum")] == [1, 1, 0]
    assert calls["map0"]["group"] == calls["map1"]["group"] == f"{calls['sum']['call_id']}@1"
    assert calls["sum"]["state"] == "done" and calls["sum"]["engine"] == "null"
    assert calls["sum"]["prompt_tokens"] == 3 and calls["sum"]["computed_tokens"] == 3
    assert all(calls["sum"][k] >= 0 for k in ("queue_s", "fill_s", "generate_s", "transform_s"))
    edges = {(e["from"], e["to"], e["semantic_var_id"]) for e in graph["edges"]}
    ids = {name: c["call_id"] for name, c in calls.items()}
    assert edges == {(ids["map0"], ids["sum"], "m0"), (ids["map1"], ids["sum"], "m1")}
    reads = {v["semantic_var_id"]: v["client_reads"] for v in graph["variables"]}
    assert reads == {"m0": 0, "m1": 0, "s": 1}


async def test_messages_go_through_the_chat_template(serve: Serve) -> None:
    """The server applies the engine's template. It does not search values for placeholders."""
    server = await serve()
    session = await server.session()
    messages = [
        {"role": "system", "content": [{"text": "Be brief."}]},
        {"role": "user", "content": [{"text": "Say "}, {"input": "x"}]},
        {"role": "assistant", "content": [{"output": "y"}]},
    ]
    x = {"in_out": "in", "value": "{{output:y}}"}
    y = {"in_out": "out", "semantic_var_id": "y"}
    await server.submit(session, call("chat", messages, x=x, y=y))
    value = (await server.get(session, "y")).json()["value"]
    assert value == "system: Be brief.\nuser: Say {{output:y}}\nassistant: "


async def test_several_outputs_and_one_at_the_start(serve: Serve) -> None:
    """Each output sees the text before it, including earlier outputs."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("B", "b!"), ("A", "a!"))))
    session = await server.session()
    await server.submit(session, call("two", "A{{output:a}} B{{output:b}}", a="a", b="b"))
    assert (await server.get(session, "b")).json()["value"] == "b!"
    assert (await server.get(session, "a")).json()["value"] == "a!"


async def test_an_output_at_the_very_start(serve: Serve) -> None:
    """There is no text before it, and the next output sees its value."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("b!", "c!"), ("", "b!"))))
    session = await server.session()
    await server.submit(session, call("first", "{{output:a}} and {{output:b}}", a="a", b="b"))
    assert (await server.get(session, "a")).json()["value"] == "b!"
    assert (await server.get(session, "b")).json()["value"] == "c!"


async def test_a_variable_is_set_later(serve: Serve) -> None:
    """The call waits in the server. Setting its input starts it."""
    server = await serve()
    session = await server.session()
    await server.submit(session, call("joke", "On {{input:t}}:{{output:j}}", t="topic", j="joke"))
    refused = await server.get(session, "joke")
    assert refused.status_code == 409
    assert refused.json()["error"]["type"] == "NoProducer"
    assert refused.json()["error"]["param"] == "topic"
    waiting = asyncio.create_task(server.get(session, "joke", wait=True))
    await asyncio.sleep(0)
    put = await server.http.put(f"/v1/session/{session}/variable/topic", json={"value": [1, "é"]})
    assert put.status_code == 200
    assert (await waiting).json()["value"] == 'On [1, "é"]:'
    again = await server.http.put(f"/v1/session/{session}/variable/topic", json={"value": "x"})
    assert (again.status_code, again.json()["error"]["type"]) == (409, "AlreadySet")


async def test_transforms_run_between_calls(serve: Serve) -> None:
    """The consumer gets a field of the JSON that its producer wrote in a markdown fence."""
    reply = 'Sure!\n```json\n{"title": "Cats", "n": 3}\n```'
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("make", reply), ("T=", "ok"))))
    session = await server.session()
    out = {"in_out": "out", "semantic_var_id": "o", "transforms": [{"op": "json"}]}
    path = [{"op": "path", "keys": ["title"]}]
    title = {"in_out": "in", "semantic_var_id": "o", "transforms": path}
    await server.submit(
        session,
        call("json", "make{{output:o}}", o=out),
        call("use", "T={{input:o}}{{output:u}}", o=title, u="u"),
    )
    assert (await server.get(session, "o")).json()["value"] == {"title": "Cats", "n": 3}
    assert (await server.get(session, "u")).json()["value"] == "ok"
    use = (await server.graph(session))["calls"][1]
    assert use["prompt_tokens"] == 1, "the prompt was T=Cats, one word"


async def test_a_failed_producer_fails_its_consumers(serve: Serve) -> None:
    """The get on the sink names the call that failed first, and it does not hang."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("a", "not json"),)))
    session = await server.session()
    out = {"in_out": "out", "semantic_var_id": "x", "transforms": [{"op": "json"}]}
    await server.submit(
        session,
        call("first", "a{{output:x}}", x=out),
        call("second", "{{input:x}}{{output:y}}", x="x", y="y"),
        call("third", "{{input:y}}{{output:z}}", y="y", z="z"),
    )
    got = await server.get(session, "z")
    error = got.json()["error"]
    assert (got.status_code, error["type"], error["call"]) == (422, "TransformFailed", "first")
    assert error["message"].startswith("Invalid json output: not json")


async def test_an_engine_that_gives_up(serve: Serve) -> None:
    """The engine's own reason reaches the readers of every descendant."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT))
    session = await server.session()
    await server.submit(
        session,
        call("first", "a{{output:x}}", x="x"),
        call("second", "{{input:x}}{{output:y}}", x="x", y="y"),
    )
    got = await server.get(session, "y")
    assert got.status_code == 502
    assert got.json()["error"]["call"] == "first"


async def test_get_times_out_and_the_work_goes_on(serve: Serve) -> None:
    """A timeout ends only the get. The call runs to its end."""
    server = await serve(NullConfig(latency=LatencyProfile(step_s=0.05)))
    session = await server.session()
    await server.submit(session, call("slow", "one two{{output:x}}", x="x"))
    late = await server.get(session, "x", timeout_s=0.01)
    assert (late.status_code, late.json()["error"]["type"]) == (408, "Timeout")
    assert (await server.get(session, "x")).json()["value"] == "one two"


async def test_stop_strings_and_max_tokens(serve: Serve) -> None:
    """Sampling belongs to an output: a stop string ends it before the string, a limit after that
    many tokens.
    """
    server = await serve()
    session = await server.session()
    stop = {"in_out": "out", "semantic_var_id": "s", "sampling": {"stop": ["three"]}}
    cut = {"in_out": "out", "semantic_var_id": "m", "sampling": {"max_tokens": 2}}
    text = "one two three four"
    await server.submit(
        session,
        call("stop", text + "{{output:s}}", s=stop),
        call("cut", text + "{{output:m}}", m=cut),
    )
    assert (await server.get(session, "s")).json()["value"] == "one two "
    assert (await server.get(session, "m")).json()["value"] == "one two"
    reasons = [c["steps"][0]["finish_reason"] for c in (await server.graph(session))["calls"]]
    assert reasons == ["stop", "length"]


async def test_closing_a_session_ends_its_gets(serve: Serve) -> None:
    """Closing a session ends its readers with an error. Afterwards the session is unknown."""
    server = await serve(NullConfig(latency=LatencyProfile(step_s=60)))
    session = await server.session()
    await server.submit(session, call("slow", "one{{output:x}}", x="x"))
    waiting = asyncio.create_task(server.get(session, "x"))
    await until(lambda: server.waiting)
    assert (await server.http.delete(f"/v1/session/{session}")).status_code == 200
    error = (await waiting).json()["error"]
    assert (error["type"], error["message"]) == ("Cancelled", "the session was closed")
    assert (await server.get(session, "x")).status_code == 404


@pytest.mark.parametrize("policy", ["app", "request"])
async def test_both_policies_give_the_same_values(serve: Serve, policy: str) -> None:
    """A policy changes when calls run, never their answers."""
    server = await serve(NullConfig(max_running=1), ServerConfig(policy=policy))
    session = await server.session()
    await server.submit(
        session,
        call("a", "A{{output:x}}", x="x"),
        call("b", "B{{output:y}}", y="y"),
        call("c", "{{input:x}}{{input:y}}{{output:z}}", x="x", y="y", z="z"),
    )
    assert (await server.get(session, "z")).json()["value"] == "AB"


async def test_a_whole_application_in_one_request(serve: Serve) -> None:
    """Session, calls, value and graph take one round trip. The server keeps nothing."""
    server = await serve()
    calls = [
        call("draft", "Draft.{{output:d}}", d="d"),
        call("final", "Polish: {{input:d}}{{output:f}}", d="d", f="f"),
    ]
    body = {"calls": calls, "get": ["f"], "graph": True, "close": True}
    answer = (await server.http.post("/v1/submit", json=body)).json()
    assert answer["values"] == {"f": "Polish: Draft."}
    assert [c["state"] for c in answer["graph"]["calls"]] == ["done", "done"]
    assert (await server.get(answer["session_id"], "f")).status_code == 404


async def test_an_application_that_fails_leaves_nothing(serve: Serve) -> None:
    """The error names the first failed call. The session opened for the request is gone."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT))
    calls = [call("only", "x{{output:y}}", y="y")]
    answer = await server.http.post("/v1/submit", json={"calls": calls, "get": ["y"]})
    assert (answer.status_code, answer.json()["error"]["call"]) == (502, "only")
    assert server.service.engines.status().sessions == 0


async def test_openai_calls_of_one_session_show_in_its_graph(serve: Serve) -> None:
    """A chat completion that names a session joins it and stays in its graph when it is done."""
    server = await serve()
    session = await server.session()
    message = {"role": "user", "content": "hi"}
    body = {"messages": [message], "session_id": session, "max_tokens": 2}
    for _ in range(2):
        answer = await server.http.post("/v1/chat/completions", json=body)
        assert answer.json()["choices"][0]["message"]["content"] == "user: hi"
    assert [c["name"] for c in (await server.graph(session))["calls"]] == ["chat", "chat"]
    assert server.service.engines.status().sessions == 1


async def test_a_streamed_application_is_one_request_too(serve: Serve) -> None:
    """One response has the calls' ids, the last variable's parts, its value and the graph."""
    server = await serve()
    calls = [
        call("draft", "Draft.{{output:d}}", d="d"),
        call("final", "Polish: {{input:d}}{{output:f}}", d="d", f="f"),
    ]
    body = {"calls": calls, "stream": "f", "graph": True, "close": True}
    text = (await server.http.post("/v1/submit", json=body)).text
    names = [line.removeprefix("event: ") for line in text.splitlines() if "event: " in line]
    assert names[0] == "submitted" and names[-2:] == ["value", "graph"]
    assert set(names[1:-2]) == {"part"}
    assert '{"value": "Polish: Draft."}' in text
    assert server.service.engines.status().sessions == 0
    refused = await server.http.post("/v1/submit", json={"calls": calls, "stream": "nope"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (404, "UnknownVariable")
    assert server.service.engines.status().sessions == 0


async def test_a_watched_application_pushes_every_value(serve: Serve) -> None:
    """One response pushes each variable when it is ready or has failed, and then ends."""
    server = await serve()
    ask = {"name": "t", "in_out": "out", "semantic_var_id": "t", "transforms": [{"op": "json"}]}
    calls = [
        call("draft", "Draft.{{output:d}}", d="d"),
        call("wrong", "No JSON.{{output:t}}", t=ask),
        call("final", "Polish: {{input:d}}{{output:f}}", d="d", f="f"),
    ]
    body = {"calls": calls, "watch": ["f", "t", "d"], "close": True}
    text = (await server.http.post("/v1/submit", json=body)).text
    names = [line.removeprefix("event: ") for line in text.splitlines() if "event: " in line]
    assert sorted(names) == ["failed", "submitted", "value", "value"]
    data = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    said = {event["semantic_var_id"]: event for event in data if "semantic_var_id" in event}
    assert list(said) != ["f", "t", "d"]  # f waits for d
    assert said["d"]["value"] == "Draft."
    assert (said["f"]["value"], said["f"]["finish_reason"]) == ("Polish: Draft.", "stop")
    assert (said["f"]["prompt_tokens"], said["f"]["output_tokens"]) == (2, 2)
    assert said["t"]["error"]["type"] == "TransformFailed"
    assert server.service.engines.status().sessions == 0


async def test_watched_parts_add_up(serve: Serve) -> None:
    """With `parts`, the text of each variable is pushed as it is generated, before its value."""
    server = await serve()
    calls = [call(n, f"{n} says {n}.{{{{output:o}}}}", o=n) for n in ("a", "b")]
    body = {"calls": calls, "watch": ["a", "b"], "parts": True, "close": True}
    text = (await server.http.post("/v1/submit", json=body)).text
    parts = {"a": "", "b": ""}
    for line in text.splitlines():
        if line.startswith("data: {") and "offset" in (event := json.loads(line[6:])):
            assert len(parts[event["semantic_var_id"]]) == event["offset"]
            parts[event["semantic_var_id"]] += event["text"]
    assert parts == {"a": "a says a.", "b": "b says b."}


@pytest.mark.parametrize(
    "wrong", [{"watch": ["d", "d"]}, {"watch": ["d"], "get": ["d"]}, {"watch": ["d d"]}]
)
async def test_an_invalid_watch_is_refused(serve: Serve, wrong: dict[str, Any]) -> None:
    """No session is opened, and no call runs."""
    server = await serve()
    body = {"calls": [call("draft", "Draft.{{output:d}}", d="d")], **wrong}
    refused = await server.http.post("/v1/submit", json=body)
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "InvalidRequest")
    assert server.service.engines.status().sessions == 0


async def test_a_submit_without_calls_reads_its_session(serve: Serve) -> None:
    """It may read variables of earlier submits. Without a session it is refused."""
    server = await serve()
    session = await server.session()
    await server.submit(session, call("a", "A.{{output:o}}", o="a"), detach=True)
    await server.submit(session, call("b", "B.{{output:o}}", o="b"), detach=True)
    answer = await server.submit(session, get=["b", "a"], close=True)
    assert answer.json()["values"] == {"b": "B.", "a": "A."}
    assert server.service.engines.status().sessions == 0
    refused = await server.http.post("/v1/submit", json={"calls": [], "get": ["a"]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "calls")


async def test_a_request_is_looked_up_once(serve: Serve) -> None:
    """The application has every route itself: FastAPI searches an included router twice."""
    server = await serve()
    routes = server.app.router.routes
    assert [type(one).__name__ for one in routes if not hasattr(one, "path")] == []
    direct = [one.path for one in routes if isinstance(one, Direct)]
    assert direct[:3] == ["/v1/submit", "/v1/get", "/v1/chat/completions"]
