"""WeftlineSynthesizer: one request for a synthesis, with the cost of each source."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
from llama_index.core import MockEmbedding, PromptTemplate, SummaryIndex, VectorStoreIndex
from llama_index.core.chat_engine import CondenseQuestionChatEngine
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine, RouterQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import TextNode
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import QueryEngineTool
from llama_index.response_synthesizers.weftline import (
    SpeculativeRouterQueryEngine,
    WeftlineSynthesizer,
)

from tests.integrations import test_llama_ahead
from tests.integrations.conftest import StartServer, served
from tests.integrations.recording import Recording, recorded
from tests.integrations.test_llama_ahead import CASES, CHAT, bounded, counts, nodes
from tests.waits import wait_until
from weftline.errors import ConnectionFailed

RULES = test_llama_ahead.RULES
MODES = [*CASES, "simple_summarize", "generation"]


def ours(url: str, mode: str, **options: Any) -> WeftlineSynthesizer:
    made = WeftlineSynthesizer(bounded(url), mode, **options)
    made._inner._response_padding_size = 20
    return made


def plain(url: str, mode: str) -> Any:
    made = get_response_synthesizer(llm=bounded(url, ahead=False), response_mode=mode)
    made._response_padding_size = 20
    return made


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("mode", MODES)
def test_same_answer(proxy: Recording, mode: str, count: int) -> None:
    """Every mode gives the answer of LlamaIndex's synthesizer, sync and async."""
    expected = str(plain(proxy.url, mode).synthesize("What?", nodes(count)))
    assert str(ours(proxy.url, mode).synthesize("What?", nodes(count))) == expected
    later = asyncio.run(ours(proxy.url, mode).asynthesize("What?", nodes(count)))
    assert str(later) == expected
    if mode in CASES:
        assert counts(proxy)[0] == 2


@pytest.mark.parametrize("mode", ["tree_summarize", "refine", "compact"])
def test_streamed(proxy: Recording, mode: str) -> None:
    """The final answer streams from the one request."""
    response: Any = ours(proxy.url, mode, streaming=True).synthesize("What?", nodes())
    assert "".join(response.response_gen) == CASES[mode]
    assert counts(proxy) == (1, 0)
    assert response.metadata["weftline"]["total_s"] > 0

    async def later() -> str:
        made: Any = await ours(proxy.url, mode, streaming=True).asynthesize("What?", nodes())
        return "".join([part async for part in made.async_response_gen()])

    assert asyncio.run(later()) == CASES[mode]


def test_report(rules_url: str) -> None:
    """The metadata has the cost of every call, and the calls that read each source."""
    response = ours(rules_url, "refine").synthesize("What?", nodes())
    assert response.metadata is not None
    report = response.metadata["weftline"]
    assert [call["name"] for call in report["calls"]] == ["answer", *["refine"] * 3]
    assert all(call["prompt_tokens"] > 30 and call["generate_s"] >= 0 for call in report["calls"])
    finished = [call["finished_s"] for call in report["calls"]]
    assert finished == sorted(finished) and report["total_s"] == finished[-1]
    sources = [report["sources"][found.node.node_id] for found in response.source_nodes]
    assert sources == [[0], [1], [2], [3]]


def test_a_blank_answer_runs_plainly(start_script: StartServer) -> None:
    """LlamaIndex leaves a blank answer out of the next prompt, so the end of the graph
    is not used.
    """
    url = start_script([("k0w0", " "), ("", "Yes.")])
    for mode in ("tree_summarize", "refine", "accumulate"):
        expected = str(plain(url, mode).synthesize("What?", nodes()))
        assert str(ours(url, mode).synthesize("What?", nodes())) == expected
        if mode != "accumulate":
            streamed: Any = ours(url, mode, streaming=True).synthesize("What?", nodes())
            assert "".join(streamed.response_gen) == expected


def index() -> VectorStoreIndex:
    chunks = [
        TextNode(text=found.node.get_content(), id_=str(k)) for k, found in enumerate(nodes())
    ]
    return VectorStoreIndex(chunks, embed_model=MockEmbedding(embed_dim=4))


