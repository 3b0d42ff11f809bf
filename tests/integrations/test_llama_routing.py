"""Engines over other engines: a router's query, one with sub-questions and one with HyDE are one
request, and so is each step of several.

The answers, nodes, events and errors are those of the plain program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core import (
    Document,
    PromptTemplate,
    Settings,
    StorageContext,
    SummaryIndex,
    VectorStoreIndex,
)
from llama_index.core.callbacks import CallbackManager, LlamaDebugHandler
from llama_index.core.indices.query.query_transform import (
    DecomposeQueryTransform,
    HyDEQueryTransform,
)
from llama_index.core.indices.query.query_transform.base import StepDecomposeQueryTransform
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.base import BaseEvent
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent, LLMChatInProgressEvent
from llama_index.core.query_engine import (
    FLAREInstructQueryEngine,
    MultiStepQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import QueryBundle
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import QueryEngineTool
from llama_index.core.vector_stores import VectorStoreQuery
from llama_index.embeddings.weftline import WeftlineEmbedding
from llama_index.llms.weftline import Weftline
from llama_index.vector_stores.weftline import WeftlineVectorStore

from tests.integrations.conftest import RETRIEVES
from tests.integrations.recording import Recording
from tests.integrations.test_llama_ahead import wait_for

OPTIONS = RETRIEVES

SUBMIT, CHAT = "/v1/submit", "/v1/chat/completions"
ANIMALS = ["a red fox", "a blue whale", "a red whale"]
QUESTIONS = """Here they are:
```json
{
    "items": [
        {"sub_question": "red fox", "tool_name": "animals"},
        {"sub_question": "blue whale", "tool_name": "others"},
        {"sub_question": "red whale", "tool_name": "animals"}
    ]
}
```"""
RULES = [
    ("Query: red fox\nAnswer:  It is red.\n", "The fox is red, and"),
    ("Existing Answer: \nAnswer", " The fox is [Search(red fox)], and\n"),
    ("Existing Answer:  The fox is red, and\nAnswer", "nothing is to be searched for"),
    ("Template:\nnothing is to be", "so is the whale."),
    ("Existing Answer: The fox is red, and so is the whale.", "This is done."),
    ("write a passage", "A whale is red, large and no fox."),
    ("- red whale\n- It is large.", "None, I know it all."),
    ("animals\nPrevious reasoning: \n- red fox", "red whale"),
    ("animals\nPrevious reasoning: None", "red fox"),
    ("animals\nNew question", "red fox"),
    ("four broken parts", '{"items": [{"sub_question": "red fox", "tool_na'),
    ("an unknown tool", '{"items": [{"sub_question": "red fox", "tool_name": "nobody"}]}'),
    ("list of relevant sub-questions", QUESTIONS),
    ("generate the selection object", '<tool_call>\n{"name": "SingleSelection", "arguments": '
                        '{"index": 2, "reason": "It has more."}}\n</tool_call>'),
    ("the third choice", '[{"choice": 3, "reason": "It is last."}]'),
    ("no choice at all", "I cannot say."),
    ("as a lone object", '{"choice": 2, "reason": "It is alone."}'),
    ("Some choices are given below", '[{"choice": 2, "reason": "It has more of them."}]'),
    ("Sub question: red fox", "All of them."),
    ("Query: red fox", " It is red.\n"),
    ("Query: red whale", "It is large."),
    ("", "It is blue."),
]  # fmt: skip


@pytest.fixture
def index(recording: Recording) -> Iterator[VectorStoreIndex]:
    documents = [
        Document(text=text, doc_id=f"d{n}", metadata={"n": n}) for n, text in enumerate(ANIMALS)
    ]
    store = WeftlineVectorStore()
    context = StorageContext.from_defaults(vector_store=store)
    yield VectorStoreIndex.from_documents(documents, context, embed_model=WeftlineEmbedding())
    for n in range(len(documents)):
        store.delete(f"d{n}")


def llm(ahead: bool = True, **how: Any) -> Weftline:
    return Weftline(max_tokens=300, context_window=4000, ahead=ahead, **how)


def posted(recording: Recording) -> list[str]:
    return sorted(path for verb, path, _ in recording.requests if verb == "POST")


OTHER_QA = PromptTemplate("Other. {context_str}\nQuery: {query_str}\nAnswer: ")


BARE_QA = PromptTemplate("{context_str} Query: {query_str}")


def router(index: VectorStoreIndex, model: Any, *, templates: Any = (), **how: Any) -> Any:
    """A router over three engines: two over the server's store, and one over a list of its own."""
    selector = how.pop("selector", LLMSingleSelector.from_defaults(model))
    more = [{"text_qa_template": one} for one in templates] or [{}, {}]
    engines = [
        index.as_query_engine(llm=model, similarity_top_k=k, **how, **one)
        for k, one in zip((1, 2), more, strict=True)
    ]
    listed = SummaryIndex.from_documents([Document(text="Query: red fox, in a list.")])
    engines.append(listed.as_query_engine(llm=model))
    tools = [
        QueryEngineTool.from_defaults(engine, description=f"Number {n}.")
        for n, engine in enumerate(engines)
    ]
    return RouterQueryEngine.from_defaults(tools, llm=model, selector=selector)


