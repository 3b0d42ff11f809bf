"""Graphs sent ahead when only the LLM was replaced: the requests and the results."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from typing import Any

import httpx2
import pytest
from llama_index.core import Document, DocumentSummaryIndex, MockEmbedding, SummaryIndex
from llama_index.core.extractors import KeywordExtractor, SummaryExtractor, TitleExtractor
from llama_index.core.indices.prompt_helper import PromptHelper
from llama_index.core.llms import MockLLM
from llama_index.core.response_synthesizers import TreeSummarize, get_response_synthesizer
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms.weftline import Weftline
from llama_index.llms.weftline.trace.span_handler import SPANS

from tests.integrations.conftest import StartServer
from tests.integrations.recording import Recording, recorded
from tests.waits import wait_until
from weftline.errors import ConnectionFailed, EngineFailed

# Each step's answer names the step and the answers that its prompt held.
RULES = [
    ("c-answer", "d-answer"),
    ("b-answer", "c-answer"),
    ("a-answer", "b-answer"),
    ("k0w0", "a-answer"),
    ("k1w0", "other one"),
    ("k2w0", "other two"),
    ("", "other three"),
]
SUBMIT, CHAT = "/v1/submit", "/v1/chat/completions"


def nodes(count: int = 4) -> list[NodeWithScore]:
    texts = (" ".join(f"k{k}w{i}" for i in range(30)) for k in range(count))
    return [NodeWithScore(node=TextNode(text=text), score=1) for text in texts]


def bounded(url: str, **options: Any) -> Weftline:
    return Weftline(base_url=url, max_tokens=8, context_window=400, **options)


def synthesizer(mode: str, llm: Any, **options: Any) -> Any:
    made = get_response_synthesizer(response_mode=mode, llm=llm, **options)
    made._response_padding_size = 20
    return made


def counts(recording: Recording) -> tuple[int, int]:
    """Count the requests for graphs and for single calls."""
    return len(recording.bodies(SUBMIT)), len(recording.bodies(CHAT))


CASES = {
    "tree_summarize": "b-answer",
    "refine": "d-answer",
    "compact": "b-answer",
    "accumulate": "Response 1: a-answer\n---------------------\nResponse 2: other one",
    "compact_accumulate": "Response 1: a-answer\n---------------------\nResponse 2: other",
}


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("mode", CASES)
def test_one_request(recording: Recording, mode: str, is_async: bool) -> None:
    """A whole synthesis is one request. Its answer equals that of single calls."""

    def run(llm: Weftline) -> str:
        made = synthesizer(mode, llm)
        if is_async:
            return str(asyncio.run(made.asynthesize("What?", nodes())))
        return str(made.synthesize("What?", nodes()))

    answer = run(bounded(recording.url))
    assert answer.startswith(CASES[mode])
    assert counts(recording) == (1, 0)
    assert run(bounded(recording.url, ahead=False)) == answer
    assert counts(recording)[0] == 1


@pytest.mark.parametrize("mode", ["tree_summarize", "refine", "compact"])
def test_streamed_answer_is_one_request_too(recording: Recording, mode: str) -> None:
    """The graph streams the last call's text, because parts were requested."""
    made = synthesizer(mode, bounded(recording.url), streaming=True)
    assert "".join(made.synthesize("What?", nodes()).response_gen) == CASES[mode]
    assert counts(recording) == (1, 0)
    assert recording.bodies(SUBMIT)[0]["parts"] is True


def test_the_graph(recording: Recording) -> None:
    """Calls are named, arguments are inputs under their names, and edges are variables."""
    synthesizer("tree_summarize", bounded(recording.url)).synthesize("What matters?", nodes())
    [body] = recording.bodies(SUBMIT)
    *leaves, root = body["calls"]
    assert [call["name"] for call in body["calls"]] == ["summarize"] * len(leaves) + ["combine"]
    assert len(leaves) >= 2 and body["watch"] == [f"answer_{i}" for i in range(len(leaves) + 1)]
    assert [p["name"] for p in leaves[0]["placeholders"]] == ["context_str", "query_str", "out"]
    read = [p["semantic_var_id"] for p in root["placeholders"] if "semantic_var_id" in p]
    assert read == [*body["watch"][:-1], body["watch"][-1]]
    strips = [p.get("transforms") for p in root["placeholders"] if p["name"].startswith("context")]
    assert strips == [[{"op": "strip"}]] * len(leaves)


