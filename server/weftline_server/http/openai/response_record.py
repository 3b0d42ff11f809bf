"""What is kept of a response, and what a request continues: an earlier response, or a conversation.

A kept response has its own input and its output. The turns before it are other responses, which are
read again for each turn. Thoughts are items like others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weftline.contract.errors import (
    BodyTooLarge,
    InvalidRequest,
    UnknownConversation,
    UnknownResponse,
)
from weftline_server.http.openai.response_items import referred
from weftline_server.http.openai.response_requests import ResponsesRequest
from weftline_server.journal.kept_objects import KeptObjects

Json = dict[str, Any]
# Events are numbered from a reservation that is kept, so that those of a later run of the server
# have higher numbers. A response of an hour has some 100,000 events.
NUMBERS = 1000
Given = str | list[Json]  # the input of a request

# The id of an item that the server has made: behind its kind are the response's digits.
_MADE_ID = re.compile("[a-z]+_([0-9a-f]{32})[0-9a-f]{4}")
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


async def with_references(
    objects: KeptObjects, tenant: str, given: Given, past: Past, most: int
) -> Given:
    """The input with the items that it refers to: those before it, and those of any response that
    is kept. Raises UnknownResponse for another one, and BodyTooLarge where they have more than
    `most` characters, which a body without references could not have."""
    if isinstance(given, str) or not any(map(referred, given)):
        return given
    known = {item["id"]: item for item in past.items}
    responses = {
        f"resp_{made[1]}"
        for item in given
        if (name := referred(item)) and name not in known and (made := _MADE_ID.fullmatch(name))
    }
    if responses:
        for kept in (await objects.find_all(tenant, responses)).values():
            known |= {one["id"]: one for one in items_of([kept])}
    found: list[Json] = []
    chars = 0
    for at, item in enumerate(given):
        if (name := referred(item)) is None:
            found.append(item)
            continue
        if name not in known:
            raise UnknownResponse(
                f"input.{at}: no item {name[:64]!r} of a response is kept: {_SENDS_ALL}",
                param=f"input.{at}",
            )
        found.append(known[name])
        chars += len(json.dumps(known[name], ensure_ascii=False))
        if chars > most:
            raise BodyTooLarge(
                f"input.{at}: the items up to here to which the input refers have more than "
                f"{most:,} characters: begin anew with a summary",
                param=f"input.{at}",
            )
    return found


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
        raise no_conversation(id, param)
    return found


def no_conversation(id: str, param: str = "conversation") -> UnknownConversation:
    """The error of a conversation that is not there."""
    return UnknownConversation(
        f"no conversation {id[:64]!r} is kept: it was deleted or has expired, so create another",
        param=param,
    )


def _unknown(id: str, param: str) -> UnknownResponse:
    return UnknownResponse(f"no response {id[:64]!r} is kept: {_SENDS_ALL}", param=param)


@dataclass(frozen=True, slots=True)
class ResponseRecord:
    """Keeps a response with the items of its own `input`, and adds them to its conversation.

    A conversation that was deleted meanwhile stays deleted, and its response fails. A response in
    the background that was deleted stays deleted.
    """

    objects: KeptObjects
    tenant: str
    input: list[Json]

    async def begun(self, response: Json, running: Mapping[str, Any]) -> None:
        """Keep a response that runs in the background, and where its calls are."""
        made = {**self._kept(response), "running": running}
        await self.objects.change(self.tenant, response["id"], lambda _: made)

    async def reserved(self, id: str) -> int:
        """Reserve NUMBERS more numbers for the events of a response that runs in the background.
        Returns the first one that is not reserved."""

        def more(old: Json | None) -> Json | None:
            if old is None or "running" not in old:
                return old
            note = old["running"]
            return {**old, "running": {**note, "numbers": note["numbers"] + NUMBERS}}

        made = await self.objects.change(self.tenant, id, more)
        return NUMBERS if made is None or "running" not in made else made["running"]["numbers"]

    async def ended(self, response: Json) -> None:
        """Keep the response as it has ended. Raises UnknownConversation."""
        made, must_be_there = self._kept(response), response["background"]
        adds = response["conversation"] and response["status"] not in ("failed", "cancelled")
        if adds:
            await kept_conversation(
                self.objects, self.tenant, response["conversation"]["id"], "conversation"
            )
        if response["store"]:
            await self.objects.change(
                self.tenant,
                response["id"],
                lambda old: None if old is None and must_be_there else made,
            )
        if not adds:
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
