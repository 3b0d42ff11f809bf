"""Provenance under load: many runs at once, failures, other handlers, and its cost."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any
from uuid import UUID

import httpx2
import openai
import pytest
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.language_models.fake import FakeListLLM
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.tracers.context import collect_runs

from langchain_weftline import ChatWeftline
from langchain_weftline.trace.prompt_origins import LISTENER, ByIdentity
from tests.integrations.provenance import CHAT, line, plain
from tests.integrations.recording import Recording, recorded
from tests.waits import WAIT_S, until, wait_until
from weftline.kit import run_sessions as sessions

P = ChatPromptTemplate.from_messages([("system", "You are {role}."), ("human", "Tell of {topic}.")])
X = {"role": "a chef", "topic": "soup"}
TEXT = StrOutputParser()


@pytest.fixture(autouse=True)
def nothing_of_others() -> None:
    """State that earlier tests have left is not counted as a leak of this one."""
    LISTENER.runs.clear()
    LISTENER.pieces = ByIdentity()  # constants of other tests' programs live on


@pytest.fixture
def recording(echo_url: str) -> Iterator[Recording]:
    with recorded(echo_url) as recording:
        yield recording
        closed(recording)  # No session of one test is closed along with another test's calls.


def closed(recording: Recording) -> list[str]:
    """Return the closed sessions, once there are as many as runs with a session."""
    wait_until(lambda: len(_closed(recording)) >= len(runs(recording)))
    return _closed(recording)


def _closed(recording: Recording) -> list[str]:
    with recording.lock:
        requests = list(recording.requests)
    along = [
        id
        for _, _, body in requests
        for id in ((body or {}).get("weftline") or {}).get("close", [])
    ]
    return along + [path.rsplit("/", 1)[1] for how, path, _ in requests if how == "DELETE"]


def runs(recording: Recording) -> dict[str, list[Any]]:
    """Return the requests by the run that sent them."""
    found: dict[str, list[Any]] = {}
    for body in recording.bodies(CHAT):
        if "session_id" in body.get("weftline", {}):
            found.setdefault(body["weftline"]["session_id"], []).append(body)
    return found


def leaked() -> tuple[int, int]:
    """Return the runs and prompts that the listener still knows."""
    gc.collect()
    return len(LISTENER.runs), len(LISTENER.pieces)


async def settled() -> None:
    """Wait until the loop has ended its cancelled tasks, and the listener knows nothing more."""
    await until(lambda: leaked() == (0, 0))


def noting(url: str, noted: Recording) -> ChatWeftline:
    """A model whose requests are recorded in the process, because a proxy is slow for a
    thousand.
    """

    def note(request: Any) -> None:
        body = json.loads(request.content) if request.content else None
        with noted.lock:
            noted.requests.append((request.method, request.url.path, body))

    async def anote(request: Any) -> None:
        note(request)

    return ChatWeftline(
        base_url=url,
        temperature=0,
        # Connecting counts too: two hundred connections open at once.
        timeout=60,
        http_client=openai.DefaultHttpxClient(event_hooks={"request": [note]}),
        http_async_client=openai.DefaultAsyncHttpxClient(event_hooks={"request": [anote]}),
    )


async def test_two_hundred_at_once_do_not_mix(echo_url: str) -> None:
    """Each of 200 runs sends its own values in its own session and leaves nothing."""
    noted = Recording(echo_url)
    chain = P | noting(echo_url, noted) | TEXT
    given = [{"role": f"role number {n}.", "topic": f"topic number {n}."} for n in range(200)]
    answers = await asyncio.gather(*map(chain.ainvoke, given))
    assert len(runs(noted)) == 200
    for [body] in runs(noted).values():
        role, topic = (pieces[1]["text"] for pieces in body["weftline"]["messages"])
        answer = answers[given.index({"role": role, "topic": topic})]
        assert line(body) == f"system: You are {{role={role}}}. | user: Tell of {{topic={topic}}}."
        assert answer == f"system: You are {role}.\nuser: Tell of {topic}.\nassistant: "
    # A session that an earlier test left may be closed along with one of these calls.
    assert len(set(closed(noted))) == len(closed(noted)) >= 200
    await settled()


async def test_edges_of_fifty_at_once_do_not_mix(echo_url: str) -> None:
    """In each run the second call reads the first one's answer, and no other run's."""
    noted = Recording(echo_url)
    llm = noting(echo_url, noted)
    first = ChatPromptTemplate.from_template("Name {thing}") | llm | TEXT
    second = ChatPromptTemplate.from_template("Sum up {name} of {thing}") | llm | TEXT
    chain = {"name": first, "thing": lambda given: given["thing"]} | second
    things = [f"thing number {n}." for n in range(50)]
    await asyncio.gather(*(chain.ainvoke({"thing": thing}) for thing in things))
    assert len(runs(noted)) == 50
    for one, two in runs(noted).values():
        thing = one["weftline"]["messages"][0][1]["text"]
        name = f"user: Name {thing}\nassistant: "
        assert line(one) == f"[name] | user: Name {{thing={thing}}}"
        assert line(two) == f"user: Sum up {{name<={name}}} of {{thing={thing}}}"
    assert len(set(closed(noted))) == len(closed(noted)) >= 50


def test_a_run_costs_one_request_more_at_most(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The close is sent with the next run's call, or as a request when there is none. The thread
    that sends it comes after the runs here, however long they take.
    """
    over = Event()
    monkeypatch.setattr(sessions, "sleep", lambda _: over.wait(WAIT_S))
    chain = P | ChatWeftline(base_url=recording.url) | TEXT
    for _ in range(3):
        chain.invoke(X)
    over.set()
    assert len(closed(recording)) == 3
    extra = [request for request in recording.requests if request[1] != CHAT]
    assert len(extra) <= 3
    assert any("close" in body["weftline"] for body in recording.bodies(CHAT))


