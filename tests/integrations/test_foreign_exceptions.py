"""An exception of code around the HTTP client reaches the user, with class and traceback."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from langchain_weftline.model.transport import httpx as chat_openai_http
from tests.integrations.tiers import AGAIN, ASK, GIVEN, TEXT, TIERS, Chain, chat_weftline
from weftline import AsyncClient
from weftline.contract.protocol import Call, InOut, Message, Placeholder, Segment
from weftline.errors import ClientFailed
from weftline.kit import BACKGROUND, RunFeed, Server

pytest.importorskip("llama_index.llms.weftline")
TEXT_OF_CAUSE = "send() got an unexpected keyword argument 'trace'"


class Stop(Exception):
    """An exception of somebody else's library."""


def broken_hook(*args: Any, **kwargs: Any) -> Any:
    """What an instrumentation puts in the place of `send`."""
    raise TypeError(TEXT_OF_CAUSE)


async def abroken_hook(*args: Any, **kwargs: Any) -> Any:
    broken_hook()


@pytest.fixture
def background_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the HTTP client of the graphs. That of the frameworks' own requests works: the openai
    client's is a subclass.
    """
    send = httpx2.AsyncClient.send

    async def broken(self: httpx2.AsyncClient, *args: Any, **kwargs: Any) -> httpx2.Response:
        if type(self) is httpx2.AsyncClient:
            broken_hook()
        return await send(self, *args, **kwargs)

    monkeypatch.setattr(httpx2.AsyncClient, "send", broken)


@pytest.fixture
def all_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break every HTTP client, as an instrumentation of a wrong version does."""
    for library in {httpx2, chat_openai_http}:
        monkeypatch.setattr(library.AsyncClient, "send", abroken_hook)
        monkeypatch.setattr(library.Client, "send", broken_hook)


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """An exception and its causes, as a traceback prints them."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__


def the_cause(error: BaseException) -> BaseException:
    """The last cause. Its traceback must begin in the code that raised it."""
    *_, cause = chain_of(error)
    names = [frame.name for frame in traceback.extract_tb(cause.__traceback__)]
    assert names[-1] == "broken_hook", names
    return cause


def raised(act: Callable[[], Any]) -> BaseException:
    with pytest.raises(Exception) as caught:
        act()
    return caught.value


def two_calls(llm: Any) -> Chain:
    return ASK | llm | TEXT | AGAIN | llm | TEXT


async def _parts(chain: Chain) -> list[Any]:
    return [part async for part in chain.astream(GIVEN)]


WAYS: dict[str, Callable[[Chain], Any]] = {
    "invoke": lambda chain: chain.invoke(GIVEN),
    "ainvoke": lambda chain: asyncio.run(chain.ainvoke(GIVEN)),
    "stream": lambda chain: list(chain.stream(GIVEN)),
    "astream": lambda chain: asyncio.run(_parts(chain)),
    "batch": lambda chain: chain.batch([GIVEN, GIVEN]),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_tier_raises_what_the_plain_model_raises(
    way: str, echo_url: str, all_breaks: None
) -> None:
    """The same class as plain, which differs between versions of openai, of the same cause."""
    errors = {}
    for tier, (options, wrap) in TIERS.items():
        chain = wrap(two_calls(chat_weftline(echo_url, **options)))
        errors[tier] = raised(lambda chain=chain: WAYS[way](chain))
        the_cause(errors[tier])
    plain = [(type(one), str(one)) for one in chain_of(errors["plain"])]
    assert plain[-1] == (TypeError, TEXT_OF_CAUSE)
    for tier in ("swapped", "accelerated"):
        assert [(type(one), str(one)) for one in chain_of(errors[tier])] == plain


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
def test_an_accelerated_chain_answers_and_logs(
    way: str, echo_url: str, background_breaks: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Its model makes the calls that could not be sent ahead. The log has the traceback, once."""
    plain = WAYS[way](two_calls(chat_weftline(echo_url, provenance=False)))
    _, wrap = TIERS["accelerated"]
    chain = wrap(two_calls(chat_weftline(echo_url)))
    with caplog.at_level(logging.WARNING, "langchain_weftline"):
        made = WAYS[way](chain)
    assert (made if isinstance(made, str) else "".join(made)) == (
        plain if isinstance(plain, str) else "".join(plain)
    )
    # A session of an earlier test may be left to expire meanwhile, which another logger says.
    [record] = [one for one in caplog.records if one.name.startswith("langchain_weftline")]
    assert record.exc_info is not None and record.exc_info[1] is not None
    assert type(the_cause(record.exc_info[1])) is TypeError


def call(name: str, variable: str) -> Call:
    out = Placeholder(name="out", in_out=InOut.OUT, semantic_var_id=variable)
    said = Message(role="user", content=(Segment(text="Hi"),))
    answer = Message(role="assistant", content=(Segment(output="out"),))
    return Call(name=name, prompt=(said, answer), placeholders=(out,))


@pytest.mark.parametrize("cause", [Stop("enough"), SystemExit(3), KeyboardInterrupt("hook")])
def test_any_exception_settles_a_feed(
    cause: BaseException, echo_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values, the session and the graph fail with it, and the background goes on."""

    async def stop(*args: Any, **kwargs: Any) -> Any:
        raise cause

    with monkeypatch.context() as patch:
        patch.setattr(httpx2.AsyncClient, "send", stop)
        feed = RunFeed(Server(echo_url))
        feed.send([call("one", "v")], ["v"], graph=True, close=True)
        ends = [feed.results["v"].value, feed.session, feed.graph]
        for end in ends:
            error = end.exception(20)
            assert type(error) is ClientFailed and error.__cause__ is cause
            assert str(error).startswith(
                f"code in this process ended a request: {type(cause).__name__}"
            )
    again = RunFeed(Server(echo_url))
    again.send([call("one", "v")], ["v"], close=True)
    assert again.results["v"].value.result(20).value


def test_work_that_exits_does_not_end_the_background(echo_url: str) -> None:
    """Its own caller gets the SystemExit, and others their results."""

    async def leave() -> None:
        raise SystemExit(3)

    async def models() -> list[str]:
        async with AsyncClient(echo_url) as client:
            return await client.models()

    error = BACKGROUND.start(leave()).exception(20)
    assert type(error) is SystemExit
    assert BACKGROUND.start(models()).result(20)


def test_a_fault_of_a_listener_settles_the_value(echo_url: str) -> None:
    """What an adapter does with a value fails; the readers raise that, and do not wait."""

    def listen(event: Any) -> None:
        raise Stop("the listener")

    feed = RunFeed(Server(echo_url), listen)
    feed.send([call("one", "v")], ["v"], close=True)
    error = feed.results["v"].value.exception(20)
    assert type(error) is ClientFailed and type(error.__cause__) is Stop
