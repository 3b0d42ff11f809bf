"""Accelerated chains do what the chain does with ChatOpenAI on the same server."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import openai
import pytest
from langchain_core._api import LangChainBetaWarning
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler, get_usage_metadata_callback
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.globals import set_llm_cache
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.output_parsers import CommaSeparatedListOutputParser, JsonOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.prompts.structured import StructuredPrompt
from langchain_core.runnables import (
    ConfigurableField,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnableSequence,
)
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.tracers.base import BaseTracer
from pydantic import BaseModel

from langchain_weftline import accelerate
from tests.waits import until
from weftline.kit import RunFeed

from .conftest import StartServer, idle, served
from .recording import recorded
from .tiers import AGAIN, ASK, GIVEN, TEXT, TIERS, Chain, chat_openai, chat_weftline, outcome, tiers

SUBMIT = "/v1/submit"
CLOSED = 'weftline_http_requests_total{method="DELETE"'
Make = Callable[[Any], Chain]


def in_tier(tier: str, url: str, make: Make, **options: Any) -> Chain:
    """The chain of `make` with a ChatWeftline in this tier."""
    ours, way = TIERS[tier]
    return way(make(chat_weftline(url, **ours, **options)))


def falls_back(llm: Any) -> Chain:
    return ASK | llm.bind(model="nosuch").with_fallbacks([llm]) | TEXT


def whole_chain_falls_back(llm: Any) -> Chain:
    lost = llm.bind(model="nosuch")
    return (ASK | lost | TEXT | AGAIN | llm | TEXT).with_fallbacks([AGAIN | llm | TEXT])


def falls_back_beside(llm: Any) -> Chain:
    return RunnableParallel(a=ASK | llm | TEXT | AGAIN | llm | TEXT, b=falls_back(llm))


def fails_beside(llm: Any) -> Chain:
    lost = RunnableParallel(a=ASK | llm | TEXT, b=ASK | llm.bind(model="nosuch") | TEXT)
    return RunnableParallel(lost=lost, c=AGAIN | llm | TEXT)


@tiers
@pytest.mark.parametrize(
    "make", [falls_back, whole_chain_falls_back, falls_back_beside, fails_beside]
)
async def test_an_unknown_model_concerns_its_own_call(tier: str, make: Make, echo_url: str) -> None:
    """A refused call fails alone: fallbacks follow it, and its neighbours go on."""
    expected = outcome(lambda: make(chat_openai(echo_url)).invoke(GIVEN))
    chain = in_tier(tier, echo_url, make)
    assert outcome(lambda: chain.invoke(GIVEN)) == expected
    if expected[0] == "value":
        assert str(await chain.ainvoke(GIVEN)) == expected[1]


def model_first(llm: Any) -> Chain:
    return RunnableSequence(llm, TEXT)


CALLS: dict[str, Callable[[Chain], Any]] = {
    "invoke": lambda chain: chain.invoke("Tell of soup", stop=["of"]),
    "stream": lambda chain: "".join(chain.stream("Tell of soup", stop=["of"])),
    "batch": lambda chain: chain.batch(["Tell of soup"], stop=["of"]),
    "bound": lambda chain: chain.bind(stop=["of"]).invoke("Tell of soup"),
    "logprobs": lambda chain: chain.invoke("Tell of soup", logprobs=True),
    "unknown": lambda chain: chain.invoke("Tell of soup", nonsense=1),
}


@tiers
@pytest.mark.parametrize("call", CALLS)
async def test_call_time_arguments(tier: str, call: str, echo_url: str) -> None:
    """They reach the model of an accelerated chain as they reach a plain one."""
    expected = outcome(lambda: CALLS[call](model_first(chat_openai(echo_url))))
    chain = in_tier(tier, echo_url, model_first)
    assert outcome(lambda: CALLS[call](chain)) == expected
    if call == "invoke":
        assert await chain.ainvoke("Tell of soup", stop=["of"]) == "user: Tell "
        assert await chain.abatch(["Tell of soup"], stop=["of"]) == ["user: Tell "]
        parts = [part async for part in chain.astream("Tell of soup", stop=["of"])]
        assert "".join(parts) == "user: Tell "


class Town(BaseModel):
    name: str
    size: int


@pytest.fixture(scope="module")
def towns_url(start_script: StartServer) -> str:
    """Answers with a town, with one that lacks a field, or with no JSON."""
    return start_script(
        [
            ("half", '{"name": "Rome"}'),
            ("none", "It is a town."),
            ("", '{"name": "Rome", "size": 3}'),
        ]
    )


def the_town(llm: Any) -> Chain:
    return ASK | llm.with_structured_output(Town)


def two_towns(llm: Any) -> Chain:
    return RunnableParallel(a=the_town(llm), b=the_town(llm))


def the_town_and_the_message(llm: Any) -> Chain:
    both: Chain = ASK | llm.with_structured_output(Town, include_raw=True)
    return both | (lambda x: [x["raw"].content, x["parsed"], x["parsing_error"]])


def the_town_by_schema(llm: Any) -> Chain:
    return ASK | llm.with_structured_output(Town.model_json_schema())


def a_structured_prompt(llm: Any) -> Chain:
    with warnings.catch_warnings(action="ignore", category=LangChainBetaWarning):
        return StructuredPrompt([("human", "Tell of {x}.")], Town) | llm


FORMS: list[Make] = [
    the_town,
    the_town_and_the_message,
    the_town_by_schema,
    a_structured_prompt,
]


@pytest.mark.parametrize("tier", ["swapped", "accelerated"])
@pytest.mark.parametrize("make", FORMS)
@pytest.mark.parametrize("asked", ["whole", "half", "none", "short"])
def test_structured_output(tier: str, make: Make, asked: str, towns_url: str) -> None:
    """By default it asks for a JSON schema, and fails with ValidationError as ChatOpenAI does."""
    options = {"max_tokens": 2} if asked == "short" and make is not the_town_by_schema else {}
    given = {"x": asked}
    plain = make(chat_openai(towns_url, **options))
    chain = in_tier(tier, towns_url, make, **options)
    assert outcome(lambda: chain.invoke(given)) == outcome(lambda: plain.invoke(given))
    streamed = outcome(lambda: list(plain.stream(given)))
    assert outcome(lambda: list(chain.stream(given))) == streamed


def test_the_prompt_and_the_form_are_those_of_a_plain_call(towns_url: str) -> None:
    """The graph's call carries the schema that the openai client would send, and no tool."""
    with recorded(towns_url) as passed:
        the_town(chat_openai(passed.url)).invoke(GIVEN)
        in_tier("accelerated", passed.url, two_towns).invoke(GIVEN)
        [plain], [ours] = passed.bodies("/v1/chat/completions"), passed.bodies(SUBMIT)
    call, _ = ours["calls"]
    [output] = [p for p in call["placeholders"] if p["in_out"] == "out"]
    schema = plain["response_format"]["json_schema"]["schema"]
    assert output["sampling"]["constraint"] == {"json_schema": schema}
    assert not call.get("tools")


