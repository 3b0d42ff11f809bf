"""The kit that both adapters share: chains, feeds, sessions, claims and placeholders."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import Any, ClassVar

import pytest

import weftline.kit
from tests.integrations.conftest import served
from tests.waits import wait_until
from weftline.contract.protocol import Call, InOut, Message, Placeholder, Segment
from weftline.errors import Cancelled, ConnectionFailed, WeftlineError
from weftline.kit import (
    BACKGROUND,
    Chain,
    Claims,
    Clients,
    Closer,
    Closers,
    Inputs,
    Piece,
    Pieces,
    Planned,
    Request,
    Result,
    RunFeed,
    RunSession,
    RunSessions,
    Server,
)
from weftline.kit.clients import MAX_CLIENTS
from weftline.kit.openai import finish_reason, message, whole_delta
from weftline.kit.pieces import as_name, by_search, to_wire
from weftline.watching import Value

FRAMEWORKS = (
    "langchain",
    "langchain_core",
    "langchain_openai",
    "llama_index",
    "openai",
    "pydantic",
)


def kit() -> list[Path]:
    return sorted(Path(weftline.kit.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", kit(), ids=lambda path: path.name)
def test_the_kit_imports_no_framework(path: Path) -> None:
    """It imports neither LangChain nor LlamaIndex, nor a package that comes with them, but for the
    fields of a server: they are a model of pydantic, which both frameworks bring."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    assert found & set(FRAMEWORKS) == ({"pydantic"} if path.name == "server_fields.py" else set())


def test_every_reader_of_a_chain_begins_at_its_start() -> None:
    """One reader starts while the chain grows, and one after its end. Both meet the error."""
    chain: Chain[str] = Chain()
    early = chain.read()
    chain.add("a")
    assert next(early) == "a"
    chain.add("b")
    chain.end(ValueError("broken"))
    chain.end()  # a second end changes nothing
    late = chain.read()
    assert [next(early), next(late), next(late)] == ["b", "a", "b"]
    for reader in (early, late):
        with pytest.raises(ValueError, match="broken"):
            next(reader)


def test_a_chain_that_stalls_times_out() -> None:
    """Nothing is appended, so the reader gets TimeoutError."""
    with pytest.raises(TimeoutError):
        next(Chain[str]().read(0.01))


def test_work_that_is_cancelled_ends() -> None:
    """Cancelling the future reaches the coroutine on the loop."""
    ended = Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    future = BACKGROUND.start(work())
    BACKGROUND.run(asyncio.sleep(0))  # it has begun
    future.cancel()
    assert ended.wait(10)


def test_work_on_one_server_shares_a_client_when_the_oldest_goes(echo_url: str) -> None:
    """The client that makes room takes time to close. All that asks meanwhile gets the same one."""
    clients = Clients()

    def server(number: int) -> Server:
        return Server(echo_url, headers=(("x-number", str(number)),))

    async def connect(number: int) -> None:
        client = await clients.of(server(number))
        async with client.session():  # its connection stays open
            pass

    async def ask() -> None:
        for number in range(MAX_CLIENTS):
            await connect(number)
        first = await clients.of(server(0))
        asked = (clients.of(server(MAX_CLIENTS)) for _ in range(20))
        assert len({id(client) for client in await asyncio.gather(*asked)}) == 1
        assert await clients.of(server(0)) is first  # used last but one: 1 went, not 0
        assert len(clients._clients) == MAX_CLIENTS
        for client in clients._clients.values():
            await client.close()

    BACKGROUND.run(ask())


def call(name: str, variable: str, text: str) -> Call:
    """A call that writes `variable`."""
    output = Placeholder(name="out", in_out=InOut.OUT, semantic_var_id=variable)
    said = Message(role="user", content=(Segment(text=text),))
    answer = Message(role="assistant", content=(Segment(output="out"),))
    return Call(name=name, prompt=(said, answer), placeholders=(output,))


def test_a_feed_brings_values_and_the_graph(echo_url: str) -> None:
    """Parts add up to the value, and the graph comes last."""
    feed, graphs = RunFeed(Server(echo_url)), list[Any]()
    over = Event()
    feed.send([call("one", "v", "Hi")], ["v"], parts=True, graph=True, close=True)
    feed.show_graph(graphs.append)
    feed.when_over(over.set)
    value = feed.results["v"].value.result(20).value
    assert "".join(feed.results["v"].text.read(20)) == value == "user: Hi\nassistant: "
    assert over.wait(20)
    assert [one["name"] for one in graphs[0]["calls"]] == ["one"]


def test_a_feed_goes_on_in_its_session(echo_url: str) -> None:
    """A second submit joins the session of the first one."""
    feed = RunFeed(Server(echo_url))
    feed.send([call("one", "v", "Hi")], ["v"])
    first = feed.results["v"].value.result(20).value
    feed.send([call("two", "w", "Ho")], ["w"])
    assert feed.results["w"].value.result(20).value != first
    assert len(feed.fetch_graph().result(20)["calls"]) == 2
    feed.close()


