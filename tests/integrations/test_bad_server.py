"""A server that is away, refuses, stalls or dies: every tier fails as ChatOpenAI does there."""

from __future__ import annotations

import asyncio
import math
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import itemgetter
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import openai
import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_openai import ChatOpenAI

from langchain_weftline import ChatWeftline, accelerate, compile_chain
from langchain_weftline.patience import Deadlines, Patience
from tests.integrations.conftest import served, started
from weftline.protocol import Call, InOut, Placeholder

Chain = Runnable[Any, Any]
Way = Callable[[Chain], Chain]

ASK = ChatPromptTemplate.from_template("Tell of {x}.")
AGAIN = ChatPromptTemplate.from_template("Again: {x}")
TEXT = StrOutputParser()
GIVEN = {"x": "soup"}
SLOW = ("--null-mode", "fixed", "--null-step-s", "0.05")


def chat_openai(url: str, **options: Any) -> Any:
    """What people use today, pointed at the same server."""
    key = options.pop("api_key", "none")
    defaults = {"model": "default", "max_retries": 0}
    return ChatOpenAI(base_url=f"{url}/v1", api_key=key, **{**defaults, **options})


def chat_weftline(url: str, **options: Any) -> Any:
    return ChatWeftline(base_url=url, **{"max_retries": 0, **options})


def unchanged(chain: Chain) -> Chain:
    return chain


TIERS: dict[str, tuple[dict[str, Any], Way]] = {
    "T0": ({"provenance": False}, unchanged),
    "T1": ({}, unchanged),
    "T2": ({}, accelerate),
    "T3": ({}, compile_chain),
}
tiers = pytest.mark.parametrize("tier", TIERS)


@contextmanager
def away() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "http://127.0.0.1:1", {}


@contextmanager
def locked() -> Iterator[tuple[str, dict[str, Any]]]:
    with served("--api-key", "the key") as url:
        yield url, {"api_key": "another key"}


@contextmanager
def without_the_model() -> Iterator[tuple[str, dict[str, Any]]]:
    with served() as url:
        yield url, {"model": "nonesuch"}


@contextmanager
def full(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """One session is all that it takes, and it is taken."""
    config = folder / "config.toml"
    config.write_text("[registry]\nmax_sessions = 1\n")
    with served("--config", str(config)) as url:
        httpx.post(f"{url}/v1/session").raise_for_status()
        yield url, {}


@contextmanager
def draining() -> Iterator[tuple[str, dict[str, Any]]]:
    """It ends, but for a call that it still has to finish."""
    with started(*SLOW) as (url, process):
        call = {
            "name": "long",
            "prompt": "{{output:out}}",
            "placeholders": [
                {"name": "out", "in_out": "out", "semantic_var_id": "out"}
                | {"sampling": {"max_tokens": 1000}}
            ],
        }
        answer = httpx.post(f"{url}/v1/submit", json={"calls": [call], "detach": True})
        answer.raise_for_status()
        process.send_signal(signal.SIGTERM)
        while httpx.get(f"{url}/health/ready").status_code == 200:
            time.sleep(0.01)
        yield url, {}
        process.kill()


SERVERS: dict[str, tuple[Any, type[Exception]]] = {
    "away": (away, openai.APIConnectionError),
    "401": (locked, openai.AuthenticationError),
    "404": (without_the_model, openai.NotFoundError),
    "429": (full, openai.RateLimitError),
    "503": (draining, openai.InternalServerError),
}


@pytest.fixture(scope="module", params=SERVERS)
def refusing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict[str, Any], type[Exception]]]:
    """A server that does not answer, what a model is told of it, and what it raises."""
    make, error = SERVERS[request.param]
    arguments = [tmp_path_factory.mktemp("full")] if make is full else []
    with make(*arguments) as (url, options):
        yield url, options, error


