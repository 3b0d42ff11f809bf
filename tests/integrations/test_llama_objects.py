"""Answers that LlamaIndex parses: output parsers of the LLM, objects of synthesizers, programs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_classic.output_parsers import ResponseSchema, StructuredOutputParser
from langchain_core.output_parsers import CommaSeparatedListOutputParser, JsonOutputParser
from llama_index.core import PromptTemplate
from llama_index.core.extractors import PydanticProgramExtractor
from llama_index.core.indices.vector_store.retrievers.auto_retriever.output_parser import (
    VectorStoreQueryOutputParser,
)
from llama_index.core.output_parsers import PydanticOutputParser, SelectionOutputParser
from llama_index.core.program import FunctionCallingProgram, LLMTextCompletionProgram
from llama_index.core.prompts import ChatPromptTemplate
from llama_index.core.question_gen.output_parser import SubQuestionOutputParser
from llama_index.core.types import PydanticProgramMode
from llama_index.llms.weftline import Weftline
from llama_index.llms.weftline.model.object_fields import as_text_field, wanted
from llama_index.llms.weftline.output_parsers import text_of, transforms_of
from llama_index.output_parsers.langchain import LangchainOutputParser
from pydantic import BaseModel, Field

from tests.integrations.conftest import StartServer
from tests.integrations.recording import Recording, recorded
from tests.integrations.test_llama_ahead import CHAT, SUBMIT, counts, nodes, synthesizer
from weftline.errors import WeftlineError
from weftline.kit.parsers import NoTransform


class River(BaseModel):
    """A river."""

    name: str
    km: float = Field(description="Its length.")
    towns: list[str] = []


SCHEMA = River.model_json_schema() | {"additionalProperties": False}
FIRST = '{"name": "first\\u00e9", "km": 4.50, "towns": ["a"]}'
SECOND = '{"name": "second", "km": 5e1, "towns": []}'
# A later prompt holds an earlier object as pydantic dumps it.
RULES = [
    ('{"name":"second","km":50.0,"towns":[]}', '{"name": "both", "km": 54.5, "towns": ["a"]}'),
    ('{"name":"firsté","km":4.5,"towns":["a"]}', '{"name": "refined", "km": 1.0, "towns": []}'),
    ("k0w0", FIRST),
    ("", SECOND),
]
MODES = ["accumulate", "compact_accumulate", "tree_summarize", "refine", "compact"]


def ours(url: str, **options: Any) -> Weftline:
    return Weftline(base_url=url, max_tokens=24, context_window=430, **options)


def call_of(arguments: str, tool: str = "River") -> str:
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {arguments}}}\n</tool_call>'


@pytest.fixture(scope="module")
def urls(start_script: StartServer) -> dict[bool, str]:
    """A server that answers in text, and one that calls the tool."""
    calls = [(when, call_of(reply)) for when, reply in RULES]
    return {False: start_script(RULES), True: start_script(calls)}


@pytest.fixture(params=[False, True], ids=["text", "tools"])
def with_tools(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def proxy(urls: dict[bool, str], with_tools: bool) -> Iterator[Recording]:
    with recorded(urls[with_tools]) as recording:
        yield recording


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("mode", MODES)
def test_objects_of_a_synthesis(
    proxy: Recording, with_tools: bool, mode: str, is_async: bool
) -> None:
    """With `output_cls` the whole synthesis is one request. The client builds the object."""

    def run(llm: Weftline) -> Any:
        made = synthesizer(mode, llm, output_cls=River)
        if is_async:
            return asyncio.run(made.asynthesize("What?", nodes()))
        return made.synthesize("What?", nodes())

    llm = ours(proxy.url, is_function_calling_model=with_tools)
    response = run(llm)
    assert counts(proxy) == (1, 0)
    plain = run(llm.model_copy(update={"ahead": False}))
    assert counts(proxy)[0] == 1 and counts(proxy)[1] >= 1
    assert plain.response == response.response
    if mode in ("refine", "tree_summarize"):
        assert isinstance(response.response, River)


def test_objects_are_constrained_and_edges_are_json(proxy: Recording, with_tools: bool) -> None:
    """Each call is constrained to the class's schema, and an edge is the object's JSON."""
    llm = ours(proxy.url, is_function_calling_model=with_tools)
    synthesizer("refine", llm, output_cls=River).synthesize("What?", nodes(2))
    [body] = proxy.bodies(SUBMIT)
    first, then = body["calls"]
    if with_tools:
        assert [tool["function"]["parameters"]["required"] for tool in first["tools"]] == [
            ["name", "km"]
        ]
        assert (first["tool_choice"], first["parallel_tool_calls"]) == ("required", False)
    else:
        output = first["placeholders"][-1]
        assert output["sampling"]["constraint"] == {"json_schema": SCHEMA}
    [edge] = [p for p in then["placeholders"] if p["name"] == "existing_answer"]
    path = {"op": "path", "keys": ["tool_calls", 0, "function", "arguments"]}
    assert edge["transforms"] == [
        *([path] if with_tools else []),
        {"op": "json_object"},
        {"op": "json_text"},
    ]


def test_a_wrong_guess_is_an_ordinary_call(start_script: StartServer) -> None:
    """Pydantic writes 4.0 where the model wrote 4. This is a miss: one more call gives the same
    answer.
    """
    with recorded(start_script([("", '{"name": "x", "km": 4}')])) as proxy:
        llm = ours(proxy.url, is_function_calling_model=False)
        made = [
            synthesizer("tree_summarize", one, output_cls=River).synthesize("What?", nodes())
            for one in (llm, llm.model_copy(update={"ahead": False}))
        ]
        [body] = proxy.bodies(SUBMIT)
        calls = len(body["calls"])
        assert len(proxy.bodies(CHAT)) == 1 + calls
    assert [response.response for response in made] == [River(name="x", km=4)] * 2


def test_text_that_is_no_object_raises(start_script: StartServer) -> None:
    """Text that is no object raises as in a plain run, sent ahead or not."""
    url = start_script([("", "no object at all")])
    said = set()
    for ahead in (True, False):
        llm = ours(url, is_function_calling_model=False, ahead=ahead)
        with pytest.raises(ValueError, match="Could not extract json string") as caught:
            synthesizer("accumulate", llm, output_cls=River).synthesize("What?", nodes())
        said.add(str(caught.value))
    assert len(said) == 1


def structured() -> LangchainOutputParser:
    schemas = [ResponseSchema(name=name, description=name) for name in ("name", "km")]
    return LangchainOutputParser(StructuredOutputParser.from_response_schemas(schemas))


PARSERS: dict[str, tuple[Callable[[], Any], list[dict[str, Any]], list[tuple[str, str]]]] = {
    "json": (
        lambda: LangchainOutputParser(JsonOutputParser()),
        [{"op": "json"}, {"op": "str"}],
        [("{'a': 1", '{"b": [true]}'), ("k0w0", '```json\n{"a": 1}\n```'), ("", '{"c": null}')],
    ),
    "structured": (
        structured,
        [{"op": "structured", "keys": ["name", "km"]}, {"op": "str"}],
        [("'km': 4", '{"name": 1, "km": 2}'), ("", '```json\n{"name": "x", "km": 4}\n```')],
    ),
    "list": (
        lambda: LangchainOutputParser(CommaSeparatedListOutputParser()),
        [{"op": "comma_list"}, {"op": "str"}],
        [("['a', 'b']", "c"), ("", "a, b")],
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PARSERS)
def test_output_parser_of_the_llm(start_script: StartServer, name: str, mode: str) -> None:
    """A parser set on the LLM runs between the calls, in the server. The whole is one request."""
    make, steps, rules = PARSERS[name]
    with recorded(start_script(rules)) as proxy:
        llm = ours(proxy.url, output_parser=make())
        answers = [
            str(synthesizer(mode, one).synthesize("What?", nodes()))
            for one in (llm, llm.model_copy(update={"ahead": False}))
        ]
        [body] = proxy.bodies(SUBMIT)
        assert len(proxy.bodies(CHAT)) == len(body["calls"])  # only in the plain run
    assert answers[0] == answers[1] and "Empty" not in answers[0]
    edges = [
        placeholder["transforms"]
        for call in body["calls"]
        for placeholder in call["placeholders"]
        if placeholder.get("transforms")
    ]
    strip = [{"op": "strip"}] if mode == "tree_summarize" else []
    assert all(edge == [*steps, *strip] for edge in edges)
    assert bool(edges) == (mode in ("tree_summarize", "refine", "compact"))


def test_a_parser_that_fails(start_script: StartServer) -> None:
    """Its exception has the type and text of the plain run's."""
    url = start_script([("k1w0", "no json"), ("", '{"name": 1, "km": 2}')])
    for mode in ("accumulate", "tree_summarize"):
        said = []
        for ahead in (True, False):
            llm = ours(url, output_parser=structured(), ahead=ahead)
            with pytest.raises(Exception, match="Got invalid JSON object") as caught:
                synthesizer(mode, llm).synthesize("What?", nodes())
            assert not isinstance(caught.value, WeftlineError)
            said.append((type(caught.value), str(caught.value)))
        assert said[0] == said[1]


