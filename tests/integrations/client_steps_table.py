"""Chains with rarer steps that only the client can run; program_table.py has the others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from operator import itemgetter
from typing import Any

from langchain_core.output_parsers import (
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    StrOutputParser,
)
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.runnables import (
    RouterRunnable,
    Runnable,
    RunnableGenerator,
    RunnableParallel,
    RunnablePassthrough,
)

from langchain_weftline import ChatWeftline

Chain = Runnable[Any, Any]
TEXT = StrOutputParser()
ASK = ChatPromptTemplate.from_messages([("system", "Be brief."), ("human", "{x}")])
LIST = ChatPromptTemplate.from_template("{x}, {x}!, {x}?")
SHOW = ChatPromptTemplate.from_template("Show {x}")
BOOK = ChatPromptTemplate.from_template('```json\n{{"key": "{x}", "input": ["{x}", 1]}}\n```')


def opaque(text: str) -> str:
    return str.title(text.strip())


def ask(llm: ChatWeftline, prompt: ChatPromptTemplate = ASK) -> Chain:
    return {"x": RunnablePassthrough()} | prompt | llm | TEXT


def of_a_prompt(llm: ChatWeftline) -> Chain:
    return ask(llm) | ASK | (lambda prompt: prompt.to_string() * 2) | ask(llm)


def mapped_twice(llm: ChatWeftline) -> Chain:
    items = {"x": RunnablePassthrough()} | LIST | llm | CommaSeparatedListOutputParser()
    return items | (ask(llm) | opaque | ask(llm)).map()


def opened(llm: ChatWeftline) -> Chain:
    book = {"x": RunnablePassthrough()} | BOOK | llm | JsonOutputParser()
    picked = book | RunnablePassthrough.assign(more=itemgetter("key") | ask(llm))
    return picked | RunnableParallel(
        all=RunnablePassthrough(), one=RunnablePassthrough().pick("more")
    )


def routed(llm: ChatWeftline) -> Chain:
    ways = RouterRunnable({"one": ask(llm), "Zwei, drei": ask(llm, SHOW)})
    return {"x": RunnablePassthrough()} | BOOK | llm | JsonOutputParser() | ways


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


def formatted(llm: ChatWeftline) -> Chain:
    return ask(llm) | PromptTemplate.from_template("{x!r:>40}") | llm | TEXT


def watched(llm: ChatWeftline) -> Chain:
    seen: list[str] = []
    return ask(llm) | RunnablePassthrough(seen.append) | ask(llm, SHOW)


ALL: list[Callable[[ChatWeftline], Chain]] = [
    of_a_prompt,
    mapped_twice,
    opened,
    routed,
    history,
    generated,
    formatted,
    watched,
]
