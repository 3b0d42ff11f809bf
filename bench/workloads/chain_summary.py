"""A long document is summarised chunk by chunk; each step refines the last (Parrot, Figure 11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough

from bench.harness.metrics import mean_seconds, ms_per_token
from bench.harness.stage import Stage
from bench.harness.workload import Point, Scale, Workload, paper

PAPER = paper("fig11_chain_summary")

START = ChatPromptTemplate.from_template(
    "Write a concise summary of this text.\n\n{text}\n\nConcise summary:"
)
# The order of LangChain's own refine prompt: no chunk can be prefilled before the summary is there.
SUMMARY_FIRST = ChatPromptTemplate.from_template(
    "This is the summary of a document so far: {summary}\n\n"
    "Refine it with the next part of the document.\n\n{text}\n\nRefined summary:"
)
# The same with the chunk first: a server that knows the graph prefills it while the call waits.
TEXT_FIRST = ChatPromptTemplate.from_template(
    "This is a part of a document.\n\n{text}\n\n"
    "The summary of the parts before it is: {summary}\n\nRefined summary with this part:"
)
ORDERS = {"summary first": SUMMARY_FIRST, "text first": TEXT_FIRST}


def refine_chain(
    llm: BaseChatModel, steps: int, refine: ChatPromptTemplate = SUMMARY_FIRST
) -> Runnable[dict[str, Any], str]:
    """A chain over {"chunks": [text, …]} with `steps` chunks."""
    chain: Runnable[dict[str, Any], Any] = RunnablePassthrough.assign(
        summary={"text": _chunk(0)} | START | llm | StrOutputParser()
    )
    for number in range(1, steps):
        chain |= RunnablePassthrough.assign(
            summary={
                "summary": itemgetter("summary"),
                "text": _chunk(number),
            }
            | refine
            | llm
            | StrOutputParser()
        )
    return chain | itemgetter("summary")


def _chunk(number: int) -> Callable[[dict[str, Any]], str]:
    return lambda state: state["chunks"][number]


def chunks(stage: Stage, seed: object, tokens: int = 1024) -> list[str]:
    """A document of the paper's length in the paper's chunks, at the stage's scale."""
    count = stage.scale.items(PAPER["document_tokens"] / 1024)
    return [stage.texts.document(f"{seed} {i}", stage.scale.tokens(tokens)) for i in range(count)]


def points(scale: Scale, prepared: Mapping[str, float]) -> Sequence[Point]:
    """Both orders of the prompt at the paper's longest output, then its shorter outputs."""
    longest = PAPER["output_tokens"][-1]
    both = [
        Point(order, {"order": order, "output": longest}, longest, (0, 250), quick=first)
        for order, first in (("summary first", True), ("text first", False))
    ]
    shorter = [
        Point(f"output {n}", {"order": "summary first", "output": n}, n, (250,), quick=False)
        for n in PAPER["output_tokens"][:-1]
    ]
    return [*both, *shorter]


async def run(stage: Stage, point: Point) -> None:
    """Summarise one document."""
    texts = chunks(stage, stage.seed)
    llm = stage.llm(stage.scale.tokens(point.values["output"]))
    chain = stage.prepared(refine_chain(llm, len(texts), ORDERS[point.values["order"]]))
    async with stage.app("chain") as app:
        app.result = await chain.ainvoke({"chunks": texts})


WORKLOAD = Workload(
    title="Chain summary",
    points=points,
    run=run,
    metrics={"seconds": mean_seconds("chain"), "ms per token": ms_per_token("chain")},
)
