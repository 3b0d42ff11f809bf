"""What is served, and its tokens: GET /v1/models, GET /v1/models/{id}, /tokenize, /detokenize."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request

from weftline.contract.bodies import LooseBody
from weftline.contract.calls import TemplateWord
from weftline.contract.errors import InvalidRequest
from weftline_server.http.json_bodies import read, schema
from weftline_server.http.openai.requests import ChatMessage, ChatRequest
from weftline_server.http.openai.surface import OpenAIRoute, check
from weftline_server.http.openai.tool_types import AnyChatTool, ChatChoice
from weftline_server.http.state import ServiceDep, Tenant
from weftline_server.prompt.render import PromptBefore, render
from weftline_server.runtime.service import ServedModel, Service

router = APIRouter(tags=["openai"])


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest(LooseBody):
    """A text or a chat to tokenise, as the server would before it generates.

    A field that would change the tokens of the request it is about is served or refused as there.
    """

    model: str | None = None
    prompt: str | None = None
    messages: tuple[ChatMessage, ...] | None = None
    tools: tuple[AnyChatTool, ...] | None = None
    tool_choice: ChatChoice | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, TemplateWord] | None = None
    reasoning_effort: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("give either a prompt or messages", param="prompt")

    def before(self, *, renders: bool) -> PromptBefore:
        """The prompt of an answer to this text or chat, whose template runs here if `renders`."""
        if self.messages is None:
            return PromptBefore(self.prompt or "")
        return prompt_of(
            ChatRequest(
                messages=self.messages,
                tools=self.tools,
                tool_choice=self.tool_choice,
                continue_final_message=self.continue_final_message,
                chat_template_kwargs=self.chat_template_kwargs,
                reasoning_effort=self.reasoning_effort,
            ),
            renders=renders,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DetokenizeRequest(LooseBody):
    """Tokens whose text is asked for."""

    tokens: tuple[int, ...]
    model: str | None = None


def _check_fields(body: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a field that is not served in a request with this prompt."""
    if body.get("messages") is not None:
        check(OpenAIRoute.CHAT, body)
    else:  # a text may be tokenised without special tokens, and is always completed with them
        check(OpenAIRoute.TEXT, {k: body[k] for k in body if k != "add_special_tokens"})


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
    body = await read(request, TokenizeRequest, _check_fields)
    found = service.engines.model(body.model)
    prompter = found.prompter
    ids = await _tokens(found, body.before, special=body.add_special_tokens is not False)
    names = list(map(prompter.token_name, ids)) if body.return_token_strs else None
    return {
        "model": found.name,
        "count": len(ids),
        "max_model_len": found.context_limit,
        "tokens": list(ids),
        "token_strs": names,
    }


@router.post("/detokenize", openapi_extra=schema(DetokenizeRequest))
async def detokenize(request: Request, service: ServiceDep, tenant: Tenant) -> dict[str, Any]:
    """The text of tokens, with special tokens in words."""
    body = await read(request, DetokenizeRequest)
    prompter = service.engines.model(body.model).prompter
    loop = asyncio.get_running_loop()
    return {"prompt": await loop.run_in_executor(None, prompter.decoded, body.tokens, "tokens")}


async def prompt_tokens(service: Service, model: str, chat: ChatRequest) -> tuple[int, ...]:
    """The tokens of the prompt of a chat. Raises InvalidRequest where the engine keeps its
    tokenizer to itself."""
    return await _tokens(service.engines.model(model), partial(prompt_of, chat), special=True)


def prompt_of(chat: ChatRequest, *, renders: bool) -> PromptBefore:
    """The prompt of an answer to the chat, whose template runs here if `renders`."""
    [call] = chat.calls(None, renders=renders)
    return render(call, call.placeholders[-1], {})


async def _tokens(
    model: ServedModel, before: Callable[..., PromptBefore], *, special: bool
) -> tuple[int, ...]:
    prompter = model.prompter

    def tokens() -> tuple[int, ...] | None:
        rendered = before(renders=not prompter.description.takes_messages)
        return prompter.tokenised(rendered, special=special).tokens

    ids = await asyncio.get_running_loop().run_in_executor(None, tokens)
    if ids is None:
        raise InvalidRequest(
            f"the engine of model {model.name!r} keeps its tokenizer to itself", param="model"
        )
    return ids


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