def test_a_run_without_a_call_sends_nothing(recording: Recording) -> None:
    """A prompt alone sends nothing either, nor does a model of another class."""
    ChatWeftline(base_url=recording.url)
    (P | RunnableLambda(lambda prompt: "no model")).invoke(X)
    assert recording.requests == []
    assert leaked() == (0, 0)


def test_edges_reach_the_graph(recording: Recording) -> None:
    """During the run, its session's graph has both calls and the edge between them."""
    llm = ChatWeftline(base_url=recording.url, temperature=0)
    graphs = []

    def look(value: Any) -> Any:
        roots = [run.root.sessions for run in LISTENER.runs.values()]
        [session] = {s.id for sessions in roots for s in sessions.by_server.values()}
        graphs.append(httpx2.get(f"{recording.url}/v1/session/{session}/graph").json())
        return value

    rewrite = ChatPromptTemplate.from_template("Rewrite: {draft}")
    (RunnableParallel(draft=P | llm | TEXT) | rewrite | llm | look).invoke(X)
    [graph] = graphs
    draft, rewritten = graph["calls"]
    assert (draft["name"], rewritten["name"]) == ("draft", "chat")
    assert rewritten["template"] == "user: Rewrite: {{input:draft}}\nassistant: {{output:out}}\n"
    assert [(edge["from"], edge["to"]) for edge in graph["edges"]] == [
        (draft["call_id"], rewritten["call_id"])
    ]


def test_errors_leave_nothing(recording: Recording, echo_url: str) -> None:
    """A failing prompt, a refused model and a raising parser give the same exceptions."""
    llm = ChatWeftline(base_url=recording.url)
    with pytest.raises(KeyError, match="topic"):
        (P | llm).invoke({"role": "a chef"})
    with pytest.raises(openai.NotFoundError):
        (P | ChatWeftline(base_url=echo_url, model="nonesuch")).invoke(X)
    with pytest.raises(ZeroDivisionError):
        (P | llm | RunnableLambda(lambda answer: 1 / 0)).invoke(X)
    with pytest.raises(openai.APIConnectionError):
        (P | ChatWeftline(base_url="http://127.0.0.1:1", max_retries=0)).invoke(X)
    assert leaked() == (0, 0)
    assert len(closed(recording)) == 1  # the others never had a session whose id arrived
    assert len(recording.bodies(CHAT)) == 1


class Cut(AsyncCallbackHandler):
    """Cancels the task that reports the end of a part, before other handlers are told."""

    run_inline = True

    async def on_chain_end(
        self, outputs: object, *, run_id: UUID, parent_run_id: UUID | None = None, **_: Any
    ) -> None:
        if parent_run_id is not None:
            raise asyncio.CancelledError


async def test_a_part_without_an_end_event_ends_with_its_run() -> None:
    """A cancelled task may lose the callbacks that it was about to make."""
    ChatWeftline()
    with pytest.raises(asyncio.CancelledError):
        await (RunnableLambda(str) | RunnableLambda(str)).ainvoke("x", {"callbacks": [Cut()]})
    assert leaked() == (0, 0)


async def test_other_handlers_see_every_run() -> None:
    """A tracer gets a text model's runs as without us: nothing runs inline."""
    ChatWeftline()
    with collect_runs() as collector:
        await FakeListLLM(responses=["a"]).abatch(["x", "y"])
    assert len(collector.traced_runs) == 2