def two_models(llm: Any) -> Chain:
    return RunnableParallel(a=ASK | llm | TEXT, b=AGAIN | llm | TEXT)


def assigned(llm: Any) -> Chain:
    return RunnablePassthrough.assign(y=ASK | llm | TEXT)


def comma_list(llm: Any) -> Chain:
    return ASK | llm | CommaSeparatedListOutputParser()


def bad_json(llm: Any) -> Chain:
    return ASK | llm | JsonOutputParser()


def two_messages(llm: Any) -> Chain:
    return RunnableParallel(one=ASK | llm, other=ASK | llm)


def a_message(llm: Any) -> Chain:
    return ASK | llm


def by_key(parts: list[Any]) -> Any:
    """Of dicts the parts of each key, because keys come in any order; otherwise the parts."""
    if not all(isinstance(part, dict) for part in parts):
        return [getattr(part, "content", part) for part in parts]
    keys = sorted({key for part in parts for key in part})
    return {key: [part[key] for part in parts if key in part] for key in keys}


@pytest.fixture(scope="module")
def slow_url() -> Iterator[str]:
    """An echo whose text comes in many parts."""
    with served("--null-step-s", "0.01") as url:
        yield url


@pytest.mark.parametrize("make", [two_models, assigned, comma_list, bad_json, a_message])
async def test_streams_in_the_parts_of_the_plain_chain(make: Make, slow_url: str) -> None:
    """Each key comes as it is generated, and JSON that cannot be read ends the stream quietly."""
    given = {"x": "a, b, c"}
    plain = by_key(list(in_tier("plain", slow_url, make).stream(given)))
    chain = in_tier("accelerated", slow_url, make)
    assert joined(by_key(list(chain.stream(given)))) == joined(plain)
    parts = [part async for part in chain.astream(given)]
    assert joined(by_key(parts)) == joined(plain)
    if make in (two_models, assigned, comma_list, a_message):
        assert len(parts) > 3


def joined(parts: Any) -> Any:
    """Texts that may be cut in other places, joined."""
    if isinstance(parts, dict):
        return {key: joined(found) for key, found in parts.items()}
    return "".join(parts) if all(isinstance(part, str) for part in parts) else parts


