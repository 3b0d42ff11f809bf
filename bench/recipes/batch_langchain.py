"""A batch over fifty documents, for throughput, and a user who asks and waits at the same time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from bench.recipes.gain import Answer, Side, main
from bench.recipes.library import passages

DOCUMENTS = 50
AT_ONCE = 8
QUESTIONS = ("What is a session?", "What is a transform?", "What is a context?")
TITLE = ChatPromptTemplate.from_template("{text}\n\nWrite a title for this text.")
ANSWER = ChatPromptTemplate.from_template("{context}\n\nBy this text, in a sentence: {question}")


def run(side: Side) -> Answer:
    batch = side.chat_model(criteria="throughput", max_tokens=8)
    title = side.compiled(TITLE | batch | StrOutputParser())
    user = side.compiled(ANSWER | side.chat_model(max_tokens=16) | StrOutputParser())
    answers, waits, sources = [], [], []

    def job() -> tuple[list[str], float]:
        texts: list[Any] = [{"text": p.text[:240]} for p in passages()[:DOCUMENTS]]
        began = time.perf_counter()
        return title.batch(texts, {"max_concurrency": AT_ONCE}), time.perf_counter() - began

    with ThreadPoolExecutor(1) as pool:
        job_done = pool.submit(job)
        for question in QUESTIONS:
            began = time.perf_counter()
            found = side.store.search(question, k=2)
            context = "\n\n".join(p.text for p in found)
            answers.append(user.invoke({"context": context, "question": question}))
            waits.append(time.perf_counter() - began)
            sources += [p.source for p in found]
        titles, took = job_done.result()
    text = "\n".join([*answers, f"and {len(titles)} titles, the first: {titles[0].strip()}"])
    return Answer(text, sources, {"the user": median(waits), "the batch": took})


if __name__ == "__main__":
    main(run)
