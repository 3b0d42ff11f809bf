"""Plain Python programs around accelerated chains: their concurrent calls are one request.

Each answer is the echo of its prompt, so equal results mean that all prompts were equal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Barrier
from typing import Any

import httpx2
import pytest
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel
from langchain_core.runnables.config import ContextThreadPoolExecutor

from langchain_weftline import ChatWeftline, accelerate
from langchain_weftline.run import convoy
from langchain_weftline.run.siblings import Limits
from tests.integrations.program_table import PROGRAMS, ask
from tests.integrations.recording import Recording, recorded
from tests.integrations.test_graph_programs import GRAPHS
from tests.integrations.test_programs import ENGINES, Heard, outcome

Way = Callable[[Runnable[Any, Any]], Any]
Loop = Callable[[Any, Way, Any], Any]
INPUTS = [{"x": "one"}, {"x": "two"}, {"x": "three"}]


@dataclass(frozen=True)
class LoopProgram:
    """A program of a model, a way and a configuration; its requests plain and ours.

    `edges` has the edges between the calls of its session. It is None where there are several.
    """

    run: Loop
    plain: int
    ours: int
    edges: int | None


LOOPS: list[LoopProgram] = []


def loop(plain: int, ours: int, edges: int | None) -> Callable[[Loop], Loop]:
    """Put a program into the table."""

    def add(run: Loop) -> Loop:
        LOOPS.append(LoopProgram(run, plain, ours, edges))
        return run

    return add


@loop(3, 1, None)
def a_batch_of_a_chain(llm: Any, way: Way, config: Any) -> Any:
    """A chain of one call, for a list of inputs."""
    return way(ask(llm, "Tell of {x}.")).batch(INPUTS, config)


@loop(3, 2, None)
def a_batch_two_at_a_time(llm: Any, way: Way, config: Any) -> Any:
    """The third call begins when one of the first two has its answer, and is alone."""
    return way(ask(llm, "Tell of {x}.")).batch(INPUTS, {**config, "max_concurrency": 2})


@loop(3, 1, None)
def a_gather_of_a_chain(llm: Any, way: Way, config: Any) -> Any:
    """The same from coroutines that start together."""
    fast = way(ask(llm, "Tell of {x}."))

    async def all_of_them() -> Any:
        return await asyncio.gather(*(fast.ainvoke(one, config) for one in INPUTS))

    return asyncio.run(all_of_them())


@loop(3, 3, None)
def a_loop_over_a_chain(llm: Any, way: Way, config: Any) -> Any:
    """Each call ends before the next one begins."""
    fast = way(ask(llm, "Tell of {x}."))
    return [fast.invoke(one, config) for one in INPUTS]


@loop(3, 3, 2)
def a_loop_that_improves(llm: Any, way: Way, config: Any) -> Any:
    """A function whose calls depend on one another: one session with their edges."""
    draft = ask(llm, "Write a whole essay on {x}.")
    again = ask(llm, "Improve this text: {draft}")

    def write(given: Any) -> str:
        text = draft.invoke(given)
        for _ in range(2):
            text = again.invoke({"draft": text})
        return str(text)

    return way(RunnableLambda(write)).invoke(INPUTS[0], config)


@loop(4, 2, 3)
def a_function_with_threads(llm: Any, way: Way, config: Any) -> Any:
    """A function that maps a chain over its inputs on a pool of threads."""

    def write(given: Any) -> str:
        with ContextThreadPoolExecutor() as pool:
            told = list(pool.map(ask(llm, "Tell at length of {x}.").invoke, given))
        return str(ask(llm, "Merge {all}").invoke({"all": "\n".join(told)}))

    return way(RunnableLambda(write)).invoke(INPUTS, config)


@loop(4, 2, 3)
def a_function_with_a_batch(llm: Any, way: Way, config: Any) -> Any:
    """A function that calls a chain for a list of inputs."""

    def write(given: Any) -> str:
        told = ask(llm, "Tell at length of {x}.").batch(given)
        return str(ask(llm, "Merge {all}").invoke({"all": "\n".join(told)}))

    return way(RunnableLambda(write)).invoke(INPUTS, config)


@loop(4, 2, 3)
def a_coroutine_with_a_gather(llm: Any, way: Way, config: Any) -> Any:
    """The same with coroutines."""

    async def write(given: Any) -> str:
        chain = ask(llm, "Tell at length of {x}.")
        told = await asyncio.gather(*(chain.ainvoke(one) for one in given))
        return str(await ask(llm, "Merge {all}").ainvoke({"all": "\n".join(told)}))

    async def run() -> Any:
        return await way(RunnableLambda(write)).ainvoke(INPUTS, config)

    return asyncio.run(run())


@loop(3, 2, None)
def branches_after_a_function(llm: Any, way: Way, config: Any) -> Any:
    """Nobody can foresee the calls behind the function, and they start together."""
    tidy = RunnableLambda(lambda text: {"y": "".join(sorted(text))})
    both = RunnableParallel(a=ask(llm, "Sing of {y}"), b=ask(llm, "Count {y}"))
    first: Runnable[Any, Any] = ask(llm, "Tell at length of {x}.")
    return way(first | tidy | both).invoke(INPUTS[0], config)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded machine starts threads late, and the counts are exact here."""
    monkeypatch.setattr(convoy, "LIMITS", Limits(progress=5.0, longest=10.0, look=0.1))


@pytest.fixture(scope="module")
def proxy(echo_url: str) -> Iterator[Recording]:
    with recorded(echo_url) as recording:
        yield recording


def posted(recording: Recording) -> int:
    return sum(verb == "POST" for verb, _, _ in recording.requests)


