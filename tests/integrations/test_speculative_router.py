"""SpeculativeRouterQueryEngine begins every branch; WeftlineSynthesizer is LlamaIndex's own."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from llama_index.core import SummaryIndex
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RouterQueryEngine
from llama_index.core.response_synthesizers import Refine
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

RULES = test_llama_ahead.RULES


def test_the_name_of_the_synthesizer_stays(recording: Recording) -> None:
    """It makes LlamaIndex's own, whose calls are one request. Another LLM is refused."""
    made: Any = WeftlineSynthesizer(bounded(recording.url), "refine")
    assert type(made) is Refine
    made._response_padding_size = 20
    assert str(made.synthesize("What?", nodes())) == CASES["refine"]
    assert counts(recording) == (1, 0)
    with pytest.raises(ValueError, match="runs on a Weftline LLM, and this is a MockLLM"):
        WeftlineSynthesizer(MockLLM())


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
    with recorded(start_script([("Some choices", SELECT), *RULES])) as recording:
        expected = router(RouterQueryEngine, recording.url).query("What?")
        assert str(expected) == "a-answer" and len(recording.bodies(CHAT)) == 2
        found = router(SpeculativeRouterQueryEngine, recording.url).query("What?")
        assert str(found) == str(expected) and len(recording.bodies(CHAT)) >= 4
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
