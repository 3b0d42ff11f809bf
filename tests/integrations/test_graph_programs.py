"""Typical graphs of LangGraph, plain and accelerated: equal in all that a program can see.

The accelerated graph makes no more requests, in one session that has the edges of the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from langchain_core.messages import BaseMessage
from langchain_core.tracers.base import BaseTracer
from langgraph.types import Command, Interrupt

from langchain_weftline import ChatWeftline, accelerate
from tests.integrations import middleware_table, superstep_table
from tests.integrations.conftest import StartServer
from tests.integrations.graph_table import GRAPHS, RULES, GraphProgram
from tests.integrations.recording import Recording, recorded

MODES = ["values", "updates", "messages", "custom"]


@pytest.fixture(scope="module")
def url(start_script: StartServer) -> str:
    return start_script([*superstep_table.RULES, *middleware_table.RULES, *RULES])


@pytest.fixture(scope="module")
def proxy(url: str) -> Iterator[Recording]:
    with recorded(url) as recording:
        yield recording


def shown(value: Any) -> Any:
    """`value` without what differs between any two runs."""
    if isinstance(value, BaseMessage):
        calls = [(call["name"], call["args"]) for call in getattr(value, "tool_calls", ())]
        usage = getattr(value, "usage_metadata", None)
        return value.type, value.content, calls, value.name, usage
    if isinstance(value, Interrupt):
        return "interrupt", shown(value.value)
    if isinstance(value, Command):
        return shown(value.update), str(value.goto)
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(item) for item in value]
    return value


class Tree(BaseTracer):
    """The run trees: kind, name, tags, input and output of each run and of the runs inside it."""

    def __init__(self) -> None:
        super().__init__(_schema_format="original+chat")
        self.trees: list[Any] = []

    def _persist_run(self, run: Any) -> None:
        self.trees.append(self._of(run))

    def _of(self, run: Any) -> Any:
        inside = sorted((self._of(child) for child in run.child_runs), key=str)
        return run.run_type, run.name, sorted(run.tags), _seen(run), inside


def _seen(run: Any) -> Any:
    """What a tracer saw: the prompt and the text of a model, the output of anything else."""
    outputs = run.outputs or {}
    if run.run_type != "chat_model":
        return shown(outputs.get("output", outputs))
    asked = [message["kwargs"] for message in run.inputs["messages"][0]]
    prompt = [(one["type"], one["content"], len(one.get("tool_calls", ()))) for one in asked]
    return prompt, [one[0]["text"] for one in outputs["generations"]]


def made(program: GraphProgram, url: str, way: Callable[[Any], Any], **options: Any) -> Any:
    return way(program.make(ChatWeftline(base_url=url, temperature=0, max_retries=0, **options)))


def unchanged(graph: Any) -> Any:
    return graph


def run(program: GraphProgram, graph: Any, config: Any) -> list[Any]:
    """What each turn of a program gives."""
    config = {**config, **(THREAD if program.then else {})}

    async def turns() -> list[Any]:
        return [await graph.ainvoke(given, config) for given in (program.given, *program.then)]

    if program.is_async:
        return asyncio.run(turns())
    return [graph.invoke(given, config) for given in (program.given, *program.then)]


THREAD: Any = {"configurable": {"thread_id": "a"}}
WAYS: tuple[tuple[Callable[[Any], Any], dict[str, Any]], ...] = (
    (unchanged, {"provenance": False}),
    (accelerate, {}),
)
all_graphs = pytest.mark.parametrize("program", GRAPHS, ids=[one.name for one in GRAPHS])


@all_graphs
def test_a_graph(program: GraphProgram, proxy: Recording) -> None:
    """Equal results and run trees, with the requests and edges of the table."""
    found = []
    for way, options in WAYS:
        proxy.requests.clear()
        tree = Tree()
        graph = made(program, proxy.url, way, **options)
        result = run(program, graph, {"callbacks": [tree]})
        posted = [path for verb, path, _ in proxy.requests if verb == "POST"]
        found.append((shown(result), tree.trees, len(posted)))
    plain, ours = found
    assert ours[0] == plain[0]
    assert ours[1] == plain[1]
    assert (plain[2], ours[2]) == (program.plain, program.ours)
    latest = httpx2.get(f"{proxy.url}/v1/sessions").json()["sessions"][0]["session_id"]
    seen = httpx2.get(f"{proxy.url}/v1/session/{latest}/graph").json()
    assert len(seen["calls"]) == program.plain - program.refused
    assert len({(edge["from"], edge["to"]) for edge in seen["edges"]}) == program.edges


@all_graphs
def test_a_streamed_graph(program: GraphProgram, url: str) -> None:
    """Every stream mode gives the parts of the plain graph, also in async code."""

    config = THREAD if program.then else None
    inputs = program.given, *program.then
    options: Any = {"stream_mode": MODES, "subgraphs": True}

    async def parts(graph: Any) -> list[Any]:
        made = (graph.astream(given, config, **options) for given in inputs)
        return [(mode, part) for turn in made async for _, mode, part in turn]

    streams = []
    for way, settings in WAYS:
        found = []
        if not program.is_sync:
            found.append(_arranged(asyncio.run(parts(made(program, url, way, **settings)))))
        if not program.is_async:
            graph = made(program, url, way, **settings)
            turns = (graph.stream(given, config, **options) for given in inputs)
            taken = [(mode, part) for turn in turns for _, mode, part in turn]
            found.append(_arranged(taken))
        streams.append(found)
    assert streams[0] == streams[1]


def _arranged(parts: list[tuple[str, Any]]) -> dict[str, Any]:
    """The parts of each mode; the text of each message of a node is put together.

    Nodes that run together may give their parts in any order, and a text may be cut anywhere.
    """
    texts: dict[tuple[str, str], str] = {}
    kept: dict[str, list[str]] = {}
    for mode, part in parts:
        if mode != "messages":
            kept.setdefault(mode, []).append(str(shown(part)))
            continue
        message, metadata = part
        node = metadata["langgraph_node"], message.id
        texts[node] = texts.get(node, "") + str(message.content)
    whole = sorted((name, text) for (name, _), text in texts.items())
    return {"texts": whole, **{mode: sorted(found) for mode, found in kept.items()}}
