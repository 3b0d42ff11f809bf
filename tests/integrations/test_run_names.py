"""The names of runs in the server's list of sessions: those that the user gave, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from langchain_weftline import ChatWeftline, accelerate
from tests.integrations.conftest import served
from weftline import Client

TIERS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda chain: chain,
    "accelerated": accelerate,
    "compiled": accelerate,
}


def two_calls(url: str) -> Any:
    """A chain whose second call reads the answer of the first."""
    model = ChatWeftline(base_url=url, max_tokens=8)
    first = ChatPromptTemplate.from_template("Shorten this: {text}") | model | StrOutputParser()
    second = ChatPromptTemplate.from_template("Translate this: {short}") | model
    return {"short": first} | second


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_named_run_is_found_by_its_name(tier: str, is_async: bool) -> None:
    """A run that the user named has that name, whichever way its calls travel. One that has only
    LangChain's own name is called by the first words of its template.
    """
    with served() as url, Client(url) as client:
        chain = TIERS[tier](two_calls(url))
        for config in ({"run_name": "tidy up"}, {}):
            if is_async:
                await chain.ainvoke({"text": "The weft crosses."}, config)
            else:
                chain.invoke({"text": "The weft crosses."}, config)
        rows = client.sessions()
    assert [row["name"] for row in reversed(rows)] == ["tidy up", "Shorten this: {text}"]