def sub_questions(
    index: VectorStoreIndex, model: Any, *, tools: int = 2, templates: Any = (), **how: Any
) -> Any:
    """Sub-questions over one or two engines, which search different numbers of nodes."""
    final = how.pop("final", {})
    use_async = how.pop("use_async", True)
    more = [{"text_qa_template": one} for one in templates] or [{}, {}]
    made = [
        QueryEngineTool.from_defaults(
            index.as_query_engine(llm=model, similarity_top_k=k, **how, **one),
            name=name,
            description=f"Knows {name}.",
        )
        for name, k, one in zip(("animals", "others"), (1, 2), more, strict=True)
    ]
    return SubQuestionQueryEngine.from_defaults(
        made[:tools],
        llm=model,
        question_gen=LLMQuestionGenerator.from_defaults(model),
        response_synthesizer=get_response_synthesizer(**{"llm": model, **final}),
        verbose=False,
        use_async=use_async,
    )


def asked(engine: Any, query: str, is_async: bool) -> Any:
    """The answer, its nodes and its metadata, or the type and text of the error."""

    async def ask() -> Any:
        response = await engine.aquery(query)
        parts = getattr(response, "response_gen", None)
        if parts is None:
            return str(response), response
        return "".join([part async for part in parts]), response

    try:
        if is_async:
            text, response = asyncio.run(ask())
        else:
            response = engine.query(query)
            streamed = getattr(response, "response_gen", None)
            text = str(response) if streamed is None else "".join(streamed)
    except Exception as error:
        return type(error), str(error)
    nodes = [(one.node.get_content(), one.score) for one in response.source_nodes]
    chosen = (response.metadata or {}).get("selector_result")
    return text, nodes, str(chosen)


class Events(BaseEventHandler):
    """The events of LlamaIndex's instrumentation: their classes, and the tokens of each call."""

    seen: list[Any]

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        if isinstance(event, LLMChatInProgressEvent):
            return  # as many as the parts of a stream
        self.seen.append(type(event).__name__)
        if isinstance(event, LLMChatEndEvent) and event.response is not None:
            raw = event.response.raw
            usage, choices = raw.get("usage") or {}, raw["choices"]
            counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
            reason = choices[0].get("finish_reason") if choices else None
            prompt = [message.content for message in event.messages]
            self.seen.append((prompt, event.response.message.content, counts, reason))


def outcome(make: Any, query: str, is_async: bool = False) -> Any:
    """What a program gives, and its events and callbacks, in no order where it runs at once."""
    events, debug = Events(seen=[]), LlamaDebugHandler(print_trace_on_end=False)
    root = get_dispatcher()
    root.add_event_handler(events)
    before = Settings.callback_manager
    Settings.callback_manager = CallbackManager([debug])
    try:
        result = asked(make(), query, is_async)
    finally:
        root.event_handlers.remove(events)
        # A new manager without handlers would take over the handlers of the present one.
        Settings.callback_manager = before
    called = [event.event_type.value for event in debug.get_events()]
    return result, sorted(map(str, events.seen)), sorted(called)


