"""Compiled chains on a real server give the results of the plain chains, in one submit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.output_parsers import (
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    StrOutputParser,
)
from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotPromptTemplate,
    MessagesPlaceholder,
    PromptTemplate,
)
from langchain_core.runnables import (
    Runnable,
    RunnableConfig,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langchain_core.runnables.history import RunnableWithMessageHistory

from langchain_weftline import ChatWeftline, compile_chain

from .conftest import StartServer
from .recording import recorded

Chain = Runnable[Any, Any]
TEXT = StrOutputParser()
SUM = ChatPromptTemplate.from_messages([("system", "Sum up."), ("human", "{chunk}")])
MERGE = ChatPromptTemplate.from_template("Merge:\n{parts}")
SHOTS = FewShotPromptTemplate(
    examples=[{"q": "1 {{x}}", "a": "2"}],
    example_prompt=PromptTemplate.from_template("Q {q} A {a}"),
    prefix="Shots for {topic}",
    suffix="Q {question} A",
)
# The echo of this prompt holds a JSON object in a code fence.
BOOK = ChatPromptTemplate.from_template(
    'As JSON:\n```json\n{{"title": "{topic}", "tags": ["x", "it\'s"], "pages": 12.50}}\n```'
)
CHUNKS = [{"chunk": "One {curly}."}, {"chunk": "It's {{two}}."}, {"chunk": "Drei, ünï."}]


def numbered(answers: list[str]) -> dict[str, str]:
    """Join the answers, one per line, with their numbers."""
    lines = [f"{number}. {answer}" for number, answer in enumerate(answers, 1)]
    return {"parts": "\n".join(lines)}


def simple(llm: ChatWeftline) -> Chain:
    return SUM | llm | TEXT


def message(llm: ChatWeftline) -> Chain:
    return SUM | llm


def map_reduce(llm: ChatWeftline) -> Chain:
    return simple(llm).map() | numbered | MERGE | llm | TEXT


def refine(llm: ChatWeftline) -> Chain:
    start: Chain = RunnablePassthrough.assign(so_far=SUM | llm | TEXT)
    step = ChatPromptTemplate.from_template("So far: {so_far}\nRefine with {chunk}") | llm | TEXT
    return start.assign(so_far=step).assign(so_far=step) | itemgetter("so_far")


def fan_in(llm: ChatWeftline) -> Chain:
    both: Chain = RunnableParallel(good=SUM | llm | TEXT, bad=SUM | llm, topic=itemgetter("chunk"))
    shown = both | (
        lambda x: {"parts": x["good"] + " but " + x["bad"].content + f" ({x['topic']})"}
    )
    return {"merged": shown | MERGE | llm | TEXT, "raw": both.pick(["good", "topic"])} | both_ways()


def both_ways() -> Chain:
    return RunnableParallel(all=RunnablePassthrough(), merged=itemgetter("merged"))


def json_between(llm: ChatWeftline) -> Chain:
    book = {"topic": itemgetter("chunk")} | BOOK | llm | JsonOutputParser()
    tags = book | itemgetter("tags") | (lambda tags: {"parts": "; ".join(tags)}) | MERGE | llm
    whole = book | (lambda found: {"parts": found}) | MERGE | llm | TEXT
    pages = book | (lambda found: {"parts": [found["pages"], "a"]}) | MERGE | llm | TEXT
    return RunnableParallel(tags=tags | TEXT, whole=whole, pages=pages, book=book)


def lists(llm: ChatWeftline) -> Chain:
    items = SUM | llm | CommaSeparatedListOutputParser()
    return items | (lambda found: {"parts": found}) | MERGE | llm | TEXT


def few_shot(llm: ChatWeftline) -> Chain:
    inputs = {"topic": simple(llm), "question": itemgetter("chunk")}
    return inputs | SHOTS | llm | TEXT


def shown_list(llm: ChatWeftline) -> Chain:
    both: Chain = RunnableParallel(a=simple(llm), b=RunnableLambda(lambda _: [1, None]))
    return both | (lambda x: {"parts": [x["a"], x, (x["b"],)]}) | MERGE | llm


ONE: list[Callable[[ChatWeftline], Chain]] = [
    simple,
    message,
    refine,
    fan_in,
    json_between,
    lists,
    few_shot,
    shown_list,
]


def content(value: Any) -> Any:
    """Return `value` without the fields that only a single call's response has: usage, ids,
    reasons.
    """
    if isinstance(value, AIMessage):
        return "AIMessage", value.content
    if isinstance(value, dict):
        return {key: content(item) for key, item in value.items()}
    return value


@pytest.fixture
def llm(echo_url: str) -> ChatWeftline:
    return ChatWeftline(base_url=echo_url, temperature=0)


@pytest.mark.parametrize("make", ONE)
async def test_same_result(make: Callable[[ChatWeftline], Chain], llm: ChatWeftline) -> None:
    """The echo of every prompt is its text, so equal results mean equal prompts."""
    chain = make(llm)
    for given in CHUNKS:
        expected = content(chain.invoke(given))
        compiled = compile_chain(chain)
        assert content(compiled.invoke(given)) == expected
        assert content(await compiled.ainvoke(given)) == expected


async def test_map_reduce_is_one_submit(echo_url: str) -> None:
    """One request has all calls and names the only value that the client reads."""
    with recorded(echo_url) as passed:
        chain = map_reduce(ChatWeftline(base_url=passed.url, temperature=0))
        expected = chain.invoke(CHUNKS)
        assert len(passed.bodies("/v1/chat/completions")) == 4

        passed.requests.clear()
        assert compile_chain(chain).invoke(CHUNKS) == expected
        assert await compile_chain(chain).ainvoke(CHUNKS) == expected
        # The plain run's session may be closed this late.
        sent = [path for verb, path, _ in passed.requests if verb != "DELETE"]
        assert sent == ["/v1/submit", "/v1/submit"]
        for submit in passed.bodies("/v1/submit"):
            names = [call["name"] for call in submit["calls"]]
            assert names == ["map[0]", "map[1]", "map[2]", "reduce"]
            last = submit["calls"][-1]["placeholders"][-1]["semantic_var_id"]
            assert submit["watch"] == [last]
            assert submit["close"]


async def test_a_stream_is_one_request_for_its_last_variable(echo_url: str) -> None:
    """One request sends the calls and streams the last text."""
    with recorded(echo_url) as passed:
        compiled = compile_chain(map_reduce(ChatWeftline(base_url=passed.url, temperature=0)))
        list(compiled.stream(CHUNKS))
        assert [(method, path) for method, path, _ in passed.requests] == [("POST", "/v1/submit")]
        [submit] = passed.bodies("/v1/submit")
        assert submit["watch"] == [submit["calls"][-1]["placeholders"][-1]["semantic_var_id"]]
        assert submit["parts"]
        assert submit["close"]


async def test_streams_the_last_text(llm: ChatWeftline) -> None:
    """A chain that ends in a text or a message streams it. The parts add up to the whole."""
    chain = map_reduce(llm)
    expected = chain.invoke(CHUNKS)
    compiled = compile_chain(chain)
    parts = list(compiled.stream(CHUNKS))
    assert "".join(parts) == expected
    assert "".join([part async for part in compiled.astream(CHUNKS)]) == expected

    chunks = list(compile_chain(message(llm)).stream(CHUNKS[0]))
    assert all(isinstance(chunk, AIMessageChunk) for chunk in chunks)
    assert "".join(chunk.content for chunk in chunks) == message(llm).invoke(CHUNKS[0]).content


def by_key(parts: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The parts of each key, in order. The keys of a stream come in any order."""
    keys = sorted({key for part in parts for key in part})
    return {key: [part[key] for part in parts if key in part] for key in keys}