def steps(llm: Any, good: Any) -> dict[str, Chain]:
    """Chains whose first or second call fails, with fallbacks and retries in several places."""
    first, second = ASK | llm | TEXT, AGAIN | llm | TEXT
    instead = RunnableLambda(lambda value: f"instead of {value}")
    caught = {"exceptions_to_handle": (openai.APIConnectionError, openai.APIStatusError)}
    retried = {"retry_if_exception_type": (openai.OpenAIError,), "stop_after_attempt": 2}
    return {
        "plain": first | second,
        "second": ASK | good | TEXT | second,
        "first falls back": first.with_fallbacks([instead], **caught) | TEXT,
        "second falls back": first | second.with_fallbacks([instead], **caught),
        "second of two falls back": (
            ASK | good | TEXT | second.with_fallbacks([instead], **caught)
        ),
        "all falls back": (first | second).with_fallbacks([instead], **caught),
        "another error is awaited": first.with_fallbacks(
            [instead], exceptions_to_handle=(openai.BadRequestError,)
        ),
        "retried": (first | second).with_retry(**retried, wait_exponential_jitter=False),
        "a fallback of a model": ASK | llm.with_fallbacks([good]) | TEXT,
        "beside": {"a": first, "b": ASK | good | TEXT} | AGAIN.partial(x="") | good | TEXT,
    }


def outcome(act: Callable[[], Any]) -> tuple[Any, ...]:
    """What `act` gives, or the type and the words of what it raises."""
    try:
        return "value", str(act())
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("tier", TIERS)
def test_refused_as_chat_openai_is(
    tier: str, refusing: tuple[str, dict[str, Any], type[Exception]], echo_url: str
) -> None:
    """Types, words, and the step that fails, which fallbacks and retries around it show."""
    url, options, error = refusing
    ours, way = TIERS[tier]
    expected = steps(chat_openai(url, **options), chat_openai(echo_url))
    chains = steps(chat_weftline(url, **options, **ours), chat_weftline(echo_url, **ours))
    assert issubclass(outcome(lambda: expected["plain"].invoke(GIVEN))[0], error)
    for name, plain in expected.items():
        chain = way(chains[name])
        wanted = outcome(lambda plain=plain: plain.invoke(GIVEN))
        assert outcome(lambda chain=chain: chain.invoke(GIVEN)) == wanted, name
        assert outcome(lambda chain=chain: asyncio.run(chain.ainvoke(GIVEN))) == wanted, name
        streamed = outcome(lambda plain=plain: "".join(plain.stream(GIVEN)))
        assert outcome(lambda chain=chain: "".join(chain.stream(GIVEN))) == streamed, name


class Odd:
    """A value that no template shows."""

    def __format__(self, spec: str) -> str:
        raise ArithmeticError("not to be shown")


BAD_VALUES: tuple[Any, ...] = (
    *({}, {"y": "soup"}, "soup", 5, None, ["soup"], {"x": None}, {"x": ["soup", 1]}),
    *({"x": Odd()}, {"x": HumanMessage("soup")}),
)


@tiers
def test_bad_values(tier: str, echo_url: str) -> None:
    """Missing variables, other types, a parser that fails: the same step complains."""
    ours, way = TIERS[tier]

    def chains(llm: Any) -> list[Chain]:
        caught = {"exceptions_to_handle": (OutputParserException,)}
        instead = RunnableLambda(lambda value: "instead")
        parsed = ASK | llm | JsonOutputParser()
        messages = ChatPromptTemplate.from_messages([MessagesPlaceholder("x")])
        return [
            ASK | llm | TEXT,
            ASK | llm | TEXT | AGAIN | llm | TEXT,
            messages | llm | TEXT,
            llm | TEXT,
            parsed,
            parsed | AGAIN | llm | TEXT,
            parsed.with_fallbacks([instead], **caught) | AGAIN | llm | TEXT,
            ASK | llm | TEXT | (lambda text: {"y": text}) | AGAIN | llm,
            parsed.with_retry(stop_after_attempt=2, wait_exponential_jitter=False),
            itemgetter("x") | llm | TEXT,
        ]

    plains, own = chains(chat_openai(echo_url)), chains(chat_weftline(echo_url, **ours))
    for number, (plain, chain) in enumerate(zip(plains, own, strict=True)):
        for value in BAD_VALUES:
            expected = outcome(partial(plain.invoke, value))
            assert outcome(partial(way(chain).invoke, value)) == expected, (number, value)


