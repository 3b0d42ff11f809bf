"""OpenAI requests with a `weftline` object: segments, edges, and a session for each run."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.null.asgi import Serve, Server, call
from tests.null.test_disconnect import SLOW, WORDS, leave_after
from weftline_engine.pretend.null import NullConfig, NullMode
from weftline_server.config import ServerConfig
from weftline_server.runtime.registry import RegistryConfig


async def chat(server: Server, *messages: str, **more: Any) -> Any:
    """POST a chat of user messages and return the whole response."""
    body = {"messages": [{"role": "user", "content": text} for text in messages], **more}
    answer = await server.http.post("/v1/chat/completions", json=body)
    return answer.json()


def said(run: str | None, *messages: Any, **more: Any) -> dict[str, Any]:
    """Build a `weftline` object that joins `run`."""
    where = {} if run is None else {"session_id": run, "open": True}
    return {**where, "messages": messages, **more}


TELL = [{"text": "Tell of "}, {"text": "rivers", "name": "topic"}, {"text": "."}]


async def test_segments_reach_the_graph(serve: Serve) -> None:
    """A named piece is an input of the template. The output is the same as for plain text."""
    server = await serve()
    answer = await chat(server, "Tell of rivers.", weftline=said("run-1", TELL, name="tell"))
    plain = await chat(server, "Tell of rivers.")
    assert answer["choices"] == plain["choices"]
    assert "weftline" not in plain
    ids = answer["weftline"]
    [call] = (await server.graph(ids["session_id"]))["calls"]
    assert call["name"] == "tell"
    assert call["template"] == "user: Tell of {{input:topic}}.\nassistant: {{output:out}}\n"
    assert (call["call_id"], call["outputs"]) == (ids["call_id"], [ids["semantic_var_id"]])


async def test_equal_templates_have_equal_prefixes_up_to_the_value(serve: Serve) -> None:
    """The hash at the boundary before a value is the same for every value of the template."""
    server = await serve()
    for topic in ("rivers", "lakes"):
        pieces = [{"text": "Tell of "}, {"text": topic, "name": "topic"}]
        answer = await chat(server, f"Tell of {topic}", weftline=said("run", pieces))
    first, second = (await server.graph(answer["weftline"]["session_id"]))["calls"]
    assert first["prefix_hashes"][0] == second["prefix_hashes"][0]
    assert first["prefix_hashes"][1] != second["prefix_hashes"][1]


async def test_a_session_is_shown_by_the_id_that_the_client_chose(serve: Serve) -> None:
    """It is the graph that our own id shows, while the session is open and after its end."""
    server = await serve()
    ids = (await chat(server, "Tell of rivers.", weftline=said("my-run", TELL)))["weftline"]
    graph = await server.graph(ids["session_id"])
    assert [call["call_id"] for call in graph["calls"]] == [ids["call_id"]]
    assert (await server.graph("my-run"))["session_id"] == graph["session_id"]
    for what in ("events", "trace", f"call/{ids['call_id']}", f"variable/{ids['semantic_var_id']}"):
        assert (await server.http.get(f"/v1/session/my-run/{what}")).status_code == 200
    await server.http.delete("/v1/session/my-run")
    assert [call["call_id"] for call in (await server.graph("my-run"))["calls"]] == [ids["call_id"]]
    assert (await server.http.get("/v1/session/your-run/graph")).status_code == 404


async def test_segments_that_do_not_add_up_are_not_used(serve: Serve) -> None:
    """The model always reads the message itself. Wrong, missing or null pieces are no error."""
    server = await serve()
    wrong = [{"text": "Tell of "}, {"text": "lakes", "name": "topic"}]
    answer = await chat(server, "Tell of rivers.", "Two", "Three", weftline=said("r", wrong, None))
    assert answer["choices"][0]["message"]["content"].startswith("user: Tell of rivers.")
    [call] = (await server.graph(answer["weftline"]["session_id"]))["calls"]
    assert "{{input" not in call["template"]


async def test_a_true_edge_is_shown_and_a_wrong_one_is_text(serve: Serve) -> None:
    """A whole value and a part of one make edges. Other text and another session's
    value make none.
    """
    server = await serve()
    first = await chat(server, "Tell of rivers.", weftline=said("run", name="first"))
    text, ids = first["choices"][0]["message"]["content"], first["weftline"]
    var = ids["semantic_var_id"]
    pieces = [
        {"text": "Now: "},
        {"text": text, "name": "story", "from_var": var},
        {"text": text[1:], "from_var": var},
        {"text": "not its text", "name": "other", "from_var": var},
        {"text": "no such", "from_var": "nowhere"},
        {"text": " nor this", "from_var": var},
    ]
    prompt = "".join(piece["text"] for piece in pieces)
    second = await chat(server, prompt, weftline=said("run", pieces, name="second"))
    graph = await server.graph(ids["session_id"])
    assert second["weftline"]["session_id"] == ids["session_id"]
    assert graph["edges"] == [
        {"from": ids["call_id"], "to": second["weftline"]["call_id"], "semantic_var_id": var}
    ]
    assert graph["calls"][1]["template"].splitlines() == [
        "user: Now: {{input:story}}{{input:text}}{{input:other}}no such nor this",
        "assistant: {{output:out}}",
    ]
    elsewhere = await chat(server, prompt, weftline=said("another run", pieces))
    assert elsewhere["error"]["param"] == "session_id"  # a space is in no id
    elsewhere = await chat(server, prompt, weftline=said("another-run", pieces))
    assert (await server.graph(elsewhere["weftline"]["session_id"]))["edges"] == []


async def test_one_name_for_two_values(serve: Serve) -> None:
    """Equal values of one name share a placeholder. The output's name is not available."""
    server = await serve()
    pieces = [{"text": t, "name": n} for t, n in [("a", "x"), ("b", "x"), ("a", "x"), ("c", "out")]]
    answer = await chat(server, "abac", weftline=said("run", pieces))
    [call] = (await server.graph(answer["weftline"]["session_id"]))["calls"]
    assert call["template"].startswith("user: {{input:x}}{{input:x_2}}{{input:x}}{{input:out_2}}\n")


