"""Where an adapter's models are served, and what the environment says about it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from weftline.http import DEFAULT_BASE_URL, MAX_RETRIES, without_v1

__all__ = ["NO_KEY", "Server", "default_api_key", "default_base_url", "is_on", "without_v1"]

NO_KEY = "none"  # what a client that requires a key sends where there is none


@dataclass(frozen=True, slots=True)
class Server:
    """The address of a server, without /v1, and how requests are sent to it.

    `timeout_s` bounds the silence of a server that should answer, and `headers` go with every
    request, beside the API key.
    """

    base_url: str
    api_key: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout_s: float | None = None
    max_retries: int = MAX_RETRIES

    @property
    def place(self) -> tuple[str, str | None]:
        """Equal for two that share their sessions: the address and the key."""
        return self.base_url, None if self.api_key in ("", NO_KEY) else self.api_key


def default_base_url() -> str:
    """WEFTLINE_BASE_URL, or a server on this machine."""
    return os.environ.get("WEFTLINE_BASE_URL") or DEFAULT_BASE_URL


def default_api_key() -> str | None:
    """WEFTLINE_API_KEY, or None where it is not set."""
    return os.environ.get("WEFTLINE_API_KEY") or None


def is_on(variable: str) -> bool:
    """Whether a feature is on: it is off only where its environment variable is 0."""
    return os.environ.get(variable, "1") != "0"
