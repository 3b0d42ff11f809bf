"""Accelerated chains hand out the graphs of their runs, from another thread."""

from __future__ import annotations

import asyncio
import queue
from typing import Any

from langchain_weftline import ChatWeftline, accelerate
from tests.integrations.step_chain import WAIT_S, steps


async def test_the_graph_of_each_run(echo_url: str) -> None:
    """With `on_graph`, each run gives one graph with its three calls."""
    llm = ChatWeftline(base_url=echo_url, temperature=0)
    graphs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    chain = accelerate(steps(llm), on_graph=graphs.put)
    chain.invoke({"x": "soup"})
    await chain.ainvoke({"x": "bread"})
    seen = [await asyncio.to_thread(graphs.get, timeout=WAIT_S) for _ in range(2)]
    assert [len(graph["calls"]) for graph in seen] == [3, 3]
    assert seen[0]["session_id"] != seen[1]["session_id"]