def test_a_feed_without_a_server_leaves_no_reader_waiting() -> None:
    """The server cannot be reached: the variable and the graph fail, and no graph is shown."""
    feed = RunFeed(Server("http://127.0.0.1:1"))
    feed.send([call("one", "v", "Hi")], ["v"], close=True, max_retries=0)
    error = feed.results["v"].value.exception(20)
    assert isinstance(error, ConnectionFailed) and feed.graph.exception(20) is error
    shown: list[Any] = []
    feed.show_graph(shown.append)
    assert shown == []


def test_a_feed_joins_the_session_of_a_run(echo_url: str) -> None:
    """Two feeds with the run's id share a session, which ends with the run and not with them."""
    closed: list[str] = []
    session = Session(Closer(lambda id: None), closed.append)
    feeds = [RunFeed(Server(echo_url), joins=session.alias) for _ in range(2)]
    for feed, name in zip(feeds, "vw", strict=True):
        feed.send([call(name, name, "Hi")], [name])
        session.join(feed)
    assert all(feed.results[name].value.result(20) for feed, name in zip(feeds, "vw", strict=True))
    over = Event()
    feeds[0].when_over(over.set)
    assert over.wait(20)
    graphs = [feed.fetch_graph().result(20) for feed in feeds]
    assert [one["name"] for one in graphs[0]["calls"]] in (["v", "w"], ["w", "v"])
    assert closed == []
    session.finish()
    feeds[1].when_over(over.set)
    for feed in feeds:
        feed.close()  # all values are there, so it does nothing
    wait_until(lambda: closed == [graphs[0]["session_id"]])


def test_an_answer_is_noted_before_its_readers_know(echo_url: str) -> None:
    """So a reader that goes on at once finds it noted."""
    noted: list[str] = []

    def note(event: Any) -> None:
        assert not feed.results["v"].value.done()
        noted.append(event.variable)

    feed = RunFeed(Server(echo_url), note)
    feed.send([call("one", "v", "Hi")], ["v"], close=True)
    feed.results["v"].value.result(20)
    assert noted == ["v"]


def test_a_feed_that_is_broken_off_says_so() -> None:
    """The readers of a value that will not come get Cancelled."""
    with served("--null-step-s", "30") as url:
        feed = RunFeed(Server(url))
        feed.send([call("one", "v", "Hi")], ["v"], close=True)
        feed.close()
        error = feed.results["v"].value.exception(20)
    assert isinstance(error, Cancelled) and str(error) == "the answer ended before this value"


def test_ended_sessions_are_closed_from_a_thread() -> None:
    """The user does not wait for it, even where closing takes long, and the thread then ends."""
    begun, go, done = Event(), Event(), list[tuple[str, str]]()

    def delete(id: str) -> None:
        begun.set()
        assert go.wait(20)
        done.append((id, current_thread().name))

    closer = Closer(delete)
    closer.add("a", "b")
    assert done == [] and begun.wait(20)
    go.set()
    wait_until(lambda: closer._thread is None)
    assert done == [("a", "weftline-closer"), ("b", "weftline-closer")]


class Session(RunSession):
    """A session that traces nothing, and keeps two answers."""

    max_answers: ClassVar[int] = 2

    def trace(self, pieces: Pieces) -> Pieces:
        return pieces


def ids(session: str, variable: str) -> dict[str, str]:
    return {"session_id": session, "semantic_var_id": variable}


def test_a_session_closes_after_its_last_request() -> None:
    """The run ends while a request is under way."""
    closed: list[str] = []
    session = Session(Closer(lambda id: None), closed.append)
    with Request({}, session) as request:
        request.hear(ids("s", "v"), "te")
        request.hear(None, "xt")
        request.finish()
        session.finish()
        assert closed == []
    assert closed == ["s"] and list(session.answers) == [("v", "text")]


def test_a_request_carries_the_ids_to_close_and_returns_them() -> None:
    """Without an answer the ids go back to the closer: the server may not have read them."""
    closer = Closer(lambda id: None)
    session, said = Session(closer), dict[str, Any]()
    closer._due.extend(["a", "b"])
    with Request(said, session):
        assert said["close"] == ["a", "b"]
    assert closer.drain() == ["a", "b"]
    closer._due.append("c")
    with Request({}, session) as request:
        request.hear(ids("s", "v"), "")
    assert closer.drain() == []


def test_a_request_that_says_nothing_is_nothing() -> None:
    """A request without provenance ignores the ids and the text of its answer."""
    with Request(None) as request:
        request.hear(ids("s", "v"), "text")
        request.finish()
    assert request.said is None


def test_a_session_keeps_its_latest_answers() -> None:
    """Of three answers it remembers the last two."""
    session = Session(Closer(lambda id: None))
    for number in range(3):
        session.answered(f"v{number}", "text")
    assert [variable for variable, _ in session.answers] == ["v1", "v2"]


