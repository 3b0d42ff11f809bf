"""Accelerated chains: LangChain runs them unchanged and finds its results already there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import reduce
from operator import add, itemgetter
from typing import Any, assert_type

import openai
import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import JsonOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import (
    ConfigurableField,
    Runnable,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)

from langchain_weftline import AcceleratedChain, ChatWeftline, accelerate, compile_chain
from tests.integrations import client_steps_table, test_ahead_chains
from tests.integrations.conftest import StartServer, idle, served
from tests.integrations.program_table import PROGRAMS
from tests.integrations.provenance import CHAT, plain
from tests.integrations.recording import Recording, recorded
from tests.integrations.step_chain import ASK, TEXT, Chain, steps

SUBMIT = "/v1/submit"


@pytest.fixture
def llm(echo_url: str) -> ChatWeftline:
    return ChatWeftline(base_url=echo_url, temperature=0)


def all_ahead(recording: Recording) -> bool:
    """Whether every call was sent ahead and every result came from the graph."""
    return bool(recording.bodies(SUBMIT)) and not recording.bodies(CHAT)


async def test_every_way_to_run(echo_url: str) -> None:
    """The result is the plain chain's, and the only request is the one sent ahead."""
    expected = steps(ChatWeftline(base_url=echo_url)).invoke({"x": "soup"})
    ways: list[Callable[[Chain], Any]] = [
        lambda chain: chain.invoke({"x": "soup"}),
        lambda chain: "".join(chain.stream({"x": "soup"})),
        lambda chain: "".join(chain.transform(iter([{"x": "soup"}]))),
        lambda chain: chain.batch([{"x": "soup"}])[0],
        lambda chain: dict(chain.batch_as_completed([{"x": "soup"}]))[0],
        lambda chain: (RunnableLambda(lambda x: {"x": x}) | chain).invoke("soup"),
    ]
    for way in ways:
        with recorded(echo_url) as passed:
            chain = accelerate(steps(ChatWeftline(base_url=passed.url)))
            assert way(chain) == expected
            assert all_ahead(passed)
            assert len(passed.bodies(SUBMIT)) == 1
    with recorded(echo_url) as passed:
        chain = accelerate(steps(ChatWeftline(base_url=passed.url)))
        assert await chain.ainvoke({"x": "soup"}) == expected
        assert "".join([part async for part in chain.astream({"x": "soup"})]) == expected
        assert await chain.abatch([{"x": "soup"}] * 2) == [expected] * 2
        done = [one async for one in chain.abatch_as_completed([{"x": "soup"}])]
        assert done == [(0, expected)]
        assert all_ahead(passed)
        assert len(passed.bodies(SUBMIT)) == 5


def test_an_accelerated_chain_has_the_types_of_the_chain(llm: ChatWeftline) -> None:
    """A type checker knows what an accelerated chain takes and gives."""
    lengths: Runnable[str, int] = RunnableLambda(len)
    made = accelerate(lengths)
    assert_type(made, AcceleratedChain[str, int])
    assert_type(made.invoke("soup"), int)
    assert_type(made.batch(["soup"]), list[int])
    assert_type(accelerate(llm).invoke("soup"), AIMessage)
    assert_type(accelerate(lengths, on_graph=print).invoke("soup"), int)
    assert_type(list(made.batch_as_completed(["soup"])), list[tuple[int, int]])
    assert made.invoke("soup") == 4


# Of the programs that test_programs invokes, those that other ways to run could find wrong.
PROGRAMS_OF_STEPS = (
    "a_function_between",
    "a_tool_between",
    "a_call_for_each_item",
    "a_branch_on_an_answer",
    "routed_by_a_function",
    "rag_with_a_rewritten_question",
)
CHAINS = [
    *((make, test_ahead_chains.CHUNKS[1]) for make in test_ahead_chains.ONE),
    *((make, "one") for make in client_steps_table.ALL),
    *((one.make, one.given) for one in PROGRAMS if one.name in PROGRAMS_OF_STEPS),
]


@pytest.mark.parametrize(("make", "given"), CHAINS, ids=[make.__name__ for make, _ in CHAINS])
async def test_same_result(
    make: Callable[[ChatWeftline], Chain], given: Any, llm: ChatWeftline
) -> None:
    """This holds for every chain of the tests of compiled chains, with messages and their usage."""
    chain = make(llm)
    expected = plain(chain.invoke(given))
    assert plain(accelerate(chain).invoke(given)) == expected
    assert plain(await accelerate(chain).ainvoke(given)) == expected
    if make is test_ahead_chains.shown_list:
        return  # It shows a dict, in which LangChain's stream puts the keys in order of arrival.
    whole, streamed = (reduce(add, one.stream(given)) for one in (accelerate(chain), chain))
    assert plain(whole) == plain(streamed)


