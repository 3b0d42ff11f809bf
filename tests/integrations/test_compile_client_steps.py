"""Compiled chains with steps that only the client can run give the results of the plain chains."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from operator import itemgetter
from threading import Barrier
from typing import Any

import openai
import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import (
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    StrOutputParser,
)
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    RouterRunnable,
    Runnable,
    RunnableBranch,
    RunnableGenerator,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langchain_core.tools import tool
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_weftline import ChatWeftline, accelerate, compile_chain
from tests.integrations.recording import recorded

Chain = Runnable[Any, Any]
TEXT = StrOutputParser()
ASK = ChatPromptTemplate.from_messages([("system", "Be brief."), ("human", "{x}")])
LIST = ChatPromptTemplate.from_template("{x}, {x}!, {x}?")
SHOW = ChatPromptTemplate.from_template("Show {x}")
BOOK = ChatPromptTemplate.from_template('```json\n{{"key": "{x}", "input": ["{x}", 1]}}\n```')
GIVEN = ("one", "Zwei, drei")


class Shelf(BaseRetriever):
    """A retriever that finds what it is asked for."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [Document(f"About {query}."), Document(query[::-1])]


@tool
def shout(text: str) -> str:
    """Say it loud."""
    return str.upper(text)


def opaque(text: str) -> str:
    return str.title(text.strip())


async def async_only(text: str) -> str:
    return str.title(text.strip())


def ask(llm: ChatWeftline, prompt: ChatPromptTemplate = ASK) -> Chain:
    return {"x": RunnablePassthrough()} | prompt | llm | TEXT


def between(llm: ChatWeftline) -> Chain:
    return ask(llm) | opaque | ask(llm)


def last(llm: ChatWeftline) -> Chain:
    return ask(llm) | opaque


def of_a_message(llm: ChatWeftline) -> Chain:
    return {"x": RunnablePassthrough()} | ASK | llm | (lambda m: m.content.lower()) | ask(llm)


def of_a_prompt(llm: ChatWeftline) -> Chain:
    return ask(llm) | ASK | (lambda prompt: prompt.to_string() * 2) | ask(llm)


def retrieval(llm: ChatWeftline) -> Chain:
    found: Chain = ask(llm) | Shelf() | (lambda docs: "\n".join(d.page_content for d in docs))
    return RunnableParallel(x=found, rest=ask(llm)) | SHOW | llm | TEXT


def tools(llm: ChatWeftline) -> Chain:
    return ask(llm) | (lambda text: {"text": text}) | shout | ask(llm)


def mapped(llm: ChatWeftline) -> Chain:
    items = {"x": RunnablePassthrough()} | LIST | llm | CommaSeparatedListOutputParser()
    return items | ask(llm).map() | (lambda made: {"x": " / ".join(made)}) | SHOW | llm | TEXT


def mapped_twice(llm: ChatWeftline) -> Chain:
    items = {"x": RunnablePassthrough()} | LIST | llm | CommaSeparatedListOutputParser()
    return items | (ask(llm) | opaque | ask(llm)).map()


def many_at_once(llm: ChatWeftline) -> Chain:
    return RunnableParallel({f"b{n}": ask(llm) | opaque | ask(llm) for n in range(4)})


def opened(llm: ChatWeftline) -> Chain:
    book = {"x": RunnablePassthrough()} | BOOK | llm | JsonOutputParser()
    picked = book | RunnablePassthrough.assign(more=itemgetter("key") | ask(llm))
    return picked | RunnableParallel(
        all=RunnablePassthrough(), one=RunnablePassthrough().pick("more")
    )


def whole_object(llm: ChatWeftline) -> Chain:
    book = {"x": RunnablePassthrough()} | BOOK | llm | JsonOutputParser()
    return book | PromptTemplate.from_template("{key} of {input}") | llm | TEXT


def branches(llm: ChatWeftline) -> Chain:
    return ask(llm) | RunnableBranch(
        (lambda text: "Zwei" in text, ask(llm, SHOW)), ask(llm, LIST) | opaque
    )


def routed(llm: ChatWeftline) -> Chain:
    ways = RouterRunnable({"one": ask(llm), "Zwei, drei": ask(llm, SHOW)})
    return {"x": RunnablePassthrough()} | BOOK | llm | JsonOutputParser() | ways