@pytest.mark.parametrize("program", LOOPS, ids=[program.run.__name__ for program in LOOPS])
def test_a_loop(program: LoopProgram, proxy: Recording) -> None:
    """Equal results and callbacks, with the requests and edges of the table."""
    found = []
    for way in (lambda runnable: runnable, accelerate):
        proxy.requests.clear()
        llm = ChatWeftline(base_url=proxy.url, temperature=0, max_retries=0)

        def act(heard: Heard, llm: Any = llm, way: Way = way) -> Any:
            return program.run(llm, way, {"callbacks": [heard]})

        kind, text, heard = outcome(act)
        found.append((kind, text, sorted(heard.prompts), sorted(heard.answers), posted(proxy)))
    plain, ours = found
    assert ours[:4] == plain[:4]
    assert (plain[4], ours[4]) == (program.plain, program.ours)
    if program.edges is not None:
        latest = httpx2.get(f"{proxy.url}/v1/sessions").json()["sessions"][0]["session_id"]
        seen = httpx2.get(f"{proxy.url}/v1/session/{latest}/graph").json()
        assert len(seen["calls"]) == program.plain
        assert len({(edge["from"], edge["to"]) for edge in seen["edges"]}) == program.edges


def test_a_call_that_is_alone_waits_for_nobody(
    proxy: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never comes to the wait, as its chain's other branches have ended or are its own runs."""
    waits: list[object] = []
    monkeypatch.setattr(convoy.Convoys, "wait", lambda *call: waits.append(call))
    llm = ChatWeftline(base_url=proxy.url, temperature=0, max_retries=0)
    program = next(one for one in LOOPS if one.run is a_loop_that_improves)
    program.run(llm, accelerate, {})
    a_loop_over_a_chain(llm, accelerate, {})
    assert waits == []


def test_a_sibling_that_is_busy_is_not_waited_for(
    proxy: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One branch calls the model while the other one sleeps until the answer has come."""
    monkeypatch.setattr(convoy, "LIMITS", Limits(progress=0.01, longest=0.05))
    llm = ChatWeftline(base_url=proxy.url, temperature=0, max_retries=0)
    answered = Barrier(2)

    def call(value: Any) -> str:
        text = str(llm.invoke("Tell of soup.").text)
        answered.wait(30.0)
        return text

    def sleep(value: Any) -> str:
        answered.wait(30.0)
        return "slept"

    both = RunnableParallel(a=RunnableLambda(call), b=RunnableLambda(sleep))
    made = accelerate(both).invoke({})
    assert made["b"] == "slept"
    assert "Tell of soup." in made["a"]


def test_a_sibling_that_fails_ends_the_wait(proxy: Recording) -> None:
    """The call goes as an ordinary request, and the error is that of the plain program."""
    llm = ChatWeftline(base_url=proxy.url, temperature=0, max_retries=0)

    def fail(value: object) -> None:
        raise LookupError("nothing there")

    both = accelerate(
        RunnableParallel(a=RunnableLambda(lambda _: llm.invoke("Hi").text), b=RunnableLambda(fail))
    )
    proxy.requests.clear()
    with pytest.raises(LookupError, match="nothing there"):
        both.invoke({})
    assert [path for verb, path, _ in proxy.requests if verb == "POST"] == ["/v1/chat/completions"]


def test_a_refused_call_fails_alone(proxy: Recording) -> None:
    """One call of a submit is for a model that nobody serves. The others have their texts.

    The model makes the refused call itself, so that the error is the model's.
    """
    llm = ChatWeftline(base_url=proxy.url, temperature=0, max_retries=0)
    nobody = llm.model_copy(update={"model_name": "nobody"})

    def both(given: Any) -> Any:
        async def all_of_them() -> Any:
            asked = (one.ainvoke("Tell of soup.") for one in (llm, nobody, llm))
            return await asyncio.gather(*asked, return_exceptions=True)

        return asyncio.run(all_of_them())

    proxy.requests.clear()
    plain = both({})
    proxy.requests.clear()
    ours = accelerate(RunnableLambda(both)).invoke({})
    assert next(path for verb, path, _ in proxy.requests if verb == "POST") == "/v1/submit"
    assert [type(one) for one in ours] == [type(one) for one in plain]
    assert str(ours[1]) == str(plain[1])
    assert [ours[0].text, ours[2].text] == [plain[0].text, plain[2].text]


def test_a_client_of_the_users_makes_its_own_requests(proxy: Recording) -> None:
    """A model with an HTTP client of the user's sends each call through it."""
    sent: list[str] = []

    async def note(request: Any) -> None:
        sent.append(str(request.url.path))

    async def run() -> None:
        async with httpx2.AsyncClient(event_hooks={"request": [note]}) as http:
            llm = ChatWeftline(base_url=proxy.url, max_retries=0, http_async_client=http)
            await accelerate(ask(llm, "Tell of {x}.")).abatch(INPUTS)

    asyncio.run(run())
    assert sent == ["/v1/chat/completions"] * 3


def test_the_tables_have_more_than_eighty_programs() -> None:
    """None makes more requests than plain. Those whose calls start together make fewer."""
    tables = {
        "chains": [(one.plain[0], one.ours[0]) for one in PROGRAMS],
        "engines": list(ENGINES.values()),
        "graphs": [(one.plain, one.ours) for one in GRAPHS],
        "loops": [(one.plain, one.ours) for one in LOOPS],
    }
    counts = {name: len(table) for name, table in tables.items()}
    assert counts == {"chains": 68, "engines": 6, "graphs": 37, "loops": 9}
    assert all(ours <= plain for table in tables.values() for plain, ours in table)
    fewer = {name: sum(ours < plain for plain, ours in table) for name, table in tables.items()}
    assert fewer == {"chains": 34, "engines": 5, "graphs": 16, "loops": 7}
