"""Chat over documents: each message becomes a question of its own, and passages answer it."""

from __future__ import annotations

from llama_index.core.chat_engine import CondensePlusContextChatEngine
from llama_index.core.memory import Memory

from bench.recipes.gain import Answer, Side, main
from bench.recipes.retriever import Library

MESSAGES = ("What is a semantic variable?", "And who may read it?", "What if it fails?")


def run(side: Side) -> Answer:
    engine = CondensePlusContextChatEngine.from_defaults(
        retriever=Library(side.store, k=3),
        llm=side.llm(max_tokens=24, context_window=2048),
        memory=Memory.from_defaults(session_id="chat", token_limit=1000),
    )
    said, sources = [], dict[str, None]()
    for message in MESSAGES:
        response = engine.chat(message)
        said.append(f"user: {message}\nassistant: {response}")
        sources.update(dict.fromkeys(found.node.node_id for found in response.source_nodes))
    return Answer("\n".join(said), list(sources))


if __name__ == "__main__":
    main(run)
