"""The SDK's semantic functions on a whole server: the requests, their time, and the refusals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.null.asgi import Serve
from weftline import AsyncClient, Input, Output, semantic_function
from weftline.errors import (
    DuplicateProducer,
    InvalidRequest,
    MissingInput,
    TransformFailed,
    UnknownPlaceholder,
)
from weftline.sdk.aclient import AsyncSession
from weftline_engine.pretend.null import NullConfig, NullMode


@semantic_function
def shout(words, loud):
    """Shout {{input:words}}! {{output:loud}}"""


@semantic_function
def both(words, first, second=Output(max_tokens=2)):  # noqa: B008
    """{{input:words}}: {{output:first}} and {{output:second}}"""


@semantic_function
def at_the_start(first, second):
    """{{output:first}} goes on {{output:second}}"""


@semantic_function
def title(
    book=Input(transforms=[{"op": "path", "keys": ["title"]}]),  # noqa: B008
    line=Output(transforms=[{"op": "json"}]),  # noqa: B008
):
    """ "{{input:book}}"{{output:line}}"""


class Sent(httpx2.AsyncBaseTransport):
    """The server under test, and the method and path of each request that it got."""

    def __init__(self, app: Any) -> None:
        self._inner = httpx2.ASGITransport(app)
        self.requests: list[str] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(f"{request.method} {request.url.path}")
        return await self._inner.handle_async_request(request)


@pytest.fixture
async def sent(serve: Serve) -> Sent:
    """A server that echoes its prompts."""
    return Sent((await serve()).app)


@pytest.fixture
async def session(sent: Sent) -> AsyncIterator[AsyncSession]:
    async with AsyncClient("http://t", transport=sent) as client, client.session() as session:
        yield session


async def test_all_calls_are_sent_with_the_first_get(session: AsyncSession, sent: Sent) -> None:
    """Of two independent calls, the first get starts both."""
    one, two = shout("one"), shout(words="two")
    assert sent.requests == ["POST /v1/session"]
    assert await one == "Shout one! "
    assert [c["name"] for c in (await session.graph())["calls"]] == ["shout", "shout"]
    assert await two == "Shout two! "
    story = [(event["n"], event["event"]) for event in await session.events()]
    assert story[:2] == [(1, "TasksSubmitted"), (2, "PrimitivePrepared")]
    posts = [request for request in sent.requests if request.startswith("POST")]
    assert posts == ["POST /v1/session", "POST /v1/submit", "POST /v1/get"]


async def test_an_output_may_be_a_variable_that_is_there_already(session: AsyncSession) -> None:
    """Its reader is called before the call that writes it. A second producer is refused."""
    for words in ("rivers", "lakes"):
        shout(words, loud=session.variable("twice"))
    with pytest.raises(DuplicateProducer):
        await session.flush()
    draft = session.variable("draft")
    final = shout(draft)
    made = shout("rivers", loud=draft)
    assert made.id == "draft"
    assert await final == "Shout Shout rivers! ! "
    with pytest.raises(InvalidRequest, match="takes a variable, not a value"):
        shout("lakes", loud="draft")


async def test_several_outputs_and_one_at_the_very_start(serve: Serve) -> None:
    """Each output has a future, in the docstring's order. The later output sees the earlier one."""
    script = (("b! and", "c!"), ("b! goes on", "d!"), ("", "b!"))
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=script))
    transport = httpx2.ASGITransport(server.app)
    async with AsyncClient("http://t", transport=transport) as client, client.session():
        first, second = both("x")
        assert (await second, await first) == ("c!", "b!")
        first, second = at_the_start()
        assert (await second, await first) == ("d!", "b!")


async def test_transforms_and_sampling_are_those_of_the_marks(session: AsyncSession) -> None:
    """An input's transforms run on its value, an output's on its text. The length belongs to the
    output.
    """
    assert await title({"title": "Rivers", "pages": 3}) == "Rivers"
    first, second = both("one two three")
    assert (await second, await first) == ("one two", "one two three: ")
    with pytest.raises(TransformFailed) as caught:
        await title({"name": "Rivers"})
    assert caught.value.call == "title"


async def test_a_value_is_never_read_as_a_template(session: AsyncSession) -> None:
    """Braces in a user's text are text."""
    assert await shout("{{output:loud}} {{input:words}}") == (
        "Shout {{output:loud}} {{input:words}}! "
    )


async def test_a_wrong_call_is_an_immediate_error(session: AsyncSession, sent: Sent) -> None:
    """The error comes before anything is sent, and names the argument at fault."""
    with pytest.raises(MissingInput) as missing:
        shout()
    with pytest.raises(UnknownPlaceholder) as unknown:
        shout("x", volume=3)
    with pytest.raises(UnknownPlaceholder) as twice:
        shout("x", words="y")
    with pytest.raises(UnknownPlaceholder, match="takes 2 arguments, not 3"):
        shout("x", None, "y")
    assert [e.value.param for e in (missing, unknown, twice)] == ["words", "volume", "words"]
    with pytest.raises(TypeError, match=r"call \.get\(\) first"):
        f"{shout('x')}"
    assert sent.requests == ["POST /v1/session"]


async def test_a_variable_stays_in_its_session(serve: Serve) -> None:
    """Another session's variable has to be read first. A call of it without a session has none to
    join.
    """
    async with AsyncClient("http://t", transport=Sent((await serve()).app)) as client:
        async with client.session():
            own = shout("x")
        async with client.session():
            with pytest.raises(InvalidRequest, match="variable of another session"):
                shout(own)
        with pytest.raises(RuntimeError, match="called inside a session"):
            shout("x")


def test_a_function_that_does_not_fit_its_docstring() -> None:
    """The error comes at the definition, not at the call."""
    with pytest.raises(UnknownPlaceholder, match=r"has no \{\{output:"):

        @semantic_function
        def silent(words):
            """{{input:words}}"""

    with pytest.raises(UnknownPlaceholder, match="'other' of odd is missing"):

        @semantic_function
        def odd(other):
            """{{output:o}}"""
