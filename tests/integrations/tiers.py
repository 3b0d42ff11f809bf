"""One chain in every tier and with ChatOpenAI, for tests that compare them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI

from langchain_weftline import ChatWeftline, accelerate

Chain = Runnable[Any, Any]
Way = Callable[[Chain], Chain]

ASK = ChatPromptTemplate.from_template("Tell of {x}.")
AGAIN = ChatPromptTemplate.from_template("Again: {x}")
TEXT = StrOutputParser()
GIVEN = {"x": "soup"}


def chat_openai(url: str, **options: Any) -> Any:
    """LangChain's ChatOpenAI, pointed at the same server."""
    key = options.pop("api_key", "none")
    defaults = {"model": "default", "max_retries": 0}
    return ChatOpenAI(base_url=f"{url}/v1", api_key=key, **{**defaults, **options})


def chat_weftline(url: str, **options: Any) -> Any:
    return ChatWeftline(base_url=url, **{"max_retries": 0, **options})


def unchanged(chain: Chain) -> Chain:
    return chain


TIERS: dict[str, tuple[dict[str, Any], Way]] = {
    "plain": ({"provenance": False}, unchanged),
    "swapped": ({}, unchanged),
    "accelerated": ({}, accelerate),
}
tiers = pytest.mark.parametrize("tier", TIERS)


def outcome(act: Callable[[], Any]) -> tuple[Any, ...]:
    """Return the result of `act`, or the type, the text and the body of its exception.

    The openai client's text has the whole body in it before version 3, and only its message since.
    """
    try:
        return "value", str(act())
    except Exception as error:
        return type(error), str(error), getattr(error, "body", None)


@cache
def plainly(run: Callable[..., Any], *arguments: Any) -> Any:
    """Return ChatOpenAI's outcome, computed once for all tiers."""
    return run(chat_openai, unchanged, {}, *arguments)
