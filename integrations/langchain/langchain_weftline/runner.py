"""Runs a lowered chain: one request with its calls, answered by the values of its result.

A stream is one request too. Each run has its own connection, so that nothing is left open and no
event loop meets another's sockets.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from langchain_core.exceptions import OutputParserException

from langchain_weftline.lowered import Lowered
from weftline import AsyncClient, Client
from weftline.errors import TransformFailed
from weftline.http import OnGraph
from weftline.session import Answer

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
    url, key = _address(lowered)
    with _own_failures(lowered), Client(url, key) as client:
        answer = client.run(lowered.calls, names, graph=on_graph is not None)
        return _result(lowered, answer, on_graph)


async def arun(lowered: Lowered, on_graph: OnGraph | None) -> Any:
    """The chain's result."""
    names = lowered.variables()
    if not names:
        return lowered.build({})
    url, key = _address(lowered)
    with _own_failures(lowered):
        async with AsyncClient(url, key) as client:
            answer = await client.run(lowered.calls, names, graph=on_graph is not None)
            return _result(lowered, answer, on_graph)


def _result(lowered: Lowered, answer: Answer, on_graph: OnGraph | None) -> Any:
    if on_graph is not None and answer.graph is not None:
        on_graph(dict(answer.graph))
    return lowered.build(answer.values)


def stream_text(lowered: Lowered, var: str, on_graph: OnGraph | None) -> Generator[str, None, None]:
    """The text of the result's only variable, as it is generated."""
    url, key = _address(lowered)
    with _own_failures(lowered), Client(url, key) as client:
        yield from client.stream(lowered.calls, var, on_graph=on_graph)


async def astream_text(
    lowered: Lowered, var: str, on_graph: OnGraph | None
) -> AsyncGenerator[str, None]:
    """The text of the result's only variable, as it is generated."""
    url, key = _address(lowered)
    with _own_failures(lowered):
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


@contextmanager
def _own_failures(lowered: Lowered) -> Iterator[None]:
    """Raise what a parser or a step that failed in the server would have raised here."""
    try:
        yield
    except TransformFailed as failure:
        raise as_langchain(failure, lowered) from failure


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