async def test_first_calls_of_a_run_share_without_waiting(serve: Serve) -> None:
    """Three requests at once open one session, and a stream joins it."""
    server = await serve()
    calls = [chat(server, f"Number {n}", weftline=said("run")) for n in range(3)]
    ids = {answer["weftline"]["session_id"] for answer in await asyncio.gather(*calls)}
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    text = (
        await server.http.post("/v1/chat/completions", json={**body, "weftline": said("run")})
    ).text
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data")]
    chunks = [json.loads(line) for line in lines if line != "[DONE]"]
    ids |= {chunk["weftline"]["session_id"] for chunk in (chunks[0], chunks[-1])}
    assert not any("weftline" in chunk for chunk in chunks[1:-1])
    [session] = ids
    assert len((await server.graph(session))["calls"]) == 4
    assert server.service.engines.status().sessions == 1


async def test_sessions_are_closed_along_with_another_request(serve: Serve) -> None:
    """`close` ends sessions that a client no longer needs. Unknown ids are no error."""
    server = await serve()
    first = (await chat(server, "hi", weftline=said("one")))["weftline"]["session_id"]
    second = await chat(server, "hi", weftline=said("two", close=[first, "s_never_there"]))
    assert server.service.engines.status().sessions == 1
    again = await chat(server, "hi", weftline=said("one"))
    assert again["weftline"]["session_id"] not in (first, second["weftline"]["session_id"])


async def test_pieces_alone_need_no_session(serve: Serve) -> None:
    """A request without a session gets its ids in the response and leaves no session behind."""
    server = await serve()
    answer = await chat(server, "Tell of rivers.", weftline=said(None, TELL))
    assert answer["weftline"]["semantic_var_id"].startswith(answer["weftline"]["call_id"])
    assert server.service.engines.status().sessions == 0


@pytest.mark.parametrize(
    ("weftline", "status", "kind", "param"),
    [
        ({"session_id": "s_nope"}, 404, "UnknownSession", "session_id"),
        ({"session_id": "no id!"}, 400, "InvalidRequest", "session_id"),
        ({"open": True}, 400, "InvalidRequest", "open"),
        ({"close": ["s"] * 65}, 400, "InvalidRequest", "close"),
        ({"name": ""}, 400, "InvalidRequest", "name"),
        ({"name": "x" * 129}, 400, "InvalidRequest", "name"),
        ({"messages": [[{"text": "hi", "name": "not a name"}]]}, 400, "InvalidRequest", "name"),
        ({"messages": [[{"text": "hi", "from_var": "no id!"}]]}, 400, "InvalidRequest", "from_var"),
        ({"messages": [[{"name": "x"}]]}, 400, "InvalidRequest", "weftline.messages.0.0.text"),
        ({"unknown": 1}, 400, "InvalidRequest", "weftline.unknown"),
    ],
)
async def test_bad_provenance_is_a_typed_error(
    serve: Serve, weftline: dict[str, Any], status: int, kind: str, param: str
) -> None:
    """Each error names the field at fault. No session is opened."""
    server = await serve()
    body = {"messages": [{"role": "user", "content": "hi"}], "weftline": weftline}
    answer = await server.http.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (status, kind, param)
    assert server.service.engines.status().sessions == 0


