"""The server that an adapter uses, and its defaults from environment variables."""

from __future__ import annotations

import os
from collections.abc import Hashable
from dataclasses import dataclass, field

from weftline.sdk.http import CONNECT_S, DEFAULT_BASE_URL, MAX_RETRIES, without_v1

__all__ = ["NO_KEY", "Server", "default_api_key", "default_base_url", "is_on", "without_v1"]

NO_KEY = "none"  # what a client that requires a key sends where there is none


@dataclass(frozen=True, slots=True)
class Server:
    """The address of a server, without /v1, and how requests are sent to it.

    `timeout_s` is the longest silence of the server, in seconds, before Timeout is raised.
    `connect_s` is the longest time to open a connection, where `timeout_s` is not shorter.
    `headers` and `query` are sent with every request, beside the API key. `proxy` replaces the
    environment's proxies.
    """

    base_url: str
    api_key: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout_s: float | None = None
    max_retries: int = MAX_RETRIES
    query: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    proxy: str | None = field(default=None, repr=False)
    connect_s: float | None = CONNECT_S

    @property
    def place(self) -> tuple[str, str | None]:
        """The address and the key. Two servers with equal places share their sessions."""
        return self.base_url, None if self.api_key in ("", NO_KEY) else self.api_key

    @property
    def way(self) -> Hashable:
        """The place, and what else requests carry to it and pass through."""
        return self.place, self.headers, self.query, self.proxy


def default_base_url() -> str:
    """The address in WEFTLINE_BASE_URL, or else that of a server on this machine."""
    return os.environ.get("WEFTLINE_BASE_URL") or DEFAULT_BASE_URL


def default_api_key() -> str | None:
    """WEFTLINE_API_KEY, or None where it is not set."""
    return os.environ.get("WEFTLINE_API_KEY") or None


def is_on(variable: str) -> bool:
    """Whether a feature is on: it is off only where its environment variable is 0."""
    return os.environ.get(variable, "1") != "0"
