"""Thoughts before calls of tools, which are put back where a client sends its turn without them.

Most templates write a model's thoughts while its tools run, and most clients drop them. They are
kept among the clients' objects, by the model and the id of the turn's first call, which the server
has made up. So the next run of the server finds them, and the other servers of a store.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weftline.contract.errors import StorageFull
from weftline_server.http.openai.requests import ChatMessage, ChatRequest
from weftline_server.journal.kept_objects import KeptObjects

# Characters that are put back in one request, the newest first. An hour of an agent is some 500
# turns with 1,000 characters each.
MOST_CHARS = 8 << 20

log = logging.getLogger(__name__)


class KeptThoughts:
    """The thoughts of each tenant's turns. Those of other turns, models and tenants are never put
    back."""

    def __init__(self, objects: KeptObjects) -> None:
        self._objects = objects

    async def keep(self, tenant: str, model: str, message: Mapping[str, Any]) -> None:
        """Keep the thoughts of an answer that calls tools."""
        thoughts, calls = message.get("reasoning_content"), message.get("tool_calls")
        if not thoughts or not calls:
            return
        id = _id(model, calls[0]["id"])
        try:
            await self._objects.change(tenant, id, lambda _: {"thoughts": thoughts})
        except StorageFull as error:  # the answer is whole, and most clients ask for no more
            log.warning("the thoughts of a turn are not kept: %s", error.message)

    async def restored(self, tenant: str, model: str, body: ChatRequest) -> tuple[ChatRequest, int]:
        """The request with the thoughts of its turns, and how many turns they were put back in. A
        turn that says that it has none, with an empty text, gets none. Raises StorageFull."""
        lacking = {
            at: _id(model, message.tool_calls[0].id)
            for at, message in enumerate(body.messages)
            if message.tool_calls and _lacks(message)
        }
        if not lacking:
            return body, 0
        found = await self._objects.find_all(tenant, set(lacking.values()))
        messages, restored, room = list(body.messages), 0, MOST_CHARS
        for at, id in reversed(lacking.items()):
            thoughts = found[id].get("thoughts", "") if id in found else ""
            room -= len(thoughts)
            if room < 0:
                break
            if thoughts:
                messages[at] = replace(messages[at], reasoning_content=thoughts)
                restored += 1
        return (replace(body, messages=tuple(messages)) if restored else body), restored


def _lacks(message: ChatMessage) -> bool:
    has_said = message.reasoning_content is not None or message.reasoning is not None
    return not has_said and not message.thoughts


def _id(model: str, call: str) -> str:
    """The id of the object. That of a call is as long as a client likes."""
    digest = hashlib.blake2b(f"{model}\0{call}".encode(errors="surrogatepass"), digest_size=16)
    return f"thoughts_{digest.hexdigest()}"