async def test_streams_through_what_is_around_it(slow_url: str) -> None:
    """LangGraph's stream of messages sees the tokens of a compiled chain that a node invokes."""
    graph = pytest.importorskip("langgraph.graph")
    chain = in_tier("accelerated", slow_url, a_message)
    made = graph.StateGraph(graph.MessagesState)
    made.add_node("say", lambda state: {"messages": [chain.invoke({"x": "soup"})]})
    made.add_edge(graph.START, "say")
    app = made.compile()
    given = {"messages": [("user", "soup")]}
    chunks = [chunk for chunk, _ in app.stream(given, stream_mode="messages")]
    assert len(chunks) > 3
    assert "".join(chunk.content for chunk in chunks) == "user: Tell of soup.\nassistant: "


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # LangChain deprecates histories
async def test_streams_through_a_history_around_it(slow_url: str) -> None:
    """The text comes in parts, and the history has each question with its whole answer."""
    history = InMemoryChatMessageHistory()
    prompt = ChatPromptTemplate([MessagesPlaceholder("past"), ("human", "{x}")])
    chain = RunnableWithMessageHistory(
        in_tier("accelerated", slow_url, lambda llm: prompt | llm),
        lambda session_id: history,
        input_messages_key="x",
        history_messages_key="past",
    )
    config: Any = {"configurable": {"session_id": "s"}}
    assert len(list(chain.stream(GIVEN, config))) > 3
    assert len([part async for part in chain.astream(GIVEN, config)]) > 3
    answer = "user: soup\nassistant: "
    said = [message.content for message in history.messages]
    assert said == ["soup", answer, "soup", f"{answer}{answer}\n{answer}"]


class Heard(BaseCallbackHandler):
    """What callbacks hear of models, in order."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.runs: set[Any] = set()

    def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
        self.runs.add(kwargs["run_id"])

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        texts = [[(message.type, message.content) for message in found] for found in messages]
        inside = kwargs["parent_run_id"] in self.runs
        self.told.append(("start", texts, kwargs["invocation_params"], kwargs["options"], inside))

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        [[generation]] = response.generations
        assert generation.message.id.startswith(f"lc_run--{kwargs['run_id']}")
        output = {key: value for key, value in response.llm_output.items() if key != "id"}
        said = generation.message
        self.told.append(("end", said.content, said.usage_metadata, output, generation.text))

    def on_llm_error(self, error: BaseException, **kwargs: Any) -> None:
        self.told.append(("error", type(error), str(error)))


def two_in_a_row(llm: Any) -> Chain:
    return ASK | llm.with_config(tags=["one"]) | TEXT | AGAIN | llm | TEXT


@pytest.mark.parametrize("where", ["config", "model", "both"])
@pytest.mark.parametrize("make", [two_in_a_row, falls_back])
async def test_callbacks_hear_of_calls_in_the_server(make: Make, where: str, echo_url: str) -> None:
    """Starts with messages and parameters, ends with usage and ids, and errors, as plain ones."""
    told: list[Any] = []
    for tier, wait in (("plain", False), ("accelerated", False), ("accelerated", True)):
        heard = Heard()
        callbacks = [] if where == "model" else [heard]
        options = {} if where == "config" else {"callbacks": [heard]}
        chain = in_tier(tier, echo_url, make, **options)
        if wait:
            await chain.ainvoke(GIVEN, {"callbacks": callbacks})
        else:
            chain.invoke(GIVEN, {"callbacks": callbacks})
        told.append(heard.told)
    assert told[1] == told[0]
    assert told[2] == told[0]
    assert len(told[0]) == 4


def test_usage_and_message_fields_are_those_of_a_plain_run(echo_url: str) -> None:
    """What a message says of itself."""
    made = []
    for tier in ("plain", "accelerated"):
        with get_usage_metadata_callback() as usage:
            message = in_tier(tier, echo_url, a_last_message).invoke(GIVEN)
        made.append((message, usage.usage_metadata))
    (plain, plain_usage), (ours, our_usage) = made
    assert our_usage == plain_usage != {}
    for message in (plain, ours):
        assert message.id.startswith("lc_run--")
        assert message.response_metadata.pop("id").startswith("chatcmpl-")
        message.id = None
    assert ours == plain


def a_last_message(llm: Any) -> Chain:
    return ASK | llm | TEXT | AGAIN | llm


class Times(BaseTracer):
    """When each run began and ended, in seconds."""

    def __init__(self) -> None:
        super().__init__(_schema_format="original+chat")
        self.runs: list[Any] = []

    def _persist_run(self, run: Any) -> None:
        self.runs.append(run)


@pytest.mark.parametrize("tier", ["plain", "accelerated"])
def test_the_run_tree_has_the_models_with_their_times(tier: str, slow_url: str) -> None:
    """The second call starts when the first one has ended, and both lie in the chain's run."""
    times = Times()
    in_tier(tier, slow_url, two_in_a_row).invoke(GIVEN, {"callbacks": [times]})
    [run] = times.runs
    one, two = (child for child in run.child_runs if child.run_type == "chat_model")
    assert run.start_time <= one.start_time < one.end_time <= two.start_time < two.end_time
    assert two.end_time <= run.end_time