def compared(
    recording: Recording, make: Any, query: str, is_async: bool = False
) -> tuple[list[str], list[str], Any]:
    """The requests sent ahead and plain, and the result, which both ways give."""
    recording.requests.clear()
    found = outcome(lambda: make(llm()), query, is_async)
    ours = posted(recording)
    recording.requests.clear()
    plain = outcome(lambda: make(llm(ahead=False)), query, is_async)
    assert found == plain
    return ours, posted(recording), found[0]


ASYNC = pytest.mark.parametrize("is_async", [False, True], ids=["query", "aquery"])


@ASYNC
@pytest.mark.parametrize("streaming", [False, True], ids=["", "streaming"])
@pytest.mark.parametrize("by_tool", [False, True], ids=["text", "tool"])
def test_a_router(
    index: VectorStoreIndex, recording: Recording, is_async: bool, streaming: bool, by_tool: bool
) -> None:
    """The selection, a branch, the embedding, the searches and the chosen engine's call."""

    def make(model: Any) -> Any:
        selector = {"selector": None} if by_tool else {}
        return router(index, model, streaming=streaming, **selector)

    ours, plain, (text, nodes, chosen) = compared(recording, make, "blue whale", is_async)
    assert (ours, plain) == ([SUBMIT], [CHAT, CHAT, SUBMIT])
    assert text == "It is blue." and len(nodes) == 2 and "index=1" in chosen


@pytest.mark.parametrize("templates", [(None, None), (OTHER_QA, None)], ids=["same", "others"])
def test_no_call_for_an_engine_that_is_not_chosen(
    index: VectorStoreIndex, recording: Recording, templates: Any
) -> None:
    """Of the two engines' calls only the chosen one is generated, also if their prompts differ."""
    graphs: list[Any] = []
    how = {} if templates[0] is None else {"templates": (OTHER_QA, PromptTemplate("{query_str}"))}
    recording.requests.clear()
    router(index, llm(on_graph=graphs.append), **how).query("blue whale")
    [graph] = wait_for(graphs)
    made = [call for call in graph["calls"] if call["output_tokens"]]
    assert [call["name"] for call in made] == ["select", "answer"]
    assert {call["state"] for call in graph["calls"]} <= {"done", "skipped"}
    assert posted(recording) == [SUBMIT]


def test_a_router_chooses_an_engine_of_another_kind(
    index: VectorStoreIndex, recording: Recording
) -> None:
    """Its call follows, and nothing is generated in vain for the engines of the store."""
    graphs: list[Any] = []
    ours, plain, _ = compared(recording, lambda model: router(index, model), "the third choice")
    assert (ours, plain) == ([CHAT, SUBMIT], [CHAT, CHAT])
    router(index, llm(on_graph=graphs.append)).query("the third choice")
    [graph] = wait_for(graphs)
    made = [call for call in graph["calls"] if call["output_tokens"]]
    assert len(made) == 2


@pytest.mark.parametrize(
    ("query", "requests"),
    [
        ("as a lone object", [CHAT, SUBMIT, SUBMIT]),
        ("no choice at all", [SUBMIT]),
    ],
)
def test_a_selection_that_the_server_cannot_read(
    index: VectorStoreIndex, recording: Recording, query: str, requests: list[str]
) -> None:
    """LlamaIndex reads it in its own way, or raises its own error."""
    ours, _, _ = compared(recording, lambda model: router(index, model), query)
    assert ours in (requests, [SUBMIT, SUBMIT])


def test_a_router_over_engines_that_make_several_calls(
    index: VectorStoreIndex, recording: Recording
) -> None:
    """The graph ends with the hits. Refining two nodes is the plain program's."""
    ours, plain, _ = compared(
        recording, lambda model: router(index, model, response_mode="refine"), "blue whale"
    )
    assert (ours, plain) == ([SUBMIT, SUBMIT], [CHAT, CHAT, CHAT, SUBMIT])


