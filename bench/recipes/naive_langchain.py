"""Retrieval with a tree answer: a note on each passage, and the answer from the notes."""

from __future__ import annotations

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from bench.recipes.gain import Answer, Side, main

QUESTION = "How does the server share the KV cache between prompts?"
NOTE = ChatPromptTemplate.from_template(
    "{passage}\n\nIn one sentence, what does this say about the question: {question}"
)
ANSWER = ChatPromptTemplate.from_template(
    "{notes}\n\nFrom these notes alone, answer in one sentence: {question}"
).partial(question=QUESTION)


def run(side: Side) -> Answer:
    llm = side.chat_model(max_tokens=24)
    note = NOTE | llm | StrOutputParser()
    answer = ANSWER | llm | StrOutputParser()
    tree = side.compiled(note.map() | (lambda notes: {"notes": "\n".join(notes)}) | answer)
    found = side.store.search(QUESTION, k=6)
    text = tree.invoke([{"passage": p.text, "question": QUESTION} for p in found])
    return Answer(text, [p.source for p in found])


if __name__ == "__main__":
    main(run)
