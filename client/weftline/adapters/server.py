"""Where an adapter's models are served, and what the environment says about it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from weftline.http import DEFAULT_BASE_URL


@dataclass(frozen=True, slots=True)
class Server:
    """The address of a server, without /v1, and the API key to send with each request."""

    base_url: str
    api_key: str | None = field(default=None, repr=False)


def default_base_url() -> str:
    """WEFTLINE_BASE_URL, or a server on this machine."""
    return os.environ.get("WEFTLINE_BASE_URL") or DEFAULT_BASE_URL


def default_api_key() -> str | None:
    """WEFTLINE_API_KEY, or None where it is not set."""
    return os.environ.get("WEFTLINE_API_KEY") or None


def is_on(variable: str) -> bool:
    """Whether a feature is on: it is off only where its environment variable is 0."""
    return os.environ.get(variable, "1") != "0"
