"""Servers for the adapters: real processes on loopback, with an engine that needs no model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pytest_asyncio import is_async_test

from tests.integrations.forks import Forked, fork
from tests.integrations.recording import Recording, recorded
from tests.waits import until

StartServer = Callable[..., str]

RETRIEVES = ("--embedder", "null", "--store", "memory")  # a server without weights or files

READY_S = 60.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the async tests on one loop, because langchain-openai has one connection pool for all."""
    for item in items:
        if Path(__file__).parent in item.path.parents and is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@contextmanager
def served(*options: str) -> Iterator[str]:
    """The address of a server that runs inside the block."""
    with started(*options) as (url, _):
        yield url


@contextmanager
def started(*options: str) -> Iterator[tuple[str, Forked]]:
    """The address and the process of a server. It runs inside the block, unless it is killed."""
    process = fork(["serve", "--engine", "null", "--port", "0", *options])
    try:
        url = process.said.split()[-1]
        _wait_until_ready(url)
        yield url, process
    finally:
        process.kill()  # tests/e2e has the tests of an orderly end
        process.wait()


def _wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + READY_S
    with httpx2.Client() as client:
        while client.get(f"{url}/health/ready").status_code != 200:
            assert time.monotonic() < deadline, "the server did not become ready"
            time.sleep(0.01)


@pytest.fixture(scope="session")
def echo_url() -> Iterator[str]:
    """A server that answers each prompt with its rendered text."""
    with served() as url:
        yield url


@pytest.fixture(scope="module")
def url(request: pytest.FixtureRequest, start_script: StartServer) -> Iterator[str]:
    """The server of a module: it answers by the `RULES` of the module, or else echoes, and has the
    module's `OPTIONS`.
    """
    rules = getattr(request.module, "RULES", None)
    options = getattr(request.module, "OPTIONS", ())
    if rules is not None:
        yield start_script(rules, *options)
    elif options:
        with served(*options) as url:
            yield url
    else:
        yield request.getfixturevalue("echo_url")


@pytest.fixture(scope="module")
def default_url(url: str) -> Iterator[str]:
    """The module's server, which requests without an address reach."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFTLINE_BASE_URL", url)
        yield url


@contextmanager
def recorded_by_default(url: str) -> Iterator[Recording]:
    """The requests to a server that those without an address reach."""
    with recorded(url) as recording, pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFTLINE_BASE_URL", recording.url)
        yield recording


@pytest.fixture
def recording(url: str) -> Iterator[Recording]:
    """The requests to the server of a module, which those without an address reach, too."""
    with recorded_by_default(url) as recording:
        yield recording


@pytest.fixture(scope="module")
def start_script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Starts a server that answers by rules: with the reply of the first rule whose text the prompt
    has.
    """
    with ExitStack() as servers:

        def start(rules: Sequence[tuple[str, str]], *options: str) -> str:
            path = tmp_path_factory.mktemp("script") / "script.json"
            path.write_text(json.dumps([{"when": when, "reply": reply} for when, reply in rules]))
            script = ("--null-mode", "script", "--null-script", str(path))
            return servers.enter_context(served(*script, *options))

        yield start


@pytest.fixture(scope="module")
def watched(url: str) -> Iterator[Any]:
    """A LangChain model, whose requests to the server with the module's rules are recorded."""
    from langchain_weftline import ChatWeftline
    from tests.integrations.provenance import Watched

    with recorded(url) as recording:
        yield Watched(ChatWeftline(base_url=recording.url, temperature=0), recording)


@pytest.fixture(scope="module")
def plain_llm(url: str) -> Any:
    """A LangChain model that sends no provenance to that server."""
    from langchain_weftline import ChatWeftline

    return ChatWeftline(base_url=url, temperature=0, provenance=False)


async def idle(url: str) -> None:
    """Wait until the server has no session."""
    await until(lambda: "weftline_sessions_open 0.0" in httpx2.get(f"{url}/metrics").text)
