"""A chain of steps, each of which asks about the answer of the step before."""

from __future__ import annotations

from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable

from langchain_weftline import ChatWeftline

Chain = Runnable[Any, Any]
WAIT_S = 20.0  # for what is on its way
TEXT = StrOutputParser()
ASK = ChatPromptTemplate.from_messages([("system", "Be brief."), ("human", "{x}")])


def steps(llm: ChatWeftline, number: int = 3) -> Chain:
    """The chain with so many steps."""
    chain: Chain = ASK | llm | TEXT
    for step in range(1, number):
        prompt = ChatPromptTemplate.from_template(f"Step {step}: {{x}}")
        chain = {"x": chain} | prompt | llm | TEXT
    return chain
