"""The names of tasks in traces, by the conventions of OpenTelemetry: inference, retrieval, tool."""

from __future__ import annotations

from typing import Any

from tests.null.asgi import Serve, call
from weftline_engine.services.retrieval.local import LocalItems
from weftline_engine.services.retrieval.plain_backends import MemoryTable, WordBackend
from weftline_engine.services.retrieval.stores import StoreBackend
from weftline_server.observe.spans import described


async def test_each_kind_of_step_has_its_operation(serve: Serve) -> None:
    """Embedding, retrieval, a tool of the client, and a call, which has its model and tokens."""
    table = MemoryTable()
    server = await serve(
        also={
            "words": lambda: LocalItems(WordBackend("words")),
            "docs": lambda: LocalItems(StoreBackend("docs", table)),
        }
    )
    session = await server.session()
    steps: list[dict[str, Any]] = [
        {"kind": "embed", "in": {"value": ["a text"]}, "out": "vectors"},
        {"kind": "ingest", "in": {"var": "vectors"}, "store": "docs", "out": "indexed"},
        {"kind": "search", "in": {"var": "vectors"}, "store": "docs", "k": 1, "after": ["indexed"],
         "out": "hits"},
        {"kind": "client", "name": "mine", "reads": ["hits"], "out": "mine"},
    ]  # fmt: skip
    await server.submit(session, call("ask", "so {{output:said}}", said="said"), steps=steps)
    for variable in ("said", "hits"):
        assert (await server.get(session, variable)).json()["value"]
    found = server.driver.registry.find("local", session)
    named = {}
    for run in found.tasks.values():
        name, attributes = described(run)
        named[run.task.name] = (name, attributes["gen_ai.operation.name"], attributes)
    names = {name: one[:2] for name, one in named.items()}
    assert names == {
        "ask": ("chat null", "chat"),
        "embed": ("embeddings words", "embeddings"),
        "ingest": ("ingest docs", "ingest"),
        "search": ("retrieval docs", "retrieval"),
        "mine": ("execute_tool mine", "execute_tool"),
    }
    assert named["mine"][2]["gen_ai.tool.name"] == "mine"
    ask = named["ask"][2]
    assert (ask["gen_ai.request.model"], ask["gen_ai.usage.output_tokens"]) == ("null", 2)
    assert ask["gen_ai.response.finish_reasons"] == ["stop"]
