"""Random graphs of steps and calls give what their steps give one by one, whatever is left out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weftline.contract.protocol import Call, InOut, Placeholder, Segment, SubmitBody
from weftline.contract.steps import Embed, Ingest, Merge, Rerank, Search, Source, Step
from weftline_engine import api
from weftline_engine.pretend.null import NullConfig, NullEngine
from weftline_engine.services.retrieval.local import LocalItems
from weftline_engine.services.retrieval.plain_backends import MemoryTable, WordBackend
from weftline_engine.services.retrieval.stores import StoreBackend
from weftline_server.passes import PASSES
from weftline_server.runtime.driver import Driver
from weftline_server.runtime.registry import Registry, RegistryConfig
from weftline_server.schedule.dispatcher import Dispatcher

SWITCHES = sorted([*PASSES, "prefill_early", "dedupe"])
WORDS = ("red", "fox", "blue", "whale", "a", "newt")
LISTED = ("line_list", "comma_list", "markdown_list", "json")

texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join)


def written(op: str, items: Sequence[str]) -> str:
    """The text that a call must write for its transform to make this list."""
    if op == "json":
        return json.dumps(list(items))
    separator, mark = {"line_list": ("\n", ""), "comma_list": (", ", "")}.get(op, ("\n", "- "))
    return separator.join(mark + item for item in items)


@dataclass
class Drawn:
    """A graph, in an order in which it can run, and its variables by what they hold."""

    nodes: list[Call | Step] = field(default_factory=list)
    lists: list[Source] = field(default_factory=list)  # lists of texts
    vectors: list[str] = field(default_factory=list)
    hits: list[str] = field(default_factory=list)
    stores: dict[str, list[str]] = field(default_factory=dict)  # what was done to each, in order
    reads: set[str] = field(default_factory=set)

    def name(self) -> str:
        return f"v{len(self.nodes)}"

    def add(self, node: Call | Step) -> None:
        self.nodes.append(node)


def call(name: str, *segments: Segment | Placeholder, transforms: Any = ()) -> Call:
    out = Placeholder(name="o", in_out=InOut.OUT, semantic_var_id=name, transforms=transforms)
    holders = [one for one in segments if isinstance(one, Placeholder)]
    prompt = tuple(
        Segment(input=one.name) if isinstance(one, Placeholder) else one for one in segments
    )
    return Call(name=name, prompt=(*prompt, Segment(output="o")), placeholders=(out, *holders))


def use_store(draw: st.DrawFn, made: Drawn, kind: str, name: str) -> None:
    """Ingest or search. The steps of one store are ordered; some of the other are, for nothing."""
    store = draw(st.sampled_from(("docs", "more")))
    vectors = Source(var=draw(st.sampled_from(made.vectors)))
    done = made.stores.setdefault(store, [])
    idle = draw(st.sampled_from([(), *((one,) for one in made.vectors)]))
    after = tuple(dict.fromkeys((*done, *idle)))
    done.append(name)
    if kind == "ingest":
        made.add(Ingest(in_=vectors, store=store, out=name, name=name, after=after))
    else:
        made.add(
            Search(
                in_=vectors,
                store=store,
                out=name,
                name=name,
                after=after,
                k=draw(st.integers(1, 3)),
            )
        )
        made.hits.append(name)


@st.composite
def graphs(draw: st.DrawFn) -> Drawn:
    made = Drawn()
    for at in range(draw(st.integers(2, 9))):
        kind = (
            "list"
            if at == 0
            else draw(
                st.sampled_from(("list", "embed", "ingest", "search", "merge", "rerank", "ask"))
            )
        )
        name = made.name()
        if kind == "list":
            op, items = draw(st.sampled_from(LISTED)), draw(st.lists(texts, min_size=1, max_size=5))
            spec, by_call = ({"op": op},), draw(st.booleans())
            text = Segment(text=written(op, items))
            made.add(call(name, text, transforms=spec if by_call else ()))
            made.lists.append(Source(var=name, transforms=() if by_call else spec))
        elif kind == "embed":
            constant = Source(value=draw(st.lists(texts, max_size=5)))
            source = draw(st.sampled_from([*made.lists, constant, Source(value=draw(texts))]))
            made.add(Embed(in_=source, out=name, name=name))
            made.vectors.append(name)
        elif kind in ("ingest", "search") and made.vectors:
            use_store(draw, made, kind, name)
        elif kind == "merge" and made.hits:
            limit = draw(st.sampled_from((None, 2)))
            hits = Source(var=draw(st.sampled_from(made.hits)))
            made.add(Merge(in_=hits, out=name, name=name, limit=limit))
            made.hits.append(name)
        elif kind == "rerank" and made.hits:
            merged = [one.out for one in made.nodes if isinstance(one, Merge) and one.out]
            source = Source(value=draw(st.lists(texts, max_size=4)))
            if merged:
                source = Source(var=draw(st.sampled_from(merged)))
            query = Source(value=draw(texts))
            made.add(
                Rerank(in_=source, query=query, out=name, name=name, k=draw(st.integers(1, 4)))
            )
        elif kind == "ask" and made.hits:
            read = draw(st.sampled_from(made.hits))
            holder = Placeholder(
                name="h", in_out=InOut.IN, semantic_var_id=read, transforms=({"op": "texts"},)
            )
            made.add(call(name, Segment(text="Read "), holder))
    return made


class Pairs(WordBackend):
    """Two texts are a batch, so that short lists are split."""

    def describe(self) -> api.Description:
        return replace(super().describe(), batch_profile=((2, 64, 0.1),))


class Servers:
    """Drivers on null engines and one event loop; each example is a tenant of its own."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.tenants = 0
        self._made: dict[frozenset[str], Started] = {}

    async def without(self, names: frozenset[str]) -> Started:
        """The driver that leaves these out. The passes are decided for each session."""
        outside = names - frozenset(PASSES)
        if outside not in self._made:
            self._made[outside] = Started(outside)
            await self._made[outside].dispatcher.start(self._made[outside].driver.reports)
        made = self._made[outside]
        made.driver.registry._without = names
        return made

    def close(self) -> None:
        async def stop() -> None:
            for made in self._made.values():
                await made.driver.shut_down()
                await made.dispatcher.close()

        self.runner.run(stop())
        self.runner.close()