def test_refine_is_a_chain(recording: Recording) -> None:
    """Each refining call reads the call before it."""
    synthesizer("refine", bounded(recording.url)).synthesize("What?", nodes())
    calls = recording.bodies(SUBMIT)[0]["calls"]
    reads = [
        [p["semantic_var_id"] for p in call["placeholders"] if p["name"] == "existing_answer"]
        for call in calls
    ]
    assert reads == [[], ["answer_0"], ["answer_1"], ["answer_2"]]


def test_refine_over_short_chunks(recording: Recording) -> None:
    """A limit on a chunk's length takes no room from the answer, so there is still one request."""
    helper = PromptHelper(context_window=900, num_output=8, chunk_size_limit=200)
    made = synthesizer("refine", bounded(recording.url), prompt_helper=helper)
    assert str(made.synthesize("What?", nodes())) == "d-answer"
    assert counts(recording) == (1, 0)


def test_criterion(recording: Recording) -> None:
    """The LLM's criterion reaches every call, in a graph and by itself."""
    graphs: list[Any] = []
    llm = bounded(recording.url, criteria="throughput", on_graph=graphs.append)
    synthesizer("refine", llm).synthesize("What?", nodes())
    llm.complete("What?")
    assert {call["criteria"] for call in recording.bodies(SUBMIT)[0]["calls"]} == {"throughput"}
    assert [body["criteria"] for body in recording.bodies(CHAT)] == ["throughput"]
    seen = [call for graph in wait_for(graphs) for call in graph["calls"]]
    assert {call["objective"] for call in seen} == {"throughput"}


def test_constraint(recording: Recording) -> None:
    """A constraint on the answers applies to every call of a graph."""
    choice = {"choice": ["Yes.", "No."]}
    llm = bounded(recording.url, additional_kwargs={"constraint": choice})
    synthesizer("accumulate", llm).synthesize("What?", nodes())
    assert counts(recording) == (1, 0)
    outputs = [call["placeholders"][-1] for call in recording.bodies(SUBMIT)[0]["calls"]]
    assert [output["sampling"]["constraint"] for output in outputs] == [choice] * 4


def test_use_async_inside_a_sync_call(recording: Recording) -> None:
    """LlamaIndex then runs the calls in a loop of its own. They are still matched."""
    made = synthesizer("accumulate", bounded(recording.url), use_async=True)
    assert str(made.synthesize("What?", nodes())).startswith("Response 1: a-answer")
    assert counts(recording) == (1, 0)


def test_a_plan_that_depends_on_an_answer_continues_later(start_script: StartServer) -> None:
    """If the longest answers may need packing again, the plan ends before that point and continues
    after it.
    """
    with recorded(start_script([("", "an answer of six words here")])) as recording:
        llm = Weftline(base_url=recording.url, max_tokens=120, context_window=400)
        made = synthesizer("tree_summarize", llm)
        answer = str(made.synthesize("What?", nodes(8)))
        assert answer == str(
            synthesizer("tree_summarize", llm.model_copy(update={"ahead": False})).synthesize(
                "What?", nodes(8)
            )
        )
        names = [[call["name"] for call in body["calls"]] for body in recording.bodies(SUBMIT)]
    assert all(name == "summarize" for name in names[0])


def test_a_miss_is_an_ordinary_call(start_script: StartServer) -> None:
    """An empty answer is left out of the tree's next prompt, so the planned call there
    is not used.
    """
    with recorded(start_script([("k0w0", " "), ("", "Yes.")])) as recording:
        both = (bounded(recording.url), bounded(recording.url, ahead=False))
        answers = [str(synthesizer("tree_summarize", llm).synthesize("Q", nodes())) for llm in both]
        submits, calls = counts(recording)
    assert answers == ["Yes.", "Yes."]
    assert submits == 1 and calls >= 2


def test_extractors(recording: Recording) -> None:
    """An extractor knows its nodes. Its calls are one request, for titles of two levels as well."""
    chunks = [found.node for found in nodes()]
    llm = bounded(recording.url)
    assert KeywordExtractor(llm=llm).extract(chunks)[0] == {"excerpt_keywords": "a-answer"}
    assert SummaryExtractor(llm=llm).extract(chunks)[1] == {"section_summary": "other one"}
    assert TitleExtractor(llm=llm).extract(chunks)[0] == {"document_title": "b-answer"}
    assert counts(recording) == (3, 0)
    assert [len(body["calls"]) for body in recording.bodies(SUBMIT)] == [4, 4, 5]