class Events(BaseCallbackHandler):
    """Records everything that callbacks are told, without ids."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
        self.told.append(("start", kwargs["name"], plain(inputs), kwargs["tags"]))

    def on_chain_end(self, outputs: Any, **kwargs: Any) -> None:
        self.told.append(("end", plain(outputs)))

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self.told.append(("model", plain(messages), kwargs["invocation_params"]))

    def on_llm_new_token(self, token: str, **kwargs: Any) -> None:
        self.told.append(("token", token))

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        message = response.generations[0][0].message
        metadata = {k: v for k, v in message.response_metadata.items() if k != "id"}
        output = {k: v for k, v in (response.llm_output or {}).items() if k != "id"}
        self.told.append(("answer", plain(message), metadata, output))


@pytest.mark.parametrize("streams", [False, True])
def test_callbacks_get_the_events_of_the_plain_chain(llm: ChatWeftline, streams: bool) -> None:
    """A user's handler gets the same events in the same order, with all fields of the answers."""
    plainly, ahead = Events(), Events()
    for chain, events in ((steps(llm), plainly), (accelerate(steps(llm)), ahead)):
        if streams:
            list(chain.stream({"x": "soup"}, {"callbacks": [events], "tags": ["t"]}))
        else:
            chain.invoke({"x": "soup"}, {"callbacks": [events], "tags": ["t"]})
    assert ahead.told == plainly.told


async def test_events_are_those_of_the_plain_chain(llm: ChatWeftline) -> None:
    """astream_events gives the same names and data."""
    found = []
    for chain in (steps(llm), accelerate(steps(llm))):
        events = [event async for event in chain.astream_events({"x": "soup"}, version="v2")]
        found.append([(event["event"], event["name"], plain(event["data"])) for event in events])
    assert found[0] == found[1]


def test_no_user_code_runs_to_find_the_graph(echo_url: str) -> None:
    """Functions are called as often as in the plain chain: once each, in the run itself."""
    calls: list[str] = []

    def note(name: str) -> Callable[[Any], Any]:
        def noted(value: Any = None) -> Any:
            calls.append(name)
            return value if value is not None else name

        return noted

    with recorded(echo_url) as passed:
        llm = ChatWeftline(base_url=passed.url)
        dated = ChatPromptTemplate.from_template("{day}: {x}").partial(day=note("partial"))
        chain = (
            RunnablePassthrough(note("through"))
            | RunnableParallel(x=ASK | llm | TEXT, y=itemgetter("x") | RunnableLambda(note("y")))
            | RunnableLambda(note("between"))
            | dated
            | llm
            | TEXT
        )
        expected = chain.invoke({"x": "soup"})
        assert sorted(calls) == ["between", "partial", "through", "y"]
        calls.clear()
        assert accelerate(chain).invoke({"x": "soup"}) == expected
        assert sorted(calls) == ["between", "partial", "through", "y"]


def test_a_call_that_is_not_known_ahead_is_an_ordinary_call(echo_url: str) -> None:
    """The first call is sent ahead. A function makes the prompt of the second, so it is an ordinary
    call.
    """
    with recorded(echo_url) as passed:
        llm = ChatWeftline(base_url=passed.url)
        chain = ASK | llm | TEXT | (lambda text: {"x": str.upper(text)}) | ASK | llm | TEXT
        expected = chain.invoke({"x": "soup"})
        passed.requests.clear()
        assert accelerate(chain).invoke({"x": "soup"}) == expected
        assert [len(body["calls"]) for body in passed.bodies(SUBMIT)] == [1]
        assert len(passed.bodies(CHAT)) == 1


def test_each_result_is_used_once(echo_url: str) -> None:
    """A function that asks the same question again gets a new answer."""
    with recorded(echo_url) as passed:
        llm = ChatWeftline(base_url=passed.url)

        def again(answer: Any) -> Any:
            return llm.invoke([("system", "Be brief."), ("human", "soup")]).content

        chain = ASK | llm | again
        accelerate(chain).invoke({"x": "soup"})
        assert (len(passed.bodies(SUBMIT)), len(passed.bodies(CHAT))) == (1, 1)


def test_other_parameters_are_another_call(echo_url: str) -> None:
    """The same prompt with another limit does not use the sent-ahead result."""
    with recorded(echo_url) as passed:
        llm = ChatWeftline(base_url=passed.url)
        short = RunnableLambda(lambda x: llm.invoke(ASK.invoke(x), max_tokens=1).content)
        chain = RunnableParallel(a=short, b=ASK | llm | TEXT)
        made = accelerate(chain).invoke({"x": "soup"})
        assert made == {"a": "system:", "b": "system: Be brief.\nuser: soup\nassistant: "}
        assert (len(passed.bodies(SUBMIT)), len(passed.bodies(CHAT))) == (1, 1)


