"""A LlamaIndex query over the server's embedder and store: one request, and the plain answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from llama_index.core import Document, PromptTemplate, StorageContext, VectorStoreIndex
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.query_engine import RouterQueryEngine, SubQuestionQueryEngine
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import QueryEngineTool
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters
from llama_index.embeddings.weftline import WeftlineEmbedding
from llama_index.llms.weftline import Weftline
from llama_index.postprocessor.weftline import WeftlineRerank
from llama_index.vector_stores.weftline import WeftlineVectorStore

from tests.integrations.conftest import RETRIEVES, StartServer, recorded_by_default
from tests.integrations.recording import Recording
from weftline.errors import EngineUnavailable, WeftlineError

OPTIONS = RETRIEVES

SUBMIT, CHAT = "/v1/submit", "/v1/chat/completions"
ANIMALS = ["a red fox", "a blue whale", "a red whale"]


QUESTIONS = """{"items": [{"sub_question": "red fox", "tool_name": "animals"},
                          {"sub_question": "blue whale", "tool_name": "animals"}]}"""
CHOICE = '[{"choice": 2, "reason": "It has more of them."}]'
SCRIPT = [
    ("list of relevant sub-questions", QUESTIONS),
    ("Some choices are given below", CHOICE),
    ("Sub question: red fox", "Both of them."),
    ("Query: red fox", "It is red."),
    ("", "It is blue."),
]


@pytest.fixture(scope="module")
def scripted(start_script: StartServer) -> str:
    """The same with a model that answers by rules."""
    return start_script(SCRIPT, *RETRIEVES)


@pytest.fixture
def by_rules(scripted: str) -> Iterator[Recording]:
    with recorded_by_default(scripted) as recording:
        yield recording


@pytest.fixture
def index(recording: Recording) -> Iterator[VectorStoreIndex]:
    yield from filled()


@pytest.fixture
def scripted_index(by_rules: Recording) -> Iterator[VectorStoreIndex]:
    yield from filled()


def filled() -> Iterator[VectorStoreIndex]:
    documents = [
        Document(
            text=text,
            doc_id=f"d{n}",
            metadata={"n": n, "page": None, "secret": "s"},
            excluded_llm_metadata_keys=["secret"],
        )
        for n, text in enumerate(ANIMALS)
    ]
    store = WeftlineVectorStore()
    context = StorageContext.from_defaults(vector_store=store)
    yield VectorStoreIndex.from_documents(documents, context, embed_model=WeftlineEmbedding())
    for n in range(len(documents)):
        store.delete(f"d{n}")


def llm(ahead: bool = True, **how: Any) -> Weftline:
    return Weftline(max_tokens=400, context_window=4000, ahead=ahead, **how)


def posted(recording: Recording) -> list[str]:
    return [path for verb, path, _ in recording.requests if verb == "POST"]


def answer_of(response: Any) -> tuple[str, list[NodeWithScore]]:
    text = "".join(response.response_gen) if hasattr(response, "response_gen") else str(response)
    return text, response.source_nodes


@pytest.mark.parametrize("is_async", [False, True], ids=["query", "aquery"])
@pytest.mark.parametrize(
    ("how", "requests"),
    [
        ({}, [SUBMIT]),
        ({"streaming": True}, [SUBMIT]),
        ({"response_mode": "tree_summarize"}, [SUBMIT]),
        ({"response_mode": "compact_accumulate"}, [SUBMIT]),
        ({"response_mode": "refine", "similarity_top_k": 1}, [SUBMIT]),
        ({"response_mode": "refine"}, [SUBMIT]),
        ({"similarity_top_k": 9}, [SUBMIT, CHAT]),
        ({"node_postprocessors": [WeftlineRerank(top_n=1)]}, [SUBMIT]),
    ],
    ids=lambda one: "-".join(map(str, one)) if isinstance(one, dict) else "",
)
def test_a_query(
    index: VectorStoreIndex,
    recording: Recording,
    how: dict[str, Any],
    requests: list[str],
    is_async: bool,
) -> None:
    """Embedding, search and the only call are one request. What cannot be foreseen follows it."""
    if is_async and how.get("streaming"):
        pytest.skip("an asynchronous stream is read by a coroutine")
    if "node_postprocessors" in how:  # it was made before the server
        how = {"node_postprocessors": [WeftlineRerank(top_n=1)]}

    def ask(ahead: bool) -> Any:
        engine = index.as_query_engine(llm=llm(ahead), **how)
        recording.requests.clear()
        if is_async:
            return answer_of(asyncio.run(engine.aquery("blue whale")))
        return answer_of(engine.query("blue whale"))

    found = ask(True)
    assert posted(recording) == requests
    plain = ask(False)
    assert found == plain and "a blue whale" in plain[0]


def test_a_retriever_alone(index: VectorStoreIndex, recording: Recording) -> None:
    """Embedding and search are one request, with filters too, and no session stays open."""
    filters = MetadataFilters(filters=[MetadataFilter(key="n", value=0)])
    recording.requests.clear()
    [found] = index.as_retriever(filters=filters).retrieve("a red whale")
    assert found.node.get_content() == "a red fox" and found.score is not None
    assert [path for _, path, _ in recording.requests] == [SUBMIT]
    [body] = recording.bodies(SUBMIT)
    assert body["close"] and [step["kind"] for step in body["steps"]] == ["embed", "search"]


def test_the_call_reads_the_hits(index: VectorStoreIndex, recording: Recording) -> None:
    """The prompt's context is the variable of the search, not a text that came back first."""
    engine = index.as_query_engine(llm=llm())
    recording.requests.clear()
    engine.query("blue whale")
    [body] = recording.bodies(SUBMIT)
    [context] = [p for p in body["calls"][0]["placeholders"] if p["name"] == "context_str"]
    assert context["semantic_var_id"] == body["steps"][1]["out"]
    assert context["transforms"] == [{"op": "node_texts"}]


