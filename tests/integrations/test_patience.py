"""A model's timeout and retries in every tier, compared with ChatOpenAI's."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx
import openai
import pytest
from langchain_core.runnables import RunnableLambda

from langchain_weftline import ChatWeftline
from langchain_weftline.model.patience import Patience
from tests.integrations.conftest import served
from tests.integrations.recording import POLL_S
from tests.integrations.tiers import (
    AGAIN,
    ASK,
    GIVEN,
    TEXT,
    TIERS,
    Way,
    chat_weftline,
    outcome,
    plainly,
    tiers,
)
from tests.waits import wait_until


def stalls(make: Callable[..., Any], way: Way, options: dict[str, Any], url: str) -> Any:
    llm = make(url, timeout=0.3, max_tokens=50, **options)
    once = ASK | llm | TEXT
    chain = way(once | AGAIN | llm | TEXT)
    safe = way(once.with_fallbacks([RunnableLambda(lambda x: "instead")]))
    return [
        outcome(lambda: chain.invoke(GIVEN)),
        outcome(lambda: asyncio.run(chain.ainvoke(GIVEN))),
        outcome(lambda: safe.invoke(GIVEN)),
        outcome(lambda: list(way(once).stream(GIVEN)))[:1],
    ]


@pytest.fixture(scope="module")
def stalling_url() -> Iterator[str]:
    with served("--null-mode", "fixed", "--null-step-s", "0.6") as url:
        yield url


@tiers
def test_a_stalled_call_times_out(tier: str, stalling_url: str) -> None:
    """A model's timeout ends the wait, also within a stream. The call that it waited for is
    cancelled.
    """
    ours, way = TIERS[tier]
    plain = plainly(stalls, stalling_url)
    assert issubclass(plain[0][0], openai.APITimeoutError)
    assert stalls(chat_weftline, way, ours, stalling_url) == plain
    # No call without a reader goes on.
    wait_until(lambda: "weftline_sessions_open 0" in httpx.get(f"{stalling_url}/metrics").text)


@pytest.mark.parametrize(
    ("timeout", "max_retries", "expected"),
    [
        (None, None, Patience(math.inf, 2)),
        (3, 0, Patience(3.0, 0)),
        ((5.0, 0.3), 1, Patience(0.3, 1)),
        (httpx.Timeout(5.0, read=0.3), 5, Patience(0.3, 5)),
        (httpx.Timeout(5.0, read=None), 5, Patience(math.inf, 5)),
    ],
)
def test_every_form_of_a_timeout(timeout: Any, max_retries: int | None, expected: Patience) -> None:
    """Every form of ChatOpenAI's timeout works."""
    assert ChatWeftline(timeout=timeout, max_retries=max_retries).patience == expected


@contextmanager
def busy(retry_after: str | None = "0") -> Iterator[tuple[str, list[str]]]:
    """An endpoint that is always too busy, and the requests that it got. Our server is not busy on
    demand.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(self.path)
            self.send_response(503)
            if retry_after is not None:
                self.send_header("Retry-After", retry_after)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """The test's own output is enough."""

    with ExitStack() as stack:
        http = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        http.daemon_threads = True
        thread = Thread(target=http.serve_forever, args=(POLL_S,))
        thread.start()
        stack.callback(thread.join)
        stack.callback(http.shutdown)
        yield f"http://127.0.0.1:{http.server_address[1]}", asked


@pytest.mark.parametrize(("max_retries", "retry_after"), [(0, "0"), (1, "0"), (1, None)])
@pytest.mark.parametrize(
    ("tier", "path"),
    [
        ("plain", "/v1/chat/completions"),
        ("swapped", "/v1/chat/completions"),
        ("accelerated", "/v1/chat/completions"),
    ],
)
def test_max_retries_counts_further_attempts(
    tier: str, path: str, max_retries: int, retry_after: str | None
) -> None:
    """`max_retries` is how often a call is sent again."""
    ours, way = TIERS[tier]
    with busy(retry_after) as (url, asked):
        llm = chat_weftline(url, max_retries=max_retries, **ours)
        with pytest.raises(openai.InternalServerError):
            way(ASK | llm | TEXT).invoke(GIVEN)
        assert asked == [path] * (1 + max_retries)
