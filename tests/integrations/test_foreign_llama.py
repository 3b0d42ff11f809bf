"""LlamaIndex: an exception of code around the HTTP client reaches the user, or the log."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Callable
from threading import Event
from typing import Any

import httpx2
import pytest
from llama_index.embeddings.weftline import WeftlineEmbedding
from llama_index.llms.weftline import Weftline
from llama_index.llms.weftline.trace.run_provenance import begin_run
from llama_index.llms.weftline.trace.span_handler import SPANS

from tests.integrations.test_foreign_exceptions import (
    TEXT_OF_CAUSE,
    abroken_hook,
    raised,
    the_cause,
)
from tests.integrations.test_llama_ahead import bounded, nodes, synthesizer
from tests.waits import wait_until
from weftline.errors import ClientFailed, EngineFailed
from weftline.kit import Result, Server
from weftline.kit.results import item_of, rows_of
from weftline.watching import Failed


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the HTTP client of this integration."""
    monkeypatch.setattr(httpx2.AsyncClient, "send", abroken_hook)


async def _all(parts: AsyncIterator[Any]) -> list[Any]:
    return [part async for part in parts]


async def _stream(llm: Weftline) -> list[Any]:
    return await _all(await llm.astream_complete("Hi"))


async def _gen(made: Any) -> list[Any]:
    response = await made.asynthesize("What?", nodes())
    return await _all(response.async_response_gen())


MODEL: dict[str, Callable[[Weftline], Any]] = {
    "complete": lambda llm: llm.complete("Hi"),
    "acomplete": lambda llm: asyncio.run(llm.acomplete("Hi")),
    "stream": lambda llm: list(llm.stream_complete("Hi")),
    "astream": lambda llm: asyncio.run(_stream(llm)),
}


@pytest.mark.parametrize("way", MODEL)
def test_a_plain_request_raises_it(way: str, echo_url: str, breaks: None) -> None:
    """It is the cause of an error of ours: after a TypeError LlamaIndex goes on unanswered."""
    error = raised(lambda: MODEL[way](bounded(echo_url)))
    assert type(error) is ClientFailed and f"TypeError: {TEXT_OF_CAUSE}" in str(error)
    assert type(the_cause(error)) is TypeError


def test_an_embedding_raises_it(echo_url: str, breaks: None) -> None:
    """So does a request for vectors, also from a coroutine."""
    embedding = WeftlineEmbedding(base_url=echo_url)
    for act in (
        lambda: embedding.get_text_embedding("Hi"),
        lambda: asyncio.run(embedding.aget_text_embedding("Hi")),
    ):
        assert type(the_cause(raised(act))) is TypeError


WHOLE: dict[str, Callable[[Any], Any]] = {
    "sync": lambda made: made.synthesize("What?", nodes()),
    "async": lambda made: asyncio.run(made.asynthesize("What?", nodes())),
}
STREAMED: dict[str, Callable[[Any], Any]] = {
    "stream": lambda made: list(made.synthesize("What?", nodes()).response_gen),
    "astream": lambda made: asyncio.run(_gen(made)),
}


@pytest.mark.parametrize("way", [*WHOLE, *STREAMED])
def test_a_graph_that_cannot_be_sent(
    way: str, echo_url: str, breaks: None, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says why, with the traceback. LlamaIndex's own request then raises the same."""
    streaming = way in STREAMED
    made = synthesizer("refine", bounded(echo_url), streaming=streaming)
    with caplog.at_level(logging.WARNING, "llama_index.llms.weftline"):
        error = raised(lambda: (WHOLE | STREAMED)[way](made))
    assert type(the_cause(error)) is TypeError
    assert "ended before" not in "".join(traceback.format_exception(error))
    [warned] = [one for one in caplog.records if "sent ahead has failed" in one.message]
    assert TEXT_OF_CAUSE in warned.message
    assert warned.exc_info is not None and warned.exc_info[1] is not None
    assert type(the_cause(warned.exc_info[1])) is TypeError


@pytest.mark.parametrize(
    "part", [lambda whole: rows_of(whole, 0, 1), lambda whole: item_of(whole, 0)]
)
def test_a_part_fails_with_the_error_of_the_whole(part: Callable[[Result], Result]) -> None:
    """A slice of an embedding, and an item of a list."""
    whole, lost = Result(), EngineFailed("the engine died")
    made = part(whole)
    whole.settle(Failed("v", lost))
    assert made.value.exception(0) is lost


def test_a_fault_of_the_plan_is_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, echo_url: str
) -> None:
    """LlamaIndex answers without the graph, and the log has the traceback of the fault."""

    def broken(*_: Any) -> Any:
        raise KeyError("a fault of this package")

    monkeypatch.setattr(type(SPANS), "_graph_of", broken)
    made = synthesizer("refine", bounded(echo_url))
    with caplog.at_level(logging.WARNING, "llama_index.llms.weftline"):
        assert str(made.synthesize("What?", nodes(1)))
    first = caplog.records[0]
    assert first.exc_info is not None and type(first.exc_info[1]) is KeyError


def test_a_fault_of_on_graph_is_in_the_log(caplog: pytest.LogCaptureFixture, echo_url: str) -> None:
    """The user's own function raises when the run is over. No caller waits, so the log says it."""
    asked = Event()

    def on_graph(graph: Any) -> None:
        asked.set()
        raise ZeroDivisionError("in on_graph")

    run = begin_run(Server(echo_url), on_graph)
    run.opened(httpx2.post(f"{echo_url}/v1/session").json()["session_id"])
    with caplog.at_level(logging.WARNING, "llama_index.llms.weftline"):
        run.finish()
        assert asked.wait(20)
        wait_until(lambda: bool(caplog.records))
    [record] = caplog.records
    assert record.exc_info is not None and type(record.exc_info[1]) is ZeroDivisionError
