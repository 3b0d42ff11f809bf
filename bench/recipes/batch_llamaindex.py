"""A batch over fifty documents, for throughput, and a user who asks and waits at the same time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

from llama_index.core.extractors import SummaryExtractor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import TextNode

from bench.recipes.gain import Answer, Side, main
from bench.recipes.library import passages
from bench.recipes.retriever import Library

DOCUMENTS = 50
QUESTIONS = ("What is a session?", "What is a transform?", "What is a context?")


def run(side: Side) -> Answer:
    batch = side.llm(criteria="throughput", max_tokens=8)
    summaries = SummaryExtractor(
        llm=batch,
        show_progress=False,
        prompt_template="{context_str}\n\nWrite a title for this text.",
    )
    llm = side.llm(max_tokens=16, context_window=2048)
    engine = RetrieverQueryEngine.from_args(Library(side.store, k=2), llm=llm)
    answers, waits, sources = [], [], []

    def job() -> tuple[list[dict[str, Any]], float]:
        nodes = [TextNode(text=p.text[:240]) for p in passages()[:DOCUMENTS]]
        began = time.perf_counter()
        return summaries.extract(nodes), time.perf_counter() - began

    with ThreadPoolExecutor(1) as pool:
        job_done = pool.submit(job)
        for question in QUESTIONS:
            began = time.perf_counter()
            response = engine.query(question)
            answers.append(str(response))
            waits.append(time.perf_counter() - began)
            sources += [found.node.node_id for found in response.source_nodes]
        found, took = job_done.result()
    titles = [metadata["section_summary"] for metadata in found]
    text = "\n".join([*answers, f"and {len(titles)} titles, the first: {titles[0].strip()}"])
    return Answer(text, sources, {"the user": median(waits), "the batch": took})


if __name__ == "__main__":
    main(run)
