"""LlamaIndex's own behaviours, with its MockLLM replaced by Weftline on an engine that echoes.

LlamaIndex has no contract suite for LLMs. MockLLM answers with its prompt, like the null engine. So
every synthesizer, engine, extractor and index must give the same with either, with the graph sent
ahead and without.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core import (
    Document,
    DocumentSummaryIndex,
    KeywordTableIndex,
    MockEmbedding,
    PromptTemplate,
    Settings,
    SummaryIndex,
    TreeIndex,
    VectorStoreIndex,
)
from llama_index.core.evaluation import CorrectnessEvaluator
from llama_index.core.extractors import (
    KeywordExtractor,
    QuestionsAnsweredExtractor,
    SummaryExtractor,
    TitleExtractor,
)
from llama_index.core.indices.prompt_helper import PromptHelper
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.indices.query.query_transform.base import StepDecomposeQueryTransform
from llama_index.core.llms import (
    LLM,
    ChatMessage,
    CompletionResponse,
    CustomLLM,
    LLMMetadata,
    MockLLM,
)
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import (
    CitationQueryEngine,
    MultiStepQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import (
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.llms.weftline import Weftline

from tests.integrations.conftest import StartServer

MODES = [
    "refine",
    "compact",
    "tree_summarize",
    "simple_summarize",
    "accumulate",
    "compact_accumulate",
    "generation",
    "no_text",
    "context_only",
]
STREAMED = ["refine", "compact", "tree_summarize", "simple_summarize", "generation"]


def words(name: str, count: int) -> str:
    return " ".join(f"{name}{i}" for i in range(count))


def nodes(count: int = 3, size: int = 60) -> list[NodeWithScore]:
    return [NodeWithScore(node=TextNode(text=words(f"d{k}w", size)), score=1) for k in range(count)]


def documents() -> list[Document]:
    return [Document(text=words(f"d{k}w", 60), id_=f"doc-{k}") for k in range(3)]


@pytest.fixture(params=[True, False], ids=["ahead", "one-by-one"])
def ours(request: pytest.FixtureRequest, echo_url: str) -> Weftline:
    return echo(echo_url, ahead=request.param)


def echo(url: str, **options: Any) -> Weftline:
    """Like MockLLM: a text model with LlamaIndex's default window and unbounded answers."""
    return Weftline(
        base_url=url,
        is_chat_model=False,
        is_function_calling_model=False,
        context_window=3900,
        max_tokens=None,
        additional_kwargs={"max_tokens": 1 << 18},
        **options,
    )


def text(value: Any) -> Any:
    """Return what the user sees: the text of a response, or a plain value."""
    return value if isinstance(value, (str, list, dict)) else str(value)


@pytest.fixture(scope="module")
def text_url(start_script: StartServer) -> str:
    """A server that answers like MockLLM(max_tokens=40)."""
    return start_script([("", " ".join(["text"] * 40))])


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_synthesizer(ours: Weftline, mode: str, count: int) -> None:
    """Every response mode runs over one chunk and over a few."""

    def synthesize(llm: LLM) -> Any:
        Settings.llm = llm  # for modes that call no model
        made = get_response_synthesizer(response_mode=mode, llm=llm)
        return made.synthesize("What matters?", nodes(count))

    assert text(synthesize(ours)) == text(synthesize(MockLLM()))


@pytest.mark.parametrize("window", [500, 900])
@pytest.mark.parametrize("mode", ["refine", "compact", "tree_summarize", "compact_accumulate"])
def test_many_prompts(text_url: str, mode: str, window: int) -> None:
    """Eight chunks need many prompts. In the smaller window the tree's answers need two again."""
    answers = set()
    for llm in (MockLLM(max_tokens=40), *(bounded(text_url, ahead) for ahead in (True, False))):
        helper = PromptHelper(context_window=window, num_output=40)
        made = get_response_synthesizer(response_mode=mode, llm=llm, prompt_helper=helper)
        if mode in ("refine", "compact"):
            made._response_padding_size = 60
        answers.add(str(made.synthesize("What matters?", nodes(8, 60))))
    assert len(answers) == 1


def bounded(url: str, ahead: bool) -> Weftline:
    return Weftline(
        base_url=url, max_tokens=40, context_window=900, is_chat_model=False, ahead=ahead
    )


@pytest.mark.parametrize("mode", MODES)
def test_async_synthesizer(ours: Weftline, mode: str) -> None:
    """The same with await."""

    def synthesize(llm: LLM) -> Any:
        Settings.llm = llm
        made = get_response_synthesizer(response_mode=mode, llm=llm)
        return asyncio.run(made.asynthesize("What matters?", nodes()))

    assert text(synthesize(ours)) == text(synthesize(MockLLM()))


@pytest.mark.parametrize("mode", ["tree_summarize", "accumulate", "compact_accumulate"])
def test_sync_over_async(ours: Weftline, mode: str) -> None:
    """`use_async` runs a loop of its own inside a synchronous call."""

    def synthesize(llm: LLM) -> Any:
        made = get_response_synthesizer(response_mode=mode, llm=llm, use_async=True)
        return made.synthesize("What matters?", nodes(5))

    assert text(synthesize(ours)) == text(synthesize(MockLLM()))