@cache
def plainly(run: Callable[..., Any], *arguments: Any) -> Any:
    """What ChatOpenAI comes to, once for all tiers."""
    return run(chat_openai, unchanged, {}, *arguments)


def dies_between_two_calls(make: Callable[..., Any], way: Way, options: dict[str, Any]) -> Any:
    with started() as (url, process):

        def kill(text: str) -> str:
            _kill(process)
            return text

        llm = make(url, **options)
        last = (AGAIN | llm | TEXT).with_fallbacks(
            [RunnableLambda(lambda text: f"instead of {text}")],
            exceptions_to_handle=(openai.APIConnectionError,),
        )
        return outcome(lambda: way(ASK | llm | TEXT | kill | last).invoke(GIVEN))


@tiers
def test_it_dies_between_two_calls(tier: str) -> None:
    """The first call is answered, the second finds nobody: it alone falls back."""
    ours, way = TIERS[tier]
    plain = plainly(dies_between_two_calls)
    assert plain == ("value", "instead of user: Tell of soup.\nassistant: ")
    assert dies_between_two_calls(chat_weftline, way, ours) == plain


def dies_amid_a_stream(
    make: Callable[..., Any], way: Way, options: dict[str, Any], asynchronous: bool
) -> Any:
    with started(*SLOW) as (url, process):
        chain = way(ASK | make(url, max_tokens=1000, **options) | TEXT)
        came = []

        async def follow() -> None:
            async for text in chain.astream(GIVEN):
                came.append(text)
                if text:
                    _kill(process)

        def read() -> None:
            for text in chain.stream(GIVEN):
                came.append(text)
                if text:
                    _kill(process)

        ended = outcome(lambda: asyncio.run(follow()) if asynchronous else read())
        return bool("".join(came)), *ended


@tiers
@pytest.mark.parametrize("asynchronous", [False, True])
def test_it_dies_amid_a_stream(tier: str, asynchronous: bool) -> None:
    """Some text has come and stays; the exception is the one of the connection."""
    ours, way = TIERS[tier]
    plain = plainly(dies_amid_a_stream, asynchronous)
    assert plain[:2] != (True, "value")
    assert dies_amid_a_stream(chat_weftline, way, ours, asynchronous) == plain


def dies_while_a_call_runs(make: Callable[..., Any], way: Way, options: dict[str, Any]) -> Any:
    with started(*SLOW) as (url, process):
        llm = make(url, max_tokens=1000, **options)
        chain = way(ASK | llm | TEXT | AGAIN | llm | TEXT)
        found: list[tuple[Any, ...]] = []
        thread = Thread(target=lambda: found.append(outcome(lambda: chain.invoke(GIVEN))))
        thread.start()
        while "weftline_sessions_open 1" not in httpx.get(f"{url}/metrics").text:
            time.sleep(0.01)
        _kill(process)
        thread.join()
        return found[0]


@tiers
def test_it_dies_while_a_call_runs(tier: str) -> None:
    """An invoke that waits for its answer, in the first call of two."""
    ours, way = TIERS[tier]
    plain = plainly(dies_while_a_call_runs)
    assert issubclass(plain[0], openai.APIConnectionError)
    assert dies_while_a_call_runs(chat_weftline, way, ours) == plain


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def stalls(make: Callable[..., Any], way: Way, options: dict[str, Any], url: str) -> Any:
    llm = make(url, timeout=0.3, max_tokens=50, **options)
    once = ASK | llm | TEXT
    chain = way(once | AGAIN | llm | TEXT)
    safe = way(once.with_fallbacks([RunnableLambda(lambda x: "instead")]))
    return [
        outcome(lambda: chain.invoke(GIVEN)),
        outcome(lambda: asyncio.run(chain.ainvoke(GIVEN))),
        outcome(lambda: safe.invoke(GIVEN)),
        outcome(lambda: list(way(once).stream(GIVEN)))[:1],
    ]


