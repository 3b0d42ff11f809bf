"""All parsers, with all ways to ask for structure, for whole, cut, refused and empty answers.

A compiled and an accelerated chain give what the plain chain gives: the value, or the exception
with its text. One server answers by rules, and each answer is told by the text in the prompt.
"""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, BaseMessageChunk
from langchain_core.output_parsers import (
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    MarkdownListOutputParser,
    NumberedListOutputParser,
    PydanticOutputParser,
    StrOutputParser,
    XMLOutputParser,
)
from langchain_core.output_parsers import openai_functions as functions
from langchain_core.output_parsers.openai_tools import (
    JsonOutputKeyToolsParser,
    JsonOutputToolsParser,
    PydanticToolsParser,
)
from langchain_core.runnables import RunnableParallel
from pydantic import BaseModel

from langchain_weftline import accelerate

from .conftest import StartServer
from .tiers import ASK, TEXT, Chain, chat_weftline, unchanged

classic = pytest.importorskip("langchain_classic.output_parsers")


def of_classic(place: str) -> Any:
    module, _, name = place.rpartition(".")
    return getattr(importlib.import_module(f"langchain_classic.{module}"), name)


class Town(BaseModel):
    """A town."""

    name: str
    size: int


class Color(Enum):
    RED = "red"


def described(key: str) -> Any:
    schema = classic.ResponseSchema(name=key, description="")
    return classic.StructuredOutputParser.from_response_schemas([schema])


SCHEMA = {**Town.model_json_schema(), "title": "Town"}
WORDS = "I'm sorry, but I cannot help with that."
ROUTE = '```json\n{"destination": "physics", "next_inputs": "Why is it so?"}\n```'
ACTION = 'Action:\n```\n{"action": "search", "action_input": "towns"}\n```'
JSON = '{"name": "Rome", "size": 3}'
CALL = f'<tool_call>\n{{"name": "Town", "arguments": {JSON}}}\n</tool_call>'
SCORE = classic.RegexParser(regex=r"Score: (\d)", output_keys=["score"])
LABELS = classic.RegexDictParser(output_key_to_format={"who": "Name"}, no_update_value="N/A")

# Each parser that reads text, and a text that it reads.
PARSERS: dict[str, tuple[Any, str]] = {
    "message": (None, JSON),
    "str": (StrOutputParser(), JSON),
    "json": (JsonOutputParser(), JSON),
    "json of a class": (JsonOutputParser(pydantic_object=Town), JSON),
    "pydantic": (PydanticOutputParser(pydantic_object=Town), JSON),
    "comma list": (CommaSeparatedListOutputParser(), "red, green, blue"),
    "numbered": (NumberedListOutputParser(), "1. red\n2. green\n3. blue"),
    "markdown": (MarkdownListOutputParser(), "- red\n- green\n- blue"),
    "xml": (XMLOutputParser(), "<towns><town>Rome</town></towns>"),
    "boolean": (classic.BooleanOutputParser(), "NO, I say YES"),
    "enum": (classic.EnumOutputParser(enum=Color), "red"),
    "date": (classic.DatetimeOutputParser(), "2023-07-04T14:30:00.0Z"),
    "regex": (SCORE, "Score: 7"),
    "labels": (LABELS, "Name: Ann. And more."),
    "structured": (described("name"), f"```json\n{JSON}\n```"),
    "combining": (classic.CombiningOutputParser(parsers=[described("name"), SCORE]), JSON),
    "yaml": (classic.YamlOutputParser(pydantic_object=Town), "```\nname: Rome\nsize: 3\n```"),
    "lines": (of_classic("retrievers.multi_query.LineListOutputParser")(), "red\ngreen"),
    "no output": (
        of_classic("retrievers.document_compressors.chain_extract.NoOutputParser")(),
        "NO_OUTPUT",
    ),
    "finished": (of_classic("chains.flare.prompts.FinishedOutputParser")(), "It is. FINISHED"),
    "router": (of_classic("chains.router.llm_router.RouterOutputParser")(), ROUTE),
    "fixing": (
        classic.OutputFixingParser(
            parser=PydanticOutputParser(pydantic_object=Town),
            retry_chain=TEXT | (lambda given: given),
            max_retries=0,
        ),
        JSON,
    ),
    "functions": (functions.JsonOutputFunctionsParser(), JSON),
    "react": (of_classic("agents.output_parsers.ReActJsonSingleInputOutputParser")(), ACTION),
    "agent": (of_classic("agents.output_parsers.JSONAgentOutputParser")(), ACTION[8:]),
    "tools agent": (of_classic("agents.output_parsers.ToolsAgentOutputParser")(), JSON),
    "tools": (JsonOutputToolsParser(), JSON),
    "tools of a class": (PydanticToolsParser(tools=[Town]), JSON),
}
TOOL_PARSERS: dict[str, Any] = {
    "message": None,
    "str": StrOutputParser(),
    "json": JsonOutputParser(),
    "pydantic": PydanticOutputParser(pydantic_object=Town),
    "tools": JsonOutputToolsParser(),
    "first tool": JsonOutputToolsParser(first_tool_only=True, return_id=True),
    "key": JsonOutputKeyToolsParser(key_name="Town"),
    "first key": JsonOutputKeyToolsParser(key_name="Town", first_tool_only=True),
    "tools of a class": PydanticToolsParser(tools=[Town]),
    "first of a class": PydanticToolsParser(tools=[Town], first_tool_only=True),
    "tools agent": PARSERS["tools agent"][0],
}


