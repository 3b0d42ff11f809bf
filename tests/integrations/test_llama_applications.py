"""LlamaIndex's engines, retrievers, agents and programs on Weftline: the provenance
that they send.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core import MockEmbedding, PromptTemplate, VectorStoreIndex
from llama_index.core.agent.workflow import (
    AgentWorkflow,
    FunctionAgent,
    ReActAgent,
    ToolCallResult,
)
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.indices.query.query_transform.base import StepDecomposeQueryTransform
from llama_index.core.llms import MockLLM
from llama_index.core.output_parsers import PydanticOutputParser
from llama_index.core.postprocessor import LLMRerank
from llama_index.core.program import FunctionCallingProgram, LLMTextCompletionProgram
from llama_index.core.query_engine import (
    CitationQueryEngine,
    MultiStepQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import QueryEngineTool
from llama_index.core.types import BaseOutputParser
from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step
from llama_index.llms.weftline import Weftline
from pydantic import BaseModel

from tests.integrations.conftest import StartServer
from tests.integrations.recording import Recording, recorded
from tests.integrations.test_llama_ahead import wait_for

SUB_QUESTIONS = """```json
{"items": [{"sub_question": "Where is the source?", "tool_name": "rivers"},
           {"sub_question": "Where is the mouth?", "tool_name": "rivers"}]}
```"""
RULES = [
    ("list of relevant sub-questions", SUB_QUESTIONS),
    ("Some choices are given below", '[{"choice": 1, "reason": "it fits"}]'),
    ("A list of documents is shown below", "Doc: 2, Relevance: 9\nDoc: 1, Relevance: 3"),
    ("search queries", "the river\nits course"),
    ("write a passage", "The Tiber rises in the Apennines."),
    ("Now given the original question", "What is asked first?"),
    ("", "It flows into the sea."),
]
TEXTS = ("The Tiber rises on a mountain.", "The Tiber flows into a sea.")


def ours(url: str, **options: Any) -> Weftline:
    return Weftline(base_url=url, max_tokens=64, context_window=3900, **options)


def index() -> VectorStoreIndex:
    chunks = [TextNode(text=text, id_=str(number)) for number, text in enumerate(TEXTS)]
    return VectorStoreIndex(chunks, embed_model=MockEmbedding(embed_dim=4))


def tool(llm: Any, name: str = "rivers") -> QueryEngineTool:
    engine = index().as_query_engine(llm=llm)
    return QueryEngineTool.from_defaults(engine, name=name, description=f"Knows {name}.")


def sub_question(llm: Any) -> Any:
    return SubQuestionQueryEngine.from_defaults(
        [tool(llm)],
        llm=llm,
        question_gen=LLMQuestionGenerator.from_defaults(llm=llm),
        verbose=False,
        use_async=False,
    ).query("Where does the Tiber flow?")


def router(llm: Any) -> Any:
    selector = LLMSingleSelector.from_defaults(llm=llm)
    tools = [tool(llm), tool(llm, "mountains")]
    return RouterQueryEngine(selector, tools, llm=llm).query("Where does the Tiber flow?")


def multi_step(llm: Any) -> Any:
    return MultiStepQueryEngine(
        index().as_query_engine(llm=llm),
        StepDecomposeQueryTransform(llm=llm),
        response_synthesizer=get_response_synthesizer(llm=llm),
        index_summary="rivers of Italy",
        num_steps=2,
    ).query("Where does the Tiber flow?")


def hyde(llm: Any) -> Any:
    engine = index().as_query_engine(llm=llm)
    transform = HyDEQueryTransform(llm=llm)
    return TransformQueryEngine(engine, transform).query("Where does the Tiber flow?")


def citation(llm: Any) -> Any:
    engine = CitationQueryEngine.from_args(index(), llm=llm)
    return engine.query("Where does the Tiber flow?")


def rerank(llm: Any) -> Any:
    found = [NodeWithScore(node=TextNode(text=text), score=1) for text in TEXTS]
    query = QueryBundle("Where does the Tiber flow?")
    ranked = LLMRerank(llm=llm, top_n=2).postprocess_nodes(found, query)
    return [node.node.get_content() for node in ranked]


def fusion(llm: Any) -> Any:
    made = QueryFusionRetriever([index().as_retriever()], llm=llm, num_queries=3, use_async=False)
    return [found.node.get_content() for found in made.retrieve("Where does the Tiber flow?")]


def chat(llm: Any) -> Any:
    engine = index().as_chat_engine(chat_mode="condense_plus_context", llm=llm)
    said = [str(engine.chat("Where does the Tiber flow?")), str(engine.chat("And rise?"))]
    return said


# Calls of each application, its sessions, and the names in LlamaIndex's own
# templates that its prompts arrive in pieces under; last, whether an answer enters a later prompt.
APPLICATIONS: dict[str, tuple[Callable[[Any], Any], int, int, set[str], bool]] = {
    "sub-question": (sub_question, 4, 1, {"context_str", "query_str", "tools_str"}, True),
    "router": (router, 2, 1, {"context_list", "context_str", "query_str"}, False),
    "multi-step": (multi_step, 5, 1, {"context_str", "prev_reasoning", "query_str"}, True),
    "hyde": (hyde, 2, 1, {"context_str", "query_str"}, False),
    "citation": (citation, 1, 1, {"context_str", "query_str"}, False),
    "rerank": (rerank, 1, 1, {"message", "query_str"}, False),
    "fusion": (fusion, 1, 1, {"query_str"}, False),
    "chat": (chat, 3, 1, {"context_str", "message", "query_str"}, True),
}


@pytest.mark.parametrize("name", APPLICATIONS)
def test_structure(recording: Recording, name: str) -> None:
    """Prompts arrive in pieces with the names of LlamaIndex's templates, a run in one session. The
    answer equals that without provenance.
    """
    run, calls, sessions, names, traced = APPLICATIONS[name]
    said = run(ours(recording.url))
    told = [body["weftline"] for body in recording.bodies("/v1/chat/completions")]
    pieces = [piece for body in told for message in body["messages"] for piece in message or ()]
    assert len(told) == calls
    assert len({body["session_id"] for body in told}) == sessions
    assert {piece["name"] for piece in pieces if "name" in piece} == names
    assert any("from_var" in piece for piece in pieces) == traced
    assert str(run(ours(recording.url, ahead=False, provenance=False))) == str(said)


def test_the_graph_of_calls_one_by_one(url: str) -> None:
    """`on_graph` also gets a run's single calls with their edges, once the run is over."""
    graphs: list[Any] = []
    sub_question(ours(url, on_graph=graphs.append))
    [graph] = wait_for(graphs)
    assert graph["calls"][0]["name"] == "LLMQuestionGenerator"
    assert (len(graph["calls"]), len(graph["edges"])) == (4, 3)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