async def test_streams_anything_else_as_langchain_does(llm: ChatWeftline) -> None:
    """A dict comes key by key."""
    chain = json_between(llm)
    expected = by_key(list(chain.stream(CHUNKS[0])))
    assert by_key(list(compile_chain(chain).stream(CHUNKS[0]))) == expected
    parts = [part async for part in compile_chain(chain).astream(CHUNKS[0])]
    assert by_key(parts) == expected


async def test_batches(llm: ChatWeftline) -> None:
    """Each input is a run of its own. Results keep the order of the inputs."""
    chain = simple(llm)
    expected = chain.batch(CHUNKS)
    assert compile_chain(chain).batch(CHUNKS) == expected
    assert await compile_chain(chain).abatch(CHUNKS) == expected


async def test_inside_another_chain(llm: ChatWeftline) -> None:
    """A compiled chain is a runnable like any other, so a part of a chain can be compiled."""
    chain = compile_chain(map_reduce(llm)) | (lambda text: text.strip().upper())
    assert chain.invoke(CHUNKS) == map_reduce(llm).invoke(CHUNKS).strip().upper()
    assert await chain.ainvoke(CHUNKS) == chain.invoke(CHUNKS)


def test_a_chain_without_calls_sends_nothing() -> None:
    """A chain without model calls needs no server."""
    chain: Chain = RunnableLambda(lambda x: x + 1) | {"next": RunnablePassthrough()}
    assert compile_chain(chain).invoke(1) == {"next": 2}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # LangChain deprecates histories
