"""An architect, coders and reviewers write and revise files (Parrot, Figure 18)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough

from bench.harness.metrics import mean_seconds
from bench.harness.stage import Stage
from bench.harness.workload import Point, Scale, Workload, paper

PAPER = paper("fig18_metagpt")
LENGTHS = 0.5  # share of the paper's lengths
ARCHITECT = ChatPromptTemplate.from_template("{task}\n\nDesign the files and their interfaces.")

CODE = "{task}\n\nThe design:\n{design}\n\nWrite file NUMBER of this design."
REVIEW = "\n\nReview file NUMBER."
REVISE = "\n\nA review of file NUMBER:\n{review_NUMBER}\n\nRewrite it."


def memory(files: int) -> str:
    """The beginning of a prompt after the first files: the task, the design and all files."""
    listing = "".join(f"\n\nFile {i}:\n{{file_{i}}}" for i in range(files))
    return "{task}\n\nThe design:\n{design}" + listing


def team(stage: Stage, files: int, cycles: int) -> Runnable[dict[str, Any], Any]:
    """A chain over {"task": text}: the design, the files, then reviews and revisions in cycles."""

    def role(instruction: str, lengths: Sequence[int], number: int) -> Runnable[Any, str]:
        llm = stage.llm(_tokens(stage, lengths, number, files))
        return ChatPromptTemplate.from_template(instruction) | llm | StrOutputParser()

    def each(prefix: str, instruction: str, lengths: Sequence[int]) -> Runnable[Any, Any]:
        return RunnablePassthrough.assign(
            **{
                f"{prefix}_{i}": role(instruction.replace("NUMBER", str(i)), lengths, i)
                for i in range(files)
            }
        )

    architect = stage.llm(stage.scale.tokens(LENGTHS * PAPER["architect"]["output"]))
    design = ARCHITECT | architect | StrOutputParser()
    chain: Runnable[dict[str, Any], Any] = RunnablePassthrough.assign(design=design)
    chain |= each("file", CODE, PAPER["code"]["output"])
    for _ in range(cycles):
        chain |= each("review", memory(files) + REVIEW, PAPER["review"]["output"])
        chain |= each("file", memory(files) + REVISE, PAPER["revise"]["output"])
    return chain.pick([f"file_{i}" for i in range(files)])


def _tokens(stage: Stage, lengths: Sequence[int], number: int, files: int) -> int:
    """The output tokens for one of the files; `lengths` are those of the first and the last."""
    low, high = lengths
    return stage.scale.tokens(LENGTHS * (low + (high - low) * number // max(1, files - 1)))


def points(scale: Scale, prepared: Mapping[str, float]) -> Sequence[Point]:
    """The paper's largest and smallest number of files."""
    files = sorted({scale.items(n) for n in (PAPER["files"][0], PAPER["files"][-1])}, reverse=True)
    return [Point(f"{n} files", {"files": n}, n, quick=i == 0) for i, n in enumerate(files)]


async def run(stage: Stage, point: Point) -> None:
    """Write one program."""
    cycles = stage.scale.items(PAPER["review_revise_cycles"], least=1)
    chain = stage.prepared(team(stage, point.values["files"], cycles))
    task = stage.texts.document(f"task {stage.seed}", stage.scale.tokens(LENGTHS * 2000))
    async with stage.app("program") as app:
        app.result = str(await chain.ainvoke({"task": task}))


WORKLOAD = Workload(
    title="Multi-agent programming",
    points=points,
    run=run,
    metrics={"seconds": mean_seconds("program")},
)