async def test_a_run_of_another_tenant_is_another_run(serve: Serve) -> None:
    """Two tenants choose the same id. They get two sessions and cannot close each other's."""
    server = await serve(config=ServerConfig(keys={"a": "A", "b": "B"}))
    server.http.headers["Authorization"] = "Bearer a"
    first = (await chat(server, "hi", weftline=said("run")))["weftline"]["session_id"]
    server.http.headers["Authorization"] = "Bearer b"
    second = await chat(server, "hi", weftline=said("run", close=[first]))
    assert second["weftline"]["session_id"] != first
    assert server.service.engines.status().sessions == 2


async def test_a_run_whose_id_reached_no_client_is_closed(serve: Serve) -> None:
    """A client without a response knows no session id, so the session ends with its
    last request.
    """
    server = await serve(NullConfig(mode=NullMode.SCRIPT))
    answer = await chat(server, "no rule for this", weftline=said("run"))
    assert answer["error"]["type"] == "EngineFailed"
    assert server.service.engines.status().sessions == 0


async def test_a_client_that_leaves_before_an_answer_leaves_no_session(serve: Serve) -> None:
    """The same if the client disconnects midway while another request of the run waits."""
    server = await serve(SLOW)
    body = {"messages": [{"role": "user", "content": WORDS}], "weftline": said("run")}
    first = asyncio.create_task(leave_after(server, "/v1/chat/completions", body, 0))
    await leave_after(server, "/v1/chat/completions", body, 0)
    await first
    assert server.service.engines.status().sessions == 0


async def test_the_limit_of_sessions_holds_for_runs(serve: Serve) -> None:
    """A chat request that opens a session is refused at the limit. One that joins a
    session is not.
    """
    server = await serve(config=ServerConfig(registry=RegistryConfig(max_sessions=1)))
    await chat(server, "hi", weftline=said("one"))
    assert (await chat(server, "hi", weftline=said("two")))["error"]["type"] == "Overloaded"
    assert "weftline" in await chat(server, "hi", weftline=said("one"))


async def test_a_submit_joins_the_session_that_a_client_named(serve: Serve) -> None:
    """The first request with a client's id opens the session, whichever route it takes."""
    server = await serve()
    first = await server.submit("run-7", call("a", "say {{output:x}}", x="v"), open=True, get=["v"])
    joined = await chat(server, "Hello.", weftline=said("run-7"))
    opened = first.json()["session_id"]
    assert opened == joined["weftline"]["session_id"] != "run-7"
    more = await server.submit(
        "run-7", call("b", "say {{output:x}}", x="w"), open=True, watch=["w"]
    )
    assert f'"session_id": "{opened}"' in more.text and "event: value" in more.text
    assert len((await server.graph(opened))["calls"]) == 3
    # The client knows the id, so the session stays until it is closed; then the id opens anew.
    await server.http.delete(f"/v1/session/{opened}")
    again = await server.submit("run-7", call("a", "say {{output:x}}", x="v"), open=True, get=["v"])
    assert again.status_code == 200 and again.json()["session_id"] != opened


async def test_a_submit_that_fails_leaves_no_session(serve: Serve) -> None:
    """A client without an answer knows no id, so nobody else would close the session."""
    server = await serve()
    broken = call("a", "say {{input:y}} {{output:x}}", x="v")
    refused = await server.submit("run-8", broken, open=True)
    assert refused.status_code == 422
    unnamed = await server.http.post("/v1/submit", json={"calls": [broken], "open": True})
    assert unnamed.status_code == 400 and "goes with a session_id" in unnamed.text
    unknown = await server.submit("run-8", call("a", "say {{output:x}}", x="v"))
    assert unknown.status_code == 404
    assert "weftline_sessions_open 0" in (await server.http.get("/metrics")).text
