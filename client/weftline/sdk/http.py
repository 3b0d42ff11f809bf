"""The HTTP code that both clients share: the server's address, retries, and reading responses."""

from __future__ import annotations

import json
import os
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from ssl import SSLContext
from typing import Any
from urllib.parse import urlencode

import httpx2

from weftline.contract.errors import (
    ConnectionFailed,
    EngineFailed,
    InvalidRequest,
    Refusal,
    Timeout,
    WeftlineError,
)
from weftline.contract.protocol import Criterion, GetBody

DEFAULT_BASE_URL = "http://127.0.0.1:8600"

# A connection opens soon or never. A response may take as long as the application runs.
CONNECT_S = 5.0
PINGS_S = 45.0  # a stream that is silent for this long has broken: the server pings every 15 s
# A request lasts as long as its application runs, so each open request needs its own connection.
LIMITS = httpx2.Limits(max_connections=2000, max_keepalive_connections=100)


def time_limits(timeout_s: float | None, connect_s: float | None) -> httpx2.Timeout:
    """The limits of a request. To connect takes no longer than the longest silence."""
    limits = [seconds for seconds in (timeout_s, connect_s) if seconds is not None]
    return httpx2.Timeout(timeout_s, connect=min(limits, default=None))


def without_v1(url: str) -> str:
    """The address of a server without the `/v1` that OpenAI's clients need at its end.

    Raises InvalidRequest for an address without http:// or https://.
    """
    if not url.startswith(("http://", "https://")):
        raise InvalidRequest(
            f"the server's address {url[:200]!r} lacks its scheme: write http://{url[:200]}",
            param="base_url",
        )
    return url.rstrip("/").removesuffix("/v1")


@dataclass(frozen=True, slots=True)
class ServerEndpoint:
    """The server's `base_url`, without /v1, and the API key to send."""

    base_url: str
    api_key: str | None

    @staticmethod
    def find(base_url: str | None, api_key: str | None) -> ServerEndpoint:
        """The endpoint with these values. Their defaults come from the environment.

        The variables are WEFTLINE_BASE_URL and WEFTLINE_API_KEY.
        """
        url = base_url or os.environ.get("WEFTLINE_BASE_URL") or DEFAULT_BASE_URL
        key = api_key or os.environ.get("WEFTLINE_API_KEY")
        return ServerEndpoint(without_v1(url), key)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def unreachable(self, error: httpx2.TransportError, *, began: bool = False) -> WeftlineError:
        """ConnectionFailed for a server that cannot be reached, or Timeout for a silent one.

        `began` is True if a response had begun.
        """
        if isinstance(error, httpx2.ReadTimeout):
            return Timeout(
                f"the weftline server at {self.base_url} sent nothing for as long as the timeout "
                "allows: set a longer timeout, or read the server's log"
            )
        failed = ConnectionFailed(
            f"no weftline server answers at {self.base_url} ({type(error).__name__}): start one "
            "with `weftline serve`, or set WEFTLINE_BASE_URL"
        )
        failed.began = began
        return failed


MAX_RETRIES = 2
MAX_PAUSE_S = 30.0  # a request is not retried if the server asks for a longer pause
FIRST_PAUSE_S = 0.1  # well below the 1 s for which a server waits for a client to come back
# Pauses after a refusal without Retry-After: those of the openai client, up to a quarter shorter.
FIRST_BACKOFF_S, MAX_BACKOFF_S, JITTER = 0.5, 8.0, 0.25

_KEYED = frozenset({"/v1/session", "/v1/submit"})


def idempotency(method: str, path: str) -> dict[str, str]:
    """The Idempotency-Key that allows a request to be sent again, for routes that accept one."""
    return {"Idempotency-Key": uuid.uuid4().hex} if method == "POST" and path in _KEYED else {}


DURABLE = "weftline-durable"  # the header of a server that continues its sessions after a restart
RETURNS = 64  # attempts to reach such a server, which take about a minute
MAX_RETURN_S = 1.0  # the longest pause between two of them


@dataclass(slots=True)
class Known:
    """What a client has learnt about its server: whether its sessions survive a restart."""

    durable: bool = False

    def hear(self, response: httpx2.Response) -> None:
        self.durable |= DURABLE in response.headers