def test_equal_calls_have_a_result_each(echo_url: str) -> None:
    """Five equal questions are five calls."""
    with recorded(echo_url) as passed:
        llm = ChatWeftline(base_url=passed.url)
        chain = RunnableParallel({str(n): ASK | llm | TEXT for n in range(5)})
        assert len(set(accelerate(chain).invoke({"x": "soup"}).values())) == 1
        assert all_ahead(passed)
        assert len(passed.bodies(SUBMIT)[0]["calls"]) == 5


def test_configuration_and_options(echo_url: str) -> None:
    """Options that are bound or configured for a run apply to the calls sent ahead."""
    with recorded(echo_url) as passed:
        llm = ChatWeftline(base_url=passed.url).configurable_fields(
            max_tokens=ConfigurableField(id="length")
        )
        chain = accelerate(ASK | llm.bind(stop=["rief"]) | TEXT, on_graph=lambda graph: None)
        assert chain.invoke({"x": "soup"}) == "system: Be b"
        assert chain.invoke({"x": "soup"}, {"configurable": {"length": 1}}) == "system:"
        assert all_ahead(passed)


def test_a_call_that_is_alone(echo_url: str) -> None:
    """It begins at once anyway, so the model makes it. Beside a function it is sent ahead."""
    with recorded(echo_url) as passed:
        llm = ChatWeftline(base_url=passed.url)
        assert "soup" in accelerate(ASK | llm | TEXT).invoke({"x": "soup"})
        assert [path for verb, path, _ in passed.requests if verb == "POST"] == [CHAT]
        passed.requests.clear()
        seen: list[Any] = []
        both = RunnableParallel(size=RunnableLambda(seen.append), said=ASK | llm | TEXT)
        assert "soup" in accelerate(both).invoke({"x": "soup"})["said"]
        assert all_ahead(passed)


def in_langgraph(chain: Chain) -> Any:
    """Build a graph of one node that runs `chain`."""
    graph = pytest.importorskip("langgraph.graph")

    def node(state: dict[str, str]) -> dict[str, str]:
        return {"x": chain.invoke({"x": state["x"]})}

    made = graph.StateGraph(dict)
    made.add_node("node", node)
    made.add_edge(graph.START, "node")
    return made.compile()


async def test_inside_a_langgraph_node(echo_url: str) -> None:
    """The node's run is around the chain. Nothing else changes."""
    expected = steps(ChatWeftline(base_url=echo_url)).invoke({"x": "soup"})
    with recorded(echo_url) as passed:
        app = in_langgraph(accelerate(steps(ChatWeftline(base_url=passed.url))))
        assert app.invoke({"x": "soup"}) == {"x": expected}
        assert await app.ainvoke({"x": "soup"}) == {"x": expected}
        assert all_ahead(passed)


def test_a_sync_call_in_the_middle_of_a_loop(llm: ChatWeftline) -> None:
    """A coroutine that calls its model without await blocks its loop, but still gets its answer."""

    async def blocking(value: Any) -> str:
        return str(llm.invoke(ASK.invoke(value)).content)

    chain: Chain = RunnableParallel(a=ASK | llm | TEXT, b=RunnableLambda(blocking))
    made = asyncio.run(accelerate(chain).ainvoke({"x": "soup"}))
    assert made["a"] == made["b"]


@pytest.fixture(scope="module")
def script_url(start_script: StartServer) -> str:
    return start_script([("no json", "I would rather not."), ("", "fine")])


def streamed(chain: Chain, given: Any) -> tuple[str, str]:
    """Return a stream's parts, or the error that it raises."""
    try:
        return "value", str(plain(list(chain.stream(given))))
    except Exception as error:
        return type(error).__name__, str(error)


async def test_failures_are_those_of_the_plain_chain(script_url: str) -> None:
    """A parser, a missing variable, an unknown model and an unreachable server give the same type
    and text.
    """
    llm = ChatWeftline(base_url=script_url, max_retries=0)
    away = ChatWeftline(base_url="http://127.0.0.1:1", max_retries=0)
    cases: list[tuple[Chain, Any, type[Exception]]] = [
        (ASK | llm | JsonOutputParser() | ASK | llm, {"x": "no json"}, OutputParserException),
        (steps(llm), {"y": "soup"}, KeyError),
        (ASK | ChatWeftline(base_url=script_url, model="none"), {"x": "s"}, openai.NotFoundError),
        (ASK | away | TEXT, {"x": "soup"}, openai.APIConnectionError),
    ]
    for chain, given, error in cases:
        with pytest.raises(error) as plainly:
            chain.invoke(given)
        with pytest.raises(error) as ahead:
            accelerate(chain).invoke(given)
        assert str(ahead.value) == str(plainly.value)
        assert streamed(accelerate(chain), given) == streamed(chain, given)
        with pytest.raises(error):
            await accelerate(chain).ainvoke(given)