def test_a_parser_that_makes_objects(urls: dict[bool, str]) -> None:
    """Python's form of an object is not data. The text beside it is sent, and the rest follows."""
    with recorded(urls[False]) as proxy:
        llm = ours(proxy.url, output_parser=PydanticOutputParser(River))
        answers = [
            [str(synthesizer(mode, one).synthesize("What?", nodes())) for mode in MODES]
            for one in (llm, llm.model_copy(update={"ahead": False}))
        ]
        names = [[call["name"] for call in body["calls"]] for body in proxy.bodies(SUBMIT)]
    assert answers[0] == answers[1] and "name='second'" in answers[0][0]
    assert {name for sent in names for name in sent} == {"answer", "summarize"}


def test_transforms_of_parsers() -> None:
    """A parser becomes data for a user's own graph. An unknown class has no transform."""
    assert transforms_of(PydanticOutputParser(River)) == ({"op": "json_object"},)
    assert transforms_of(SubQuestionOutputParser()) == ({"op": "json_or_yaml"},)
    assert transforms_of(VectorStoreQueryOutputParser()) == ({"op": "json_or_yaml"},)
    assert transforms_of(SelectionOutputParser()) == ({"op": "json_or_yaml", "fenced": False},)
    assert text_of(SelectionOutputParser()) is None

    class Mine(PydanticOutputParser):
        pass

    for parser in (Mine(River), LangchainOutputParser(object()), object()):
        with pytest.raises(NoTransform, match="its class is not known"):
            transforms_of(parser)


