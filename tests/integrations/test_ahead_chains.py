"""Chains of a few calls, and what is sent of them before LangChain runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import (
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    StrOutputParser,
)
from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotPromptTemplate,
    PromptTemplate,
)
from langchain_core.runnables import (
    Runnable,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)

from langchain_weftline import ChatWeftline, accelerate
from tests.waits import wait_until

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


async def test_map_reduce_is_one_submit(echo_url: str) -> None:
    """One request has all calls, and pushes the values of all of them."""
    with recorded(echo_url) as passed:
        chain = map_reduce(ChatWeftline(base_url=passed.url, temperature=0))
        expected = chain.invoke(CHUNKS)
        assert len(passed.bodies("/v1/chat/completions")) == 4

        passed.requests.clear()
        assert accelerate(chain).invoke(CHUNKS) == expected
        assert await accelerate(chain).ainvoke(CHUNKS) == expected
        # The plain run's session may be closed this late.
        sent = [path for verb, path, _ in passed.requests if verb != "DELETE"]
        assert sent == ["/v1/submit", "/v1/submit"]
        for submit in passed.bodies("/v1/submit"):
            names = [call["name"] for call in submit["calls"]]
            assert names == ["map[0]", "map[1]", "map[2]", "reduce"]
            made = [call["placeholders"][-1]["semantic_var_id"] for call in submit["calls"]]
            assert submit["watch"] == made
            assert submit["close"]


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
    """The parser and the function are LangChain's, and so is what they raise."""
    llm = ChatWeftline(base_url=script_url)
    last: Chain = ChatPromptTemplate.from_template("{ask}") | llm | JsonOutputParser()
    last = last | itemgetter(pick)
    between = last | (lambda found: {"parts": found}) | MERGE | llm | TEXT
    for chain in (last, between):
        expected = failure_of(partial(chain.invoke, {"ask": ask}))
        assert expected[0] is error
        assert failure_of(partial(accelerate(chain).invoke, {"ask": ask})) == expected
        # A lambda behind a parser that streams nothing fails with LangChain's UnboundLocalError.
        streamed = failure_of(partial(list, chain.stream({"ask": ask})))
        made = failure_of(partial(list, accelerate(chain).stream({"ask": ask})))
        assert made == streamed
        with pytest.raises(error):
            await accelerate(chain).ainvoke({"ask": ask})


def test_values_of_json(script_url: str) -> None:
    """Parsed values keep their types on the wire, and null is a value."""
    llm = ChatWeftline(base_url=script_url)
    chain = ChatPromptTemplate.from_template("{ask}") | llm | JsonOutputParser()
    assert accelerate(chain).invoke("good json") == {"title": "Rivers", "sizes": [1, 2.5, True]}
    assert accelerate(chain).invoke("null json") is None
    shown = chain | (lambda found: {"parts": found}) | MERGE | llm | TEXT
    assert accelerate(shown).invoke("null json") == "merged"


async def test_on_graph_gets_the_graph_of_each_run(llm: ChatWeftline) -> None:
    """It gets the graph of each run with its edges, from another thread."""
    graphs: list[dict[str, Any]] = []
    compiled = accelerate(map_reduce(llm), on_graph=graphs.append)
    compiled.invoke(CHUNKS)
    await compiled.ainvoke(CHUNKS)
    list(compiled.stream(CHUNKS))
    wait_until(lambda: len(graphs) == 3)
    for graph in graphs:
        calls = {call["name"]: call for call in graph["calls"]}
        assert list(calls) == ["map[0]", "map[1]", "map[2]", "reduce"]
        made = [variable for name in list(calls)[:3] for variable in calls[name]["outputs"]]
        assert calls["reduce"]["inputs"] == made


def test_a_criterion_reaches_every_call(llm: ChatWeftline) -> None:
    """The criterion that a model has in `extra_body` becomes that of its calls in the server."""
    graphs: list[dict[str, Any]] = []
    batch = llm.model_copy(update={"extra_body": {"criteria": "throughput"}})
    assert accelerate(map_reduce(batch), on_graph=graphs.append).invoke(CHUNKS)
    wait_until(lambda: len(graphs) == 1)
    assert {call["objective"] for call in graphs[0]["calls"]} == {"throughput"}
