"""The applications of `bench rag_graph`: texts, prompts and sizes, for all systems alike.

The prompts are LlamaIndex's own. Answers have a fixed length: those in prose ignore the end of the
text, the expanded queries and the verdict follow a form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from llama_index.core.prompts.default_prompts import (
    DEFAULT_TEXT_QA_PROMPT_TMPL,
)

from bench.harness.texts import Texts

ANSWER = DEFAULT_TEXT_QA_PROMPT_TMPL
PAIR = "Sub question: {question}\nResponse: {answer}"  # SubQuestionQueryEngine's own
PLAN = (
    "Split this question into four questions about parts of it, as a JSON list of texts.\n"
    "{query_str}"
)
DRAFT = "Answer in one sentence.\n{query_str}"
JUDGE = (
    "Does this answer need a search? Say SEARCH or KEEP.\nQuestion: {query_str}\nAnswer: {draft}"
)
NEEDS = "SEARCH"

CHUNK = 200  # tokens: MiniLM takes 256 of its own, which are shorter
OVERLAP = 30  # tokens that a chunk shares with the one before it
CHUNKS = 8  # of an uploaded text: embedding them takes about as long as the expansion
HITS = 16  # of each query, or all chunks if there are fewer
TOP = 3  # chunks that the answer reads
OUTPUT = 32  # tokens of an answer
WINDOW = 2048  # tokens: a chunk, an answer and the words around them
QUERY_CHARS = 72  # of each expanded query
PARTS = 4  # questions into which a question is split
# Held to one word, so that all systems do the same work.
VERDICT: dict[str, Any] = {"choice": [NEEDS]}


# Letters only: with any character the queries took 75 to 160 tokens, by the question's number.
def questions(count: int) -> dict[str, Any]:
    """The constraint of a list of `count` questions."""
    question = {"type": "string", "pattern": f"^[A-Z][a-z ]{{{QUERY_CHARS - 2}}}[?]$"}
    return {
        "json_schema": {"type": "array", "items": question, "minItems": count, "maxItems": count}
    }


LINES = {"regex": "\n".join([f"[A-Z][a-z ]{{{QUERY_CHARS - 2}}}[?]"] * 3)}  # three queries
PLANNED = questions(PARTS)


class App(StrEnum):
    """The applications, by Teola's names for them, and one of LlamaIndex's."""

    ADVANCED = "advanced"
    SEARCH = "search"
    SUB_QUESTIONS = "sub_questions"  # LlamaIndex's SubQuestionQueryEngine, of four parts


@dataclass(frozen=True, slots=True)
class Task:
    """One request of an application: an uploaded text in chunks, and a question about it."""

    app: App
    number: int
    question: str
    chunks: tuple[str, ...]


def task(app: App, text: int, salt: int, count: Callable[[str], int]) -> Task:
    """Text number `text`; the salt makes it new, so that no system finds it in a cache."""
    made = Texts(count, salt)
    chunks: list[str] = []
    for at in range(CHUNKS if app is not App.SEARCH else 0):
        before = chunks[-1].split() if chunks else []
        shared = " ".join(before[len(before) - OVERLAP * 3 // 4 :])
        fresh = made.document(f"{app} {text} {at}", CHUNK - count(shared) - 1)
        chunks.append(f"{fresh} {shared}".strip())
    question = f"Question {salt:04}: what does this text say about the server and its engines?"
    return Task(app, salt, question, tuple(chunks))