def by_schema(strict: bool) -> dict[str, Any]:
    schema = {**SCHEMA, "additionalProperties": False}
    named = {"name": "Town", "strict": strict, "schema": schema}
    return {"type": "json_schema", "json_schema": named}


# How the model's text is asked for. Any parser of text may follow.
TEXTS: dict[str, Callable[[Any], Chain]] = {
    "nothing": lambda llm: llm,
    "text": lambda llm: llm.bind(response_format={"type": "text"}),
    "json_object": lambda llm: llm.bind(response_format={"type": "json_object"}),
    "json_schema": lambda llm: llm.bind(response_format=by_schema(False)),
    "strict json_schema": lambda llm: llm.bind(response_format=by_schema(True)),
    "a class": lambda llm: llm.bind(response_format=Town),
}
# With tools. The parsers of tool calls may follow.
TOOLS: dict[str, Callable[[Any], Chain]] = {
    "tools": lambda llm: llm.bind_tools([Town]),
    "strict tools": lambda llm: llm.bind_tools([Town], strict=True),
    "forced tools": lambda llm: llm.bind_tools([Town], tool_choice="Town"),
    "tools, a form": lambda llm: llm.bind_tools([Town], response_format=by_schema(True)),
}


def structured(schema: Any, **how: Any) -> Callable[[Any], Chain]:
    return lambda llm: llm.with_structured_output(schema, **how)


METHODS = ("json_schema", "function_calling", "json_mode")
# They have their own parser.
STRUCTURED: dict[str, Callable[[Any], Chain]] = {
    f"{name}, {method}{', raw' if raw else ''}{', strict' if strict else ''}": structured(
        schema, method=method, include_raw=raw, **({"strict": True} if strict else {})
    )
    for name, schema in (("class", Town), ("dict", SCHEMA))
    for method in METHODS
    for raw in (False, True)
    for strict in ((False, True) if method != "json_mode" else (False,))
}
ANSWERS = ("whole", "cut", "refused", "empty", "wrong")
CUT = 3  # tokens of an answer that is cut, which are characters of the scripted engine


@pytest.fixture(scope="module")
def towns_url(start_script: StartServer) -> str:
    """Answers with the text of the parser that the prompt names."""
    rules = [("is refused", WORDS), ("is empty", ""), ("is wrong", '{"name": ["Rome"]}')]
    rules += [(f"for {name}!", text) for name, (_, text) in PARSERS.items()]
    return start_script([*rules, ("for a call!", CALL), ("", JSON)])


MASKS = (
    (re.compile(r"(chatcmpl-|lc_run--|call_|r_|s_|ses_)[0-9a-f-]{8,}(-0)?"), r"\1id"),
    (re.compile(r"(, )?'session_id': '[^']*'"), ""),
    (re.compile(r"created=\d+"), "created=0"),
    (re.compile(r"0x[0-9a-f]+"), "0x0"),
)


def masked(text: str) -> str:
    """A text without what differs from run to run: ids, times and addresses."""
    for pattern, instead in MASKS:
        text = pattern.sub(instead, text)
    return text


def shown(value: Any) -> Any:
    """A value in a form that can be compared. A message has its fields."""
    if isinstance(value, BaseMessage):
        said = value.model_dump(exclude={"id"})
        for name in ("id", "session_id"):
            said["response_metadata"].pop(name, None)
        return shown(said)
    if isinstance(value, BaseException):
        return type(value), masked(str(value))
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [shown(item) for item in value]
    kind = str if isinstance(value, str) else type(value)  # some of LangChain's texts are more
    return kind, masked(str(value))


def outcome(act: Callable[[], Any]) -> Any:
    try:
        return shown(act())
    except Exception as error:
        return shown(error)


