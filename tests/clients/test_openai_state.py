"""The client of OpenAI with responses and conversations that the server keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.clients.conftest import ASK, NAME, RIVER

HI = {"type": "message", "role": "user", "content": "Hi"}
TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}


@pytest.fixture
def client(server_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_a_response_goes_on(client: Any) -> None:
    """A tool's result alone is sent. The items before the answer are listed over pages."""
    first = client.responses.create(model="null", input=ASK, tools=[TOOL], metadata={"a": "b"})
    [call] = first.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny in Rome"}
    second = client.responses.create(previous_response_id=first.id, input=[result], tools=[TOOL])
    assert second.output_text == "It is sunny in Rome."
    assert second.previous_response_id == first.id
    assert client.responses.retrieve(second.id) == second
    assert client.responses.retrieve(first.id).metadata == {"a": "b"}
    items = list(client.responses.input_items.list(second.id, limit=1, order="asc"))
    assert [one.type for one in items] == ["message", "function_call", "function_call_output"]
    assert items[1].id == call.id
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="is kept"):
        client.responses.create(previous_response_id=second.id, input="And now?")


def test_one_in_the_background(client: Any) -> None:
    """It is polled; its stream breaks off and is read on; it has ended when it is cancelled."""
    made = client.responses.create(model="null", input=NAME, background=True)
    while made.status in ("queued", "in_progress"):
        made = client.responses.retrieve(made.id)
    assert (made.status, made.output_text) == ("completed", RIVER)
    assert client.responses.cancel(made.id).status == "completed"
    stream = client.responses.create(model="null", input=NAME, background=True, stream=True)
    begun = [next(stream) for _ in range(3)]
    assert [one.type for one in begun] == [
        "response.created", "response.queued", "response.in_progress",
    ]  # fmt: skip
    stream.close()
    rest = list(client.responses.retrieve(begun[0].response.id, stream=True, starting_after=2))
    assert [one.sequence_number for one in rest] == list(range(3, 3 + len(rest)))
    assert rest[-1].type == "response.completed" and rest[-1].response.output_text == RIVER


def test_a_conversation(client: Any) -> None:
    """It is created, grows with a response, is changed and deleted."""
    made = client.conversations.create(items=[HI], metadata={"topic": "rivers"})
    answer = client.responses.create(model="null", input=NAME, conversation=made.id)
    assert answer.conversation is not None and answer.conversation.id == made.id
    items = list(client.conversations.items.list(made.id, order="asc", limit=2))
    assert [one.content[0].text for one in items] == ["Hi", NAME, RIVER]
    assert client.conversations.items.retrieve(items[0].id, conversation_id=made.id) == items[0]
    client.conversations.items.delete(items[0].id, conversation_id=made.id)
    added = client.conversations.items.create(made.id, items=[HI])
    assert len(added.data) == 1 and added.data[0].id != items[0].id
    changed = client.conversations.update(made.id, metadata={"topic": "lakes"})
    assert client.conversations.retrieve(made.id) == changed
    assert client.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError, match="no conversation"):
        client.conversations.retrieve(made.id)
