"""The SDK's verbs branch, each, loop and function on a whole server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from tests.null.asgi import Serve
from weftline import AsyncClient, Output, client_step, semantic_function
from weftline.errors import InvalidRequest, Skipped
from weftline.sdk.aclient import AsyncSession
from weftline_server.commands.retrieval_tables import factories, from_tables


@semantic_function
def echo(text, said):
    """{{input:text}}{{output:said}}"""


@semantic_function
def listed(text, items=Output(transforms=[{"op": "comma_list"}])):  # noqa: B008
    """{{input:text}}{{output:items}}"""


@client_step
def upper(text: str) -> str:
    return text.upper()


@pytest.fixture
async def session(serve: Serve, tmp_path: Path) -> AsyncIterator[AsyncSession]:
    (tmp_path / "mine.py").write_text("def count(text, more=0):\n    return len(text) + more\n")
    table = {"name": "count", "call": "mine:count", "path": str(tmp_path)}
    server = await serve(also=factories(from_tables({"function": [table]})))
    transport = httpx2.ASGITransport(server.app)
    async with AsyncClient("http://t", transport=transport) as client, client.session() as made:
        yield made


async def test_all_verbs_make_one_graph(session: AsyncSession) -> None:
    """A list, a branch for each of its items, a loop over the first letters, and a function."""
    even = {"op": "in", "value": ["b", "d"]}
    marked = session.each(
        listed("a,b,c"),
        lambda item: session.branch(item, [(even, echo("even"))], default=echo(item)),
    )
    text = echo(marked)
    grown = session.loop(
        text, lambda t: (echo(t), echo(t)), until={"op": "starts", "value": "["}, most=4
    )
    size = session.function("count", text=grown, more=1)
    assert await size.get() == len('["a", "even", "c"]') + 1
    assert await marked.get() == ["a", "even", "c"]
    events = [line["event"] for line in await session.events()]
    assert events.count("TasksSubmitted") == 1


async def test_a_skipped_side_is_an_error_of_its_own(session: AsyncSession) -> None:
    """Reading a variable of an untaken side raises Skipped."""
    asked, side = session.variable(), echo("side")
    await asked.set("x")
    taken = session.branch(asked, [({"op": "empty"}, side)], default=echo("default"))
    assert await taken.get() == "default"
    with pytest.raises(Skipped, match="no branch took it"):
        await side.get()


async def test_what_a_body_cannot_hold_is_refused(session: AsyncSession) -> None:
    """The session goes on as if the body had not been tried."""
    before = echo("before")
    with pytest.raises(
        InvalidRequest, match="a client step, or an agent with client_tools, cannot stand in a body"
    ):
        session.each(["a"], lambda item: upper(item))
    with pytest.raises(InvalidRequest, match="a body has a call or a step"):
        session.each(["a"], lambda item: item)
    with pytest.raises(InvalidRequest, match="a variable of another session"):
        session.branch(AsyncClient("http://t").session().variable(), [], default=before)
    assert await before.get() == "before"
    assert len(session.state.computations) == 0