@ASYNC
@pytest.mark.parametrize(
    ("how", "requests", "before"),
    [
        ({}, [SUBMIT], 8),
        ({"tools": 1}, [CHAT, SUBMIT], 6),  # a part names another tool, and is left out
        ({"use_async": False}, [SUBMIT], 8),
        ({"templates": (OTHER_QA, BARE_QA)}, [SUBMIT], 8),
        ({"final": {"response_mode": "tree_summarize"}}, [SUBMIT], 8),
        ({"final": {"streaming": True}}, [SUBMIT], 8),
        ({"final": {"response_mode": "refine"}}, [SUBMIT, SUBMIT], 10),
        ({"streaming": True}, [CHAT, SUBMIT], 8),
        ({"response_mode": "refine"}, [CHAT] * 3 + [SUBMIT] * 2, 9),
    ],
    ids=lambda one: "-".join(map(str, one)) if isinstance(one, dict) else "",
)  # fmt: skip
def test_sub_questions(
    index: VectorStoreIndex,
    recording: Recording,
    how: dict[str, Any],
    requests: list[str],
    before: int,
    is_async: bool,
) -> None:
    """The division, the query of each part and the call on the answers are one request."""

    def make(model: Any) -> Any:
        return sub_questions(index, model, **how)

    ours, plain, (text, nodes, _) = compared(recording, make, "which animals?", is_async)
    assert nodes and (text == "All of them." or requests != [SUBMIT])
    assert (ours, len(plain)) == (requests, before)


@pytest.mark.parametrize("query", ["four broken parts", "an unknown tool"])
def test_parts_that_cannot_be_asked(
    index: VectorStoreIndex, recording: Recording, query: str
) -> None:
    """The list is broken off, or names a tool that there is not."""
    ours, plain, _ = compared(recording, lambda model: sub_questions(index, model), query)
    assert len(ours) <= len(plain)


def test_a_part_without_nodes(index: VectorStoreIndex, recording: Recording) -> None:
    """LlamaIndex says "Empty Response" for it, and the other parts have their answers.

    A part that fails in the graph asks for its embedding and its search itself.
    """
    store = WeftlineVectorStore()
    store.delete("d0")
    store.delete("d1")
    store.delete("d2")
    ours, plain, _ = compared(
        recording, lambda model: sub_questions(index, model), "which animals?"
    )
    assert len(ours) <= len(plain) + 3


def test_the_session_of_sub_questions(index: VectorStoreIndex, recording: Recording) -> None:
    """The server's graph has an edge from the division to the parts, and from them to the end."""
    graphs: list[Any] = []
    sub_questions(index, llm(on_graph=graphs.append)).query("which animals?")
    [graph] = wait_for(graphs)
    names = {one["call_id"]: one["name"] for one in graph["calls"]}
    names |= {one["step_id"]: one["name"] for one in graph["steps"]}
    edges = {(names[one["from"]], names[one["to"]]) for one in graph["edges"]}
    assert ("divide", "parts") in edges and ("parts", "answer") in edges
    assert ("parts[2].answer", "parts[2].text") in edges


def test_edges_where_the_last_call_is_not_in_the_graph(
    index: VectorStoreIndex, recording: Recording
) -> None:
    """The last prompt names the variables of the parts' answers that it holds."""
    recording.requests.clear()
    model = llm()
    engine = sub_questions(index, model, final={"llm": llm(additional_kwargs={"logprobs": True})})
    engine.query("which animals?")
    [body] = recording.bodies(CHAT)
    pieces = [piece for message in body["weftline"]["messages"] for piece in message or ()]
    named = {piece["text"]: piece["from_var"] for piece in pieces if "from_var" in piece}
    assert named.keys() == {"It is large."}, "shorter texts may occur by chance"
    [graph] = recording.bodies(SUBMIT)
    assert graph["session_id"] == body["weftline"]["session_id"]