@pytest.mark.parametrize("mode", STREAMED)
def test_streaming_synthesizer(ours: Weftline, mode: str) -> None:
    """A stream's parts add up to the same text as MockLLM's."""

    def synthesize(llm: LLM) -> str:
        made = get_response_synthesizer(response_mode=mode, llm=llm, streaming=True)
        return "".join(made.synthesize("What matters?", nodes()).response_gen)

    assert synthesize(ours) == synthesize(MockLLM())


@pytest.mark.parametrize("mode", STREAMED)
def test_async_streaming_synthesizer(ours: Weftline, mode: str) -> None:
    """The same with await."""

    def synthesize(llm: LLM) -> str:
        async def run() -> str:
            made = get_response_synthesizer(response_mode=mode, llm=llm, streaming=True)
            response = await made.asynthesize("What matters?", nodes())
            return "".join([part async for part in response.async_response_gen()])

        return asyncio.run(run())

    assert synthesize(ours) == synthesize(MockLLM())


def vector_index() -> VectorStoreIndex:
    chunks = [TextNode(text=words(f"d{k}w", 60), id_=f"node-{k}") for k in range(3)]
    for number, chunk in enumerate(chunks):
        source = NodeRelationship.SOURCE
        chunk.relationships[source] = RelatedNodeInfo(node_id=f"doc-{number}")
    return VectorStoreIndex(chunks, embed_model=MockEmbedding(embed_dim=4))


def citation(llm: LLM) -> Any:
    return CitationQueryEngine.from_args(vector_index(), llm=llm).query("What matters?")


def hyde(llm: LLM) -> Any:
    engine = vector_index().as_query_engine(llm=llm)
    return TransformQueryEngine(engine, HyDEQueryTransform(llm=llm)).query("What matters?")


def multi_step(llm: LLM) -> Any:
    engine = MultiStepQueryEngine(
        vector_index().as_query_engine(llm=llm),
        StepDecomposeQueryTransform(llm=llm),
        response_synthesizer=get_response_synthesizer(llm=llm),
        index_summary="words",
        num_steps=2,
    )
    return engine.query("What matters?")


def fusion(llm: LLM) -> Any:
    retrievers = [vector_index().as_retriever()]
    made = QueryFusionRetriever(retrievers, llm=llm, num_queries=3, use_async=False)
    return [found.node.get_content() for found in made.retrieve("What matters?")]


def chat(mode: str) -> Callable[[LLM], Any]:
    def run(llm: LLM) -> Any:
        engine = vector_index().as_chat_engine(chat_mode=mode, llm=llm)
        return [str(engine.chat("Hello there.")), str(engine.chat("And what matters?"))]

    return run


def extract(extractor: type[Any]) -> Callable[[LLM], Any]:
    def run(llm: LLM) -> Any:
        chunks = vector_index().docstore.docs.values()
        return extractor(llm=llm).extract(sorted(chunks, key=lambda node: node.ref_doc_id))

    return run


def summary_index(llm: LLM) -> Any:
    index = DocumentSummaryIndex.from_documents(
        documents(), llm=llm, embed_model=MockEmbedding(embed_dim=4)
    )
    return [index.get_document_summary(f"doc-{k}") for k in range(3)]


def evaluator(llm: LLM) -> Any:
    judge = CorrectnessEvaluator(llm=llm, parser_function=lambda said: (3.0, said))
    return judge.evaluate(query="q", response="r", reference="s").feedback


APPLICATIONS: dict[str, Callable[[LLM], Any]] = {
    "query": lambda llm: vector_index().as_query_engine(llm=llm).query("What matters?"),
    "summary-tree": lambda llm: (
        SummaryIndex.from_documents(documents())
        .as_query_engine(llm=llm, response_mode="tree_summarize")
        .query("Sum up.")
    ),
    "tree-index": lambda llm: (
        TreeIndex.from_documents(documents(), llm=llm, num_children=2)
        .as_retriever(retriever_mode="all_leaf")
        .retrieve("x")[0]
        .node.get_content()
    ),
    "keyword-index": lambda llm: sorted(
        KeywordTableIndex.from_documents(documents(), llm=llm).index_struct.table
    ),
    "citation": citation,
    "hyde": hyde,
    "multi-step": multi_step,
    "fusion": fusion,
    "chat-condense": chat("condense_question"),
    "chat-context": chat("context"),
    "chat-condense-context": chat("condense_plus_context"),
    "chat-simple": chat("simple"),
    "extract-summary": extract(SummaryExtractor),
    "extract-keywords": extract(KeywordExtractor),
    "extract-questions": extract(QuestionsAnsweredExtractor),
    "extract-titles": extract(TitleExtractor),
    "document-summary": summary_index,
    "evaluator": evaluator,
    "predict": lambda llm: llm.predict(PromptTemplate("Say {x} twice: {x} {y}"), x="a {b}", y="c"),
    "complete": lambda llm: llm.complete("Hello.").text,
}