async def test_retries_and_fallbacks(echo_url: str) -> None:
    """Only the first alternative is sent ahead. A failed call is retried as in a plain chain."""
    with recorded(echo_url) as passed:
        llm = ChatWeftline(base_url=passed.url)
        tries: list[int] = []

        def flaky(text: str) -> str:
            tries.append(1)
            if len(tries) < 3:
                raise ValueError("again")
            return text

        retried = (ASK | llm | TEXT | flaky).with_retry(wait_exponential_jitter=False)
        chain = retried.with_fallbacks([RunnableLambda(lambda x: "fallen")])
        assert accelerate(chain).invoke({"x": "soup"}).startswith("system")
        assert (len(passed.bodies(SUBMIT)), len(passed.bodies(CHAT))) == (1, 2)


@pytest.mark.parametrize("beside", [False, True])
async def test_a_refused_submit_costs_one_request(beside: bool, echo_url: str) -> None:
    """A chain with an unknown model makes the plain chain's requests after the refused one."""

    def requests(way: Callable[[Chain], Chain], run: Callable[[Chain], Any]) -> list[str]:
        with recorded(echo_url) as passed:
            llm = ChatWeftline(base_url=passed.url)
            lost: Chain = {"x": ASK | llm.bind(model="nosuch") | TEXT} | ASK | llm | TEXT
            safe: Chain = lost.with_fallbacks([steps(llm, 2)])
            run(way(RunnableParallel(a=steps(llm), b=safe) if beside else safe))
            return [path for _, path, _ in passed.requests]

    ways: list[Callable[[Chain], Any]] = [
        lambda chain: chain.invoke({"x": "soup"}),
        lambda chain: list(chain.stream({"x": "soup"})),
        lambda chain: asyncio.run(chain.ainvoke({"x": "soup"})),
    ]
    for run in ways:
        plainly = await asyncio.to_thread(requests, lambda chain: chain, run)
        assert plainly == [CHAT] * (6 if beside else 3)
        assert await asyncio.to_thread(requests, accelerate, run) == [SUBMIT, *plainly]


@pytest.mark.parametrize("way", ["unused", "cancelled", "abandoned"])
async def test_unused_calls_are_cancelled(way: str) -> None:
    """When the run is over, the server has no session left and runs nothing. No graph
    is given out.
    """
    graphs: list[Any] = []
    with served("--null-mode", "fixed", "--null-step-s", "0.05") as url:
        llm = ChatWeftline(base_url=url, max_tokens=1000)

        def fail(value: Any) -> Any:
            raise LookupError("no need for it")

        if way == "unused":
            chain: Chain = RunnablePassthrough.assign(z=ASK | llm.bind(max_tokens=1) | fail).assign(
                x=ASK | llm
            )
            with pytest.raises(LookupError):
                accelerate(chain).invoke({"x": "soup"})
        elif way == "cancelled":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await accelerate(steps(llm), on_graph=graphs.append).ainvoke({"x": "soup"})
        else:
            parts = accelerate(steps(llm), on_graph=graphs.append).astream({"x": "soup"})
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await anext(parts)
            await parts.aclose()
        await idle(url)
    assert graphs == []


def test_a_slow_answer_meets_the_models_timeout(echo_url: str) -> None:
    """A model with a timeout does not wait longer for calls that were sent ahead."""
    with served("--null-mode", "fixed", "--null-step-s", "0.5") as url:
        llm = ChatWeftline(base_url=url, max_tokens=100, timeout=0.3, max_retries=0)
        with pytest.raises(openai.APITimeoutError):
            accelerate(ASK | llm).invoke({"x": "soup"})


def test_an_explanation_tells_what_would_be_sent(llm: ChatWeftline) -> None:
    """It lists the calls that follow from the input, and those that do not."""
    chain = {"x": ASK | llm | TEXT | str.upper, "y": ASK | llm | TEXT} | ASK | llm
    explained = accelerate(chain).explain({"x": "soup"})
    sent = [step.why for step in explained.in_server if step.step == "ChatWeftline"]
    kept = [step.why for step in explained.in_client if step.step == "ChatWeftline"]
    assert sent == ["call 'x'", "call 'y'"]
    assert kept == ["its prompt is known only in the run"]


def test_the_older_name() -> None:
    """Programs that call `compile_chain` get what `accelerate` gives, also for a graph."""
    assert compile_chain is accelerate


def test_accelerating_an_accelerated_chain(llm: ChatWeftline) -> None:
    """One can be inside the other."""
    expected = steps(llm).invoke({"x": "soup"})
    assert accelerate(accelerate(steps(llm))).invoke({"x": "soup"}) == expected