def test_the_sessions_of_a_run_end_together() -> None:
    """A session that is made after the run's end closes after its first request."""
    closed: list[str] = []
    runs: RunSessions[Session] = RunSessions()

    def make() -> Session:
        return Session(Closer(lambda id: None), closed.append)

    first = runs.find("here", make)
    assert runs.find("here", make) is first
    first.opened("s1")
    runs.finish()
    late = runs.find("there", make)
    with Request({}, late) as request:
        request.hear(ids("s2", "v"), "")
    assert closed == ["s1", "s2"]


def test_a_session_that_cannot_be_closed_is_left() -> None:
    """The next sessions are still closed, with the latest `delete`, whatever it raised."""
    done: list[str] = []

    def refuse(id: str) -> None:
        raise WeftlineError("no")

    def delete(id: str) -> None:
        if id == "a":
            raise WeftlineError("no")
        if id == "b":  # such as what a recorder of the user's requests raises
            raise RuntimeError("not recorded")
        done.append(id)

    closers = Closers()
    closer = closers.find("here", refuse, refuse)
    assert closers.find("here", delete, delete) is closer
    closer._due.extend(["a", "b", "c"])
    closers.flush()
    assert done == ["c"]


def settled(variable: str, value: Any) -> Result:
    result = Result()
    result.settle(Value(variable, value, {}))
    return result


def test_a_result_goes_to_one_request() -> None:
    """A call is found once its inputs are ready. Calls with equal keys are claimed in order."""
    read = Result()
    first, second, later = settled("a", 1), settled("b", 2), settled("c", 3)
    claims: Claims[str] = Claims(
        [
            Planned(first, {}, lambda values: "ask"),
            Planned(second, {}, lambda values: "ask"),
            Planned(later, {"r": read}, lambda values: f"ask {values['r']}"),
        ]
    )
    found = [claims.claim("ask") for _ in range(3)]
    assert [one and one.result for one in found] == [first, second, None]
    assert claims.claim("ask 7") is None and claims.has_left
    read.settle(Value("r", 7, {}))
    assert (one := claims.claim("ask 7")) is not None and one.result is later
    assert not claims.has_left


def test_a_call_whose_input_failed_is_never_claimed() -> None:
    """The same holds for a call that has no key."""
    failed = Result()
    failed.value.set_exception(WeftlineError("no"))
    claims: Claims[str] = Claims(
        [
            Planned(Result(), {"r": failed}, lambda values: "ask"),
            Planned(Result(), {}, lambda values: None),
        ]
    )
    assert claims.claim("ask") is None and claims.has_left


def test_each_result_is_claimed_once_by_many_threads() -> None:
    """Eight threads ask 80 times for 50 equal calls, and each result goes out once."""
    claims: Claims[str] = Claims([Planned(Result(), {}, lambda _: "ask") for _ in range(50)])
    taken: list[Any] = []
    threads = [
        Thread(target=lambda: taken.extend(claims.claim("ask") for _ in range(10)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(one) for one in taken if one is not None}) == 50


def value(text: str) -> Placeholder:
    return Placeholder(name="value", in_out=InOut.IN, value=text)


def test_equal_inputs_share_a_placeholder() -> None:
    """Other inputs with the same name get a number, and no input has the output's name."""
    inputs = Inputs()
    names = [inputs.bind("x", value(text)) for text in ("a", "b", "a", "b")]
    assert [*names, inputs.bind("out", value("a"))] == ["x", "x_2", "x", "x_2", "out_2"]
    assert [(p.name, p.value) for p in inputs.placeholders] == [
        ("x", "a"),
        ("x_2", "b"),
        ("out_2", "a"),
    ]


def test_pieces_on_the_wire() -> None:
    """A message that is one constant is None, and empty pieces are left out."""
    assert to_wire([None, (Piece("a"), Piece("b")), (Piece(""), Piece("a", "x", "v"))]) == [
        None,
        None,
        [{"text": "a", "name": "x", "from_var": "v"}],
    ]
    assert by_search("short and long enough", [("x", "short"), ("y", "long enough")], 8) == (
        Piece("short and "),
        Piece("long enough", "y"),
    )
    assert [as_name(path) for path in ("user.name", "1a", "")] == ["user_name", "value_1a", "value"]


def test_values_in_openai_s_shapes() -> None:
    """An answer that calls tools and was not cut off ends with the tool calls."""
    calls = {"role": "assistant", "content": None, "tool_calls": [{"id": "t"}]}
    assert [finish_reason(calls, "stop"), finish_reason(calls, "length")] == [
        "tool_calls",
        "length",
    ]
    assert finish_reason("text", "stop") == "stop"
    assert message("text") == {"role": "assistant", "content": "text"} and message(calls) is calls
    assert whole_delta(calls)["tool_calls"] == [{"id": "t", "index": 0}]


def test_a_key_is_not_shown() -> None:
    """A server's repr may stand in a log."""
    assert "secret" not in repr(Server("http://x", "secret"))
