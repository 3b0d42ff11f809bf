"""A summary of a long text: one summary of each part, and then one of all summaries."""

from __future__ import annotations

from collections.abc import Callable

from compare import Tier, documentation, main
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from langchain_weftline import ChatWeftline

EACH = ChatPromptTemplate.from_template("Summarise in one sentence:\n\n{text}")
ALL = ChatPromptTemplate.from_template("{notes}\n\nWrite a summary of this text.")


def build(llm: ChatWeftline, tier: Tier) -> Callable[[], str]:
    each = EACH | llm.bind(max_tokens=24) | StrOutputParser()
    final = ALL | llm.bind(max_tokens=48) | StrOutputParser()
    chain = tier(each.map() | (lambda notes: {"notes": "\n\n".join(notes)}) | final)
    return lambda: chain.invoke([{"text": text} for text in documentation()[:6]])


if __name__ == "__main__":
    main(build)