def test_many_nodes_cost_no_more_each(echo_url: str) -> None:
    """Four times the nodes make the caller's thread do four times the work, and not sixteen."""

    def work(count: int) -> int:
        calls = 0

        def see(frame: object, event: str, arg: object) -> None:
            nonlocal calls
            calls += event == "call"

        chunks = [TextNode(text=f"Node number {n}.", id_=f"n{n}") for n in range(count)]
        extractor = KeywordExtractor(llm=Weftline(base_url=echo_url, max_tokens=4))
        sys.setprofile(see)
        try:
            assert len(extractor.extract(chunks)) == count
        finally:
            sys.setprofile(None)
        return calls

    work(10)  # imports and the context window
    assert work(400) < 4.5 * work(100)


def test_document_summaries(recording: Recording) -> None:
    """The summary of each document is one request: the build around them has no span."""
    texts = [" ".join(f"k{k}w{i}" for i in range(150)) for k in range(2)]
    index = DocumentSummaryIndex.from_documents(
        [Document(text=text, id_=f"d{k}") for k, text in enumerate(texts)],
        llm=bounded(recording.url),
        embed_model=MockEmbedding(embed_dim=4),
        response_synthesizer=synthesizer("tree_summarize", bounded(recording.url)),
    )
    assert index.get_document_summary("d0") == "b-answer"
    assert counts(recording) == (2, 0)


def test_usage_of_a_graph(recording: Recording) -> None:
    """An answer from a graph has the usage of its call, like any answer."""
    seen: list[Any] = []

    class Watching(Weftline):
        def chat(self, messages: Any, **kwargs: Any) -> Any:
            seen.append(super().chat(messages, **kwargs))
            return seen[-1]

    llm = Watching(base_url=recording.url, max_tokens=8, context_window=400)
    synthesizer("refine", llm).synthesize("What?", nodes())
    assert [response.additional_kwargs["completion_tokens"] for response in seen] == [1] * 4
    assert all(response.raw["choices"][0]["finish_reason"] == "stop" for response in seen)


def test_the_graph_is_shown(url: str) -> None:
    """`on_graph` gets the graph that ran, with the time of every phase."""
    graphs: list[Any] = []
    llm = bounded(url, on_graph=graphs.append)
    synthesizer("refine", llm).synthesize("What?", nodes())
    [graph] = wait_for(graphs)
    assert [call["name"] for call in graph["calls"]] == ["answer", *["refine"] * 3]
    assert len(graph["edges"]) == 3


def wait_for(found: list[Any], *, collects: bool = False) -> list[Any]:
    """Wait for the graph. It is the last event and comes just after the answer.

    With `collects` the collector ends what nobody holds any more. The thread that looks for ended
    methods may hold a frame for a moment, so one collection is not enough.
    """

    def is_there() -> bool:
        if collects:
            gc.collect()
        return bool(found)

    wait_until(is_there)
    return found


@pytest.mark.parametrize("reason", ["off", "subclass", "one call", "other options", "limited"])
def test_not_sent_ahead(recording: Recording, reason: str) -> None:
    """Nothing is sent ahead if it is switched off, unknown, limited, or without a gain."""

    class Mine(TreeSummarize):
        pass

    class Limiter:
        def acquire(self) -> None: ...

    llm = bounded(recording.url, ahead=reason != "off")
    if reason == "limited":
        llm.rate_limiter = Limiter()
    made: Any = Mine(llm=llm) if reason == "subclass" else synthesizer("tree_summarize", llm)
    options = {"extra": "x"} if reason == "other options" else {}
    made.synthesize("What?", nodes(1 if reason == "one call" else 4), **options)
    submits, calls = counts(recording)
    assert submits == 0 and calls >= 1


