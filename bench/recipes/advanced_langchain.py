"""Advanced retrieval: the query is expanded, the passages are ranked, and the answer is refined."""

from __future__ import annotations

import re
from operator import itemgetter
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableParallel, RunnablePassthrough

from bench.recipes.gain import Answer, Side, main

QUESTION = "What happens to calls when an engine dies?"
KEPT = 3
template = ChatPromptTemplate.from_template
EXPAND = {
    "reworded": template("Say this question in other words: {question}"),
    "keywords": template("List keywords to search a manual for: {question}"),
}
RATE = template(
    "Question: {question}\nText: {text}\n\n"
    "How well does the text answer the question, from 0 to 9? Answer with a digit."
)
FIRST = template("{text0}\n\nBy this text, in one sentence: {question}")


def refine(number: int) -> ChatPromptTemplate:
    return template(
        f"The answer so far to {{question}}\n{{answer}}\n\nMore text:\n{{text{number}}}\n\n"
        "Write the answer again, in one sentence, better by this text."
    )


def run(side: Side) -> Answer:
    short = side.chat_model(max_tokens=24) | StrOutputParser()

    def search(queries: dict[str, str]) -> list[dict[str, str]]:
        found = [p for query in queries.values() for p in side.store.search(query, k=4)]
        unique = dict.fromkeys(found)
        return [{"question": QUESTION, "text": p.text, "source": p.source} for p in unique]

    queries: dict[str, Any] = {name: prompt | short for name, prompt in EXPAND.items()}
    rate = RATE | side.chat_model(max_tokens=2) | StrOutputParser()
    chain: Runnable[Any, Any] = (
        RunnableParallel(asked=itemgetter("question"), **queries)
        | search
        | RunnableParallel(found=RunnablePassthrough(), ratings=rate.map())
        | best
        | RunnablePassthrough.assign(answer=FIRST | short)
    )
    for number in range(1, KEPT):
        chain = chain | RunnablePassthrough.assign(answer=refine(number) | short)
    result = side.compiled(chain).invoke({"question": QUESTION})
    return Answer(result["answer"], result["sources"])


def best(rated: dict[str, Any]) -> dict[str, Any]:
    """The passages with the highest ratings. Among equal ones, those that were found first."""
    digits = [re.search(r"\d", rating) for rating in rated["ratings"]]
    scores = [int(digit[0]) if digit else 0 for digit in digits]
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[:KEPT]
    kept = [rated["found"][index] for index in order]
    texts = {f"text{number}": found["text"] for number, found in enumerate(kept)}
    return {"question": QUESTION, "sources": [found["source"] for found in kept], **texts}


if __name__ == "__main__":
    main(run)
