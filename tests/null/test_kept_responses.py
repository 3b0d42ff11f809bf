"""Responses that the server keeps: they are continued, listed and deleted, within their bounds."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.integrations.thinking_model import SCRIPT, TEMPLATE, TURNS, thought
from tests.null.asgi import Serve
from tests.null.kept import ended, events_of, got, refused, respond, said, text_of
from tests.null.test_conversations import sizes
from tests.null.test_thinking import QWEN3, SWITCHED
from weftline_engine.pretend import null
from weftline_engine.pretend.null import NullConfig, NullEngine, NullMode
from weftline_engine.pretend.simulation import SimulatedConfig, SimulatedEngine, StepCost
from weftline_server.config import ServerConfig
from weftline_server.journal.kept_objects import KeptConfig

RIVERS = NullConfig(
    mode=NullMode.SCRIPT,
    script=(("Volga", "It is longer."), ("river", "The Rhine."), ("", "Well.")),
)
TWO = ServerConfig(keys={"a": "one", "b": "two"})
UNKNOWN = (404, "UnknownResponse", "previous_response_id")


async def test_a_response_goes_on_where_another_ended(serve: Serve) -> None:
    """The model reads the whole chat; the instructions of the turn before are gone. The items
    before an output are found in pages."""
    server = await serve()
    first = await respond(server, "Name a river.", instructions="Be brief.")
    assert text_of(first) == "system: Be brief.\nuser: Name a river.\nassistant: "
    more: dict[str, Any] = {"previous_response_id": first["id"], "metadata": {"turn": "2"}}
    second = await respond(server, [{"role": "user", "content": "And another?"}], **more)
    chat = ["user: Name a river.", f"assistant: {text_of(first)}", "user: And another?"]
    assert text_of(second) == "\n".join([*chat, "assistant: "])
    assert await got(server, f"/v1/responses/{second['id']}") == second
    assert {name: second[name] for name in more} == more
    third = await respond(server, "More!", previous_response_id=second["id"], store=False)
    chat += [f"assistant: {text_of(second)}", "user: More!"]
    assert text_of(third) == "\n".join([*chat, "assistant: "])

    path = f"/v1/responses/{second['id']}/input_items"
    newest = await got(server, path)
    assert said(newest["data"]) == chat[2::-1] and newest["has_more"] is False
    begun = await got(server, f"{path}?order=asc&limit=2")
    assert said(begun["data"]) == chat[:2] and begun["has_more"] is True
    assert (begun["first_id"], begun["last_id"]) == tuple(one["id"] for one in begun["data"])
    rest = await got(server, f"{path}?order=asc&limit=2&after={begun['last_id']}")
    assert said(rest["data"]) == chat[2:3] and rest["has_more"] is False
    assert await refused(server, "GET", f"{path}?after=msg_9") == (400, "InvalidRequest", "after")
    assert await refused(server, "GET", f"{path}?limit=0") == (400, "InvalidRequest", "limit")


async def test_a_continued_response_has_a_session(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no conversation of the tenant goes on, a request has no session that stays. One that
    names an earlier response has one, also with instructions of its own, behind which nothing of
    the prompt is known. Otherwise the scheduler frees its context between two turns."""
    monkeypatch.setattr("weftline_server.http.openai.conversations.UNDECIDED_S", -1.0)
    server = await serve()
    for number in range(6):
        made = await respond(server, f"Question {number}", instructions="Be brief.")
    assert await sizes(server) == []
    monkeypatch.setattr("weftline_server.http.openai.conversations.UNDECIDED_S", 60.0)
    more = {"previous_response_id": made["id"], "instructions": "Now be long."}
    await respond(server, "And?", **more)
    assert await sizes(server) == [1]