def test_a_message_history_is_kept_by_the_client(echo_url: str) -> None:
    """A step that does more than bind options runs in the client, including the history."""
    history = InMemoryChatMessageHistory()
    prompt = ChatPromptTemplate([MessagesPlaceholder("past"), ("human", "{question}")])
    chain = RunnableWithMessageHistory(
        prompt | ChatWeftline(base_url=echo_url),
        lambda session_id: history,
        input_messages_key="question",
        history_messages_key="past",
    )
    config: RunnableConfig = {"configurable": {"session_id": "s"}}
    compile_chain(chain).invoke({"question": "One?"}, config)
    answer = compile_chain(chain).invoke({"question": "Two?"}, config)
    assert answer.content.startswith("user: One?\nassistant: user: One?")
    assert len(history.messages) == 4


def test_options_outside_graphs_stay_in_the_client(echo_url: str) -> None:
    """Options that a graph cannot express are no error: such a step runs in the client."""
    with recorded(echo_url) as passed:
        model = ChatWeftline(base_url=passed.url).bind(logprobs=False, presence_penalty=0)
        answer = compile_chain(SUM | model).invoke(CHUNKS[0])
        assert answer.content.startswith("system: Sum up.")
        assert answer.usage_metadata["input_tokens"] > 0
        # The session of the run is closed later.
        sent = [path for verb, path, _ in passed.requests if verb != "DELETE"]
        assert sent == ["/v1/chat/completions"]


@pytest.fixture(scope="module")
def script_url(start_script: StartServer) -> str:
    return start_script(
        [
            ("good json", '```json\n{"title": "Rivers", "sizes": [1, 2.5, true]}\n```'),
            ("no json", "I would rather not."),
            ("null json", "null"),
            ("crossed", '{"a": 1]'),
            ("Merge", "merged"),
        ]
    )


def failure_of(act: Callable[[], Any]) -> tuple[type[BaseException], str]:
    with pytest.raises(Exception) as raised:
        act()
    return raised.type, str(raised.value)


