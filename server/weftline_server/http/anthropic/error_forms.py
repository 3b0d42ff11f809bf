"""Errors in the form of Anthropic's API, by the paths that have it."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from weftline.contract.errors import WeftlineError

MESSAGES = "/v1/messages"
_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
}


def is_messages(path: str) -> bool:
    """Whether the clients of this path read Anthropic's errors."""
    return path == MESSAGES or path.startswith(f"{MESSAGES}/")


def error_form(status: int, ours: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an error with this HTTP status. Our own fields stand beside Anthropic's."""
    kind = _TYPES.get(HTTPStatus(status))
    if kind is None:
        kind = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "api_error"
    return {"type": "error", "error": {**ours, "type": kind}}


def error_body(error: WeftlineError) -> dict[str, Any]:
    """The error's body. The message of a prompt that is too long has the words by which clients of
    this API know that they must shorten a conversation."""
    return error_form(error.status, error.to_body()["error"])