def chosen_by_a_function(llm: ChatWeftline) -> Chain:
    def choose(text: str) -> Chain:
        return ask(llm, SHOW) if "Zwei" in text else ask(llm)

    return ask(llm) | RunnableLambda(choose)


def history(llm: ChatWeftline) -> Chain:
    prompt = ChatPromptTemplate([MessagesPlaceholder("past"), ("human", "And?")])
    made = {"x": RunnablePassthrough()} | ASK | llm | (lambda message: {"past": [message] * 2})
    return made | prompt | llm | TEXT


def upper(parts: Iterator[str]) -> Iterator[str]:
    for part in parts:
        yield part.upper()


async def aupper(parts: AsyncIterator[str]) -> AsyncIterator[str]:
    async for part in parts:
        yield part.upper()


def generated(llm: ChatWeftline) -> Chain:
    return ask(llm) | RunnableGenerator(upper, aupper)


def mustache(llm: ChatWeftline) -> Chain:
    template = PromptTemplate.from_template("{{x}} & {{{x}}}", template_format="mustache")
    return ask(llm) | template | llm | TEXT


def formatted(llm: ChatWeftline) -> Chain:
    return ask(llm) | PromptTemplate.from_template("{x!r:>40}") | llm | TEXT


def watched(llm: ChatWeftline) -> Chain:
    seen: list[str] = []
    return ask(llm) | RunnablePassthrough(seen.append) | ask(llm, SHOW)


ALL: list[Callable[[ChatWeftline], Chain]] = [
    between,
    last,
    of_a_message,
    of_a_prompt,
    retrieval,
    tools,
    mapped,
    mapped_twice,
    many_at_once,
    opened,
    whole_object,
    branches,
    routed,
    chosen_by_a_function,
    history,
    generated,
    mustache,
    formatted,
    watched,
]


@pytest.fixture
def llm(echo_url: str) -> ChatWeftline:
    return ChatWeftline(base_url=echo_url, temperature=0)


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("given", GIVEN)
async def test_same_result(
    make: Callable[[ChatWeftline], Chain], given: str, llm: ChatWeftline
) -> None:
    """Each answer is the echo of its prompt, so equal results mean that all prompts were equal."""
    chain = make(llm)
    expected = chain.invoke(given)
    compiled = compile_chain(chain)
    assert compiled.invoke(given) == expected
    assert await compiled.ainvoke(given) == expected
    if isinstance(expected, str):
        assert "".join(compiled.stream(given)) == expected
        assert "".join([part async for part in compiled.astream(given)]) == expected


@pytest.mark.parametrize(
    ("make", "submits"),
    [(between, 1), (last, 1), (mapped, 1), (mapped_twice, 2), (many_at_once, 1), (opened, 2)],
)
def test_one_submit_for_all_calls_that_are_known(
    make: Callable[[ChatWeftline], Chain], submits: int, echo_url: str
) -> None:
    """Parts that wait for a step of the client are submitted together as far as they are known."""
    with recorded(echo_url) as passed:
        compiled = compile_chain(make(ChatWeftline(base_url=passed.url)))
        compiled.invoke("one")
        assert len(passed.bodies("/v1/submit")) == submits
        assert not passed.bodies("/v1/chat/completions")
        sessions = [body.get("session_id") for body in passed.bodies("/v1/submit")]
        assert sessions[0] is None
        assert len(set(sessions[1:])) <= 1  # The other submits join the first one's session.


def test_a_value_the_client_has_read_stays_a_variable(echo_url: str) -> None:
    """Items of a list are read from the list's variable, so the server knows the dependencies."""
    graphs: list[dict[str, Any]] = []
    llm = ChatWeftline(base_url=echo_url)
    items = BOOK | llm | JsonOutputParser() | itemgetter("input")
    chain = items | ask(llm).map() | SHOW | llm
    compile_chain(chain, on_graph=graphs.append).invoke({"x": "one"})
    first, *items, show = graphs[0]["calls"]
    assert all(item["inputs"] == first["outputs"] for item in items)
    assert show["inputs"] == [item["outputs"][0] for item in items]