@pytest.fixture(scope="module")
def stalling_url() -> Iterator[str]:
    with served("--null-mode", "fixed", "--null-step-s", "0.6") as url:
        yield url


@tiers
def test_it_stalls(tier: str, stalling_url: str) -> None:
    """A model's timeout ends the wait, amid a stream too, and what it waited for is cancelled."""
    ours, way = TIERS[tier]
    plain = plainly(stalls, stalling_url)
    assert issubclass(plain[0][0], openai.APITimeoutError)
    assert stalls(chat_weftline, way, ours, stalling_url) == plain
    deadline = time.monotonic() + 20
    while "weftline_sessions_open 0" not in httpx.get(f"{stalling_url}/metrics").text:
        assert time.monotonic() < deadline, "what nobody waits for goes on"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("timeout", "max_retries", "expected"),
    [
        (None, None, Patience(math.inf, 2)),
        (3, 0, Patience(3.0, 0)),
        ((5.0, 0.3), 1, Patience(0.3, 1)),
        (httpx.Timeout(5.0, read=0.3), 5, Patience(0.3, 5)),
        (httpx.Timeout(5.0, read=None), 5, Patience(math.inf, 5)),
    ],
)
def test_what_a_timeout_says(timeout: Any, max_retries: int | None, expected: Patience) -> None:
    """Every form that ChatOpenAI takes."""
    assert ChatWeftline(timeout=timeout, max_retries=max_retries).patience == expected


def test_a_graph_waits_as_long_as_its_longest_path() -> None:
    """A call has the time of its model after its inputs; what is known when it is sent has none."""

    def call(out: str, *reads: str) -> Call:
        ins = [Placeholder(name=n, in_out=InOut.IN, semantic_var_id=n) for n in reads]
        last = Placeholder(name="o", in_out=InOut.OUT, semantic_var_id=out)
        text = "".join(f"{{{{input:{name}}}}}" for name in reads) + "{{output:o}}"
        return Call(name=out, prompt=text, placeholders=(*ins, last))

    deadlines = Deadlines()
    patience = {"a": Patience(3, 1), "b": Patience(1, 0), "c": Patience(5, 0), "e": Patience(2, 0)}
    calls = [call("a"), call("b", "a"), call("c"), call("d", "c"), call("e", "b", "c")]
    deadlines.submitted(calls, patience, now=100)
    assert deadlines.left("abcde", now=100) == {"a": 6, "b": 7, "c": 5, "e": 9}
    deadlines.submitted([call("f", "c")], {"f": Patience(1, 0)}, now=110)  # c has come by then
    assert deadlines.left("af", now=110) == {"a": 0, "f": 1}


@contextmanager
def busy() -> Iterator[tuple[str, list[str]]]:
    """An endpoint that is too busy, which no server of ours is on demand; what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(self.path)
            self.send_response(503)
            self.send_header("Retry-After", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """The test's own output is enough."""

    with ExitStack() as stack:
        http = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        http.daemon_threads = True
        thread = Thread(target=http.serve_forever)
        thread.start()
        stack.callback(thread.join)
        stack.callback(http.shutdown)
        yield f"http://127.0.0.1:{http.server_address[1]}", asked


@pytest.mark.parametrize("max_retries", [0, 1])
@pytest.mark.parametrize(
    ("tier", "ahead", "path"),
    [
        ("T0", 0, "/v1/chat/completions"),
        ("T1", 0, "/v1/chat/completions"),
        ("T2", 1, "/v1/chat/completions"),
        ("T3", 0, "/v1/submit"),
    ],
)
def test_as_often_as_the_model_says(tier: str, ahead: int, path: str, max_retries: int) -> None:
    """`max_retries` is how often a call, or the submit of a graph, is sent again."""
    ours, way = TIERS[tier]
    with busy() as (url, asked):
        llm = chat_weftline(url, max_retries=max_retries, **ours)
        with pytest.raises(openai.InternalServerError):
            way(ASK | llm | TEXT).invoke(GIVEN)
        assert asked == ["/v1/submit"] * ahead + [path] * (1 + max_retries)
