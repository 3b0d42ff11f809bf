"""The chunks of a document are summarised in parallel, then joined (Parrot, Figure 14)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable

from bench.harness.metrics import mean_seconds, ms_per_token
from bench.harness.stage import Stage
from bench.harness.workload import Point, Scale, Workload, paper

PAPER = paper("fig14_map_reduce")
CHUNKS = 30  # a paper of 20,000 to 30,000 tokens in chunks of 1,024

MAP = ChatPromptTemplate.from_template(
    "Write a concise summary of this text.\n\n{text}\n\nConcise summary:"
)
REDUCE = ChatPromptTemplate.from_template(
    "These are the summaries of the parts of a document.\n\n{summaries}\n\n"
    "Write one summary of the whole document:"
)


def map_reduce_chain(llm: BaseChatModel) -> Runnable[list[dict[str, Any]], str]:
    """A chain over [{"text": chunk}, …]."""
    each = MAP | llm | StrOutputParser()
    joined = REDUCE | llm | StrOutputParser()
    return each.map() | (lambda found: {"summaries": "\n\n".join(found)}) | joined


def documents(stage: Stage, seed: object) -> list[dict[str, Any]]:
    """The chunks of one document."""
    tokens = stage.scale.tokens(PAPER["chunk_tokens"])
    count = stage.scale.items(CHUNKS)
    return [{"text": stage.texts.document(f"{seed} {i}", tokens)} for i in range(count)]


def points(scale: Scale, prepared: Mapping[str, float]) -> Sequence[Point]:
    """The paper's output lengths, the longest first."""
    longest = PAPER["output_tokens"][-1]
    return [
        Point(f"output {n}", {"output": n}, n, (0, 250), quick=n == longest)
        for n in reversed(PAPER["output_tokens"])
    ]


async def run(stage: Stage, point: Point) -> None:
    """Summarise one document."""
    llm = stage.llm(stage.scale.tokens(point.values["output"]))
    chain = stage.prepared(map_reduce_chain(llm))
    texts = documents(stage, stage.seed)
    async with stage.app("map-reduce") as app:
        app.result = await chain.ainvoke(texts)


WORKLOAD = Workload(
    title="Map-reduce summary",
    points=points,
    run=run,
    metrics={"seconds": mean_seconds("map-reduce"), "ms per token": ms_per_token("map-reduce")},
)