PROMPT = "Which river flows through {city}?"
TIBER = River(name="Tiber", km=405)
FORMAT = {"name": "River", "schema": SCHEMA}


def formats(proxy: Recording) -> list[Any]:
    found = [body.get("response_format", {}) for body in proxy.bodies(CHAT)]
    return [format.get("json_schema") for format in found]


def test_text_programs_are_constrained(start_script: StartServer) -> None:
    """A program that asks for JSON in the text is held to its schema, whichever way it
    is called.
    """
    with recorded(start_script([("", TIBER.model_dump_json())])) as proxy:
        llm = ours(proxy.url)
        program = LLMTextCompletionProgram.from_defaults(
            output_cls=River, prompt_template_str=PROMPT, llm=llm
        )
        assert program(city="Rome") == TIBER
        assert asyncio.run(program.acall(city="Rome")) == TIBER
        *_, last = program.stream_call(city="Rome")
        assert last == TIBER
        text = ours(proxy.url, is_chat_model=False)
        program._llm = text
        assert program(city="Rome") == TIBER
        chat = ChatPromptTemplate.from_messages([("system", "Be brief."), ("user", PROMPT)])
        program = LLMTextCompletionProgram.from_defaults(output_cls=River, prompt=chat, llm=llm)
        assert program(city="Rome") == TIBER
        assert formats(proxy) == [FORMAT] * 4
        assert [b["response_format"]["json_schema"] for b in proxy.bodies("/v1/completions")] == [
            FORMAT
        ]