async def test_ten_turns_keep_their_thoughts(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client sends the results of its tools alone. The model goes on only if it reads the
    thoughts of each turn before."""
    monkeypatch.setattr(null, "CHAT_TEMPLATE", TEMPLATE)
    server = await serve(
        NullConfig(mode=NullMode.SCRIPT, script=SCRIPT), ServerConfig(restore_thoughts=False)
    )
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    input: Any = "Look."
    made: dict[str, Any] = {"id": None}
    for _ in range(TURNS):
        made = await respond(server, input, tools=[tool], previous_response_id=made["id"])
        call = made["output"][-1].get("call_id")
        input = [{"type": "function_call_output", "call_id": call, "output": "found"}]
    assert text_of(made) == "Done."
    found = await got(server, f"/v1/responses/{made['id']}/input_items?limit=100&order=asc")
    thoughts = [one["content"][0]["text"] for one in found["data"] if one["type"] == "reasoning"]
    assert thoughts == [thought(number) for number in range(1, TURNS)]


async def test_an_item_is_named_by_its_id(serve: Serve) -> None:
    """An item of any kept response, or one of the conversation that goes on, with or without a
    type. Another tenant's is as unknown as any, and so is one whose response was deleted."""
    server = await serve(config=TWO, headers={"Authorization": "Bearer a"})
    first = await respond(server, "Name a river.")
    [item] = first["output"]
    named = {"type": "item_reference", "id": item["id"]}
    user = {"role": "user", "content": "And?"}
    for one in (named, {"id": item["id"]}):
        made = await respond(server, [user, one, user])
        assert text_of(made) == f"user: And?\nassistant: {text_of(first)}\nuser: And?\nassistant: "
    path = f"/v1/responses/{made['id']}/input_items?order=asc"
    of_input = (await got(server, path))["data"]
    assert of_input[1] == item
    again = await respond(server, [{"type": "item_reference", "id": one["id"]} for one in of_input])
    assert text_of(again) == text_of(made)
    own = {"items": [{**user, "id": "msg_mine"}]}
    talk = (await server.http.post("/v1/conversations", json=own)).json()["id"]
    more = await respond(server, [{"id": "msg_mine"}], conversation=talk)
    assert text_of(more) == "user: And?\nuser: And?\nassistant: "

    unknown = (404, "UnknownResponse", "input.1")
    body = {"input": [user, named]}
    other = {"input": [user, {"id": of_input[0]["id"]}]}
    for id in ("msg_mine", item["id"][:-1] + "1", "rs_1", f"msg_{'0' * 36}"):
        lost = {"input": [user, {"type": "item_reference", "id": id}]}
        assert await refused(server, "POST", "/v1/responses", **lost) == unknown
    server.http.headers["Authorization"] = "Bearer b"
    assert await refused(server, "POST", "/v1/responses", **body) == unknown
    assert await refused(server, "POST", "/v1/responses", **other) == unknown
    server.http.headers["Authorization"] = "Bearer a"
    await server.http.delete(f"/v1/responses/{first['id']}")
    assert await refused(server, "POST", "/v1/responses", **body) == unknown


async def test_references_are_as_long_as_a_body(serve: Serve) -> None:
    """Many to one long item are refused before their text is anywhere. Items of a conversation that
    another request has added are found by their response, too."""
    server = await serve(RIVERS, ServerConfig(max_body=10_000))
    talk = (await server.http.post("/v1/conversations", json={})).json()["id"]
    long = await respond(server, f"Name a river. {'x' * 3000}", conversation=talk)
    [item, _] = (await got(server, f"/v1/conversations/{talk}/items?order=asc"))["data"]
    named = {"type": "item_reference", "id": item["id"]}
    assert text_of(await respond(server, [named] * 3)) == text_of(long) == "The Rhine."
    body = {"input": [named] * 4}
    too_large = (413, "BodyTooLarge", "input.3")
    assert await refused(server, "POST", "/v1/responses", **body) == too_large


async def test_what_is_not_kept_cannot_go_on(serve: Serve) -> None:
    """One that was not stored, one that was deleted, one behind it, and one that has expired."""
    server = await serve(RIVERS)
    loose = await respond(server, "Name a river.", store=False)
    body = {"input": "And?", "previous_response_id": loose["id"]}
    assert await refused(server, "POST", "/v1/responses", **body) == UNKNOWN
    assert await refused(server, "POST", "/v1/responses", **body, store=False) == UNKNOWN
    path = f"/v1/responses/{loose['id']}"
    assert await refused(server, "GET", path) == (404, "UnknownResponse", "response_id")

    first = await respond(server, "Name a river.")
    second = await respond(server, "And?", previous_response_id=first["id"])
    path = f"/v1/responses/{first['id']}"
    deleted = (await server.http.delete(path)).json()
    assert deleted == {"id": first["id"], "object": "response", "deleted": True}
    for method in ("GET", "DELETE"):
        assert await refused(server, method, path) == (404, "UnknownResponse", "response_id")
    body = {"input": "And?", "previous_response_id": second["id"]}
    answer = await server.http.post("/v1/responses", json=body)
    assert answer.status_code == 404 and first["id"] in answer.json()["error"]["message"]

    short = await serve(RIVERS, ServerConfig(kept=KeptConfig(expiry_s=0.0)))
    gone = await respond(short, "Name a river.")
    body["previous_response_id"] = gone["id"]
    assert await refused(short, "POST", "/v1/responses", **body) == UNKNOWN


async def test_another_tenant_or_model(serve: Serve) -> None:
    """Another tenant's response is as unknown as any. A response goes on with its own model, also
    where the request names none."""
    other = NullConfig(mode=NullMode.SCRIPT, script=(("", "Other."),), model="other")
    server = await serve(
        RIVERS, TWO, {"Authorization": "Bearer a"}, {"o": lambda: NullEngine(other)}
    )
    made = await respond(server, "Name a river.", model="other")
    body = {"input": "And?", "previous_response_id": made["id"]}
    assert text_of(await respond(server, "And?", previous_response_id=made["id"])) == "Other."
    wrong = await refused(server, "POST", "/v1/responses", **body, model="null")
    assert wrong == (400, "InvalidRequest", "previous_response_id")
    talk = (await server.http.post("/v1/conversations", json={})).json()["id"]
    server.http.headers["Authorization"] = "Bearer b"
    assert await refused(server, "POST", "/v1/responses", **body) == UNKNOWN
    path = f"/v1/responses/{made['id']}"
    for method, end in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
        assert (await refused(server, method, path + end))[:2] == (404, "UnknownResponse")
    path = f"/v1/conversations/{talk}"
    for method, end in (("GET", ""), ("DELETE", ""), ("GET", "/items"), ("DELETE", "/items/x")):
        assert (await refused(server, method, path + end))[:2] == (404, "UnknownConversation")
    body = {"input": "And?", "conversation": talk}
    unknown = await refused(server, "POST", "/v1/responses", **body)
    assert unknown == (404, "UnknownConversation", "conversation")


async def test_the_oldest_make_room(serve: Serve) -> None:
    """A tenant has at most so many, and of so many bytes. One that is larger than all of them
    together stays until the next one comes."""
    server = await serve(RIVERS, ServerConfig(kept=KeptConfig(max_objects=2)))
    ids = [(await respond(server, "Name a river."))["id"] for _ in range(3)]
    found = [(await server.http.get(f"/v1/responses/{id}")).status_code for id in ids]
    assert found == [404, 200, 200]
    small = await serve(RIVERS, ServerConfig(kept=KeptConfig(max_bytes=4000)))
    ids = [(await respond(small, "a river " * 1000))["id"] for _ in range(2)]
    found = [(await small.http.get(f"/v1/responses/{id}")).status_code for id in ids]
    assert found == [404, 200]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "previous_response_id"),
        ({"background": True, "store": False}, "background"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"metadata": {str(number): "v" for number in range(17)}}, "metadata"),
        ({"input": [{"role": "user", "content": "Hi"}] * 10_000}, "input"),
        ({"input": []}, "input"),
    ],
    ids=["both", "unstored", "key", "value", "pairs", "10,000 items", "nothing"],
)  # fmt: skip
async def test_what_a_request_may_not_say(body: dict[str, Any], param: str, serve: Serve) -> None:
    """It is a 400 that names the field, and nothing is kept or run."""
    server = await serve(RIVERS)
    found = await refused(server, "POST", "/v1/responses", **{"input": "Hi", **body})
    assert found == (400, "InvalidRequest", param)
    assert (await got(server, "/v1/sessions"))["total"] == 0