def test_steps_of_the_client_run_side_by_side(llm: ChatWeftline) -> None:
    """Parallel parts have their own threads, as in LangChain. Here each waits for the other."""
    both = Barrier(2, timeout=20)

    def meet(text: str) -> str:
        both.wait()
        return text

    chain = RunnableParallel(a=ask(llm) | meet, b=ask(llm) | meet)
    assert compile_chain(chain).invoke("x") == {
        "a": ask(llm).invoke("x"),
        "b": ask(llm).invoke("x"),
    }


async def test_an_async_function(llm: ChatWeftline) -> None:
    """It is awaited in ainvoke. In invoke it raises LangChain's own error."""
    chain: Chain = ask(llm) | RunnableLambda(async_only) | ask(llm)
    assert await compile_chain(chain).ainvoke("x") == await chain.ainvoke("x")
    with pytest.raises(TypeError) as plain:
        chain.invoke("x")
    with pytest.raises(TypeError) as compiled:
        compile_chain(chain).invoke("x")
    assert str(compiled.value) == str(plain.value)


class Flaky:
    """Fails the given number of times, then returns its input."""

    def __init__(self, failures: int, error: type[Exception] = ValueError) -> None:
        self.left = failures
        self.calls = 0
        self._error = error

    def __call__(self, value: Any) -> Any:
        self.calls += 1
        if self.left > 0:
            self.left -= 1
            raise self._error(f"{self.left} left")
        return value


@pytest.mark.parametrize(("failures", "attempts"), [(0, 3), (1, 3), (2, 3), (3, 3), (1, 1)])
def test_retries(llm: ChatWeftline, failures: int, attempts: int) -> None:
    """The number of attempts equals the plain chain's, and so does the last exception."""

    def outcome(wrap: Callable[[Chain], Chain]) -> tuple[str, int]:
        flaky = Flaky(failures)
        again = (ask(llm) | flaky).with_retry(
            stop_after_attempt=attempts, wait_exponential_jitter=False
        )
        try:
            return wrap(again | ask(llm, SHOW)).invoke("x"), flaky.calls
        except ValueError as error:
            return str(error), flaky.calls

    assert outcome(compile_chain) == outcome(lambda chain: chain)


def test_a_failure_that_is_not_to_be_retried(llm: ChatWeftline) -> None:
    """It is raised at once."""
    flaky = Flaky(1, KeyError)
    chain = (ask(llm) | flaky).with_retry(retry_if_exception_type=(ValueError,))
    with pytest.raises(KeyError):
        compile_chain(chain | ask(llm)).invoke("x")
    assert flaky.calls == 1


@pytest.mark.parametrize("failing", [0, 1, 2])
async def test_fallbacks(llm: ChatWeftline, failing: int) -> None:
    """The first alternative that works gives the result. If none works, the first failure is
    raised.
    """
    away = ChatWeftline(base_url="http://127.0.0.1:1", max_retries=0)
    models = [away] * failing + [llm] * (2 - failing)
    chain: Chain = {"x": RunnablePassthrough()} | ASK | models[0].with_fallbacks(models[1:]) | TEXT
    chain = chain | ask(llm, SHOW)
    compiled = compile_chain(chain)
    if failing == 2:
        for act in (chain.invoke, compiled.invoke):
            with pytest.raises(openai.APIConnectionError):
                act("x")
        return
    assert compiled.invoke("x") == chain.invoke("x")
    assert await compiled.ainvoke("x") == chain.invoke("x")


def test_a_parser_that_fails_is_fallen_back_from(llm: ChatWeftline) -> None:
    """Text that is not JSON in the server raises OutputParserException here, which the fallback
    handles.
    """
    strict: Chain = {"x": RunnablePassthrough()} | ASK | llm | JsonOutputParser()
    chain = strict.with_fallbacks([ask(llm)]) | ask(llm, SHOW)
    assert compile_chain(chain).invoke("x") == chain.invoke("x")


@pytest.mark.parametrize("make", ALL)
def test_an_explanation_runs_nothing(make: Callable[[ChatWeftline], Chain]) -> None:
    """No server is at this address. With and without an input, the explanation lists every call."""
    compiled = compile_chain(make(ChatWeftline(base_url="http://127.0.0.1:1")))
    for explained in (compiled.explain(), compiled.explain("one")):
        assert any("call" in step.why for step in explained.in_server), str(explained)
        assert len(list(explained.table())) == 1 + len(explained.steps)


