"""The search server of `bench rag_graph`: it answers after a stated delay."""

from __future__ import annotations

import time

DELAY_S = 1.0
SNIPPETS = 4


def search(question: str) -> list[dict[str, str]]:
    """Four snippets of text about the question."""
    time.sleep(DELAY_S)
    said = "A server passes each call to an engine, and the engine computes its tokens. " * 3
    return [{"text": f"{n}. {question} {said}"} for n in range(SNIPPETS)]
