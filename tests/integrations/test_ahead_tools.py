"""Compiled chains whose models call tools: the calls are made and read in the graph."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import product
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.output_parsers import StrOutputParser
from langchain_core.output_parsers.openai_tools import (
    JsonOutputKeyToolsParser,
    JsonOutputToolsParser,
    PydanticToolsParser,
)
from langchain_core.outputs import ChatGeneration
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable
from langchain_core.tracers._streaming import _StreamingCallbackHandler
from langchain_openai.chat_models.base import _convert_dict_to_message
from pydantic import BaseModel

from langchain_weftline import ChatWeftline, accelerate
from langchain_weftline.lower.chain_parsers import lowered_parser
from tests.integrations.differential import mutated
from tests.integrations.recording import Recording, recorded
from weftline.contract.transforms import run
from weftline.errors import TransformFailed

Chain = Runnable[Any, Any]

ASK = ChatPromptTemplate.from_template("{ask}")
WRITE = ChatPromptTemplate.from_template("Write of {town}, of {size}.")
TEXT = StrOutputParser()


class Town(BaseModel):
    """A town."""

    name: str
    size: int


class River(BaseModel):
    """A river."""

    name: str


SCHEMA = {"title": "Town", "description": "A town.", **Town.model_json_schema()}


def called(name: str, arguments: Any) -> str:
    """A tool call in the form that a model writes it."""
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


RULES = [
    ("Write of Rome", "The eternal city."),
    ("the town", called("Town", {"name": "Rome", "size": 3})),
    ("both", called("Town", {"name": "Rome", "size": 3}) + called("River", {"name": "Po"})),
    ("the river", called("River", {"name": "Po"})),
    ("nothing", "I would rather not."),
    ("a word", called("Town", {"name": "Rome", "size": "three"})),
]


def outcome(act: Callable[[], Any]) -> tuple[Any, ...]:
    """Return the result of `act` without random ids, or its exception."""
    try:
        value = act()
    except Exception as error:
        return type(error), str(error)
    return "value", type(value), without_ids(value)


def without_ids(value: Any) -> Any:
    if isinstance(value, AIMessage):
        calls = [{**call, "id": None} for call in value.tool_calls]
        reason = value.response_metadata["finish_reason"]
        return value.content, calls, reason, value.usage_metadata
    if isinstance(value, list):
        return [without_ids(item) for item in value]
    return {**value, "id": None} if isinstance(value, dict) and "id" in value else value


def counted(passed: Recording) -> tuple[int, int]:
    """Count the graphs and the single calls that were sent."""
    return len(passed.bodies("/v1/submit")), len(passed.bodies("/v1/chat/completions"))


PARSERS: dict[str, Any] = {
    "none": None,
    "json": JsonOutputToolsParser(),
    "json ids": JsonOutputToolsParser(return_id=True),
    "json first": JsonOutputToolsParser(first_tool_only=True),
    "key": JsonOutputKeyToolsParser(key_name="Town"),
    "key first": JsonOutputKeyToolsParser(key_name="Town", first_tool_only=True),
    "key first id": JsonOutputKeyToolsParser(
        key_name="River", first_tool_only=True, return_id=True
    ),
    "objects": PydanticToolsParser(tools=[Town, River]),
    "first object": PydanticToolsParser(tools=[Town, River], first_tool_only=True),
    "unknown object": PydanticToolsParser(tools=[Town]),
    "text": StrOutputParser(),
}


@pytest.mark.parametrize("name", PARSERS)
async def test_the_parsers_own_values_and_exceptions(name: str, url: str) -> None:
    """The answer has one call, two, none, or one whose arguments do not fit the class."""
    parser = PARSERS[name]
    with recorded(url) as passed:
        llm = ChatWeftline(base_url=passed.url).bind_tools([Town, River])
        chain: Chain = ASK | llm if parser is None else ASK | llm | parser
        # A call that is alone is sent ahead only if somebody wants its graph.
        compiled = accelerate(chain, on_graph=lambda graph: None)
        for ask in ("the town", "both", "the river", "nothing", "a word"):
            plain = partial(chain.invoke, {"ask": ask})
            expected = outcome(plain)
            before = counted(passed)
            assert outcome(partial(compiled.invoke, {"ask": ask})) == expected, ask
            assert counted(passed) == (before[0] + 1, before[1])
            try:
                made = await compiled.ainvoke({"ask": ask})
            except Exception as error:
                assert (type(error), str(error)) == expected
            else:
                assert outcome(lambda made=made: made) == expected  # type: ignore[misc]


@pytest.mark.parametrize("schema", [Town, SCHEMA], ids=["class", "schema"])
@pytest.mark.parametrize("include_raw", [False, True])
def test_structured_output(schema: Any, include_raw: bool, url: str) -> None:
    """`function_calling` is a model with a tool and a parser; both go to the server."""
    llm = ChatWeftline(base_url=url)
    plain = ASK | llm.with_structured_output(
        schema, method="function_calling", include_raw=include_raw
    )
    for ask in ("the town", "nothing", "a word"):
        expected = outcome(partial(_parsed, plain, ask))
        for chain in (accelerate(plain), accelerate(plain)):
            assert outcome(partial(_parsed, chain, ask)) == expected, ask


def _parsed(chain: Chain, ask: str) -> Any:
    """Return the answer of `chain`. With the raw message: the parsed value and the type of the
    error.
    """
    made = chain.invoke({"ask": ask})
    if isinstance(made, dict) and "raw" in made:
        return [made["parsed"], str(type(made["parsing_error"]))]
    return made


def planned(llm: ChatWeftline) -> Any:
    """A plan, and a text about an item of it."""
    plan = ASK | llm.with_structured_output(SCHEMA, method="function_calling")
    return plan | {"town": itemgetter("name"), "size": itemgetter("size")} | WRITE | llm | TEXT


def test_arguments_go_from_call_to_call_in_the_server(url: str) -> None:
    """The chain is one request, and the client reads neither value in between."""
    with recorded(url) as passed:
        llm = ChatWeftline(base_url=passed.url)
        chain = planned(llm)
        compiled = accelerate(chain)
        assert compiled.invoke({"ask": "the town"}) == "The eternal city."
        assert counted(passed) == (1, 0)
        assert outcome(lambda: compiled.invoke({"ask": "nothing"})) == outcome(
            lambda: chain.invoke({"ask": "nothing"})
        )
        assert [step.step for step in compiled.explain({"ask": "x"}).in_client] == [
            "ChatPromptTemplate"
        ]


async def test_calls_of_tools_are_sent_ahead(url: str) -> None:
    """Both calls are one submit, and LangChain finds both results. A stream sends its
    calls again.
    """
    with recorded(url) as passed:
        llm = ChatWeftline(base_url=passed.url)
        chain = planned(llm)
        ahead = accelerate(chain)
        assert ahead.invoke({"ask": "the town"}) == "The eternal city."
        assert await ahead.ainvoke({"ask": "the town"}) == "The eternal city."
        assert counted(passed) == (2, 0)
        events = [event async for event in ahead.astream_events({"ask": "the town"}, version="v2")]
        assert events[-1]["data"]["output"] == "The eternal city."
        assert "".join(ahead.stream({"ask": "the town"})) == "The eternal city."
        tools = ASK | llm.bind_tools([Town])
        assert outcome(lambda: accelerate(tools).invoke({"ask": "the town"})) == outcome(
            lambda: tools.invoke({"ask": "the town"})
        )


def test_a_traced_run_streams_the_sent_ahead_calls(url: str) -> None:
    """A tracer that wants chunks makes LangChain stream inside `invoke`."""

    class Chunks(BaseCallbackHandler, _StreamingCallbackHandler):  # type: ignore[type-arg]
        def tap_output_iter(self, run_id: Any, output: Any) -> Any:
            return output

        def tap_output_aiter(self, run_id: Any, output: Any) -> Any:
            return output

    with recorded(url) as passed:
        chain = ASK | ChatWeftline(base_url=passed.url).bind_tools([Town]) | PARSERS["objects"]
        config: Any = {"callbacks": [Chunks()]}
        ahead = accelerate(chain, on_graph=lambda graph: None)
        assert ahead.invoke({"ask": "the town"}, config) == [Town(name="Rome", size=3)]
        assert counted(passed) == (1, 0)


def test_an_object_is_read_in_the_client(url: str) -> None:
    """A step that needs the object gets it. The steps behind it are a graph of their own."""
    llm = ChatWeftline(base_url=url)
    plan = ASK | llm.with_structured_output(Town, method="function_calling")
    chain = plan | (lambda town: {"town": town.name, "size": town.size}) | WRITE | llm | TEXT
    assert accelerate(chain).invoke({"ask": "the town"}) == "The eternal city."


def test_a_message_with_calls_is_streamed_as_langchain_does(url: str) -> None:
    """In as many chunks as the plain chain's, which add up to the same."""
    chain = ASK | ChatWeftline(base_url=url).bind_tools([Town])
    chunks = list(chain.stream({"ask": "the town"}))
    plain = sum(chunks[1:], chunks[0])
    streamed = list(accelerate(chain).stream({"ask": "the town"}))
    assert len(streamed) == len(chunks)
    made = sum(streamed[1:], streamed[0])
    assert isinstance(made, AIMessageChunk) and made.chunk_position == "last"
    assert without_ids(made) == without_ids(plain)


