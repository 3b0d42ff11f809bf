"""An evaluator loop: one call writes, another judges, and the text is improved until it is good."""

from __future__ import annotations

from collections.abc import Callable

from compare import Tier, main
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

from langchain_weftline import ChatWeftline

WRITE = ChatPromptTemplate.from_template("Write one sentence that explains {topic} to a child.")
JUDGE = ChatPromptTemplate.from_template(
    "Is this sentence clear to a child? Say GOOD, or what to change.\n\n{text}"
)
IMPROVE = ChatPromptTemplate.from_template(
    "Write the sentence again.\n\nSentence: {text}\nA reader says: {verdict}"
)
TOPIC = "how a loom makes cloth"
MOST = 3  # rounds


def build(llm: ChatWeftline, tier: Tier) -> Callable[[], str]:
    short = llm.bind(max_tokens=32) | StrOutputParser()
    judged = RunnablePassthrough.assign(verdict=JUDGE | short)
    first = tier({"text": WRITE | short} | judged)
    again = tier({"text": IMPROVE | short} | judged)

    def program() -> str:
        found = first.invoke({"topic": TOPIC})
        for _ in range(MOST):
            if "GOOD" in found["verdict"]:
                break
            found = again.invoke(found)
        return str(found["text"])

    return program


if __name__ == "__main__":
    main(build)