def returning(attempt: int, result: httpx2.Response | httpx2.TransportError) -> float | None:
    """Seconds to wait for a durable server that may be restarting.

    None if `result` does not show that the server has ended, or after too many attempts.
    """
    if attempt >= RETURNS or isinstance(result, httpx2.ReadTimeout):
        return None
    if isinstance(result, httpx2.Response) and (
        result.status_code != 503 or _is_of_a_call(result) or "retry-after" not in result.headers
    ):
        return None
    return min(FIRST_PAUSE_S * float(1 << min(attempt, 8)), MAX_RETURN_S)


def pause(
    attempt: int,
    method: str,
    path: str,
    result: httpx2.Response | httpx2.TransportError,
    max_retries: int = MAX_RETRIES,
    known: Known | None = None,
) -> float | None:
    """Seconds to wait before the request is sent again, or None if `result` is final.

    `attempt` is 0 for the first one. After a broken connection a request is sent again only where
    sending it twice does no harm. After a refusal it is always sent again: after the seconds in
    Retry-After, or after growing pauses. If the server is `known` to continue its sessions after a
    restart, the client tries for about a minute, even with `max_retries` 0.
    """
    unsent = isinstance(result, (httpx2.ConnectError, httpx2.ConnectTimeout))
    harmless = method == "GET" or path in _KEYED or path == "/v1/get"
    answered = isinstance(result, httpx2.Response)
    if known is not None and known.durable and (unsent or harmless or answered):
        wait = returning(attempt, result)
        if wait is not None:
            return wait
    if attempt >= max_retries or isinstance(result, httpx2.ReadTimeout):
        return None  # the user has set how long to wait
    if isinstance(result, httpx2.Response):
        wanted = result.headers.get("retry-after", "")
        if result.status_code not in (429, 503) or _is_of_a_call(result):
            return None
        if not wanted.isdecimal():  # a proxy's Retry-After may be missing, or a date
            backoff = min(FIRST_BACKOFF_S * (1 << min(attempt, 10)), MAX_BACKOFF_S)
            return backoff * random.uniform(1 - JITTER, 1)
        return float(wanted) if float(wanted) <= MAX_PAUSE_S else None
    return FIRST_PAUSE_S * 4 ** min(attempt, 4) if unsent or harmless else None


def _is_of_a_call(response: httpx2.Response) -> bool:
    """Whether a call has failed: the server had accepted the request, so it is not sent again."""
    try:
        return response.json()["error"]["call"] is not None
    except (ValueError, KeyError, TypeError, httpx2.ResponseNotRead):
        return False  # a proxy's refusal


def body_of(response: httpx2.Response) -> Any:
    """The JSON of a successful response. Raises the WeftlineError that another one describes."""
    try:
        body = response.json()
    except ValueError:
        body = response.text
    if response.is_success:
        return body
    error = WeftlineError.from_body(body, response.status_code)
    error.refusal = Refusal(response.status_code, body)
    raise error


def get_body(
    session_id: str,
    variable: str,
    criteria: Criterion | str | None,
    timeout_s: float | None,
    wait: bool,
    stream: bool = False,
) -> GetBody:
    """The body of a get. A criterion may be given by its name."""
    return GetBody(
        session_id=session_id,
        semantic_var_id=variable,
        criteria=None if criteria is None else Criterion(criteria),
        timeout_s=timeout_s,
        wait=wait,
        stream=stream,
    )


OnGraph = Callable[[dict[str, Any]], None]


def text_of_event(event: httpx2.ServerSentEvent, on_graph: OnGraph | None) -> str:
    """The text of a `part` event. It is empty for any other event.

    `on_graph` is called with a `graph` event. Raises the error of an `error` event.
    """
    if not event.data:  # a ping, which keeps the connection open
        return ""
    data = json.loads(event.data)
    if event.event == "error":
        raise WeftlineError.from_body(data, 0)
    if event.event == "restarted":
        raise EngineFailed("the text was lost with an engine or a server, and is made anew: get it")
    if event.event == "graph" and on_graph is not None:
        on_graph(data)
    return str(data["text"]) if event.event == "part" else ""


@lru_cache(maxsize=1)
def certificates() -> SSLContext:
    """The machine's certificates. They are read once, because reading them takes 40 ms."""
    return httpx2.create_ssl_context()


def sessions_path(limit: int, text: str) -> str:
    """The path of a list of sessions: those with `text` in a prompt or a value, or all."""
    query = {"limit": str(limit), **({"text": text} if text else {})}
    return f"/v1/sessions?{urlencode(query)}"