def test_nodes_that_are_larger_than_the_splitter_makes(recording: Recording) -> None:
    """The one prompt was a wrong guess: LlamaIndex packs them anew, and its calls are made."""
    store = WeftlineVectorStore()
    large = [TextNode(id_=f"l{n}", text="weft and warp " * 900, metadata={}) for n in range(2)]
    index = VectorStoreIndex(
        large,
        storage_context=StorageContext.from_defaults(vector_store=store),
        embed_model=WeftlineEmbedding(),
    )
    qa = PromptTemplate("{context_str}\n{query_str}")
    refine = PromptTemplate("{existing_answer}\n{context_msg}\n{query_str}")

    def ask(ahead: bool) -> str:
        engine = index.as_query_engine(
            llm=Weftline(max_tokens=64, context_window=3000, ahead=ahead),
            text_qa_template=qa,
            refine_template=refine,
        )
        return str(engine.query("weft"))

    assert ask(True) == ask(False)
    store.delete_nodes([node.node_id for node in large])


def test_nothing_is_found(index: VectorStoreIndex, recording: Recording) -> None:
    """LlamaIndex asks no model then, and the planned call does not run."""
    filters = MetadataFilters(filters=[MetadataFilter(key="n", value=77)])
    graphs: list[Any] = []
    engine = index.as_query_engine(llm=llm(on_graph=graphs.append), filters=filters)
    recording.requests.clear()
    assert str(engine.query("blue whale")) == "Empty Response"
    assert posted(recording) == [SUBMIT]


def test_an_error_is_that_of_the_plain_request(recording: Recording) -> None:
    """A store that the server does not have: the graph is refused, then the plain request."""
    index = VectorStoreIndex.from_vector_store(
        WeftlineVectorStore(store="nowhere"), WeftlineEmbedding()
    )

    def failure(ahead: bool) -> WeftlineError:
        with pytest.raises(WeftlineError) as failed:
            index.as_query_engine(llm=llm(ahead)).query("blue whale")
        return failed.value

    ours, plain = failure(True), failure(False)
    assert (type(ours), str(ours)) == (type(plain), str(plain))
    assert "nowhere" in str(plain) and not isinstance(plain, EngineUnavailable)


def test_the_window_of_a_model_beside_an_embedder(recording: Recording) -> None:
    """Without a window of its own the LLM takes that of the server's first model that generates."""
    assert Weftline().metadata.context_window == 1 << 20


def test_queries_at_once(index: VectorStoreIndex, recording: Recording) -> None:
    """Each query gets its own results."""
    engine = index.as_query_engine(llm=llm(), similarity_top_k=1)
    asked = [ANIMALS[n % 3] for n in range(12)]
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(engine.query, asked))
    assert [a.source_nodes[0].node.get_content() for a in answers] == asked
    assert all(one in str(answer) for one, answer in zip(asked, answers, strict=True))


def test_sub_questions(scripted_index: VectorStoreIndex, by_rules: Recording) -> None:
    """The call that splits, all parts and the call that joins are one request."""

    def ask(ahead: bool) -> Any:
        model = llm(ahead)
        engine = scripted_index.as_query_engine(llm=model)
        tool = QueryEngineTool.from_defaults(engine, name="animals", description="of animals")
        split = LLMQuestionGenerator.from_defaults(model)
        by_parts = SubQuestionQueryEngine.from_defaults(
            [tool], llm=model, question_gen=split, verbose=False
        )
        by_rules.requests.clear()
        text, nodes = answer_of(by_parts.query("which animals?"))
        return text, [(one.node.get_content(), one.score) for one in nodes]

    found = ask(True)
    assert posted(by_rules) == [SUBMIT]
    assert found == ask(False) and found[0] == "Both of them."
    assert "It is red." in found[1][0][0] and "It is blue." in found[1][1][0]


def test_a_router(scripted_index: VectorStoreIndex, by_rules: Recording) -> None:
    """The selector's call and the chosen engine's whole query are one request."""

    def ask(ahead: bool) -> Any:
        model = llm(ahead)
        tools = [
            QueryEngineTool.from_defaults(
                scripted_index.as_query_engine(llm=model, similarity_top_k=k),
                description=f"k is {k}",
            )
            for k in (1, 2)
        ]
        select = LLMSingleSelector.from_defaults(model)
        engine = RouterQueryEngine.from_defaults(tools, llm=model, selector=select)
        by_rules.requests.clear()
        return answer_of(engine.query("blue whale"))

    found = ask(True)
    assert posted(by_rules) == [SUBMIT]
    assert found == ask(False) and len(found[1]) == 2


def test_a_chat_over_documents(index: VectorStoreIndex, recording: Recording) -> None:
    """Each turn's embedding and search are one request in the chat's session."""
    chat = index.as_chat_engine(chat_mode="context", llm=llm())
    recording.requests.clear()
    first, second = chat.chat("red fox"), chat.chat("blue whale")
    assert "a red fox" in str(first) and "a blue whale" in str(second)
    assert posted(recording) == [SUBMIT, CHAT, SUBMIT, CHAT]


def test_a_splitter_s_size_is_the_bound(index: VectorStoreIndex, recording: Recording) -> None:
    """Smaller chunks leave room for more of them in the one prompt."""
    small = VectorStoreIndex.from_vector_store(
        WeftlineVectorStore(),
        WeftlineEmbedding(),
        transformations=[SentenceSplitter(chunk_size=128, chunk_overlap=8)],
    )
    recording.requests.clear()
    small.as_query_engine(llm=llm(), similarity_top_k=9).query("blue whale")
    assert posted(recording) == [SUBMIT]
