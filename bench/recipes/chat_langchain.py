"""Chat over documents: each message becomes a question of its own, and passages answer it."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

from bench.recipes.gain import Answer, Side, main

MESSAGES = ("What is a semantic variable?", "And who may read it?", "What if it fails?")
CONDENSE = ChatPromptTemplate.from_template(
    "{history}\nuser: {message}\n\nRewrite the last message as one question that stands alone."
)
ANSWER = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer in one sentence, from this text:\n{context}"),
        ("human", "{history}\nuser: {message}"),
    ]
)


def run(side: Side) -> Answer:
    short = side.chat_model(max_tokens=24) | StrOutputParser()
    sources: dict[str, None] = {}

    def search(query: str) -> str:
        found = side.store.search(query, k=3)
        sources.update(dict.fromkeys(p.source for p in found))
        return "\n\n".join(p.text for p in found)

    chain: Any = (
        RunnablePassthrough.assign(query=CONDENSE | short)
        | RunnablePassthrough.assign(context=itemgetter("query") | RunnableLambda(search))
        | ANSWER
        | short
    )
    chat, history = side.compiled(chain), ""
    for message in MESSAGES:
        answer = chat.invoke({"history": history, "message": message})
        history += f"user: {message}\nassistant: {answer}\n"
    return Answer(history, list(sources))


if __name__ == "__main__":
    main(run)
