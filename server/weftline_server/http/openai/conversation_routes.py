"""Conversations that are kept: their items, which responses read and add to, and their metadata."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request

from weftline.contract.bodies import LooseBody
from weftline.contract.errors import InvalidRequest, UnknownConversation
from weftline.contract.protocol import MAX_ITEMS
from weftline_server.http.json_bodies import read, schema
from weftline_server.http.openai.kept_items import Order, kept_items, list_of, page
from weftline_server.http.openai.message_fields import check_messages
from weftline_server.http.openai.response_items import Conversation, InputItem
from weftline_server.http.openai.response_record import (
    conversation_of,
    kept_conversation,
    no_conversation,
)
from weftline_server.http.openai.response_requests import check_metadata
from weftline_server.http.openai.response_routes import Limit
from weftline_server.http.openai.tool_types import Offer
from weftline_server.http.state import ACCEPTING, Tenant, state_of

router = APIRouter(prefix="/v1/conversations", tags=["openai"])

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationItems(LooseBody):
    """The body of POST /v1/conversations/{conversation_id}/items."""

    items: tuple[InputItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRequest(LooseBody):
    """The body of POST /v1/conversations, and of a change of its metadata."""

    items: tuple[InputItem, ...] = ()
    metadata: dict[str, str] | None = None

    def __post_init__(self) -> None:
        check_metadata(self.metadata)


T = TypeVar("T", ConversationItems, ConversationRequest)


async def _body(request: Request, kind: type[T]) -> tuple[T, list[Json]]:
    """The body, and its items as they came. Raises InvalidRequest for the first item that no
    response would read."""
    items: list[Json] = []

    def checked(sent: Mapping[str, Any]) -> None:
        check_messages(sent.get("items"), "items")
        items.extend(sent.get("items") or ())

    body = await read(request, kind, checked)
    Conversation(Offer()).read(body.items, "items")
    return body, items


@router.post("", openapi_extra=schema(ConversationRequest), dependencies=[ACCEPTING])
async def create_conversation(request: Request, tenant: Tenant) -> Json:
    """Begin a conversation."""
    body, items = await _body(request, ConversationRequest)
    about: Json = {
        "id": f"conv_{uuid.uuid4().hex}",
        "object": "conversation",
        "created_at": int(time.time()),
        "metadata": body.metadata or {},
    }
    made = _grown({"conversation": about, "items": []}, items)
    await state_of(request.app).kept.change(tenant, about["id"], lambda _: made)
    return about


@router.get("/{conversation_id}")
async def get_conversation(conversation_id: str, request: Request, tenant: Tenant) -> Json:
    """A conversation without its items."""
    return _about(await kept_conversation(state_of(request.app).kept, tenant, conversation_id))


@router.post("/{conversation_id}", openapi_extra=schema(ConversationRequest))
async def update_conversation(conversation_id: str, request: Request, tenant: Tenant) -> Json:
    """Change the metadata of a conversation."""
    body, _ = await _body(request, ConversationRequest)

    def changed(old: Json) -> Json:
        about = {**old["conversation"], "metadata": body.metadata or {}}
        return {**old, "conversation": about}

    return _about(await _changed(request, tenant, conversation_id, changed))


@router.delete("/{conversation_id}")
async def delete_conversation(conversation_id: str, request: Request, tenant: Tenant) -> Json:
    """Delete a conversation with its items. Its responses stay, and those that run fail."""
    state = state_of(request.app)
    await kept_conversation(state.kept, tenant, conversation_id)
    await state.kept.change(tenant, conversation_id, lambda _: None)
    state.background.fail(tenant, conversation_id, no_conversation(conversation_id))
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


@router.get("/{conversation_id}/items")
async def list_items(
    conversation_id: str,
    request: Request,
    tenant: Tenant,
    limit: Limit = 20,
    order: Order = Order.DESC,
    after: str | None = None,
) -> Json:
    """The items of a conversation."""
    found = await kept_conversation(state_of(request.app).kept, tenant, conversation_id)
    return page(found["items"], order, after, limit)


@router.post("/{conversation_id}/items", openapi_extra=schema(ConversationItems))
async def add_items(conversation_id: str, request: Request, tenant: Tenant) -> Json:
    """Add items to a conversation."""
    _, items = await _body(request, ConversationItems)

    made = await _changed(request, tenant, conversation_id, partial(_grown, items=items))
    return list_of(made["items"][len(made["items"]) - len(items) :])


@router.get("/{conversation_id}/items/{item_id}")
async def get_item(conversation_id: str, item_id: str, request: Request, tenant: Tenant) -> Json:
    """An item of a conversation."""
    found = await kept_conversation(state_of(request.app).kept, tenant, conversation_id)
    return found["items"][_place(found, item_id)]  # type: ignore[no-any-return]


@router.delete("/{conversation_id}/items/{item_id}")
async def delete_item(conversation_id: str, item_id: str, request: Request, tenant: Tenant) -> Json:
    """Delete an item of a conversation."""
    without = partial(_without, item=item_id)
    return _about(await _changed(request, tenant, conversation_id, without))


async def _changed(request: Request, tenant: str, id: str, change: Callable[[Json], Json]) -> Json:
    """The conversation after a change. Raises UnknownConversation."""
    made = await state_of(request.app).kept.change(
        tenant, id, lambda old: change(conversation_of(old, id))
    )
    assert made is not None, "it was changed"
    return made


def _about(kept: Json) -> Json:
    """The conversation without its items."""
    about: Json = kept["conversation"]
    return about


def _grown(kept: Json, items: list[Json]) -> Json:
    """The conversation with more items. Raises InvalidRequest where it has too many."""
    before = kept["items"]
    if len(before) + len(items) >= MAX_ITEMS:
        raise InvalidRequest(
            f"a conversation has fewer than {MAX_ITEMS:,} items, and this would have "
            f"{len(before) + len(items):,}: create another with a summary",
            param="items",
        )
    return {**kept, "items": [*before, *kept_items(items, {one["id"] for one in before})]}


def _without(kept: Json, item: str) -> Json:
    at = _place(kept, item)
    return {**kept, "items": [*kept["items"][:at], *kept["items"][at + 1 :]]}


def _place(found: Json, item: str) -> int:
    """Which item it is. Raises UnknownConversation."""
    places = (at for at, one in enumerate(found["items"]) if one["id"] == item)
    if (at := next(places, None)) is None:
        raise UnknownConversation(f"the conversation has no item {item[:64]!r}", param="item_id")
    return at