def test_streamed_objects_without_tools(start_script: StartServer) -> None:
    """They are held to the schema like whole objects, and grow while they stream."""
    with recorded(start_script([("", TIBER.model_dump_json(indent=1))])) as proxy:
        for options in (
            {"is_function_calling_model": False},
            {"pydantic_program_mode": PydanticProgramMode.LLM},
        ):
            llm = Weftline(base_url=proxy.url, **options)
            prompt = PromptTemplate(PROMPT)
            parts = list(llm.stream_structured_predict(River, prompt, city="Rome"))
            assert parts[-1] == TIBER

            async def stream(llm: Weftline = llm) -> list[Any]:
                prompt = PromptTemplate(PROMPT)
                made = await llm.astream_structured_predict(River, prompt, city="Rome")
                return [part async for part in made]

            assert asyncio.run(stream())[-1] == TIBER
            assert llm.structured_predict(River, prompt, city="Rome") == TIBER
        assert formats(proxy) == [FORMAT] * 6


def test_a_structured_llm(start_script: StartServer) -> None:
    """LlamaIndex's wrapper that answers only with objects is constrained too."""
    with recorded(start_script([("", TIBER.model_dump_json())])) as proxy:
        llm = ours(proxy.url, is_function_calling_model=False).as_structured_llm(River)
        assert llm.complete("Which river flows through Rome?").raw == TIBER
        assert formats(proxy) == [FORMAT]


def test_the_schema_of_a_prompt() -> None:
    """Only the schema that LlamaIndex's parser writes at the end of a message counts."""
    ended = PydanticOutputParser(River).format("Which river?")
    field = {"response_format": {"type": "json_schema", "json_schema": FORMAT}}
    assert wanted([ended]) == field
    assert wanted(["system", "user", ended]) == field
    assert wanted([ended, "user"]) == field
    assert wanted(["a", ended, "b"]) == {} == wanted([]) == wanted([ended + "Or not."])
    broken = ended.replace("{{", "(", 1)
    assert wanted([broken]) == {}
    plain = PydanticOutputParser(River).get_format_string(escape_json=False)
    assert wanted(["Which? " + plain]) == field


class Inner(BaseModel):
    """An object in an object."""

    x: int


class Outer(BaseModel, extra="allow"):
    """An object that accepts fields which it does not name."""

    inner: Inner
    more: dict[str, int]


def test_a_schema_is_closed() -> None:
    """Where pydantic drops unnamed fields, the model must not write them."""
    schema = as_text_field(Outer)["response_format"]["json_schema"]["schema"]
    assert schema["$defs"]["Inner"]["additionalProperties"] is False
    assert schema["additionalProperties"] is True
    assert schema["properties"]["more"]["additionalProperties"] == {"type": "integer"}


@pytest.mark.parametrize("ahead", [True, False])
def test_extractor_of_objects(proxy: Recording, with_tools: bool, ahead: bool) -> None:
    """PydanticProgramExtractor knows its nodes, so its program's calls are one request."""
    llm = ours(proxy.url, is_function_calling_model=with_tools, ahead=ahead)
    kind: Any = FunctionCallingProgram if with_tools else LLMTextCompletionProgram
    program = kind.from_defaults(output_cls=River, prompt_template_str="{input}", llm=llm)
    extractor = PydanticProgramExtractor(program=program, input_key="input")
    found = extractor.extract([node.node for node in nodes(3)])
    first, second = (River.model_validate(json.loads(text)) for text in (FIRST, SECOND))
    assert found == [first.model_dump(), second.model_dump(), second.model_dump()]
    assert counts(proxy) == ((1, 0) if ahead else (0, 3))
