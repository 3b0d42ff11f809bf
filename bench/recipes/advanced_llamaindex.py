"""Advanced retrieval: the query is expanded, the passages are ranked, and the answer is refined."""

from __future__ import annotations

import re

from llama_index.core.postprocessor import LLMRerank
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES

from bench.recipes.gain import Answer, Side, main
from bench.recipes.retriever import Library

QUESTION = "What happens to calls when an engine dies?"


def run(side: Side) -> Answer:
    llm = side.llm(max_tokens=24, context_window=2048)
    fusion = QueryFusionRetriever(
        [Library(side.store, k=4)],
        llm=llm,
        num_queries=3,
        mode=FUSION_MODES.RECIPROCAL_RANK,
        similarity_top_k=6,
        use_async=False,
    )
    rerank = LLMRerank(llm=llm, choice_batch_size=3, top_n=3, parse_choice_select_answer_fn=ratings)
    engine = RetrieverQueryEngine.from_args(
        fusion, llm=llm, node_postprocessors=[rerank], response_mode=ResponseMode.REFINE
    )
    response = engine.query(QUESTION)
    return Answer(str(response), [found.node.node_id for found in response.source_nodes])


def ratings(said: str, choices: int) -> tuple[list[int], list[float]]:
    """The documents that the model names, and their ratings.

    A small model does not always use the form that it is asked for. A document without a rating is
    kept, behind those with one.
    """
    rated = {
        int(document): float(score)
        for document, score in re.findall(r"Doc: (\d+), Relevance: (\d+)", said)
        if 1 <= int(document) <= choices
    }
    scores = {document: rated.get(document, 0.0) for document in range(1, choices + 1)}
    return list(scores), list(scores.values())


if __name__ == "__main__":
    main(run)