class Started:
    """A driver with an embedder and two stores."""

    def __init__(self, without: frozenset[str]) -> None:
        self.tables = {name: MemoryTable() for name in ("docs", "more")}
        kept = 0 if "dedupe" in without else None
        engines: dict[str, Any] = {
            "null": lambda: NullEngine(NullConfig()),
            "words": lambda: LocalItems(Pairs("words"), most_items=2, kept=kept),
        }
        for name, table in self.tables.items():
            engines[name] = partial(LocalItems, StoreBackend(name, table))
        self.dispatcher = Dispatcher(engines, "app", without=without)
        self.driver = Driver(Registry(RegistryConfig(), without), self.dispatcher, without)

    async def run(self, graph: Drawn, tenant: str, *, together: bool) -> dict[str, Any]:
        """The value of every variable, and what the stores hold in the end."""
        session = self.driver.open(tenant)
        for nodes in [graph.nodes] if together else [[node] for node in graph.nodes]:
            calls = tuple(one for one in nodes if isinstance(one, Call))
            steps = tuple(one for one in nodes if not isinstance(one, Call))
            await self.driver.submit(session, SubmitBody(calls=calls, steps=steps, detach=True))
            for variable in list(session.variables):
                await self.driver.readers.get(session, variable)
        session.validate()
        found = {id: one.value for id, one in session.variables.items()}
        self.driver.close(session)
        for name, table in self.tables.items():
            found[f"in {name}"] = table.fetch(tenant, table.matching(tenant, {}))
        return found


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.close()


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), st.just(frozenset()) | st.frozensets(st.sampled_from(SWITCHES)))
def test_a_graph_gives_what_its_steps_give_one_by_one(
    servers: Servers, graph: Drawn, without: frozenset[str]
) -> None:
    """All variables are equal, and so is what the stores hold in the end."""
    servers.tenants += 1
    tenant = str(servers.tenants)

    async def both() -> None:
        async with asyncio.timeout(30):
            alone = await servers.without(frozenset(SWITCHES))
            expected = await alone.run(graph, f"alone {tenant}", together=False)
            made = await servers.without(without)
            assert await made.run(graph, tenant, together=True) == expected

    servers.runner.run(both())
