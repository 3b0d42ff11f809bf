"""A copilot: one long system prompt and many users. Each gets a draft, and then an answer."""

from __future__ import annotations

from collections.abc import Callable

from compare import Tier, documentation, main
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from langchain_weftline import ChatWeftline

USERS = ("Ann", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gia", "Hal")
RULES = "You help the users of a server for language models. " + " ".join(documentation()[:3])
DRAFT = ChatPromptTemplate.from_messages(
    [("system", "{rules}"), ("human", "I am {user}. Draft a greeting for me.")]
).partial(rules=RULES)
ANSWER = ChatPromptTemplate.from_messages(
    [("system", "{rules}"), ("human", "Make this friendlier: {draft}")]
).partial(rules=RULES)


def build(llm: ChatWeftline, tier: Tier) -> Callable[[], str]:
    short = llm.bind(max_tokens=16)
    draft = DRAFT | short | StrOutputParser()
    chain = tier({"draft": draft} | ANSWER | short | StrOutputParser())
    return lambda: "\n".join(chain.batch([{"user": user} for user in USERS]))


if __name__ == "__main__":
    main(build)
