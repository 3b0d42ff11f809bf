"""What a user has set on a model's connection, for requests that the model does not send itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import SecretStr

from langchain_weftline.model.patience import connect_seconds
from langchain_weftline.model.transport import SharedAsyncClient, SharedClient
from weftline.kit import Server


class Connected(Protocol):
    """What the connection is read from, which a ChatWeftline has."""

    http_client: Any
    http_async_client: Any
    root_client: Any
    root_async_client: Any
    openai_api_key: Any
    openai_proxy: str | None
    request_timeout: Any
    default_headers: Mapping[str, str] | None
    default_query: Mapping[str, object] | None

    @property
    def server_url(self) -> str: ...


def obstacle(model: Connected) -> str | None:
    """Why only the model itself can send its requests; None if a graph can carry them, too."""
    if not (
        isinstance(model.http_client, SharedClient)
        and isinstance(model.http_async_client, SharedAsyncClient)
        and model.root_client is not None
        and model.root_async_client is not None
    ):
        return "it has an HTTP client or socket options of yours, which a graph would not use"
    if not isinstance(model.openai_api_key, SecretStr):
        return "its API key is a function of yours, which only its own requests call"
    if not all(isinstance(value, str) for value in (model.default_headers or {}).values()):
        return "a default header is no text"
    if not all(type(value) in (str, int) for value in (model.default_query or {}).values()):
        return "a default query parameter is neither a text nor an integer"
    return None


def server_of(model: Connected) -> Server:
    """The model's server, and what its requests carry. `obstacle` says where that is not all."""
    key, client = model.openai_api_key, model.root_async_client
    named = {
        "OpenAI-Organization": getattr(client, "organization", None),
        "OpenAI-Project": getattr(client, "project", None),
        **(model.default_headers or {}),
    }
    headers = ((name, value) for name, value in named.items() if isinstance(value, str))
    query = model.default_query or {}
    return Server(
        model.server_url,
        key.get_secret_value() if isinstance(key, SecretStr) else None,
        tuple(headers),
        query=tuple((name, str(value)) for name, value in query.items()),
        proxy=model.openai_proxy,
        connect_s=connect_seconds(model.request_timeout),
    )