ARGUMENTS = ('{"a": 1, "b": [true, null]}', '{"a": "x\ny"}', "", "{}", "0", '{"a": {"b": 1.5}}')


@pytest.mark.parametrize(
    ("key_name", "first", "return_id"), list(product((None, "f"), (False, True), (False, True)))
)
def test_calls_are_read_as_langchain_reads_them(
    key_name: str | None, first: bool, return_id: bool
) -> None:
    """Four thousand messages have three calls each, whose arguments are JSON or damaged JSON."""
    options: dict[str, Any] = {"first_tool_only": first, "return_id": return_id}
    parser: Any = JsonOutputToolsParser(**options)
    if key_name is not None:
        parser = JsonOutputKeyToolsParser(key_name=key_name, **options)
    spec, _ = lowered_parser(parser)
    assert spec is not None
    texts = list(mutated(seed=5, count=4000, seeds=ARGUMENTS, edits=2))
    compared = 0
    for number in range(len(texts) - 2):
        functions = zip("fgf", texts[number : number + 3], strict=True)
        calls = [
            {"id": str(at), "type": "function", "function": {"name": name, "arguments": text}}
            for at, (name, text) in enumerate(functions)
        ]
        message = {"role": "assistant", "content": None, "tool_calls": calls[: number % 4]}
        try:
            read = _convert_dict_to_message(message)
            made = run([spec], message)
        # arguments that are no object, or that JSON cannot carry
        except (ValueError, TransformFailed):
            continue
        expected = parser.parse_result([ChatGeneration(message=read)])
        compared += 1
        assert repr(made) == repr(expected), message
    assert compared > 3000
