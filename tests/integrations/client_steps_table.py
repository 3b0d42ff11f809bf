"""Chains with steps that only the client can run, for the tests of accelerated chains."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from operator import itemgetter
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
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

from langchain_weftline import ChatWeftline

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
