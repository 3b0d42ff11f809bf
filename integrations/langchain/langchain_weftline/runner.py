"""Runs a lowered chain: one session, one submit, and a get for each variable of the result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from functools import lru_cache
from ssl import SSLContext
from typing import Any, cast

import httpx
from langchain_core.exceptions import OutputParserException

from langchain_weftline.lowered import Lowered, Server
from weftline import AsyncClient, Client
from weftline.aclient import AsyncSession
from weftline.client import Session
from weftline.errors import TransformFailed

OnGraph = Callable[[dict[str, Any]], None]

# Gets that wait at the same time; more variables than this are got in turns.
MAX_GETS = 64

_INVALID_JSON = "Invalid json output: "
_BUILTIN_ERRORS: dict[str, type[Exception]] = {
    "IndexError": IndexError,
    "KeyError": KeyError,
    "TypeError": TypeError,
    "ValueError": ValueError,
}


def run(lowered: Lowered, on_graph: OnGraph | None) -> Any:
    """The chain's result."""
    names = lowered.variables()
    if not names:
        return lowered.build({})
    with _session(lowered, on_graph) as session:
        with ThreadPoolExecutor(min(len(names), MAX_GETS)) as pool:
            values = list(pool.map(session.get, names))
        return lowered.build(dict(zip(names, values, strict=True)))


async def arun(lowered: Lowered, on_graph: OnGraph | None) -> Any:
    """The chain's result."""
    names = lowered.variables()
    if not names:
        return lowered.build({})
    async with _asession(lowered, on_graph) as session:
        values = await asyncio.gather(*map(session.get, names))
        return lowered.build(dict(zip(names, values, strict=True)))


def stream_text(lowered: Lowered, var: str, on_graph: OnGraph | None) -> Generator[str, None, None]:
    """The text of the result's only variable, as it is generated."""
    with _session(lowered, on_graph) as session:
        yield from session.stream(var)


async def astream_text(
    lowered: Lowered, var: str, on_graph: OnGraph | None
) -> AsyncGenerator[str, None]:
    """The text of the result's only variable, as it is generated."""
    async with _asession(lowered, on_graph) as session:
        texts = cast(AsyncGenerator[str, None], session.stream(var))
        async with aclosing(texts):  # an abandoned stream ends before its session does
            async for text in texts:
                yield text


@contextmanager
def _session(lowered: Lowered, on_graph: OnGraph | None) -> Iterator[Session]:
    """A session that has been given the calls, and is closed whatever happens."""
    url, key = _address(lowered.server)
    transport = httpx.HTTPTransport(verify=_ssl())
    with Client(url, key, transport=transport) as client, closing(client.session()) as session:
        try:
            session.submit(lowered.calls)
            yield session
        except TransformFailed as failure:
            raise as_langchain(failure, lowered) from failure
        if on_graph is not None:
            on_graph(session.graph())


@asynccontextmanager
async def _asession(lowered: Lowered, on_graph: OnGraph | None) -> AsyncIterator[AsyncSession]:
    url, key = _address(lowered.server)
    async with AsyncClient(url, key, transport=httpx.AsyncHTTPTransport(verify=_ssl())) as client:
        session = await client.session().open()
        try:
            try:
                await session.submit(lowered.calls)
                yield session
            except TransformFailed as failure:
                raise as_langchain(failure, lowered) from failure
            if on_graph is not None:
                on_graph(await session.graph())
        finally:
            await session.close()


def _address(server: Server | None) -> tuple[str, str]:
    assert server is not None, "a variable has a call, and a call has a model"
    return server.base_url, server.api_key.get_secret_value()


@lru_cache(maxsize=1)
def _ssl() -> SSLContext:
    # Reading the certificates takes 40 ms, which every run would pay again.
    return httpx.create_ssl_context()


def as_langchain(failure: TransformFailed, lowered: Lowered) -> Exception:
    """What the parser or the step itself would have raised."""
    message = failure.message
    if message.startswith(_INVALID_JSON):
        return OutputParserException(message, llm_output=message.removeprefix(_INVALID_JSON))
    name, _, rest = message.partition(": ")
    error = _BUILTIN_ERRORS.get(name)
    if error is None:
        return failure
    if error is KeyError:  # its text is the key's repr; the key itself stands in the calls
        keys = {repr(key): key for key in _keys(lowered)}
        return KeyError(keys.get(rest, rest))
    return error(rest)


def _keys(lowered: Lowered) -> Iterator[str | int]:
    for call in lowered.calls:
        for placeholder in call.placeholders:
            for spec in placeholder.transforms:
                yield from spec.get("keys", ())