def hyde(index: VectorStoreIndex, model: Any, *, original: bool = True, **how: Any) -> Any:
    engine = index.as_query_engine(llm=model, **{"similarity_top_k": 1, **how})
    return TransformQueryEngine(engine, HyDEQueryTransform(model, include_original=original))


@ASYNC
@pytest.mark.parametrize(
    ("how", "requests", "before"),
    [
        ({}, [SUBMIT], [CHAT, CHAT, SUBMIT]),
        ({"original": False}, [SUBMIT], [CHAT, CHAT, SUBMIT]),
        ({"streaming": True}, [SUBMIT], [CHAT, CHAT, SUBMIT]),
        ({"response_mode": "refine"}, [SUBMIT], [CHAT, CHAT, SUBMIT]),
        ({"response_mode": "refine", "similarity_top_k": 2}, [SUBMIT] * 2, [CHAT] * 3 + [SUBMIT]),
    ],
    ids=lambda one: "-".join(map(str, one)) if isinstance(one, dict) else "",
)
def test_hyde(
    index: VectorStoreIndex,
    recording: Recording,
    how: dict[str, Any],
    requests: list[str],
    before: list[str],
    is_async: bool,
) -> None:
    """The passage, its embedding and the query's, the search with their mean, and the answer."""

    def make(model: Any) -> Any:
        return hyde(index, model, **how)

    ours, plain, (text, nodes, _) = compared(recording, make, "blue whale", is_async)
    assert (ours, plain) == (requests, before)
    assert text == "It is blue." and nodes


@pytest.mark.parametrize("original", [True, False])
def test_the_mean_is_llama_index_s(
    index: VectorStoreIndex, recording: Recording, original: bool
) -> None:
    """The server's search has the scores of the mean that LlamaIndex makes."""
    texts = ["A whale is red, large and no fox.", *(["blue whale"] if original else [])]
    mean = WeftlineEmbedding().get_agg_embedding_from_queries(texts)
    query = VectorStoreQuery(query_embedding=mean, similarity_top_k=3)
    found = WeftlineVectorStore().query(query)
    engine = hyde(index, llm(), original=original, similarity_top_k=3)
    recording.requests.clear()
    nodes = engine.query("blue whale").source_nodes
    assert [one.score for one in nodes] == found.similarities and len(nodes) == 3
    [body] = recording.bodies(SUBMIT)
    kinds = [step["kind"] for step in body["steps"]]
    assert kinds == (["embed", "embed", "mean", "search"] if original else ["embed", "search"])


def test_the_session_of_hyde(index: VectorStoreIndex, recording: Recording) -> None:
    """The passage has an edge to its embedding, and so on to the answer."""
    graphs: list[Any] = []
    hyde(index, llm(on_graph=graphs.append)).query("blue whale")
    [graph] = wait_for(graphs)
    names = {one["call_id"]: one["name"] for one in graph["calls"]}
    names |= {one["step_id"]: one["name"] for one in graph["steps"]}
    edges = [(names[one["from"]], names[one["to"]]) for one in graph["edges"]]
    assert sorted(edges) == [
        ("embed", "mean"),
        ("embed", "mean"),
        ("mean", "search"),
        ("passage", "embed"),
        ("search", "answer"),
    ]


@ASYNC
def test_a_decomposed_query(index: VectorStoreIndex, recording: Recording, is_async: bool) -> None:
    """The query that the transform writes is searched for, and stands in the answer's prompt."""

    def make(model: Any) -> Any:
        engine = index.as_query_engine(llm=model, similarity_top_k=1)
        transform = DecomposeQueryTransform(model)
        given = {"index_summary": "animals"}
        return TransformQueryEngine(engine, transform, transform_metadata=given)

    ours, plain, (text, nodes, _) = compared(recording, make, "which?", is_async)
    assert (ours, plain) == ([SUBMIT], [CHAT, CHAT, SUBMIT])
    assert text == " It is red.\n" and nodes[0][0] == "a red fox"


