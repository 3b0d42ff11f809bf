"""Compiled chains with every parser that has a transform: its own values and exceptions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from enum import Enum
from typing import Any

import pytest
from langchain_core.output_parsers import (
    BaseOutputParser,
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    MarkdownListOutputParser,
    NumberedListOutputParser,
    PydanticOutputParser,
    StrOutputParser,
    XMLOutputParser,
)
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable
from pydantic import BaseModel

from langchain_weftline import ChatWeftline, accelerate
from tests.integrations.differential import mutated
from tests.integrations.test_transforms_like_langchain import SEEDS

classic = pytest.importorskip("langchain_classic.output_parsers")
structured = pytest.importorskip("langchain_classic.output_parsers.structured")
multi_query = pytest.importorskip("langchain_classic.retrievers.multi_query")
llm_router = pytest.importorskip("langchain_classic.chains.router.llm_router")
extract = pytest.importorskip("langchain_classic.retrievers.document_compressors.chain_extract")
flare = pytest.importorskip("langchain_classic.chains.flare.prompts")

# The null engine echoes the prompt: "user: " and the text, and a last line with the next role.
TEXT = ChatPromptTemplate.from_template("\n{text}\n")
AGAIN = ChatPromptTemplate.from_template("Again: {made}")


class Color(Enum):
    RED = "red"


class Point(BaseModel):
    a: int


class Person(BaseModel):
    name: str
    born: date
    tags: dict[Any, str] = {}


def _structured(*keys: str) -> Any:
    schemas = [structured.ResponseSchema(name=key, description="") for key in keys]
    return classic.StructuredOutputParser.from_response_schemas(schemas)


_SCORE = classic.RegexParser(regex=r"Score: (\d)", output_keys=["score"])
_LABELS = classic.RegexDictParser(output_key_to_format={"who": "Name"}, no_update_value="N/A")
PARSERS: list[tuple[BaseOutputParser[Any], tuple[str, ...]]] = [
    *((parser, SEEDS) for parser in (StrOutputParser(), JsonOutputParser())),
    (CommaSeparatedListOutputParser(), ("a, b", 'x, "y, z"')),
    (NumberedListOutputParser(), ("1. a\n2. b", "none")),
    (MarkdownListOutputParser(), ("- a\n* b", "none")),
    (XMLOutputParser(), ("```<a><b>1</b></a>```", "<a>", "```<a/>```")),
    (classic.BooleanOutputParser(), ("YES", "no", "both YES and NO", "neither")),
    (_SCORE, ("Score: 7", "none")),
    (_LABELS, ("Name: Ann.", "Name: N/A.", "none")),
    (_structured("a"), ('```json\n{"a": 1}\n```', '```json\n{"b": 1}\n```', "```json\n[1]\n```")),
    (multi_query.LineListOutputParser(), ("a\nb",)),
    (classic.CombiningOutputParser(parsers=[_structured("a"), _SCORE]), ('{"a": 1}\n\nScore: 1',)),
    (classic.EnumOutputParser(enum=Color), ("red", "blue")),
    (classic.DatetimeOutputParser(), ("2023-07-04T14:30:00.0Z", "x")),
    (
        llm_router.RouterOutputParser(next_inputs_inner_key="question"),
        (
            '```json\n{"destination": " physics", "next_inputs": "Why?", "more": 1}\n```',
            '{"destination": "default", "next_inputs": "x"}',
            '{"destination": 1, "next_inputs": "x"}',
            '{"destination": "a", "next_inputs": {}}',
            '{"destination": "a"}',
            "[]",
        ),
    ),
    (extract.NoOutputParser(), ("NO_OUTPUT", " some\ntext ")),
    (
        classic.YamlOutputParser(pydantic_object=Person),
        (
            "```yaml\nname: Ann\nborn: 1990-01-01\n```",
            "```\nname: Ann\nborn: 1990-01-01",
            "```yml\nname: [. Got: \n```",
            "```yaml\nname: Ann\nborn: 1990-13-01\n```",
            "```yaml\nname: 1990-01-01\nborn: x\n```",
            "```yaml\n{name: Ann, born: 1990-01-01, tags: {1: a, 2020-01-01: b}}\n```",
        ),
    ),
    (flare.FinishedOutputParser(), ("It is. FINISHED", "not yet")),
    (PydanticOutputParser(pydantic_object=Point), ('```json\n{"a": 1}\n```', '{"a": "x"}', "x")),
]


def outcome(act: Callable[[Any], Any], text: str) -> tuple[Any, ...]:
    """Return the result of `act`, or the type and text of its exception."""
    try:
        value = act({"text": text})
    except Exception as error:
        return type(error), str(error)
    if isinstance(value, str):
        return (str, str(value))  # LangChain's texts may be of a subclass.
    return type(value), value if not isinstance(value, (Enum, datetime)) else str(value)


@pytest.mark.parametrize(("parser", "seeds"), PARSERS, ids=lambda p: type(p).__name__)
def test_values_and_exceptions_are_the_parsers_own(
    echo_url: str, parser: BaseOutputParser[Any], seeds: tuple[str, ...]
) -> None:
    """This holds for the chain's result and for a value in another prompt, on 1,000 texts in all.

    The transforms themselves get thousands of texts in test_transforms_like_*.
    """
    llm = ChatWeftline(base_url=echo_url)
    last: Runnable[Any, Any] = TEXT | llm | parser
    between = last | (lambda made: {"made": made}) | AGAIN | llm | StrOutputParser()
    for chain, more in ((last, 60), (between, 6)):
        compiled = accelerate(chain)
        for text in mutated(seed=1, count=more, seeds=seeds, edits=3):
            expected = outcome(chain.invoke, text)
            assert outcome(compiled.invoke, text) == expected, text


def test_which_parsers_run_in_the_server(echo_url: str) -> None:
    """All of them run there. The client makes the object if JSON has no such value."""
    llm = ChatWeftline(base_url=echo_url)
    made = []
    for parser, _ in PARSERS[1:]:  # the first has no transform to run
        explained = accelerate(TEXT | llm | parser).explain({"text": "x"})
        [step] = [step for step in explained.in_server if type(parser).__name__ in step.step]
        if "the client makes an object" in step.why:
            made.append(type(parser).__name__)
    assert made == [
        "EnumOutputParser",
        "DatetimeOutputParser",
        "YamlOutputParser",
        "FinishedOutputParser",
        "PydanticOutputParser",
    ]


def test_a_parser_with_user_code_stays_in_the_client(echo_url: str) -> None:
    """It is a subclass, an enum that finds members by itself, or inputs of another type."""

    class Lenient(Enum):
        RED = "red"

        @classmethod
        def _missing_(cls, value: object) -> Any:
            return cls.RED

    class Own(JsonOutputParser):
        pass

    llm = ChatWeftline(base_url=echo_url)
    for parser in (
        classic.EnumOutputParser(enum=Lenient),
        llm_router.RouterOutputParser(next_inputs_type=dict),
        Own(),
    ):
        chain = TEXT | llm | parser
        explained = accelerate(chain).explain({"text": "x"})
        assert any(type(parser).__name__ in step.step for step in explained.in_client)
        assert outcome(accelerate(chain).invoke, "x") == outcome(chain.invoke, "x")
