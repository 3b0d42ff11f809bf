"""What a user sets on a model's connection holds for every request that is made for the model."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import openai
import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.llms.weftline import Weftline
from llama_index.llms.weftline.plan.options import is_sent_ahead

from langchain_weftline import ChatWeftline, accelerate
from langchain_weftline.model.transport import httpx
from tests.integrations.recording import Recording
from tests.integrations.test_llama_ahead import nodes
from weftline import AsyncClient, Client
from weftline.errors import ConnectionFailed, Timeout

SUBMIT, CHAT = "/v1/submit", "/v1/chat/completions"
NOWHERE = "http://weftline.invalid:8600"  # a name that no resolver knows
FIRST = ChatPromptTemplate.from_template("Name a {thing}.")
SECOND = ChatPromptTemplate.from_template("Describe: {text}")


def chain(llm: Any) -> Any:
    """Two calls, of which the second reads the first one's answer."""
    text = StrOutputParser()
    return FIRST | llm | text | {"text": lambda said: said[:5]} | SECOND | llm | text


def sent_ahead(llm: Any) -> Any:
    """Two calls that are one submit."""
    text = StrOutputParser()
    return accelerate(FIRST | llm | text | {"text": lambda said: said} | SECOND | llm | text)


def run_all(llm: Any) -> None:
    """A plain chain and one that is sent ahead, in every way."""
    for one in (chain(llm), sent_ahead(llm)):
        one.invoke({"thing": "river"})
        asyncio.run(one.ainvoke({"thing": "river"}))
        "".join(one.stream({"thing": "river"}))


def paths(recording: Recording) -> set[str]:
    return {path.partition("?")[0] for _, path, _ in recording.requests}


def test_headers_query_and_organization_are_sent_with_every_request(recording: Recording) -> None:
    """A gateway finds them on submits, chats, and where a session is closed."""
    llm = ChatWeftline(
        base_url=recording.url,
        api_key="secret",
        organization="rivers",
        default_headers={"X-Gateway": "north"},
        default_query={"tenant": "a b", "zone": 7},
        max_retries=0,
    )
    run_all(llm)
    assert {SUBMIT, CHAT} <= paths(recording)
    for (_, path, _), headers in zip(recording.requests, recording.headers, strict=True):
        assert path.endswith("?tenant=a+b&zone=7"), path
        assert headers["x-gateway"] == "north", path
        assert headers["openai-organization"] == "rivers", path
        assert headers["authorization"] == "Bearer secret", path


def test_a_header_of_the_users_replaces_the_key(recording: Recording) -> None:
    """As in the openai client, also where it is spelled in another way."""
    own = {"authorization": "Basic abc"}
    run_all(ChatWeftline(base_url=recording.url, default_headers=own))
    Weftline(base_url=recording.url, api_key="secret", default_headers=own).complete("Hello.")
    assert {SUBMIT, CHAT} <= paths(recording)
    assert {headers["authorization"] for headers in recording.headers} == {"Basic abc"}


