"""One query, pipeline run or chat is one session, with the edges that its prompts have.

Sessions and edges are those that the server shows when the run is over.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from llama_index.core import (
    SummaryIndex,
)
from llama_index.core.extractors import KeywordExtractor, SummaryExtractor, TitleExtractor
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.query_engine import FLAREInstructQueryEngine, SubQuestionQueryEngine
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import TextNode
from llama_index.core.tools import QueryEngineTool
from llama_index.llms.weftline import Weftline

from tests.integrations.recording import recorded
from tests.integrations.test_llama_ahead import CHAT, SUBMIT, wait_for
from tests.integrations.test_llama_applications import (
    SUB_QUESTIONS,
    Translation,
    chat,
    hyde,
    multi_step,
)

RULES = [
    ("list of relevant sub-questions", SUB_QUESTIONS),
    ("Previous reasoning", "What is asked first of all?"),
    *((f"wood{k} of the tree. Give 5", f"The keywords of number {k}.") for k in range(3)),
    ("Where is the source", "The source is in the Apennines."),
    ("Where is the mouth", "The mouth is near Ostia."),
    ("ood0", "A summary of the first leaves."),
    ("ood9", "A summary of the last leaves."),
    ("", "It flows into the sea at last."),
]


def leaves(count: int = 4) -> list[TextNode]:
    texts = (f"Leaf wood{k} of the tree." for k in range(count))
    return [TextNode(text=text, id_=f"n{k}") for k, text in enumerate(texts)]


def refine(llm: Any) -> Any:
    return get_response_synthesizer(response_mode="refine", llm=llm)


def sub_question(llm: Any) -> Any:
    """Two sub-questions over two nodes each, and a last refine over both answers."""
    index = SummaryIndex(leaves(2))
    engine = index.as_query_engine(llm=llm, response_mode="refine")
    return SubQuestionQueryEngine.from_defaults(
        [QueryEngineTool.from_defaults(engine, name="rivers", description="Knows rivers.")],
        llm=llm,
        question_gen=LLMQuestionGenerator.from_defaults(llm=llm),
        response_synthesizer=refine(llm),
        verbose=False,
        use_async=True,
    ).query("Where does the Tiber flow?")


def pipeline(llm: Any) -> Any:
    steps = [KeywordExtractor(llm=llm), SummaryExtractor(llm=llm), TitleExtractor(llm=llm)]
    made = IngestionPipeline(transformations=steps).run(nodes=leaves(3))
    return [node.metadata for node in made]


def flare(llm: Any) -> Any:
    engine = SummaryIndex(leaves(2)).as_query_engine(llm=llm)
    return FLAREInstructQueryEngine(engine, llm=llm, max_iterations=2).query("Where does it flow?")


def workflow(llm: Any) -> Any:
    async def run() -> Any:
        return await Translation(llm).run(text="The Tiber is long.")

    return asyncio.run(run())


# Requests for graphs and for single calls, calls in the server, and edges between them.
PROGRAMS: dict[str, tuple[Callable[[Any], Any], int, int, int, int]] = {
    # the sub-questions, each answer into its refining call, and both answers into the last two
    "sub-question": (sub_question, 3, 1, 7, 9),
    # the titles into one title, and the keywords into the summaries' prompts, as metadata
    "pipeline": (pipeline, 3, 0, 10, 6),
    "multi-step": (multi_step, 0, 5, 5, 6),
    "flare": (flare, 0, 4, 4, 2),
    "workflow": (workflow, 0, 2, 2, 1),
    "hyde": (hyde, 0, 2, 2, 0),
    "chat": (chat, 0, 3, 3, 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_session(url: str, name: str) -> None:
    """A whole run is one session with its edges, and its result that of calls one by one."""
    run, submits, singles, calls, edges = PROGRAMS[name]
    graphs: list[Any] = []

    def llm(**options: Any) -> Weftline:
        return Weftline(base_url=proxy.url, max_tokens=64, context_window=3900, **options)

    with recorded(url) as proxy:
        said = run(llm(on_graph=graphs.append))
        [graph] = wait_for(graphs, collects=True)  # a chat ends with its engine
        sent = len(proxy.bodies(SUBMIT)), len(proxy.bodies(CHAT))
        found = len(graph["calls"]), len(graph["edges"])
        assert (*sent, *found) == (submits, singles, calls, edges)
        assert str(run(llm(ahead=False, provenance=False))) == str(said)
        assert len(proxy.bodies(CHAT)) - singles >= calls  # one by one


SHORT_PROGRAM = """
from llama_index.core import PromptTemplate
from llama_index.llms.weftline import Weftline

print(Weftline().predict(PromptTemplate("Close the door behind {guest}."), guest="the last one"))
"""


def test_a_program_that_ends_at_once_leaves_no_open_session(echo_url: str) -> None:
    """The thread that closes sessions waits half a second, which the program does not last."""
    environment = {**os.environ, "WEFTLINE_BASE_URL": echo_url}
    subprocess.run([sys.executable, "-c", SHORT_PROGRAM], env=environment, check=True, timeout=60)
    sessions = httpx2.get(f"{echo_url}/v1/sessions").raise_for_status().json()["sessions"]
    states = [one["state"] for one in sessions if one["name"].startswith("Close the door")]
    assert states == ["closed"]
