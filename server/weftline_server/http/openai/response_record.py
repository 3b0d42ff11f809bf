"""What is kept of a response, and what a request continues: an earlier response, or a conversation.

A kept response has its own input and its output. The turns before it are other responses, which are
read again for each turn. Thoughts are items like others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weftline.contract.errors import InvalidRequest, UnknownConversation, UnknownResponse
from weftline_server.http.openai.response_requests import ResponsesRequest
from weftline_server.journal.kept_objects import KeptObjects

Json = dict[str, Any]

_SENDS_ALL = "it was not stored, was deleted, or has expired: send the whole input"


@dataclass(frozen=True, slots=True)
class Past:
    """The items that a request continues, and the model that must go on, if any."""

    items: list[Json] = field(default_factory=list)
    model: str | None = None
    is_some: bool = False


async def past_of(objects: KeptObjects, tenant: str, body: ResponsesRequest) -> Past:
    """What the request continues. Raises UnknownResponse, UnknownConversation or InvalidRequest."""
    if body.thread is not None:
        found = await kept_conversation(objects, tenant, body.thread, "conversation")
        return Past(found["items"], None, is_some=True)
    if not body.previous_response_id:
        return Past()
    param = "previous_response_id"
    chain = await objects.chain(tenant, body.previous_response_id)
    if not chain or "response" not in chain[-1]:
        raise _unknown(body.previous_response_id, param)
    if earlier := chain[0]["previous"]:
        raise _unknown(earlier, param)
    last = chain[-1]["response"]
    if "running" in chain[-1]:
        raise InvalidRequest(
            f"response {last['id']!r} still runs: wait until it has ended", param=param
        )
    if last["conversation"] is not None:
        raise InvalidRequest(
            f"response {last['id']!r} is one of a conversation: continue it with "
            f"conversation={last['conversation']['id']!r}",
            param=param,
        )
    return Past(items_of(chain), last["model"], is_some=True)


def items_of(chain: list[Json]) -> list[Json]:
    """The items of these turns, in their order."""
    return [item for one in chain for item in (*one["input"], *one["response"]["output"])]


async def kept_response(objects: KeptObjects, tenant: str, id: str) -> Json:
    """What is kept of the response. Raises UnknownResponse."""
    found = await objects.find(tenant, id)
    if found is None or "response" not in found:
        raise _unknown(id, "response_id")
    return found


async def kept_conversation(
    objects: KeptObjects, tenant: str, id: str, param: str = "conversation_id"
) -> Json:
    """What is kept of the conversation. Raises UnknownConversation."""
    return conversation_of(await objects.find(tenant, id), id, param)


def conversation_of(found: Json | None, id: str, param: str = "conversation_id") -> Json:
    """The conversation that was found. Raises UnknownConversation if it was none."""
    if found is None or "items" not in found:
        raise UnknownConversation(
            f"no conversation {id[:64]!r} is kept: it was deleted or has expired, so create "
            "another",
            param=param,
        )
    return found


def _unknown(id: str, param: str) -> UnknownResponse:
    return UnknownResponse(f"no response {id[:64]!r} is kept: {_SENDS_ALL}", param=param)


@dataclass(frozen=True, slots=True)
class ResponseRecord:
    """Keeps a response with the items of its own `input`, and adds them to its conversation.

    A conversation that was deleted meanwhile stays deleted, and so does a response in the
    background.
    """

    objects: KeptObjects
    tenant: str
    input: list[Json]

    async def begun(self, response: Json, running: Mapping[str, Any]) -> None:
        """Keep a response that runs in the background, and where its calls are."""
        made = {**self._kept(response), "running": running}
        await self.objects.change(self.tenant, response["id"], lambda _: made)

    async def ended(self, response: Json) -> None:
        """Keep the response as it has ended."""
        made, must_be_there = self._kept(response), response["background"]
        if response["store"]:
            await self.objects.change(
                self.tenant,
                response["id"],
                lambda old: None if old is None and must_be_there else made,
            )
        if response["conversation"] is None or response["status"] in ("failed", "cancelled"):
            return
        new = [*self.input, *response["output"]]
        await self.objects.change(
            self.tenant,
            response["conversation"]["id"],
            lambda old: None if old is None else {**old, "items": [*old["items"], *new]},
        )

    def _kept(self, response: Json) -> Json:
        previous = response["previous_response_id"] or ""
        return {"response": response, "input": self.input, "previous": previous}
