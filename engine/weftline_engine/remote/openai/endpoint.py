"""An HTTP client for one OpenAI-compatible endpoint: bounded reads, and typed errors.

The client has no notion of ops. The client sends a request body and returns JSON objects.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from weftline_engine.api import in_known_words
from weftline_engine.remote.openai.surrogates import whole

MOST_EVENT = 1 << 20  # bytes of one server-sent event; 20 alternatives per token take 4 KB
MOST_BODY = 8 << 20  # bytes of a response that is not streamed
LARGE_BODY = 1 << 20  # bytes of a request; sending more at once would hold the event loop
MOST_REFUSAL = 64 << 10  # bytes of an error response
LONGEST_PAUSE_S = 30.0  # a longer Retry-After counts as a refusal
# Seconds to keep an idle connection. uvicorn, and so vLLM, closes one after 5 s.
KEEP_S = 4.0
# Seconds to wait for the end of a stream after [DONE]. Reading it makes the connection reusable.
# The answer does not wait for it.
END_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointConfig:
    """Where an endpoint is and how long to wait for it.

    `url` is the base of paths like /chat/completions. `first_s` bounds the seconds to the first
    event, which a queue or a long prompt may delay. `idle_s` bounds the seconds between two events.
    Bytes that complete no event do not reset the timer, so an endpoint cannot hold a request open
    by sending single bytes. Without `keeps`, each request has a connection of its own. Each request
    has the `headers`. Raises ValueError for an address without http:// or https://.
    """

    url: str
    key: str | None = field(default=None, repr=False)
    socket: str | None = None  # path of a unix socket to connect to instead of the host in `url`
    connect_s: float = 5.0
    first_s: float = 120.0
    idle_s: float = 30.0
    keeps: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"{self.url!r} is not an http:// or https:// address")


class EndpointError(Exception):
    """A failed request. `error` names a type of weftline.errors; the breaker counts `broken`.

    `by_prompt` says that the endpoint answered, and that the prompt may be at fault. `status` is
    that of its answer.
    """

    def __init__(
        self,
        error: str,
        message: str,
        *,
        retryable: bool = False,
        broken: bool = False,
        by_prompt: bool = False,
        retry_after_s: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
        self.retryable = retryable
        self.broken = broken
        self.by_prompt = by_prompt
        self.retry_after_s = retry_after_s
        self.status = status


class Endpoint:
    """Sends requests to one endpoint and reuses connections. Create it inside a running loop.

    The endpoint uses aiohttp, which parses HTTP in C. With httpx, parsing took a third of the time
    that the server spent on a streamed response.
    """

    def __init__(self, config: EndpointConfig) -> None:
        self.config = config
        self._url = config.url.rstrip("/")
        kept: dict[str, Any] = (
            {"keepalive_timeout": KEEP_S} if config.keeps else {"force_close": True}
        )
        key = {"Authorization": f"Bearer {config.key}"} if config.key else {}
        self._http = aiohttp.ClientSession(
            headers={**key, **config.headers},
            # No limit here: the engine's max_running bounds the requests in flight.
            connector=(
                aiohttp.UnixConnector(config.socket, limit=0, **kept)
                if config.socket
                else aiohttp.TCPConnector(limit=0, **kept)
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        # aiohttp's own look at the environment reads ~/.netrc for every request, in two threads.
        self._proxy = proxy_of(config.url) if config.socket is None else None
        self._ending: set[asyncio.Task[None]] = set()  # tasks that read the ends of streams

    async def close(self) -> None:
        for task in self._ending:
            task.cancel()
        await self._http.close()

    async def stream(
        self,
        path: str,
        body: dict[str, Any],
        headers: Mapping[str, str],
        ends: Callable[[dict[str, Any]], bool] = lambda _: False,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the JSON events of a streamed response up to [DONE], or to one that `ends` it.
        Raises EndpointError."""
        async with self._failing(), AsyncExitStack() as held:
            response = await held.enter_async_context(self._request("POST", path, body, headers))
            if response.status != 200:
                raise await _refusal(response)
            with _Patience(response.content, self.config.first_s) as patience:
                rest = b""
                while chunk := await response.content.readany():
                    lines = (rest + chunk).split(b"\n")
                    if max(map(len, lines)) > MOST_EVENT:
                        raise _broken(f"sent an event of more than {MOST_EVENT} bytes")
                    rest = lines.pop()
                    for line in lines:
                        if not line.startswith(b"data:"):
                            continue
                        data = line[5:].strip()
                        if data == b"[DONE]":
                            self._read_to_the_end(response, held.pop_all())
                            return
                        event = _object(data)
                        yield event
                        if ends(event):
                            self._read_to_the_end(response, held.pop_all())
                            return
                        patience.begin(self.config.idle_s)
            raise _broken("ended its stream before the answer was complete")

    async def post(
        self,
        path: str,
        body: dict[str, Any],
        headers: Mapping[str, str] = MappingProxyType({}),
        within_s: float | None = None,
    ) -> dict[str, Any]:
        """Send a POST and return the JSON object of the response, within the seconds of a first
        event, or `within_s`. Raises EndpointError."""
        return _object(await self._posted(path, body, headers, within_s))

    async def post_for_list(self, path: str, body: dict[str, Any]) -> list[Any]:
        """Send a POST and return the JSON list of the response. Raises EndpointError."""
        value = _json(await self._posted(path, body))
        if not isinstance(value, list):
            raise _broken("sent JSON that is not a list")
        return value

    async def _posted(
        self,
        path: str,
        body: dict[str, Any],
        headers: Mapping[str, str] = MappingProxyType({}),
        within_s: float | None = None,
    ) -> bytes:
        within_s = within_s or self.config.first_s
        async with (
            self._failing(),
            asyncio.timeout(within_s),
            self._request("POST", path, body, headers, within_s) as response,
        ):
            if response.status != 200:
                raise await _refusal(response)
            return await _body(response, MOST_BODY)

    async def get(self, path: str) -> tuple[int, bytes]:
        """Send a GET and return status and body, within `connect_s`. Raises EndpointError."""
        async with (
            self._failing(),
            asyncio.timeout(self.config.connect_s),
            self._request("GET", path) as response,
        ):
            return response.status, await _body(response, MOST_BODY)

    async def metrics(self) -> bytes:
        """The server's own metrics, or b"" if it does not tell them."""
        try:
            status, body = await self.get("/metrics")
        except EndpointError:
            return b""
        return body if status == 200 else b""

    def _request(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        silent_s: float | None = None,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        sent: bytes | io.BytesIO | None = None
        if body is not None:
            sent = json.dumps(body).encode()
            headers = {"Content-Type": "application/json", **headers}
            if len(sent) > LARGE_BODY:
                sent = io.BytesIO(sent)  # aiohttp then sends it in pieces
        patience = aiohttp.ClientTimeout(
            sock_connect=self.config.connect_s, sock_read=silent_s or self.config.first_s
        )
        return self._http.request(
            method,
            self._url + path,
            data=sent,
            headers=headers,
            allow_redirects=False,
            timeout=patience,
            proxy=self._proxy,
        )

    def _read_to_the_end(self, response: aiohttp.ClientResponse, held: AsyncExitStack) -> None:
        """Release the connection `held` of a complete stream, after reading the stream's end."""
        task = asyncio.create_task(_end(response, held))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    @asynccontextmanager
    async def _failing(self) -> AsyncIterator[None]:
        """Turn timeouts and connection errors into EndpointError."""
        try:
            yield
        except TimeoutError as error:  # aiohttp's timeouts are subclasses of it
            raise _broken("was silent for too long") from error
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
            raise _broken("cannot be reached", "EngineUnavailable") from error
        except aiohttp.ClientError as error:
            raise _broken(f"broke the connection ({type(error).__name__})") from error


def proxy_of(url: str) -> str | None:
    """The proxy that the environment names for an address, such as in HTTPS_PROXY; None without
    one, or if NO_PROXY excepts the host."""
    address = urlsplit(url)
    if address.hostname is None or proxy_bypass(address.hostname):
        return None
    return getproxies().get(address.scheme)


def _broken(what: str, error: str = "EngineFailed") -> EndpointError:
    return EndpointError(error, f"the endpoint {what}", retryable=True, broken=True)


class _Patience:
    """Makes reads of `content` fail with TimeoutError once the deadline set by `begin` has passed.

    A single timer checks the clock when it fires. A new timeout for each event took longer than
    parsing the event.
    """

    def __init__(self, content: aiohttp.StreamReader, seconds: float) -> None:
        self._content = content
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + seconds
        self._due = self._until
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> _Patience:
        self._timer = self._loop.call_at(self._due, self._look)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def begin(self, seconds: float) -> None:
        """Move the deadline to `seconds` from now."""
        self._until = self._loop.time() + seconds
        if self._until < self._due:  # after the first event, whose timeout is longer
            self._arm()

    def _look(self) -> None:
        if self._loop.time() < self._until:
            self._arm()
        else:
            self._content.set_exception(TimeoutError())

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = self._until
        self._timer = self._loop.call_at(self._due, self._look)


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise _broken("sent something that is not JSON") from None


def _object(data: bytes) -> dict[str, Any]:
    value = _json(data)
    if not isinstance(value, dict):
        raise _broken("sent JSON that is not an object")
    if "error" in value:
        text = _message(value)
        raise _broken(f"failed in the middle of its answer: {text}")
    return value


async def _end(response: aiohttp.ClientResponse, held: AsyncExitStack) -> None:
    """Wait END_S for the end of the stream. Without it the connection is not reused."""
    async with held:
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(END_S):
                await response.content.read(1)


async def _body(response: aiohttp.ClientResponse, most: int) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most:
            raise _broken(f"sent a body of more than {most} bytes")
    return bytes(body)


async def _refusal(response: aiohttp.ClientResponse) -> EndpointError:
    """Return the error for a status other than 200."""
    status = response.status
    try:
        text = _message(json.loads(await _body(response, MOST_REFUSAL)))
    except (ValueError, RecursionError):
        text = "it gave no reason"
    said = f"the endpoint answered {status}: {text}"
    if status in (401, 403):
        return EndpointError("EngineFailed", f"the endpoint refuses weftline's key ({status})")
    if status == 404:
        return EndpointError(
            "EngineFailed",
            f"the endpoint does not know the model or path: {text}",
            status=status,
        )
    if status in (429, 503):
        return EndpointError(
            "Overloaded" if status == 429 else "EngineUnavailable",
            said,
            retryable=True,
            broken=status == 503,
            retry_after_s=_retry_after(response.headers.get("retry-after")),
        )
    if status >= 500 or status < 400:
        by_prompt = status == 500
        retryable = status >= 500
        return EndpointError(
            "EngineFailed",
            said,
            retryable=retryable,
            broken=True,
            by_prompt=by_prompt,
            status=status,
        )
    too_long = "context" in text and ("length" in text or "exceed" in text or "holds" in text)
    if too_long:
        return EndpointError("ContextTooLong", in_known_words(said))
    return EndpointError("InvalidRequest", said, status=status)


def _message(value: Any) -> str:
    """Return the message of an error body in OpenAI's or a similar shape, cut to 300 characters."""
    error = value.get("error", value) if isinstance(value, dict) else value
    text = error.get("message") or error.get("detail") if isinstance(error, dict) else error
    return whole(str(text or "it gave no reason")[:300])


def _retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header, or None for a date or anything else."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
