"""Sub-questions: a question is split, each part is answered, and the answers are joined."""

from __future__ import annotations

from typing import Any

from langchain_core.output_parsers import CommaSeparatedListOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

from bench.recipes.gain import Answer, Side, main

QUESTION = "How do sessions, variables and criteria work together?"
PARTS = 3
TOPICS = ChatPromptTemplate.from_template(
    "List the topics of this question, with commas, and nothing else: {question}"
)
PART = ChatPromptTemplate.from_template("{context}\n\nBy this text, what is {topic}?")
JOIN = ChatPromptTemplate.from_template(
    "{answers}\n\nFrom these answers, answer in one sentence: {question}"
).partial(question=QUESTION)


def run(side: Side) -> Answer:
    short = side.chat_model(max_tokens=24) | StrOutputParser()
    sources: dict[str, None] = {}

    def search(part: dict[str, str]) -> str:
        found = side.store.search(part["topic"], k=2)
        sources.update(dict.fromkeys(sorted(p.source for p in found)))
        return "\n\n".join(p.text for p in found)

    topics = side.compiled(
        TOPICS | side.chat_model(max_tokens=16) | CommaSeparatedListOutputParser()
    )
    part = RunnablePassthrough.assign(context=RunnableLambda(search)) | PART | short
    answers: Any = part.map() | (lambda found: {"answers": "\n".join(found)}) | JOIN | short
    parts = topics.invoke({"question": QUESTION})[:PARTS]
    text = side.compiled(answers).invoke([{"topic": topic} for topic in parts])
    return Answer(text, sorted(sources))


if __name__ == "__main__":
    main(run)
