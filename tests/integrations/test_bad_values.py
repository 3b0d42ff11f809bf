"""Bad values in every tier: the step that fails, and its message, are the plain chain's."""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import Any

from langchain_core.exceptions import OutputParserException
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import JsonOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda

from tests.integrations.tiers import (
    AGAIN,
    ASK,
    TEXT,
    TIERS,
    Chain,
    chat_openai,
    chat_weftline,
    outcome,
    tiers,
)


class Odd:
    """A value that no template can show."""

    def __format__(self, spec: str) -> str:
        raise ArithmeticError("not to be shown")


BAD_VALUES: tuple[Any, ...] = (
    {},
    {"y": "soup"},
    "soup",
    5,
    None,
    ["soup"],
    {"x": None},
    {"x": ["soup", 1]},
    {"x": Odd()},
    {"x": HumanMessage("soup")},
)


@tiers
def test_bad_values(tier: str, echo_url: str) -> None:
    """Missing variables, other types and a failing parser make the same step fail."""
    ours, way = TIERS[tier]

    def chains(llm: Any) -> list[Chain]:
        caught = {"exceptions_to_handle": (OutputParserException,)}
        instead = RunnableLambda(lambda value: "instead")
        parsed = ASK | llm | JsonOutputParser()
        messages = ChatPromptTemplate.from_messages([MessagesPlaceholder("x")])
        static = ChatPromptTemplate.from_template("What goes without it?")
        return [
            ASK | llm | TEXT,
            ASK | llm | TEXT | AGAIN | llm | TEXT,
            messages | llm | TEXT,
            llm | TEXT,
            parsed,
            parsed | AGAIN | llm | TEXT,
            parsed.with_fallbacks([instead], **caught) | AGAIN | llm | TEXT,
            {"x": parsed} | (AGAIN | llm | TEXT).with_fallbacks([static | llm | TEXT]),
            ASK | llm | TEXT | (lambda text: {"y": text}) | AGAIN | llm,
            parsed.with_retry(stop_after_attempt=2, wait_exponential_jitter=False),
            itemgetter("x") | llm | TEXT,
        ]

    plains, own = chains(chat_openai(echo_url)), chains(chat_weftline(echo_url, **ours))
    for number, (plain, chain) in enumerate(zip(plains, own, strict=True)):
        for value in BAD_VALUES:
            expected = outcome(partial(plain.invoke, value))
            assert outcome(partial(way(chain).invoke, value)) == expected, (number, value)