ACTION = 'Thought: I add.\nAction: add\nAction Input: {"a": 2, "b": 3}'
ANSWER = "Thought: I can answer without using any more tools.\nAnswer: It is five."


def function_agent(llm: Any) -> Any:
    return FunctionAgent(tools=[add], llm=llm)


def react_agent(llm: Any) -> Any:
    return ReActAgent(tools=[add], llm=llm)


def agent_workflow(llm: Any) -> Any:
    return AgentWorkflow.from_tools_or_functions([add], llm=llm)


AGENTS = {
    "function": (function_agent, [("tool_response", "It is five."), ("Two and three", CALL)]),
    "react": (react_agent, [("Observation: 5", ANSWER), ("Two and three", ACTION)]),
    "workflow": (agent_workflow, [("tool_response", "It is five."), ("Two and three", CALL)]),
}


@pytest.mark.parametrize("name", AGENTS)
def test_agents(start_script: StartServer, name: str) -> None:
    """An agent calls its tool, gets the result and answers. Its run ends and leaves nothing."""
    make, rules = AGENTS[name]
    agent = make(ours(start_script(rules)))

    async def run() -> tuple[str, list[Any]]:
        handler = agent.run("Two and three?")
        called = [e async for e in handler.stream_events() if isinstance(e, ToolCallResult)]
        return str(await handler), called

    answer, called = asyncio.run(run())
    assert answer == "It is five."
    assert [(event.tool_kwargs, event.tool_output.raw_output) for event in called] == [
        ({"a": 2, "b": 3}, 5)
    ]


