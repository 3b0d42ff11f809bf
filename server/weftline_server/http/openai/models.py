"""GET /v1/models and /v1/models/{id}, and POST /tokenize: what is served, and its tokens."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request

from weftline.contract.bodies import LooseBody
from weftline.contract.errors import InvalidRequest
from weftline_server.http.openai.requests import ChatMessage, check_parts
from weftline_server.http.state import ServiceDep, Tenant
from weftline_server.http.wire import read, schema
from weftline_server.prompt.render import PromptBefore, RenderedMessage
from weftline_server.runtime.service import ServedModel

router = APIRouter(tags=["openai"])


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest(LooseBody):
    """A text or a chat to tokenise, as the server would before it generates."""

    model: str | None = None
    prompt: str | None = None
    messages: tuple[ChatMessage, ...] | None = None

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("give either a prompt or messages", param="prompt")
        check_parts(self.messages or ())

    @property
    def before(self) -> PromptBefore:
        """The prompt of an answer to this text or chat."""
        if self.messages is None:
            return PromptBefore(self.prompt or "")
        turns = tuple(
            RenderedMessage(
                one.role,
                one.text,
                name=one.name,
                tool_calls=one.tool_calls or (),
                tool_call_id=one.tool_call_id,
            )
            for one in self.messages
        )
        return PromptBefore("", turns)


@router.get("/v1/models")
async def models(service: ServiceDep, tenant: Tenant) -> dict[str, Any]:
    """The served models, the default one first, then embedders and rerankers, in OpenAI's shape."""
    items = service.engines.items_models
    generate = [_row(model) for model in service.engines.models]
    return {"object": "list", "data": generate + [_items_row(one) for one in items]}


@router.get("/v1/models/{model:path}")
async def model(model: str, service: ServiceDep, tenant: Tenant) -> dict[str, Any]:
    """One served model. A short name finds it too, if only one model fits."""
    for one in service.engines.items_models:
        if one == model:
            return _items_row(one)
    return _row(service.engines.model(model))


@router.post("/tokenize", openapi_extra=schema(TokenizeRequest))
async def tokenize(request: Request, service: ServiceDep, tenant: Tenant) -> dict[str, Any]:
    """The tokens of a text, or of a chat in the model's template."""
    body = await read(request, TokenizeRequest)
    found = service.engines.model(body.model)
    payload = await asyncio.get_running_loop().run_in_executor(None, found.payload, body.before)
    if payload.tokens is None:
        raise InvalidRequest(
            f"the engine of model {found.name!r} keeps its tokenizer to itself", param="model"
        )
    return {
        "model": found.name,
        "count": len(payload.tokens),
        "max_model_len": found.context_limit,
        "tokens": list(payload.tokens),
    }


def _items_row(name: str) -> dict[str, Any]:
    """An embedder or a reranker."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "weftline"}


def _row(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "weftline",
        "max_model_len": model.context_limit,
    }