async def test_an_answer_that_is_cut_off(serve: Serve) -> None:
    """The item, the event of its end and the response are incomplete, and the response is kept. The
    numbers of the events have no gap."""
    server = await serve()
    body = {"input": "Go", "stream": True, "max_output_tokens": 3}
    events = events_of((await server.http.post("/v1/responses", json=body)).text)
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    assert [one["type"] for one in events[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert [one["type"] for one in events[-4:]] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    last = events[-1]["response"]
    assert [one["status"] for one in (events[-2]["item"], last)] == ["incomplete", "incomplete"]
    assert last["output"] == [events[-2]["item"]]
    assert await got(server, f"/v1/responses/{last['id']}") == last


async def test_words_for_the_template(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A response takes them as a chat does."""
    monkeypatch.setattr(null, "CHAT_TEMPLATE", SWITCHED)
    script = (("</think>", "At once."), ("", QWEN3))
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=script))
    made = await respond(server, "Rome?", chat_template_kwargs={"enable_thinking": False})
    assert [one["type"] for one in made["output"]] == ["message"]
    assert text_of(made) == "At once."
    made = await respond(server, "Rome?")
    assert [one["type"] for one in made["output"]] == ["reasoning", "message"]


async def test_a_continued_response_runs_in_the_session_before(serve: Serve) -> None:
    """The scheduler keeps the context of the turn before for it, and computes what is new."""
    server = await serve(RIVERS)
    made = await respond(server, "Name a river.")
    for _ in range(3):
        made = await respond(server, "And?", previous_response_id=made["id"])
    [row] = (await got(server, "/v1/sessions"))["sessions"]
    assert row["calls"] == 4


async def test_a_turn_computes_what_is_new(serve: Serve) -> None:
    """On an engine whose tokens are words: the KV cache has the turns before, but for the last
    token of an answer. So it is in a conversation, and in the background."""
    free = StepCost(step_s=0.0, fill_s=0.0, sequence_s=0.0)
    config = SimulatedConfig(any_words=True, block_size=1, cost=free)
    server = await serve(also={"sim": lambda: SimulatedEngine(config, time.monotonic)})
    talk = (await server.http.post("/v1/conversations", json={})).json()["id"]
    last = None
    for turn in range(4):
        more: dict[str, Any] = {"model": "simulated", "max_output_tokens": 4}
        made = await respond(server, f"one two {turn}", conversation=talk, **more)
        begun = await respond(
            server, f"three {turn}", previous_response_id=last, background=True, **more
        )
        last = begun["id"]
        for one, own in ((made, 3), (await ended(server, last), 2)):
            used = one["usage"]
            assert used["input_tokens"] == own + turn * (own + 4)
            assert used["input_tokens_details"]["cached_tokens"] == max(0, turn * (own + 4) - 1)