@pytest.mark.parametrize("by", ["setting", "environment"])
def test_every_request_goes_through_the_proxy(
    by: str, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has an address that only the proxy can reach."""
    more: dict[str, Any] = {"openai_proxy": recording.url} if by == "setting" else {}
    if by == "environment":
        monkeypatch.setenv("HTTP_PROXY", recording.url)
        monkeypatch.setenv("http_proxy", recording.url)
    llm = ChatWeftline(base_url=NOWHERE, max_retries=0, **more)
    run_all(llm)
    assert llm.openai_proxy == more.get("openai_proxy")
    assert {NOWHERE + SUBMIT, NOWHERE + CHAT} <= paths(recording)
    if by == "environment":
        recording.requests.clear()
        made = get_response_synthesizer(
            response_mode="accumulate",  # type: ignore[arg-type]
            llm=Weftline(base_url=NOWHERE, max_tokens=8, context_window=400),
        )
        made.synthesize("Where?", nodes(2))
        assert paths(recording) >= {NOWHERE + SUBMIT}
    assert all(path.startswith(NOWHERE) for _, path, _ in recording.requests)


def signing(seen: list[str]) -> dict[str, Any]:
    """Clients of a user that sign each request."""

    def sign(request: Any) -> None:
        request.headers["X-Signed"] = "yes"
        seen.append(request.url.path)

    async def async_sign(request: Any) -> None:
        sign(request)

    return {
        "http_client": httpx.Client(event_hooks={"request": [sign]}),
        "http_async_client": httpx.AsyncClient(event_hooks={"request": [async_sign]}),
    }


OWN: dict[str, Callable[[], dict[str, Any]]] = {
    "clients with hooks": lambda: signing([]),
    "one client": lambda: {"http_client": signing([])["http_client"]},
    "a key that is a function": lambda: {"api_key": lambda: "fresh"},
    "socket options": lambda: {"http_socket_options": []},
}


@pytest.mark.parametrize("setting", OWN)
def test_what_a_submit_cannot_carry_makes_the_calls_ordinary(
    setting: str, recording: Recording
) -> None:
    """The model sends its own requests, and the explanation says why."""
    llm = ChatWeftline(base_url=recording.url, max_retries=0, **OWN[setting]())
    ahead = sent_ahead(llm)
    answer = ahead.invoke({"thing": "river"})
    assert answer == ahead.bound.invoke({"thing": "river"})
    assert SUBMIT not in paths(recording)
    assert len(recording.bodies(CHAT)) == 4
    if "clients" in setting:
        signed = [h for h in recording.headers if h.get("x-signed")]
        assert len(signed) == len(recording.headers)
    if "key" in setting:
        assert {h["authorization"] for h in recording.headers} == {"Bearer fresh"}
    assert "of yours" in str(ahead.explain({"thing": "river"}))


def test_an_llm_with_other_headers_is_not_sent_ahead_with_anothers(recording: Recording) -> None:
    """Calls of two LLMs are one submit only if both would send the same headers."""
    one, same, other = (
        Weftline(base_url=recording.url, default_headers={"X-Team": team}) for team in "aab"
    )
    assert is_sent_ahead(same, one.asking.server)
    assert not is_sent_ahead(other, one.asking.server)


def test_a_client_sends_its_query_beside_that_of_a_request(recording: Recording) -> None:
    """The parameters of a request stay. Both clients take a proxy, too."""
    with Client(recording.url, query={"zone": "7"}) as client:
        client.sessions(limit=3)

    async def through_proxy() -> None:
        async with AsyncClient(NOWHERE, query={"zone": "8"}, proxy=recording.url) as client:
            await client.sessions(limit=4)

    asyncio.run(through_proxy())
    assert [path for _, path, _ in recording.requests] == [
        "/v1/sessions?limit=3&zone=7",
        f"{NOWHERE}/v1/sessions?limit=4&zone=8",
    ]


@pytest.fixture
def deaf_url() -> Iterator[str]:
    """A server that opens no connection: its queue is full, so the kernel drops each attempt."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


TIMEOUTS: dict[str, Any] = {
    "a number": 0.3,
    "connect and read": (0.3, 60),
    "of httpx": httpx.Timeout(60, connect=0.3),
}


@pytest.mark.parametrize("timeout", TIMEOUTS.values(), ids=TIMEOUTS)
def test_a_submit_gives_up_when_the_model_would(timeout: Any, deaf_url: str) -> None:
    """The submit and then the model's own request may take 0.3 s each to connect."""
    llm = ChatWeftline(base_url=deaf_url, timeout=timeout, max_retries=0)
    began = time.monotonic()
    with pytest.raises(openai.APITimeoutError):
        sent_ahead(llm).invoke({"thing": "river"})
    assert 0.55 < time.monotonic() - began < 4


def test_a_query_gives_up_within_the_timeout(deaf_url: str) -> None:
    """LlamaIndex's `timeout` is a number, which holds for connecting, too."""
    llm = Weftline(base_url=deaf_url, timeout=0.3, max_retries=0, context_window=3900)
    began = time.monotonic()
    with pytest.raises((Timeout, ConnectionFailed)):
        llm.complete("Hello.")
    made = get_response_synthesizer(response_mode="refine", llm=llm)
    with pytest.raises((Timeout, ConnectionFailed)):
        made.synthesize("Where?", nodes(2))
    assert time.monotonic() - began < 4


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [(None, 5.0), (20, 20.0), ((7, 1), 7.0), (httpx.Timeout(9, connect=None), None)],
)
def test_a_submit_waits_as_long_as_the_user_allows(timeout: Any, seconds: float | None) -> None:
    """Also longer than our own 5 s, or without a limit."""
    assert ChatWeftline(timeout=timeout).server.connect_s == seconds