def test_a_refused_graph_is_logged_once(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """If the server refuses a graph, the calls go one by one, and the log has one line about it."""
    with recorded(url, refused=SUBMIT) as recording, caplog.at_level(logging.WARNING):
        llm = bounded(recording.url)
        for _ in range(2):
            answer = str(synthesizer("refine", llm).synthesize("What?", nodes()))
            assert answer == "d-answer"
        assert counts(recording)[1] == 8
    [line] = [r.getMessage() for r in caplog.records if "one by one" in r.getMessage()]
    assert "a graph sent ahead has failed" in line


def test_errors_are_those_of_plain_calls(start_script: StartServer) -> None:
    """A call that fails in the graph fails again by itself, with the exception of a plain call."""
    llm = bounded(start_script([("k0w0", "a-answer")]))
    for ahead in (True, False):
        llm.ahead = ahead
        with pytest.raises(EngineFailed, match="no rule of the null engine's script"):
            synthesizer("accumulate", llm).synthesize("What?", nodes())


def test_errors_of_llama_index_are_its_own(url: str) -> None:
    """A window too small for the template raises LlamaIndex's ValueError."""
    llm = Weftline(base_url=url, max_tokens=8, context_window=20)
    for mode in CASES:
        with pytest.raises(ValueError, match=r"not non-negative|is not positive"):
            synthesizer(mode, llm).synthesize("What?", nodes())


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("mode", CASES)
def test_server_away(mode: str, is_async: bool) -> None:
    """The user gets the error of the first call."""
    llm = Weftline(base_url="http://127.0.0.1:9", max_tokens=8, context_window=400)
    made = synthesizer(mode, llm)
    with pytest.raises(ConnectionFailed, match="no weftline server answers"):
        if is_async:
            asyncio.run(made.asynthesize("What?", nodes()))
        else:
            made.synthesize("What?", nodes())


def test_server_away_from_an_extractor() -> None:
    """This also holds for an extractor whose calls were sent ahead."""
    llm = Weftline(base_url="http://127.0.0.1:9", max_tokens=8, context_window=400)
    with pytest.raises(ConnectionFailed, match="no weftline server answers"):
        KeywordExtractor(llm=llm).extract([found.node for found in nodes()])


@pytest.mark.parametrize("mode", CASES)
def test_a_server_that_goes_away(url: str, mode: str) -> None:
    """A server ends a graph that it had accepted. The calls go one by one, and the answer is the
    same.
    """
    with recorded(url, broken=SUBMIT) as recording:
        answer = str(synthesizer(mode, bounded(recording.url)).synthesize("What?", nodes()))
        assert answer.startswith(CASES[mode])
        submits, calls = counts(recording)
        assert submits >= 1 and calls >= 1


@pytest.mark.parametrize("mode", CASES)
def test_empty_index(url: str, mode: str) -> None:
    """Without nodes LlamaIndex answers without any LLM call."""
    with recorded(url) as recording:
        engine = SummaryIndex.from_documents([]).as_query_engine(
            llm=bounded(recording.url), response_mode=mode
        )
        assert str(engine.query("What?")) == "Empty Response"
        assert recording.requests == []


def test_nothing_is_left_behind(start_script: StartServer) -> None:
    """Dropped streams and single calls leave no session, span or graph."""
    url = start_script(RULES)
    llm = bounded(url)
    for _ in range(2):
        stream = synthesizer("refine", llm, streaming=True).synthesize("What?", nodes())
        next(iter(stream.response_gen))
        del stream
        synthesizer("tree_summarize", llm).synthesize("What?", nodes(1))
    gc.collect()
    assert llm.asking.graphs == []
    wait_until(lambda: len(SPANS) == 0)  # an index that the test before has built is forgotten soon
    wait_until(lambda: "weftline_sessions_open 0.0" in httpx2.get(f"{url}/metrics").text)


def test_two_queries_at_once(url: str) -> None:
    """Threads and tasks with the same query at the same time get their own graphs' answers."""
    llm = bounded(url)

    async def run() -> list[str]:
        made = [synthesizer("refine", llm).asynthesize("What?", nodes()) for _ in range(20)]
        return [str(response) for response in await asyncio.gather(*made)]

    assert asyncio.run(run()) == ["d-answer"] * 20


def test_other_llms_are_left_alone(recording: Recording) -> None:
    """Every synthesizer of the process has the handler. It acts only for Weftline."""
    bounded(recording.url)
    synthesizer("refine", MockLLM(max_tokens=8)).synthesize("What?", nodes())
    assert recording.requests == []