@tiers
def test_log_probabilities_reach_the_message(tier: str, echo_url: str) -> None:
    """They come as in a plain message: a graph has none, so the client makes the call."""

    def make(llm: Any) -> Chain:
        return ASK | llm.bind(logprobs=True)

    expected = make(chat_openai(echo_url)).invoke(GIVEN).response_metadata["logprobs"]
    found = in_tier(tier, echo_url, make).invoke(GIVEN).response_metadata["logprobs"]
    assert found == expected is not None


async def test_events_are_those_of_the_plain_chain(echo_url: str) -> None:
    """`astream_events` tells of each step and each token."""
    found = []
    for tier in ("plain", "accelerated"):
        chain = in_tier(tier, echo_url, two_in_a_row)
        events = [event async for event in chain.astream_events(GIVEN, version="v2")]
        found.append([(event["event"], event["name"]) for event in events])
    assert found[1] == found[0]


@pytest.fixture(scope="module")
def endless_url() -> Iterator[str]:
    """A server whose answers take ten seconds."""
    with served("--null-mode", "fixed", "--null-step-s", "0.1") as url:
        yield url


WAYS = ["cancelled", "closed", "closed in a thread", "overdue", "overdue in a thread"]


@pytest.mark.parametrize("way", WAYS)
async def test_the_server_stops_at_once(
    way: str, endless_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run closes its session, and leaves no error that nobody handles.

    For a connection that only breaks, the server goes on for a second.
    """
    feeds: list[RunFeed] = []
    send = RunFeed.send

    def noted(feed: RunFeed, *calls: Any, **how: Any) -> None:
        feeds.append(feed)
        send(feed, *calls, **how)

    monkeypatch.setattr(RunFeed, "send", noted)
    gc.collect()  # what other tests left
    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    # Long enough for the server to open the session first, also on a busy machine.
    options = {"timeout": 1.0} if way.startswith("overdue") else {}
    chain = in_tier("accelerated", endless_url, two_messages, max_tokens=100, **options)
    before = closings(endless_url)
    match way:
        case "closed":
            parts = chain.astream(GIVEN)
            await anext(parts)
            await parts.aclose()
        case "closed in a thread":
            read = chain.stream(GIVEN)
            await asyncio.to_thread(next, read)
            await asyncio.to_thread(read.close)
        case "overdue in a thread":
            with pytest.raises(openai.APITimeoutError):
                await asyncio.to_thread(chain.invoke, GIVEN)
        case "cancelled":
            run = asyncio.create_task(chain.ainvoke(GIVEN))
            # A run that does not know its session yet can only break the connection.
            await until(lambda: feeds and feeds[0].session.done())
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            del run
        case _:
            with pytest.raises(openai.APITimeoutError):
                await chain.ainvoke(GIVEN)
    # The request may be on its way when its client gives up, and an answer is counted when the
    # session is closed already.
    await until(lambda: closings(endless_url) == before + 1)
    await idle(endless_url)
    gc.collect()  # a task that nobody awaited reports its exception when it is collected
    asyncio.get_running_loop().set_exception_handler(None)
    assert errors == []


def metrics(url: str) -> str:
    return httpx2.get(f"{url}/metrics").text


def closings(url: str) -> float:
    """How many sessions were closed by a request."""
    lines = metrics(url).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(CLOSED))


@tiers
async def test_an_async_function_is_the_one_awaited(tier: str, echo_url: str) -> None:
    """A lambda with both runs the one that LangChain would run."""

    async def awaited(text: str) -> str:
        return "awaited"

    def make(llm: Any) -> Chain:
        return ASK | llm | TEXT | RunnableLambda(lambda text: text + "!", afunc=awaited)

    chain = in_tier(tier, echo_url, make)
    assert await chain.ainvoke(GIVEN) == "awaited"
    assert chain.invoke(GIVEN) == "user: Tell of soup.\nassistant: !"


@tiers
def test_texts_that_cannot_be_sent(tier: str, echo_url: str) -> None:
    """Half of a surrogate pair, and more than the model's context: the errors of a plain call."""
    chain, plain = in_tier(tier, echo_url, simple), simple(chat_openai(echo_url))
    for text in ("\ud800", "x" * (5 << 20)):
        assert outcome(lambda text=text: chain.invoke({"x": text})) == outcome(
            lambda text=text: plain.invoke({"x": text})
        )


def simple(llm: Any) -> Chain:
    return ASK | llm | TEXT


@tiers
def test_a_wrong_path_is_not_found(tier: str, echo_url: str) -> None:
    """A base URL with a wrong path has the status 404."""
    expected = outcome(lambda: simple(chat_openai(f"{echo_url}/nowhere")).invoke(GIVEN))
    chain = in_tier(tier, f"{echo_url}/nowhere", simple)
    assert outcome(lambda: chain.invoke(GIVEN)) == expected
    assert "404" in expected[1]


def test_an_accelerated_chain_describes_itself_as_the_chain(echo_url: str) -> None:
    """Schemas, configurable fields, the graph, prompts, and the arguments of a tool."""
    plain = ASK | chat_weftline(echo_url).configurable_fields(
        max_tokens=ConfigurableField(id="length")
    )
    ours = accelerate(plain)
    assert ours.input_schema.model_json_schema() == plain.input_schema.model_json_schema()
    assert ours.output_schema.model_json_schema() == plain.output_schema.model_json_schema()
    assert [spec.id for spec in ours.config_specs] == ["length"]
    assert len(ours.get_graph().nodes) == len(plain.get_graph().nodes)
    assert ours.get_prompts() == [ASK]
    with warnings.catch_warnings(action="ignore", category=LangChainBetaWarning):
        assert ours.as_tool(name="a", description="b").args == {
            "x": {"title": "X", "type": "string"}
        }


def test_the_global_cache_is_asked_first(echo_url: str) -> None:
    """A second run finds its answer there, and `explain` says that the client has a cache."""
    with recorded(echo_url) as passed:
        chain = in_tier("accelerated", passed.url, simple)
        set_llm_cache(InMemoryCache())
        try:
            explained = chain.explain(GIVEN)
            assert chain.invoke(GIVEN) == chain.invoke(GIVEN)
        finally:
            set_llm_cache(None)
        assert [verb for verb, _, _ in passed.requests if verb != "DELETE"] == ["POST"]
    reasons = [step.why for step in explained.in_client if step.step == "ChatWeftline"]
    assert reasons == ["the global LLM cache (set_llm_cache) may have its answer"]


def common_python(llm: Any) -> Chain:
    """What programs do with an answer before the next prompt."""
    tidied = ASK | llm | TEXT | (lambda text: {"x": text.strip().lower()})
    listed = tidied | AGAIN | llm | TEXT | (lambda text: text.split(" ", 1))
    joined = listed | (lambda words: "%s; %s" % (words[0], ", ".join(words)))  # noqa: UP031
    said = joined | (lambda text: [SystemMessage("Be brief."), HumanMessage("So: " + text)])
    return said | llm | TEXT


@tiers
async def test_common_python_stays_in_the_graph(tier: str, echo_url: str) -> None:
    """Methods of texts, `%` and messages: three calls are one request."""
    expected = common_python(chat_openai(echo_url)).invoke(GIVEN)
    with recorded(echo_url) as passed:
        chain = in_tier(tier, passed.url, common_python)
        assert chain.invoke(GIVEN) == expected
        assert await chain.ainvoke(GIVEN) == expected
        assert len(passed.bodies(SUBMIT)) == (2 if tier in ("accelerated",) else 0)
        assert len(passed.bodies("/v1/chat/completions")) == (
            6 if tier in ("plain", "swapped") else 0
        )


@tiers
def test_a_method_that_the_value_lacks_is_pythons_error(
    tier: str, start_script: StartServer
) -> None:
    """A parsed number has no `strip`."""

    def make(llm: Any) -> Chain:
        number = ASK | llm | JsonOutputParser() | (lambda found: {"x": found["n"].strip()})
        return number | AGAIN | llm | TEXT

    url = start_script([("", '{"n": 3}')])
    expected = outcome(lambda: make(chat_openai(url)).invoke(GIVEN))
    assert expected[:2] == (AttributeError, "'int' object has no attribute 'strip'")
    chain = in_tier(tier, url, make)
    assert outcome(lambda: chain.invoke(GIVEN)) == expected
