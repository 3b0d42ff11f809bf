"""Retrieval with a tree answer: LlamaIndex's tree_summarize over the passages."""

from __future__ import annotations

from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode

from bench.recipes.gain import Answer, Side, main
from bench.recipes.retriever import Library

QUESTION = "How does the server share the KV cache between prompts?"


def run(side: Side) -> Answer:
    # The context window holds two or three passages, so that the tree has a few leaves.
    llm = side.llm(max_tokens=24, context_window=480)
    library = Library(side.store, k=8)
    engine = RetrieverQueryEngine.from_args(
        library, llm=llm, response_mode=ResponseMode.TREE_SUMMARIZE
    )
    response = engine.query(QUESTION)
    return Answer(str(response), [found.node.node_id for found in response.source_nodes])


if __name__ == "__main__":
    main(run)