def followed(asked: Chain, parser: Any) -> Chain:
    return ASK | asked if parser is None else ASK | asked | parser


def llm_for(url: str, answer: str, **options: Any) -> Any:
    return chat_weftline(url, **({"max_tokens": CUT} if answer == "cut" else {}), **options)


def given(answer: str, parser: str) -> dict[str, str]:
    """An input that gets this answer: the text for a parser, or another one."""
    return {"x": f"what is {answer} for {parser}!"}


ASKED = {**TEXTS, **TOOLS, **STRUCTURED}
OFTEN = ("message", "str", "json", "pydantic", "tools", "first of a class")  # for all ways to run


def parsers_of(asked: str) -> dict[str, tuple[Any, str]]:
    """The parsers that may follow what was asked for, and whose text is the whole answer."""
    if asked in TEXTS:
        return {name: (parser, name) for name, (parser, _) in PARSERS.items()}
    if asked in TOOLS:
        return {name: (parser, "a call") for name, parser in TOOL_PARSERS.items()}
    return {"message": (None, "a call" if "function" in asked else "json")}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("asked", ASKED)
def test_a_compiled_chain_gives_what_the_plain_one_gives(
    asked: str, answer: str, towns_url: str
) -> None:
    """Each parser after each way to ask, for each answer."""
    plain = ASKED[asked](llm_for(towns_url, answer, provenance=False))
    ours = ASKED[asked](llm_for(towns_url, answer))
    for name, (parser, text) in parsers_of(asked).items():
        said = given(answer, text)
        expected = outcome(lambda parser=parser, said=said: followed(plain, parser).invoke(said))
        chain = accelerate(followed(ours, parser))
        assert outcome(lambda chain=chain, said=said: chain.invoke(said)) == expected, name


async def _ainvoke(chain: Chain, said: Any) -> Any:
    return await chain.ainvoke(said)


def whole(parts: list[Any]) -> Any:
    """The parts of a stream as one value: texts and messages joined, of values the last one."""
    if parts and all(isinstance(part, (str, BaseMessageChunk)) for part in parts):
        made = parts[0]
        for part in parts[1:]:
            made = made + part
        return made.content if isinstance(made, BaseMessageChunk) else made
    return parts[-1:]


async def _astream(chain: Chain, said: Any) -> Any:
    return whole([part async for part in chain.astream(said)])


WAYS: dict[str, Callable[[Chain, Any], Any]] = {
    "ainvoke": lambda chain, said: asyncio.run(_ainvoke(chain, said)),
    "stream": lambda chain, said: whole(list(chain.stream(said))),
    "astream": lambda chain, said: asyncio.run(_astream(chain, said)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("asked", ASKED)
def test_other_ways_to_run_a_compiled_chain(asked: str, way: str, towns_url: str) -> None:
    """The parsers that are used most, with a whole and a cut answer."""
    run = WAYS[way]
    for answer in ("whole", "cut"):
        plain = ASKED[asked](llm_for(towns_url, answer, provenance=False))
        ours = ASKED[asked](llm_for(towns_url, answer))
        for name, (parser, text) in parsers_of(asked).items():
            if name not in OFTEN:
                continue
            said, chain = given(answer, text), followed(plain, parser)
            expected = outcome(lambda chain=chain, said=said: run(chain, said))
            chain = accelerate(followed(ours, parser))
            assert outcome(lambda chain=chain, said=said: run(chain, said)) == expected, (
                answer,
                name,
            )


@pytest.mark.parametrize("way", ["invoke", "astream"])
@pytest.mark.parametrize("asked", ASKED)
def test_an_accelerated_chain_gives_what_the_plain_one_gives(
    asked: str, way: str, towns_url: str
) -> None:
    """Its calls are sent ahead, because another call stands beside it."""
    run = WAYS.get(way, lambda chain, said: chain.invoke(said))
    for answer in ("whole", "cut"):
        outcomes = []
        for options, wrap in (({"provenance": False}, unchanged), ({}, accelerate)):
            llm = llm_for(towns_url, answer, **options)
            made = ASKED[asked](llm)
            for name, (parser, text) in parsers_of(asked).items():
                if name in OFTEN:
                    both = RunnableParallel(a=followed(made, parser), b=ASK | llm | TEXT)
                    chain, said = wrap(both), given(answer, text)
                    outcomes.append(outcome(lambda c=chain, s=said: of_a(run(c, s))))
        assert outcomes[: len(outcomes) // 2] == outcomes[len(outcomes) // 2 :]


def of_a(made: Any) -> Any:
    """What the chain of the table has made. Beside it is another one."""
    if isinstance(made, list):  # the last part of a stream may be of either
        return "parts"
    return made["a"]