@pytest.mark.parametrize("name", APPLICATIONS)
def test_application(ours: Weftline, name: str) -> None:
    """Indexes, engines, extractors, evaluators, and the LLM's own methods."""
    assert text(APPLICATIONS[name](ours)) == text(APPLICATIONS[name](MockLLM()))


CHATS = ["simple", "context", "condense_question", "condense_plus_context"]
TALKS = ["Hello there.", "And what matters?"]


def said(response: Any, is_async: bool, streams: bool) -> Any:
    """The text of a turn, whichever way it comes."""
    if not streams:
        return asyncio.run(response) if is_async else response
    if not is_async:
        return "".join(response.response_gen)

    async def read() -> str:
        made = await response
        return "".join([part async for part in made.async_response_gen()])

    return asyncio.run(read())


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("mode", CHATS)
def test_chat_engine(ours: Weftline, mode: str, streams: bool, is_async: bool) -> None:
    """Turns on a history that was given, the history after them, the sources, and a new start."""

    def talk(llm: LLM) -> Any:
        given = [
            ChatMessage(role="user", content="I am Ada."),
            ChatMessage(role="assistant", content="Good day, Ada."),
        ]
        engine = vector_index().as_chat_engine(chat_mode=mode, llm=llm, chat_history=given)
        name = f"{'a' * is_async}{'stream_' * streams}chat"
        texts = [str(said(getattr(engine, name)(text), is_async, streams)) for text in TALKS]
        history = [(message.role, message.content) for message in engine.chat_history]
        engine.reset()
        again = engine.chat("Hello again.")
        sources = [node.node.get_content() for node in again.source_nodes]
        return texts, history, str(again), sources, len(engine.chat_history)

    assert talk(ours) == talk(MockLLM())


FILTERED = [("d1w0", '{"answer": "the second", "query_satisfied": true}'),
            ("", '{"answer": "nothing", "query_satisfied": false}')]  # fmt: skip


class Filtering(CustomLLM):
    """An LLM of LlamaIndex's kind that answers as FILTERED says."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=900, num_output=40)

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=next(reply for when, reply in FILTERED if when in prompt))

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        yield self.complete(prompt)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("mode", ["refine", "compact"])
@pytest.mark.parametrize("asked", [3, 1])
def test_structured_answers_are_filtered(
    start_script: StartServer, mode: str, asked: int, ahead: bool, is_async: bool
) -> None:
    """Only an answer that satisfies the query is refined, or none: "Empty Response"."""

    def synthesize(llm: LLM) -> str:
        made = get_response_synthesizer(
            response_mode=mode, llm=llm, structured_answer_filtering=True
        )
        given = nodes(asked, 200)
        if is_async:
            return str(asyncio.run(made.asynthesize("What matters?", given)))
        return str(made.synthesize("What matters?", given))

    ours = Weftline(
        base_url=start_script(FILTERED),
        max_tokens=40,
        context_window=900,
        is_chat_model=False,
        is_function_calling_model=False,
        ahead=ahead,
    )
    found = synthesize(ours)
    assert found == synthesize(Filtering()) == ("the second" if asked == 3 else "Empty Response")


class WithoutWord(BaseNodePostprocessor):
    """Leaves out the nodes that hold a word."""

    word: str

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return [one for one in nodes if self.word not in one.node.get_content().split()]


def test_an_engine_over_postprocessed_nodes(ours: Weftline) -> None:
    """A retriever engine's nodes are filtered before the answer, and custom prompts are used."""

    def ask(llm: LLM) -> Any:
        engine = vector_index().as_query_engine(
            llm=llm,
            similarity_top_k=3,
            node_postprocessors=[WithoutWord(word="d0w1")],
            text_qa_template=PromptTemplate("By {context_str} say {query_str}"),
        )
        engine.update_prompts({"response_synthesizer:refine_template": PromptTemplate("No.")})
        response = engine.query("What matters?")
        return str(response), [node.node.node_id for node in response.source_nodes]

    answer, ids = ask(ours)
    assert (answer, ids) == ask(MockLLM()) and len(ids) == 2 and answer.startswith("By d")


def test_an_engine_whose_retriever_fails(ours: Weftline) -> None:
    """The error is the retriever's own, and the next query works."""

    def ask(llm: LLM) -> Any:
        index = SummaryIndex(list(vector_index().docstore.docs.values()))
        engine = index.as_query_engine(llm=llm)
        retriever: Any = engine.retriever
        plain = retriever._retrieve
        retriever._retrieve = broken
        with pytest.raises(RuntimeError, match="no disk"):
            engine.query("What matters?")
        retriever._retrieve = plain
        return str(engine.query("What matters?"))

    def broken(query: Any) -> Any:
        raise RuntimeError("no disk")

    assert ask(ours) == ask(MockLLM())
