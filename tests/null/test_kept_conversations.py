"""Conversations that the server keeps: responses read them and add to them."""

from __future__ import annotations

import asyncio

from tests.null.asgi import Serve, running
from tests.null.kept import ended, events_of, got, refused, respond, said, text_of
from tests.waits import until
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullEngine, NullMode

HI = {"role": "user", "content": "Hi"}
SLOW = NullConfig(mode=NullMode.FIXED, latency=LatencyProfile(step_s=0.01), model="slow")
NEVER = NullConfig(mode=NullMode.FIXED, latency=LatencyProfile(step_s=3600.0))


async def test_a_conversation_grows_with_its_responses(serve: Serve) -> None:
    """Its items go before the input. The input and the output are added at the end, also those of
    a response that is not kept itself."""
    server = await serve()
    body = {"items": [HI], "metadata": {"topic": "rivers"}}
    made = (await server.http.post("/v1/conversations", json=body)).json()
    path = f"/v1/conversations/{made['id']}"
    assert await got(server, path) == made
    assert made["metadata"] == {"topic": "rivers"}
    first = await respond(server, "Name a river.", conversation=made["id"])
    assert text_of(first) == "user: Hi\nuser: Name a river.\nassistant: "
    assert first["conversation"] == {"id": made["id"]}
    second = await respond(server, "More!", conversation={"id": made["id"]}, store=False)
    lines = ["user: Hi", "user: Name a river.", f"assistant: {text_of(first)}", "user: More!"]
    assert text_of(second) == "\n".join([*lines, "assistant: "])
    lines.append(f"assistant: {text_of(second)}")
    found = await got(server, f"{path}/items?order=asc")
    assert said(found["data"]) == lines
    assert said((await got(server, f"{path}/items"))["data"]) == lines[::-1]

    answer = await server.http.post(path, json={"metadata": {"topic": "lakes"}})
    assert answer.json() == {**made, "metadata": {"topic": "lakes"}}
    last = found["data"][-1]
    assert await got(server, f"{path}/items/{last['id']}") == last
    assert (await server.http.delete(f"{path}/items/{last['id']}")).json()["id"] == made["id"]
    assert said((await got(server, f"{path}/items?order=asc"))["data"]) == lines[:-1]
    gone = await refused(server, "GET", f"{path}/items/{last['id']}")
    assert gone == (404, "UnknownConversation", "item_id")


async def test_items_that_a_client_adds(serve: Serve) -> None:
    """They are found by their ids. One whose id is there already gets another one. One that no
    response would read is refused, and so is the ten-thousandth."""
    server = await serve()
    id = (await server.http.post("/v1/conversations", json={})).json()["id"]
    path = f"/v1/conversations/{id}/items"
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "fc_1"}
    result = {"type": "function_call_output", "call_id": "c", "output": "1"}
    answer = await server.http.post(path, json={"items": [call, call, result]})
    first, second, third = answer.json()["data"]
    assert first == {**call, "status": "completed"} and second["id"] != "fc_1"
    assert third["id"].startswith("fco_") and third["output"] == "1"
    [fourth] = (await server.http.post(path, json={"items": [call]})).json()["data"]
    assert fourth["id"] not in ("fc_1", second["id"])
    bad = await refused(server, "POST", path, items=[HI, {"type": "web_search_call", "id": "w"}])
    assert bad == (400, "InvalidRequest", "items.1")
    bad = await refused(server, "POST", path, items=[{**HI, "nonsense": 1}])
    assert bad == (400, "InvalidRequest", "items.0.nonsense")
    bad = await refused(server, "POST", "/v1/conversations", items=[HI] * 10_000)
    assert bad == (400, "InvalidRequest", "items")
    assert (await server.http.post(path, json={"items": [HI] * 9_995})).status_code == 200
    assert await refused(server, "POST", path, items=[HI]) == (400, "InvalidRequest", "items")
    bad = await refused(server, "POST", "/v1/responses", input=[HI, HI], conversation=id)
    assert bad == (400, "InvalidRequest", "input")


async def test_one_that_is_deleted_while_a_response_runs(serve: Serve) -> None:
    """The response fails at once, with the error of a conversation that is not there, and is kept.
    So does one with a connection, at its end. The conversation stays deleted."""
    server = await serve(NEVER, also={"slow": lambda: NullEngine(SLOW)})
    id = (await server.http.post("/v1/conversations", json={"items": [HI]})).json()["id"]
    more = {"conversation": id, "background": True, "max_output_tokens": 20}
    begun = await respond(server, "Go", **more)
    deleted = (await server.http.delete(f"/v1/conversations/{id}")).json()
    assert deleted == {"id": id, "object": "conversation.deleted", "deleted": True}
    made = await ended(server, begun["id"])
    assert (made["status"], made["error"]["type"]) == ("failed", "UnknownConversation")
    id = (await server.http.post("/v1/conversations", json={"items": [HI]})).json()["id"]
    more = {"input": "Go", "conversation": id, "max_output_tokens": 20, "model": "slow"}
    answers = [
        asyncio.create_task(server.http.post("/v1/responses", json={**more, "stream": streams}))
        for streams in (True, False)
    ]
    await until(lambda: running(server.driver.dispatcher)["slow"][0] == 2)
    await server.http.delete(f"/v1/conversations/{id}")
    streamed, whole = await asyncio.gather(*answers)
    last = events_of(streamed.text)[-1]
    assert last["type"] == "response.failed"
    for error in (last["response"]["error"], whole.json()["error"]):
        assert error["type"] == "UnknownConversation"
    assert whole.status_code == 404
    unknown = (404, "UnknownConversation", "conversation_id")
    assert await refused(server, "GET", f"/v1/conversations/{id}") == unknown
    body = {"input": "Go", "conversation": id}
    gone = await refused(server, "POST", "/v1/responses", **body)
    assert gone == (404, "UnknownConversation", "conversation")


async def test_a_response_that_is_cancelled(serve: Serve) -> None:
    """It adds nothing."""
    server = await serve(SLOW)
    id = (await server.http.post("/v1/conversations", json={"items": [HI]})).json()["id"]
    begun = await respond(server, "Go", conversation=id, background=True, max_output_tokens=9999)
    made = (await server.http.post(f"/v1/responses/{begun['id']}/cancel")).json()
    assert made["status"] == "cancelled"
    assert said((await got(server, f"/v1/conversations/{id}/items"))["data"]) == ["user: Hi"]


async def test_responses_that_end_together(serve: Serve) -> None:
    """Each adds all of its items at once."""
    server = await serve(SLOW)
    id = (await server.http.post("/v1/conversations", json={})).json()["id"]
    more = {"conversation": id, "max_output_tokens": 3}
    await asyncio.gather(*(respond(server, f"{number}", **more) for number in range(5)))
    items = (await got(server, f"/v1/conversations/{id}/items?order=asc"))["data"]
    assert [one["role"] for one in items] == ["user", "assistant"] * 5
    assert sorted(one["content"][0]["text"] for one in items[::2]) == list("01234")
