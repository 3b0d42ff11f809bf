"""Runs a lowered chain: one request with its calls, answered by the values of its result.

A stream is one request too. Each run has its own connection, so that nothing is left open and no
event loop meets another's sockets.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from typing import Any

from langchain_weftline.failures import own_failures
from langchain_weftline.lowered import Lowered, message_facts
from weftline import AsyncClient, Client
from weftline.http import OnGraph
from weftline.session import Answer


def run(lowered: Lowered, on_graph: OnGraph | None) -> Any:
    """The chain's result."""
    names = lowered.variables()
    if not names:
        return lowered.build({})
    url, key = _address(lowered)
    with own_failures(lowered.calls), Client(url, key) as client:
        answer = client.run(lowered.calls, names, graph=_wants_graph(lowered, on_graph))
        return _result(lowered, answer, on_graph)


async def arun(lowered: Lowered, on_graph: OnGraph | None) -> Any:
    """The chain's result."""
    names = lowered.variables()
    if not names:
        return lowered.build({})
    url, key = _address(lowered)
    with own_failures(lowered.calls):
        async with AsyncClient(url, key) as client:
            answer = await client.run(lowered.calls, names, graph=_wants_graph(lowered, on_graph))
            return _result(lowered, answer, on_graph)


def _result(lowered: Lowered, answer: Answer, on_graph: OnGraph | None) -> Any:
    graph = dict(answer.graph or {})
    if on_graph is not None:
        on_graph(graph)
    return lowered.build(answer.values, message_facts(graph))


def _wants_graph(lowered: Lowered, on_graph: OnGraph | None) -> bool:
    """A message has its usage from the graph."""
    return on_graph is not None or lowered.has_messages()


def stream_text(lowered: Lowered, var: str, on_graph: OnGraph | None) -> Generator[str, None, None]:
    """The text of the result's only variable, as it is generated."""
    url, key = _address(lowered)
    with own_failures(lowered.calls), Client(url, key) as client:
        yield from client.stream(lowered.calls, var, on_graph=on_graph)


async def astream_text(
    lowered: Lowered, var: str, on_graph: OnGraph | None
) -> AsyncGenerator[str, None]:
    """The text of the result's only variable, as it is generated."""
    url, key = _address(lowered)
    with own_failures(lowered.calls):
        async with (
            AsyncClient(url, key) as client,
            aclosing(client.stream(lowered.calls, var, on_graph=on_graph)) as texts,
        ):
            async for text in texts:
                yield text


def _address(lowered: Lowered) -> tuple[str, str]:
    server = lowered.server
    assert server is not None, "a variable has a call, and a call has a model"
    return server.base_url, server.api_key.get_secret_value()