def test_the_same_events_with_and_without(echo_url: str) -> None:
    """Other handlers get the same events."""

    class Log(BaseCallbackHandler):
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
            self.seen.append(("start", plain(inputs), kwargs.get("name")))

        def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
            params = {k: v for k, v in kwargs["invocation_params"].items() if k != "extra_body"}
            self.seen.append(("model", plain(messages), params, kwargs["options"]))

        def on_llm_new_token(self, token: str, **kwargs: Any) -> None:
            self.seen.append(("token", token, kwargs["chunk"].generation_info))

        def on_llm_end(self, response: Any, **kwargs: Any) -> None:
            self.seen.append(
                ("end", response.generations[0][0].text, set(response.llm_output or ()))
            )

    def events(provenance: bool) -> Any:
        log = Log()
        llm = ChatWeftline(base_url=echo_url, provenance=provenance, max_tokens=3)
        chain = P | llm | TEXT
        chain.invoke(X, {"callbacks": [log]})
        list(chain.stream(X, {"callbacks": [log]}))
        return log.seen

    assert events(True) == events(False)


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_off(how: str, recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is off, a request is the one that the openai client would have sent."""
    if how == "environment":
        monkeypatch.setenv("WEFTLINE_PROVENANCE", "0")
        llm = ChatWeftline(base_url=recording.url)
    else:
        llm = ChatWeftline(base_url=recording.url, provenance=False)
    (P | llm).invoke(X)
    list((P | llm).stream(X))
    assert all("weftline" not in body for body in recording.bodies(CHAT))
    assert len(recording.requests) == 2


def test_no_handler_before_the_first_model() -> None:
    """Importing the package registers no handler. The first model registers one, the second does
    not.
    """
    program = """
from langchain_core.tracers.context import _configure_hooks as hooks
import langchain_weftline
from langchain_weftline import ChatWeftline
before = len(hooks)
ChatWeftline(provenance=False)
assert len(hooks) == before
ChatWeftline(), ChatWeftline()
print("2 models,", len(hooks) - before, "handler")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "2 models, 1 handler\n"), done.stderr


def test_values_outside_the_prompt_are_not_sent(recording: Recording) -> None:
    """Inputs may hold secrets, so only those that the prompt shows are sent."""
    llm = ChatWeftline(base_url=recording.url)
    jinja = PromptTemplate.from_template("Hi {{who}}", template_format="jinja2")
    for prompt in (P, jinja):
        (prompt | llm).invoke({**X, "who": "Bob", "password": "hunter2", "nested": {"key": "k-1"}})
    assert "hunter2" not in str(recording.requests) and "k-1" not in str(recording.requests)


class Costly:
    """A value that decides how it is shown and counts the calls."""

    def __init__(self) -> None:
        self.asked = 0

    def __str__(self) -> str:
        self.asked += 1
        return f"look {self.asked}"


@pytest.mark.parametrize("template_format", ["f-string", "mustache"])
def test_values_are_shown_once(template_format: Any, recording: Recording) -> None:
    """No code of the user's runs twice. The request has what LangChain rendered."""
    text = "See {x}." if template_format == "f-string" else "See {{x}}."
    prompt = PromptTemplate.from_template(text, template_format=template_format)
    llm, costly = ChatWeftline(base_url=recording.url), Costly()
    (prompt | llm).invoke({"x": costly})
    [body] = recording.bodies(CHAT)
    assert body["messages"][0]["content"] == f"See look {costly.asked}."
    assert costly.asked <= 2 - (template_format == "f-string")  # mustache itself shows it twice


def test_an_extra_body_of_the_user_is_kept(recording: Recording) -> None:
    """It may be the model's or the call's. A `weftline` object of the user's is left unchanged."""
    llm = ChatWeftline(base_url=recording.url, extra_body={"top_k": 5})
    (P | llm).invoke(X)
    (P | llm.bind(extra_body={"min_tokens": 1})).invoke(X)
    (P | llm.bind(extra_body={"weftline": {"name": "mine"}})).invoke(X)
    first, second, third = recording.bodies(CHAT)
    assert (first["top_k"], "weftline" in first) == (5, True)
    assert (second["min_tokens"], "top_k" in second, "weftline" in second) == (1, False, True)
    assert third["weftline"] == {"name": "mine"}


def run_twice(work: Callable[[], Any]) -> list[Any]:
    return [asyncio.run(work()), asyncio.run(work())]


def test_one_model_in_two_event_loops(echo_url: str) -> None:
    """A second asyncio.run does not use the first one's connections."""
    chain = P | ChatWeftline(base_url=echo_url, max_retries=0) | TEXT

    async def work() -> tuple[str, str]:
        streamed = [chunk async for chunk in chain.astream(X)]
        return await chain.ainvoke(X), "".join(streamed)

    assert len({*run_twice(work)[0], *run_twice(work)[1]}) == 1


class Collected(list[str]):
    """Tags whose reading ends another run, as a garbage collection may at any place."""

    def __init__(self, end: Callable[[], None]) -> None:
        super().__init__(["a tag"])
        self._end = end

    def __iter__(self) -> Iterator[str]:
        self._end()
        return super().__iter__()


def test_a_run_may_end_while_another_starts_in_its_thread() -> None:
    """A generator that nobody reads any more is closed by the garbage collector, wherever its
    thread is: also where the listener notes another run. Both runs are noted right.
    """
    first, second = UUID(int=1), UUID(int=2)
    LISTENER._on_chain_start(None, X, run_id=first, name="first")
    tags = Collected(lambda: LISTENER._on_chain_end(None, run_id=first))
    LISTENER._on_chain_start(None, X, run_id=second, name="second", tags=tags)
    assert [run.name for run in LISTENER.runs.values()] == ["second"]
    LISTENER._on_chain_end(None, run_id=second)
    assert not LISTENER.runs