def test_an_explanation_says_where_and_why(llm: ChatWeftline) -> None:
    """For a person: each step, where it runs and why; the requests; what would change them."""
    chain = ChatPromptTemplate([("human", "{x}")], name="ask") | llm | TEXT | opaque | ask(llm)
    place = f"test_compile_client_steps.py:{opaque.__code__.co_firstlineno}"
    why = "it calls 'title', which may do anything"
    lines = str(compile_chain(chain).explain({"x": "a"})).splitlines()
    assert lines[:7] == [
        "part  step                      where   why",
        "      ChatPromptTemplate 'ask'  client  the client has its values",
        "      ChatWeftline              server  call 'ask'",
        f"      RunnableLambda 'opaque'   client  {why} ({place})",
        "      ChatWeftline              server  call 'call'",
        "",
        "Plain: 2 requests, 2 in a row. Here: 2 requests, 1 in a row.",
    ]
    assert lines[7].startswith(f"To make RunnableLambda 'opaque' ({place}) part of the graph: ")
    assert [line.partition(":")[0] for line in lines[8:]] == [
        "Streaming",
        "Callbacks",
        "Arguments",
        "Caches",
    ]


def test_an_explanation_says_what_else_would_change(llm: ChatWeftline) -> None:
    """Where the client decides, counts, searches or has a cache: what makes it the server's."""
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=4))
    cached = llm.model_copy(update={"cache": True})
    words = ask(llm) | (lambda text: {"kind": text, "x": text})
    ways = RunnableBranch((lambda v: len(v["kind"]) > 3, ask(cached)), ask(llm))
    each = BOOK | llm | JsonOutputParser() | itemgetter("input") | ask(llm).map()
    chain = RunnableParallel(a=words | ways, b=each, c=store.as_retriever())
    said = str(compile_chain(chain).explain("one"))
    for start in (
        "To make RunnableBranch part of the graph: the server decides if the conditions compare",
        "part of the graph: the server runs it over a list of texts (a list parser, .split)",
        "To make VectorStoreRetriever part of the graph: the server searches in a WeftlineVector",
        "Streaming: LangChain runs the chain, and the server runs the calls ahead of it.",
        "Caches: ChatWeftline asks its cache first, so the client makes its calls.",
    ):
        assert start in said, said
    ahead = str(accelerate(ask(llm) | ask(llm)).explain("one"))
    assert "Callbacks: they hear of every step, as in the plain chain." in ahead


def failure_of(act: Callable[[], Any]) -> tuple[type[BaseException], str]:
    with pytest.raises(Exception) as raised:
        act()
    return raised.type, str(raised.value)


def boom(value: Any) -> Any:
    raise LookupError("boom")


@pytest.mark.parametrize(
    "make",
    [
        lambda llm: ask(llm) | boom | ask(llm),
        lambda llm: RunnableParallel(a=ask(llm), b=ask(llm) | boom, c=ask(llm) | opaque),
        lambda llm: ask(llm) | (lambda x: {"y": str.strip(x)}) | ASK | llm,
        lambda llm: ask(llm) | opaque | RunnablePassthrough.assign(x=ask(llm)),
        lambda llm: ask(llm) | opaque | ChatWeftline(base_url=llm.server_url, model="nonesuch"),
    ],
)
async def test_same_failure(make: Callable[[ChatWeftline], Chain], llm: ChatWeftline) -> None:
    """Type and text equal those that the plain chain raises."""
    chain = make(llm)
    expected = failure_of(partial(chain.invoke, "one"))
    compiled = compile_chain(chain)
    assert failure_of(partial(compiled.invoke, "one")) == expected
    with pytest.raises(expected[0]):
        await compiled.ainvoke("one")


def test_a_client_step_gets_the_servers_message(llm: ChatWeftline) -> None:
    """A function of the client gets an AIMessage with its usage."""
    seen: list[AIMessage] = []
    chain: Chain = {"x": RunnablePassthrough()} | ASK | llm | seen.append
    compile_chain(chain).invoke("x")
    assert seen[0].content == "system: Be brief.\nuser: x\nassistant: "
    assert seen[0].usage_metadata is not None
    assert seen[0].usage_metadata["output_tokens"] > 0
