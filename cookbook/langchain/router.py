"""A router: the model classifies a question, and the chain of that class answers it."""

from __future__ import annotations

from collections.abc import Callable

from compare import Tier, main
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableBranch, RunnablePassthrough

from langchain_weftline import ChatWeftline

KIND = ChatPromptTemplate.from_template(
    "Is this question about numbers or about words? Answer with one word.\n\n{question}"
)
NUMBERS = ChatPromptTemplate.from_template("Compute step by step: {question}")
WORDS = ChatPromptTemplate.from_template("Answer like a teacher of languages: {question}")
CHECK = ChatPromptTemplate.from_template("Say it shorter:\n\n{answer}")
QUESTIONS = ("What is 17 plus 25?", "Where does the word 'weft' come from?")


def build(llm: ChatWeftline, tier: Tier) -> Callable[[], str]:
    kind = KIND | llm.bind(max_tokens=3) | StrOutputParser()
    short = llm.bind(max_tokens=24)
    answer = RunnableBranch(
        (lambda x: "number" in x["kind"].lower(), NUMBERS | short | StrOutputParser()),
        WORDS | short | StrOutputParser(),
    )
    shorter = {"answer": answer} | CHECK | short | StrOutputParser()
    chain = tier(RunnablePassthrough.assign(kind=kind) | shorter)
    return lambda: "\n".join(chain.batch([{"question": q} for q in QUESTIONS]))


if __name__ == "__main__":
    main(build)
