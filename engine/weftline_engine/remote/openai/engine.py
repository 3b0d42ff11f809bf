"""The openai engine: runs ops on an OpenAI-compatible endpoint, and helpers for such requests.

SGLang, llama.cpp, Ollama and hosted APIs are such endpoints. The engine has no contexts: every call
sends its whole prompt.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from weftline.contract.parameters import EngineApi, sent
from weftline_engine import api
from weftline_engine.remote.openai import endpoint_constraints
from weftline_engine.remote.openai.breaker import BreakerConfig
from weftline_engine.remote.openai.deltas import DeltaText
from weftline_engine.remote.openai.endpoint import Endpoint, EndpointConfig, EndpointError
from weftline_engine.remote.openai.endpoint_settings import Dialect, OpenAISettings
from weftline_engine.remote.openai.remote import AnswerPiece, RemoteEngine, TokenCounts
from weftline_engine.remote.openai.scheduling import fields, headers
from weftline_engine.remote.openai.tool_support import (
    EndpointTools,
    chat_fields,
    in_words,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIConfig(OpenAISettings):
    """Settings of an openai engine.

    `model` is the endpoint's name of the model; None takes the first that the endpoint lists.
    `name` is the name for clients; None uses the endpoint's.
    """

    endpoint: EndpointConfig
    model: str | None = None
    name: str | None = None
    context_limit: int | None = None  # tokens; None: what the endpoint states, else 8,192
    max_running: int = 64
    breaker: BreakerConfig = field(default_factory=BreakerConfig)


DEFAULT_CONTEXT_LIMIT = 8192


class OpenAIEngine(RemoteEngine):
    """An `api.Engine` that sends every op to an endpoint."""

    def __init__(self, config: OpenAIConfig) -> None:
        super().__init__(config.breaker)
        self._config = config
        self._model = config.model or ""
        self._tools = EndpointTools(config.endpoint_tools, config.endpoint.url)

    async def start(self) -> api.Description:
        """Ask the endpoint which models it serves. Raises EngineDied if it does not answer."""
        self._endpoint = Endpoint(self._config.endpoint)
        try:
            self._model, limit = await served(self._endpoint, self._config.model)
        except EndpointError as error:
            await self._endpoint.close()
            where = self._config.endpoint.url
            raise api.EngineDied(f"the engine at {where} did not start: {error}") from error
        messages = self._config.dialect is not Dialect.COMPLETIONS
        extras = (api.Capability.SAMPLING,) if self._config.extras else ()
        follows = endpoint_constraints.kinds(self._config.endpoint_scheduler)
        whole = (api.Capability.CONSTRAINTS,) if follows == tuple(api.Constraint) else ()
        return api.Description(
            model=self._config.name or self._model,
            kinds=(api.Kind.GENERATE,),
            takes_messages=messages,
            context_limit=self._config.context_limit or limit or DEFAULT_CONTEXT_LIMIT,
            max_running=self._config.max_running,
            capabilities=(*extras, *whole, api.Capability.LOGIT_BIAS),
            constraints=follows,
        )

    async def _pieces(self, op: api.Op) -> AsyncIterator[AnswerPiece]:
        sent = self._tools.form(op)
        try:
            async for piece in self._answered(sent):
                self._tools.accepted(sent)
                yield piece
        except EndpointError as error:
            if sent.chat is None or sent.chat.words is None:
                raise
            if not await self._tools.refuses(self.endpoint, self._model, error):
                raise
            refusal = error
        else:
            return
        async for piece in self._answered(in_words(op)):
            self._tools.refused(refusal)
            yield piece

    async def _answered(self, op: api.Op) -> AsyncIterator[AnswerPiece]:
        """Send one request, and yield its answer piece by piece. Raises EndpointError."""
        if op.kind != api.Kind.GENERATE or op.parent is not None:
            raise EndpointError("EngineFailed", "this engine keeps no contexts")
        chat = op.chat is not None or self._config.dialect is Dialect.CHAT
        path = "/chat/completions" if chat else "/completions"
        held: dict[str, Any] = {}
        begin, end = "", ""
        assert op.sampling is not None, "a generate has sampling parameters"
        if op.sampling.constraint is not None:
            held, begin, end = endpoint_constraints.fields(
                self._config.endpoint_scheduler, op.sampling.constraint
            )
        body = self._body(op, chat) | held
        # A text has no block of thoughts, nor has an answer in a form from its first token on.
        thinks = op.chat is not None and op.sampling.constraint is None
        answer = DeltaText(begin, end, thinks=thinks)
        async for event in self.endpoint.stream(
            path, body, headers(self._config.endpoint_scheduler, op)
        ):
            piece = _piece(event, answer)
            if piece is not None:
                yield piece

    def _body(self, op: api.Op, chat: bool) -> dict[str, Any]:
        assert op.sampling is not None, "a generate has sampling parameters"
        body: dict[str, Any] = {
            "model": self._model,
            "stream": True,
            "stream_options": {"include_usage": True},
            **openai_sampling(
                op.sampling, EngineApi.EXTENDED if self._config.extras else EngineApi.OPENAI
            ),
        }
        if chat:
            body |= chat_fields(op, self._config.extras)
            if op.sampling.effort is not None:
                body["reasoning_effort"] = op.sampling.effort
        else:
            body["prompt"] = op.text
        return body | fields(self._config.endpoint_scheduler, op)


async def served(
    endpoint: Endpoint, wanted: str | None, path: str = "/models"
) -> tuple[str, int | None]:
    """Return the model's name at the endpoint, and its context limit in tokens if it is listed.

    `wanted` None takes the first model. Raises EndpointError if the endpoint has no such model.
    """
    status, body = await endpoint.get(path)
    if status in (401, 403):
        raise EndpointError("EngineFailed", f"it refuses weftline's key ({status})")
    if status >= 500:
        raise EndpointError("EngineUnavailable", f"it answered {status}")
    models = _models(body) if status == 200 else {}
    if wanted is None:
        if not models:
            raise EndpointError("UnknownModel", "it lists no models: name one")
        wanted = next(iter(models))
    if models and wanted not in models:
        names = ", ".join(list(models)[:8])
        raise EndpointError("UnknownModel", f"it has no model {wanted!r}: it has {names}")
    return wanted, models.get(wanted)


def _models(body: bytes) -> dict[str, int | None]:
    """Return context limits by model name from GET /models, or {} if the body has another shape."""
    try:
        listed = json.loads(body)["data"]
        limits = [(str(one["id"]), one.get("max_model_len")) for one in listed]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return {name: limit if isinstance(limit, int) else None for name, limit in limits}


def openai_sampling(sampling: api.SamplingParams, among: EngineApi) -> dict[str, Any]:
    """The parameters of a request in OpenAI's words. `among` says which the endpoint takes."""
    body = {"max_tokens": sampling.max_tokens, **sent(sampling, among)}
    if sampling.stop and not sampling.block:
        body["stop"] = list(sampling.stop)
    if sampling.stop_token_ids and among is not EngineApi.OPENAI:
        body["stop_token_ids"] = sampling.stop_token_ids
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): value for token, value in sampling.logit_bias}
    return body


