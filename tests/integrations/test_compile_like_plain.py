"""Compiled and accelerated chains do what the chain does with ChatOpenAI on the same server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.runnables import RunnableParallel

from .recording import recorded
from .tiers import AGAIN, ASK, GIVEN, TEXT, TIERS, Chain, chat_openai, chat_weftline, outcome, tiers

SUBMIT = "/v1/submit"
Make = Callable[[Any], Chain]


def in_tier(tier: str, url: str, make: Make, **options: Any) -> Chain:
    """The chain of `make` with a ChatWeftline in this tier."""
    ours, way = TIERS[tier]
    return way(make(chat_weftline(url, **ours, **options)))


def falls_back(llm: Any) -> Chain:
    return ASK | llm.bind(model="nosuch").with_fallbacks([llm]) | TEXT


def whole_chain_falls_back(llm: Any) -> Chain:
    lost = llm.bind(model="nosuch")
    return (ASK | lost | TEXT | AGAIN | llm | TEXT).with_fallbacks([AGAIN | llm | TEXT])


def falls_back_beside(llm: Any) -> Chain:
    return RunnableParallel(a=ASK | llm | TEXT | AGAIN | llm | TEXT, b=falls_back(llm))


def fails_beside(llm: Any) -> Chain:
    lost = RunnableParallel(a=ASK | llm | TEXT, b=ASK | llm.bind(model="nosuch") | TEXT)
    return RunnableParallel(lost=lost, c=AGAIN | llm | TEXT)


@tiers
@pytest.mark.parametrize(
    "make", [falls_back, whole_chain_falls_back, falls_back_beside, fails_beside]
)
async def test_an_unknown_model_concerns_its_own_call(tier: str, make: Make, echo_url: str) -> None:
    """A refused call fails alone: fallbacks follow it, and its neighbours go on."""
    expected = outcome(lambda: make(chat_openai(echo_url)).invoke(GIVEN))
    chain = in_tier(tier, echo_url, make)
    assert outcome(lambda: chain.invoke(GIVEN)) == expected
    if expected[0] == "value":
        assert str(await chain.ainvoke(GIVEN)) == expected[1]


def test_a_refused_submit_is_sent_again_call_by_call(echo_url: str) -> None:
    """The three healthy calls run; what would read the refused one is not submitted."""
    with recorded(echo_url) as passed:
        chain = in_tier("T3", passed.url, falls_back_beside)
        chain.invoke(GIVEN)
        sent = [[call["name"] for call in body["calls"]] for body in passed.bodies(SUBMIT)]
    assert sorted(sent[0]) == ["a", "a 2", "b"]
    assert sorted(sent[1:]) == [["a"], ["a 2"], ["b"], ["b 2"]]