class Translation(Workflow):
    """A workflow of the user's: a summary, and its translation."""

    def __init__(self, llm: Any) -> None:
        super().__init__()
        self.llm = llm

    @step
    async def work(self, event: StartEvent) -> StopEvent:
        prompt = PromptTemplate("Sum up: {text}")
        summary = await self.llm.apredict(prompt, text=event.text)
        then = PromptTemplate("Translate: {summary}")
        return StopEvent(result=await self.llm.apredict(then, summary=summary))


def test_workflow(recording: Recording) -> None:
    """The steps of a workflow are one session. The second call names the call that
    wrote its text.
    """

    async def run() -> str:
        return str(await Translation(ours(recording.url)).run(text="The Tiber is long."))

    assert asyncio.run(run()) == "It flows into the sea."
    first, second = (body["weftline"] for body in recording.bodies("/v1/chat/completions"))
    assert first["session_id"] == second["session_id"]
    assert second["messages"][0][1]["name"] == "summary"
    assert second["messages"][0][1]["from_var"]


class River(BaseModel):
    """A river."""

    name: str
    length_km: int


TIBER = River(name="Tiber", length_km=405)
PROMPT = "Which river flows through {city}?"


def test_pydantic_programs(start_script: StartServer) -> None:
    """Objects are built in the client. They come from a tool call that the server forces, or from
    JSON that `response_format` constrains.
    """
    called = (
        f'<tool_call>\n{{"name": "River", "arguments": {TIBER.model_dump_json()}}}\n</tool_call>'
    )
    rules = [("schema", TIBER.model_dump_json()), ("Rome", called)]
    with recorded(start_script(rules)) as recording:
        llm = ours(recording.url)
        by_tool = FunctionCallingProgram.from_defaults(River, PROMPT, llm=llm)
        assert by_tool(city="Rome") == TIBER
        schema = {"type": "json_schema", "json_schema": {"schema": River.model_json_schema()}}
        by_text = LLMTextCompletionProgram.from_defaults(
            output_parser=PydanticOutputParser(River), prompt_template_str=PROMPT, llm=llm
        )
        assert by_text(city="Rome", llm_kwargs={"response_format": schema}) == TIBER
        assert asyncio.run(by_text.acall(city="Rome")) == TIBER
        bodies = recording.bodies("/v1/chat/completions")
    assert bodies[0]["tool_choice"] == "required"
    closed = River.model_json_schema() | {"additionalProperties": False}
    found = {"name": "River", "schema": closed}  # by the schema in the prompt
    written = {"type": "json_schema", "json_schema": found}
    assert [body.get("response_format") for body in bodies] == [None, schema, written]


def test_objects_without_tools(start_script: StartServer) -> None:
    """Without tools LlamaIndex asks for JSON in the text, and the server enforces it."""
    with recorded(start_script([("schema", TIBER.model_dump_json())])) as recording:
        llm = ours(recording.url, is_function_calling_model=False)
        prompt = PromptTemplate(PROMPT)
        assert llm.structured_predict(River, prompt, city="Rome") == TIBER
        assert asyncio.run(llm.astructured_predict(River, prompt, city="Rome")) == TIBER
        bodies = recording.bodies("/v1/chat/completions")
    closed = River.model_json_schema() | {"additionalProperties": False}
    wanted = {"name": "River", "schema": closed}
    assert [body["response_format"]["json_schema"] for body in bodies] == [wanted] * 2
    assert all("tools" not in body for body in bodies)


