"""Makes the options of a call in a graph from the options that a ChatWeftline would send."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from langchain_core.globals import get_llm_cache

from langchain_weftline.lower.drafts import CallOptions
from langchain_weftline.lower.symbols import CannotCompile
from langchain_weftline.model.call_tools import FIELDS, Toolbox
from langchain_weftline.model.connection_settings import Connected, obstacle
from langchain_weftline.model.failures import as_model
from langchain_weftline.model.forms import Form
from weftline.contract.calls import TemplateWord, check_words
from weftline.contract.parameters import COMMON
from weftline.contract.protocol import Criterion, Sampling
from weftline.contract.sampling import stop_strings
from weftline.errors import InvalidRequest

_SAMPLING = {"max_tokens", "stop", *(name for name, one in COMMON.items() if one.is_openai)}
_EXTRA = COMMON.keys() - _SAMPLING
_NOT_SENT = frozenset({"messages", "model", "stream", "stream_options", "user", "extra_body"})

# Structured outputs put these options there for tracers. LangChain does not send them either.
_FOR_TRACES = frozenset({"ls_structured_output_format", "structured_output_format"})


class ModelSettings(Connected, Protocol):
    """What the options are read from, which a ChatWeftline has."""

    cache: Any
    rate_limiter: Any
    include_response_headers: bool

    def _get_request_payload(
        self, input_: Any, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """LangChain's own method: the body of a request to OpenAI's API."""


def _check_settings(model: ModelSettings) -> None:
    """Raise CannotCompile if only the model itself can send the request.

    Something between the model and the server may answer, wait, or change it.
    """
    if (why := obstacle(model)) is not None:
        raise CannotCompile(model, why)
    if model.cache:
        raise CannotCompile(model, "it has a cache")
    if model.cache is None and get_llm_cache() is not None:
        raise CannotCompile(model, "the global LLM cache (set_llm_cache) may have its answer")
    if model.rate_limiter is not None:
        raise CannotCompile(model, "it has a rate limiter")
    if model.include_response_headers:
        raise CannotCompile(model, "its answers have the headers of its own responses")


def _described(
    model: ModelSettings, payload: Mapping[str, Any]
) -> tuple[Toolbox | None, Form | None]:
    """The tools and the form of the answer. Raises CannotCompile if a graph lacks them."""
    try:
        toolbox = Toolbox.of(payload)
    except (InvalidRequest, ValueError) as error:
        raise CannotCompile(model, "a graph cannot describe its tools") from error
    try:
        return toolbox, Form.of(payload)
    except ValueError as error:
        reason = f"a graph cannot ask for its response_format: {error}"
        raise CannotCompile(model, reason) from error


def _words(model: ModelSettings, said: Any) -> str:
    """The words for the chat template, as JSON text. Raises CannotCompile for those of which the
    server's answer says what is wrong."""
    try:
        if all(isinstance(value, TemplateWord) for value in said.values()):
            check_words(said)
            return json.dumps(said)
    except (AttributeError, TypeError, InvalidRequest) as error:
        raise CannotCompile(model, "a graph has no such chat_template_kwargs") from error
    raise CannotCompile(model, "a word for the chat template is no text, number or truth value")


def call_options(model: ModelSettings, bound: Mapping[str, Any]) -> CallOptions:
    """The options of `model` with those in `bound`.

    Raises CannotCompile for an option that a graph does not have, such as logprobs.
    """
    _check_settings(model)
    said = {name: value for name, value in bound.items() if name not in _FOR_TRACES}
    payload = model._get_request_payload([], **said)
    extra = dict(payload.get("extra_body") or {})
    criteria = extra.pop("criteria", None)
    words = _words(model, extra.pop("chat_template_kwargs", None) or {})
    toolbox, form = _described(model, payload)
    ours = _NOT_SENT if toolbox is None else _NOT_SENT.union(FIELDS)
    ours |= {"response_format"}
    options = {
        "max_tokens" if name == "max_completion_tokens" else name: value
        for name, value in payload.items()
        if name not in ours and value is not None and (name, value) != ("n", 1)
    }
    if unknown := sorted((options.keys() - _SAMPLING) | (extra.keys() - _EXTRA)):
        raise CannotCompile(model, f"a graph has no option {unknown[0]!r}")
    if criteria is not None and criteria not in list(Criterion):
        raise CannotCompile(model, f"{criteria!r} is not a criterion")
    criterion = None if criteria is None else Criterion(criteria)
    name = payload.get("model")
    try:
        sampling = Sampling(**options | {"stop": stop_strings(options.get("stop"))}, **extra)
        if form is not None and form.constraint is not None:
            replace(sampling, constraint=form.constraint)  # checks the schema
    except InvalidRequest as error:
        raise as_model(error) from error
    served = None if name == "default" else name
    return CallOptions(sampling, served, criterion, toolbox, form, words)
