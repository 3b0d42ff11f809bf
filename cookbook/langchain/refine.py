"""A summary that is refined with each further part of a text: every call waits for the last."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter

from compare import Tier, documentation, main
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough

from langchain_weftline import ChatWeftline

FIRST = ChatPromptTemplate.from_template("Summarise in one sentence:\n\n{part0}")
CHUNKS = 8


def build(llm: ChatWeftline, tier: Tier) -> Callable[[], str]:
    short = llm.bind(max_tokens=24)
    chain: Runnable = RunnablePassthrough.assign(summary=FIRST | short | StrOutputParser())
    for number in range(1, CHUNKS):
        refine = ChatPromptTemplate.from_template(
            f"{{summary}}\n\nRefine this summary with:\n\n{{part{number}}}"
        )
        chain = chain.assign(summary=refine | short | StrOutputParser())
    whole = tier(chain | itemgetter("summary"))
    texts = documentation(400)[:CHUNKS]
    return lambda: whole.invoke({f"part{n}": text for n, text in enumerate(texts)})


if __name__ == "__main__":
    main(build)