def test_engines_take_it(proxy: Recording) -> None:
    """It works in query engines, the retriever's own engine, and a chat engine."""
    made = ours(proxy.url, "refine")
    retriever = SummaryIndex([found.node for found in nodes()]).as_retriever()
    engines = [
        index().as_query_engine(response_synthesizer=made, similarity_top_k=4, llm=made._llm),
        RetrieverQueryEngine(retriever, made),
    ]
    answers = [str(engine.query("What?")) for engine in engines]
    chat = CondenseQuestionChatEngine.from_defaults(engines[1], llm=bounded(proxy.url))
    answers.append(str(chat.chat("What?")))
    assert answers == ["d-answer"] * 3
    assert counts(proxy) == (3, 0)


def test_prompts_can_be_changed(proxy: Recording) -> None:
    """update_prompts changes the graph, as it changes LlamaIndex's synthesizer."""
    made = ours(proxy.url, "tree_summarize")
    assert set(made.get_prompts()) == {"summary_template", "chat_summary_template"}
    made.update_prompts({"summary_template": PromptTemplate("Q {query_str} C {context_str}")})
    made.synthesize("What?", nodes())
    [body] = proxy.bodies("/v1/submit")
    texts = [s.get("text") for s in body["calls"][0]["prompt"][0]["content"]]
    assert texts == ["Q ", None, " C ", None]


def test_bad_input(rules_url: str) -> None:
    """Another LLM is refused, an unreachable server is one clear error, and no nodes make no
    request.
    """
    with pytest.raises(ValueError, match="runs on a Weftline LLM, and this is a MockLLM"):
        WeftlineSynthesizer(MockLLM())
    away = ours("http://127.0.0.1:9", "refine")
    with pytest.raises(ConnectionFailed, match="no weftline server answers"):
        away.synthesize("What?", nodes())
    assert str(ours(rules_url, "refine").synthesize("What?", [])) == "Empty Response"
    with pytest.raises(ValueError, match="Unable to stream in Accumulate"):
        WeftlineSynthesizer(bounded(rules_url), "accumulate", streaming=True).synthesize(
            "What?", nodes()
        )


SELECT = '[{"choice": 1, "reason": "it is the first"}]'


def router(cls: type[RouterQueryEngine], url: str) -> RouterQueryEngine:
    llm = bounded(url)
    llm.context_window = 4000
    chunks = [found.node for found in nodes(2)]
    tools = [
        QueryEngineTool.from_defaults(
            SummaryIndex([chunk]).as_query_engine(llm=llm, response_mode=mode),
            name=f"tool_{k}",
            description=f"Answers of kind {k}.",
        )
        for k, (chunk, mode) in enumerate(zip(chunks, ("compact", "tree_summarize"), strict=True))
    ]
    return cls(LLMSingleSelector.from_defaults(llm=llm), tools, llm=llm)


def test_speculative_router(start_script: StartServer) -> None:
    """Both branches start beside the selector. The answer is the plain router's."""
    with recorded(start_script([("Some choices", SELECT), *RULES])) as proxy:
        expected = router(RouterQueryEngine, proxy.url).query("What?")
        assert str(expected) == "a-answer" and len(proxy.bodies(CHAT)) == 2
        found = router(SpeculativeRouterQueryEngine, proxy.url).query("What?")
        assert str(found) == str(expected) and len(proxy.bodies(CHAT)) >= 4
        assert found.metadata["selector_result"].ind == 0


def test_losing_branch_is_cancelled(tmp_path: Any) -> None:
    """The losing branch is cancelled in the server before it has generated its answer."""
    long = " ".join(["word"] * 200)
    rules = tmp_path / "rules.json"
    replies = {"Some choices": SELECT, "k1w0": long, "": "short"}
    rules.write_text(json.dumps([{"when": k, "reply": v} for k, v in replies.items()]))
    options = ("--null-mode", "script", "--null-script", str(rules), "--null-step-s", "0.02")
    with served(*options) as url:
        engine = router(SpeculativeRouterQueryEngine, url)
        llm: Any = engine._llm
        llm.max_tokens = 256
        assert str(engine.query("What?")) == "short"

        def cancelled() -> list[str]:
            lines = httpx2.get(f"{url}/metrics").text.splitlines()
            found = [line for line in lines if "calls_total{" in line and "cancelled" in line]
            return [line.rsplit(" ", 1)[1] for line in found]

        # The query returns with the winning branch's answer. The other branch's end follows it.
        wait_until(lambda: cancelled() == ["1.0"])
