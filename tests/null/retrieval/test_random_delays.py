"""A search never runs before its ingest, however long each engine takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

from tests.null.asgi import Serve
from tests.null.retrieval.test_steps import run, step, text
from weftline_engine import api
from weftline_engine.services.retrieval.local import LocalItems
from weftline_engine.services.retrieval.plain_backends import MemoryTable, WordBackend
from weftline_engine.services.retrieval.stores import StoreBackend

SUBMITS = 20


class Slow(LocalItems):
    """Tells its events after 0 to 4 ms."""

    def __init__(self, backend: Any, seed: int) -> None:
        super().__init__(backend, kept=0)
        self._random = Random(seed)

    async def events(self) -> AsyncIterator[list[api.Event]]:
        async for events in super().events():
            await asyncio.sleep(self._random.choice([0.0, 0.001, 0.004]))
            yield events


async def test_a_search_never_comes_before_its_ingest(serve: Serve) -> None:
    """The question is embedded in a moment, and the chunks are not. It finds the newest chunk."""
    table = MemoryTable()
    engines = {
        "words": lambda: Slow(WordBackend("words"), 1),
        "docs": lambda: Slow(StoreBackend("docs", table), 2),
    }
    server = await serve(also=engines)

    async def one(number: int) -> Any:
        chunks = [f"whale{number} {n}" for n in range(number % 7 + 1)]
        steps = (
            step("embed", chunks, "vecs"),
            step("ingest", "vecs", "indexed", store="docs"),
            {**step("embed", [], "query"), "in": text(f"whale{number}")},
            step("search", "query", "hits", store="docs", k=1, after=["indexed"]),
        )
        found = (await run(server, *steps, get=["hits"])).json()["values"]["hits"]
        return found[0]["text"].split()[0]

    found = await asyncio.gather(*map(one, range(SUBMITS)))
    assert found == [f"whale{number}" for number in range(SUBMITS)]