@pytest.mark.parametrize(
    ("ask", "pick", "error"),
    [
        ("no json", "title", OutputParserException),
        ("good json", "author", KeyError),
        ("good json", 0, KeyError),
        ("null json", "title", TypeError),
        ("crossed", "title", TypeError),
    ],
)
async def test_failures_are_those_of_the_plain_chain(
    script_url: str, ask: str, pick: str | int, error: type[Exception]
) -> None:
    """A parser or an item that fails in the server raises the exception that it would
    raise here.
    """
    llm = ChatWeftline(base_url=script_url)
    last: Chain = ChatPromptTemplate.from_template("{ask}") | llm | JsonOutputParser()
    last = last | itemgetter(pick)
    between = last | (lambda found: {"parts": found}) | MERGE | llm | TEXT
    for chain in (last, between):
        expected = failure_of(partial(chain.invoke, {"ask": ask}))
        assert expected[0] is error
        assert failure_of(partial(compile_chain(chain).invoke, {"ask": ask})) == expected
        # A lambda after a parser that streams nothing fails with LangChain's own UnboundLocalError.
        streamed = failure_of(partial(list, chain.stream({"ask": ask})))
        made = failure_of(partial(list, compile_chain(chain).stream({"ask": ask})))
        assert made == (streamed if chain is last else expected)
        with pytest.raises(error):
            await compile_chain(chain).ainvoke({"ask": ask})


def test_values_of_json(script_url: str) -> None:
    """Parsed values keep their types on the wire, and null is a value."""
    llm = ChatWeftline(base_url=script_url)
    chain = ChatPromptTemplate.from_template("{ask}") | llm | JsonOutputParser()
    assert compile_chain(chain).invoke("good json") == {"title": "Rivers", "sizes": [1, 2.5, True]}
    assert compile_chain(chain).invoke("null json") is None
    shown = chain | (lambda found: {"parts": found}) | MERGE | llm | TEXT
    assert compile_chain(shown).invoke("null json") == "merged"


class Seen(BaseCallbackHandler):
    """Records the names of the chains that started and ended."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
        self.events.append(f"start {kwargs['name']}")

    def on_chain_end(self, outputs: Any, **kwargs: Any) -> None:
        self.events.append("end")

    def on_chain_error(self, error: BaseException, **kwargs: Any) -> None:
        self.events.append(type(error).__name__)


async def test_callbacks_see_the_run(llm: ChatWeftline) -> None:
    """Callbacks get the compiled chain's run, and those of the steps that the client runs in it."""
    seen = Seen()
    compiled = compile_chain(
        {"chunk": RunnableLambda(str).with_config(run_name="load")} | SUM | llm
    )
    compiled.invoke(7, {"callbacks": [seen]})
    await compiled.ainvoke(7, {"callbacks": [seen], "run_name": "mine"})
    assert seen.events == [
        "start CompiledRunnableSequence",
        "start load",
        "end",
        "start ChatPromptTemplate",
        "end",
        "end",
        "start mine",
        "start load",
        "end",
        "start ChatPromptTemplate",
        "end",
        "end",
    ]


async def test_on_graph_gets_the_graph_of_each_run(llm: ChatWeftline) -> None:
    """It gets the graph of each run, with edges that the client never read."""
    graphs: list[dict[str, Any]] = []
    compiled = compile_chain(map_reduce(llm), on_graph=graphs.append)
    compiled.invoke(CHUNKS)
    await compiled.ainvoke(CHUNKS)
    list(compiled.stream(CHUNKS))
    assert len(graphs) == 3
    for graph in graphs:
        calls = {call["name"]: call for call in graph["calls"]}
        assert list(calls) == ["map[0]", "map[1]", "map[2]", "reduce"]
        made = [variable for name in list(calls)[:3] for variable in calls[name]["outputs"]]
        assert calls["reduce"]["inputs"] == made


def test_a_criterion_reaches_every_call(llm: ChatWeftline) -> None:
    """The criterion that a model has in `extra_body` becomes that of its calls in the server."""
    graphs: list[dict[str, Any]] = []
    batch = llm.model_copy(update={"extra_body": {"criteria": "throughput"}})
    assert compile_chain(map_reduce(batch), on_graph=graphs.append).invoke(CHUNKS)
    assert {call["objective"] for call in graphs[0]["calls"]} == {"throughput"}
