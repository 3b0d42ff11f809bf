"""A team after MetaGPT: an architect designs, coders write, reviewers comment, coders revise."""

from __future__ import annotations

from collections.abc import Callable

from compare import Tier, main
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableParallel, RunnablePassthrough

from langchain_weftline import ChatWeftline

FILES = ("game.py", "board.py", "player.py")
ROUNDS = 2
DESIGN = ChatPromptTemplate.from_template("You are an architect. Design in two lines: {task}")


def code(file: str) -> ChatPromptTemplate:
    return ChatPromptTemplate.from_template(f"Design: {{design}}\n\nYou are a coder. Write {file}.")


def review(file: str) -> ChatPromptTemplate:
    every = "\n\n".join(f"# {name}\n{{{_key(name)}}}" for name in FILES)
    return ChatPromptTemplate.from_template(f"{every}\n\nYou are a reviewer. Comment on {file}.")


def revise(file: str) -> ChatPromptTemplate:
    return ChatPromptTemplate.from_template(
        f"Design: {{design}}\n\n{{{_key(file)}}}\n\nComment: {{review_{_key(file)}}}\n\nRevise it."
    )


def build(llm: ChatWeftline, tier: Tier) -> Callable[[], str]:
    short = llm.bind(max_tokens=20)

    def for_each(prompt: Callable[[str], ChatPromptTemplate], prefix: str = "") -> Runnable:
        parts = {prefix + _key(f): prompt(f) | short | StrOutputParser() for f in FILES}
        return RunnablePassthrough.assign(**parts)

    design = DESIGN | short | StrOutputParser()
    chain: Runnable = RunnableParallel(design=design) | for_each(code)
    for _ in range(ROUNDS):
        chain = chain | for_each(review, "review_") | for_each(revise)
    team = tier(chain)
    return lambda: "\n\n".join(map(str, team.invoke({"task": "a game of chess"}).values()))


def _key(file: str) -> str:
    return file.removesuffix(".py")


if __name__ == "__main__":
    main(build)