_REASONS = {
    "stop": api.FinishReason.STOP,
    "tool_calls": api.FinishReason.STOP,
    "length": api.FinishReason.LENGTH,
}


def stopped_by(choice: dict[str, Any]) -> str:
    """The stop string that ended the answer, "" where the endpoint does not tell it. vLLM does."""
    told = choice.get("stop_reason")
    return told if isinstance(told, str) else ""


def finish_reason(value: object) -> api.FinishReason | None:
    """Map OpenAI's finish_reason. Raises EndpointError if the answer did not end properly."""
    if value is None:
        return None
    if value == "content_filter":
        raise EndpointError("EngineFailed", "the endpoint's content filter ended the answer")
    if value not in _REASONS:
        raise EndpointError(
            "EngineFailed",
            f"the endpoint gave up on the answer ({str(value)[:40]})",
            retryable=True,
            broken=True,
        )
    return _REASONS[str(value)]


def counts_of(event: dict[str, Any]) -> TokenCounts | None:
    """Return the token counts of an event, or None if it has none."""
    usage = event.get("usage")
    if not isinstance(usage, dict) or not isinstance(usage.get("prompt_tokens"), int):
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return TokenCounts(usage["prompt_tokens"], cached or 0, usage.get("completion_tokens"))


def first_choice(event: dict[str, Any]) -> dict[str, Any] | None:
    """Return the event's choice, or None if it has none. Only one choice is ever requested."""
    choices = event.get("choices")
    if not choices:
        return None
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        raise EndpointError("EngineFailed", "the endpoint sent no answer", broken=True)
    return choices[0]


def _piece(event: dict[str, Any], answer: DeltaText) -> AnswerPiece | None:
    choice, counts = first_choice(event), counts_of(event)
    if choice is None:
        return None if counts is None else AnswerPiece(counts=counts)
    delta = choice.get("delta")
    text = answer.feed(delta if isinstance(delta, dict) else {"content": choice.get("text")})
    reason = finish_reason(choice.get("finish_reason"))
    return AnswerPiece(
        text=text + answer.last(reason),
        reason=reason,
        counts=counts,
        stopped_by=stopped_by(choice),
    )