def test_output_parser_of_the_llm(start_script: StartServer) -> None:
    """A parser set on the LLM runs on every answer, as with any LLM, so nothing is sent ahead."""

    class Shout(BaseOutputParser):
        def parse(self, output: str) -> str:
            return output.upper()

    with recorded(start_script([("", "yes.")])) as recording:
        llm = ours(recording.url, output_parser=Shout())
        made = get_response_synthesizer(response_mode="accumulate", llm=llm)
        nodes = [NodeWithScore(node=TextNode(text=text), score=1) for text in TEXTS]
        assert str(made.synthesize("Is it?", nodes)).count("YES.") == 2
        assert recording.bodies("/v1/submit") == []


def test_an_oversized_chunk_is_split(start_script: StartServer) -> None:
    """LlamaIndex splits a chunk over the context window. Its parts are sent as one graph."""
    words = " ".join(f"w{n}" for n in range(900))
    with recorded(start_script([("", "Yes.")])) as recording:
        llm = Weftline(base_url=recording.url, max_tokens=8, context_window=600)
        made = get_response_synthesizer(response_mode="accumulate", llm=llm)
        answer = str(made.synthesize("Is it?", [NodeWithScore(node=TextNode(text=words))]))
        [graph] = recording.bodies("/v1/submit")
        llm = llm.model_copy(update={"ahead": False})
        plain = get_response_synthesizer(response_mode="accumulate", llm=llm)
        assert str(plain.synthesize("Is it?", [NodeWithScore(node=TextNode(text=words))])) == answer
    assert len(graph["calls"]) == answer.count("Response ") >= 3


MODES = ["accumulate", "compact_accumulate", "tree_summarize", "refine", "compact"]


@pytest.mark.parametrize("mode", MODES)
def test_templates_that_do_not_fit(url: str, mode: str) -> None:
    """A template lacks the variable that a synthesizer fills. Ours behaves like any LLM, sent ahead
    or not.
    """
    nodes = [NodeWithScore(node=TextNode(text=text), score=1) for text in TEXTS]
    kind = "summary_template" if mode == "tree_summarize" else "text_qa_template"
    template = PromptTemplate("Only {query_str} and {nobody}")
    said = set()
    for llm in (ours(url), ours(url, ahead=False)):
        made = get_response_synthesizer(response_mode=mode, llm=llm, **{kind: template})
        said.add(str(made.synthesize("Is it?", nodes)))
    assert len(said) == 1


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("query", "chunks"), [(3, [*TEXTS]), (None, [*TEXTS]), ("Is it?", [*TEXTS, 5]), ("Is it?", [])]
)
def test_an_argument_that_is_no_string(
    url: str, query: Any, chunks: list[Any], mode: str, ahead: bool
) -> None:
    """LlamaIndex renders it, or raises its own exception, with the same text as for any LLM."""

    def ask(llm: Any) -> Any:
        return get_response_synthesizer(response_mode=mode, llm=llm).get_response(query, chunks)

    expected = outcome(ask, MockLLM(max_tokens=64))
    got = outcome(ask, ours(url, ahead=ahead))
    assert type(got) is type(expected)
    if isinstance(expected, Exception):
        assert str(got) == str(expected)


def test_a_failed_plan_is_logged_once(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """LlamaIndex swallows a handler's error, which the log shows once. The user gets the real
    error.
    """
    llm = ours(url)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            made = get_response_synthesizer(response_mode="tree_summarize", llm=llm)
            with pytest.raises(AttributeError, match="'int' object has no attribute 'strip'"):
                made.get_response("Is it?", [5, 6])  # type: ignore[list-item]
    [line] = [r.getMessage() for r in caplog.records if "one by one" in r.getMessage()]
    assert line.startswith("a graph sent ahead has failed")
    assert "'int' object has no attribute 'strip'" in line


def outcome(ask: Callable[[Any], Any], llm: Any) -> Any:
    try:
        return ask(llm)
    except Exception as error:
        return error
