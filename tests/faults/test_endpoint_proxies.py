"""How requests reach an endpoint: through the environment's proxy, and without threads."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.null.endpoints import Endpoint as Scripted
from tests.null.endpoints import streams
from weftline_engine.remote.openai.endpoint import Endpoint, EndpointConfig, proxy_of

BODY: dict[str, Any] = {"prompt": [1, 2]}


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name.upper()}_PROXY", raising=False)


class Counting(ThreadPoolExecutor):
    """An executor that counts what it is given."""

    given = 0

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        self.given += 1
        return super().submit(*args, **kwargs)


async def test_a_request_uses_no_thread() -> None:
    """A thread for each request would be 0.2 ms of waiting, and more on a busy machine."""
    executor = Counting(1)
    asyncio.get_running_loop().set_default_executor(executor)
    scripted = Scripted(streams("a"))
    async with scripted.on_port() as port:
        endpoint = Endpoint(EndpointConfig(url=f"http://127.0.0.1:{port}/v1"))
        for _ in range(3):
            events = [one async for one in endpoint.stream("/completions", BODY, {})]
            assert len(events) == 2
        await endpoint.close()
    assert len(scripted.requests) == 3
    assert executor.given == 0


async def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the whole address. NO_PROXY excepts a host."""
    proxy = Scripted(streams("a"))
    async with proxy.on_port() as port:
        address = f"http://127.0.0.1:{port}"
        monkeypatch.setenv("http_proxy", address)
        monkeypatch.setenv("no_proxy", "near.invalid")
        endpoint = Endpoint(EndpointConfig(url="http://far.invalid/v1"))
        events = [one async for one in endpoint.stream("/completions", BODY, {})]
        await endpoint.close()
        assert len(events) == 2
        assert proxy.targets == ["http://far.invalid/v1/completions"]
        assert proxy_of("http://far.invalid/v1") == address
        assert proxy_of("http://near.invalid/v1") is None
        assert proxy_of("https://far.invalid/v1") is None