def steps(index: VectorStoreIndex, model: Any, **how: Any) -> Any:
    return MultiStepQueryEngine(
        index.as_query_engine(llm=model, similarity_top_k=1),
        StepDecomposeQueryTransform(model),
        response_synthesizer=get_response_synthesizer(llm=model),
        index_summary="animals",
        **how,
    )


@ASYNC
@pytest.mark.parametrize("most", [1, 2, 3])
def test_several_steps(
    index: VectorStoreIndex, recording: Recording, most: int, is_async: bool
) -> None:
    """Each step is one request: the next query, its search and its answer. The third says none."""
    ours, plain, (_, nodes, _) = compared(
        recording, lambda model: steps(index, model, num_steps=most), "which?", is_async
    )
    answered = min(most, 2)
    assert ours == [CHAT] + [SUBMIT] * most
    assert plain == [CHAT] * (most + answered + 1) + [SUBMIT] * answered
    assert [text for text, _ in nodes if text.startswith("a ")] == ["a red fox", "a red whale"][
        :most
    ]


def test_nothing_is_generated_after_the_last_step(
    index: VectorStoreIndex, recording: Recording
) -> None:
    """A query with `none` in it ends the steps, so its answer does not run."""
    graphs: list[Any] = []
    steps(index, llm(on_graph=graphs.append)).query("which?")
    [graph] = wait_for(graphs)
    made = [call["name"] for call in graph["calls"] if call["output_tokens"]]
    assert (made.count("rewrite"), made.count("answer"), len(made)) == (3, 2, 6)


def test_a_stop_function_of_the_user_s(index: VectorStoreIndex, recording: Recording) -> None:
    """Only the client knows whether it goes on: the calls go one by one."""

    def make(model: Any) -> Any:
        return steps(index, model, num_steps=2, stop_fn=lambda said: False)

    ours, plain, _ = compared(recording, make, "which?")
    assert ours == [CHAT] * 3 + [SUBMIT] * 2 and len(plain) == 7


def test_several_texts_of_a_query(index: VectorStoreIndex, recording: Recording) -> None:
    """A retriever embeds each of them and searches with their mean, in one request."""
    bundle = QueryBundle("red", custom_embedding_strs=["a red fox", "a red whale", "a red fox"])
    recording.requests.clear()
    found = index.as_retriever(similarity_top_k=3).retrieve(bundle)
    assert posted(recording) == [SUBMIT]
    mean = WeftlineEmbedding().get_agg_embedding_from_queries(bundle.embedding_strs)
    query = VectorStoreQuery(query_embedding=mean, similarity_top_k=3)
    assert [one.score for one in found] == WeftlineVectorStore().query(query).similarities


def flare(index: VectorStoreIndex, model: Any, **how: Any) -> Any:
    engine = index.as_query_engine(llm=model, similarity_top_k=1)
    return FLAREInstructQueryEngine(engine, llm=model, **how)


@ASYNC
def test_flare(index: VectorStoreIndex, recording: Recording, is_async: bool) -> None:
    """Each turn is one request: the next words, the query in them, and the words with its answer.

    The second turn has no query, so its words are filled in by a call more. The third says done.
    """
    ours, plain, (text, nodes, _) = compared(
        recording, lambda model: flare(index, model), "which animals?", is_async
    )
    assert ours == [CHAT] + [SUBMIT] * 3 and plain == [CHAT] * 6 + [SUBMIT]
    assert text == "The fox is red, and so is the whale. This is ." and len(nodes) == 1


def test_the_end_of_flare(index: VectorStoreIndex, recording: Recording) -> None:
    """Nothing is generated for words without a query, and nothing after the last ones."""
    graphs: list[Any] = []
    flare(index, llm(on_graph=graphs.append)).query("which animals?")
    [graph] = wait_for(graphs)
    made = [call["name"] for call in graph["calls"] if call["output_tokens"]]
    counts = [made.count(name) for name in ("lookahead", "answer", "insert")]
    assert counts == [3, 1, 1] and len(made) == 6
