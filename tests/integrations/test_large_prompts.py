"""Prompts of several megabytes: their text travels once, so that the server takes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from langchain_weftline import ChatWeftline, accelerate
from tests.integrations.conftest import served
from tests.integrations.recording import recorded

# 4.15 MB, and 5 MB as JSON. Twice that is more than the server's 8 MiB. The null engine's context
# holds little more.
LARGE = "woof\n" * 830_000


@pytest.fixture(scope="module")
def brief_url() -> Any:
    """A server whose answers are short."""
    with served("--null-mode", "fixed") as url:
        yield url


@pytest.mark.parametrize(
    "way",
    [lambda chain: chain, accelerate],
    ids=["plain", "accelerated"],
)
def test_a_prompt_above_four_megabytes_travels_once(
    brief_url: str, way: Callable[..., Any]
) -> None:
    """In both ways the requests together are hardly longer than the prompt."""
    with recorded(brief_url) as recording:
        llm = ChatWeftline(base_url=recording.url, temperature=0, max_retries=0, max_tokens=4)
        prompt = ChatPromptTemplate.from_template("Sum up {text}")
        answer = way(prompt | llm | StrOutputParser()).invoke({"text": LARGE})
    assert answer
    sent = [body for verb, _, body in recording.requests if verb == "POST"]
    assert sum(len(json.dumps(body)) for body in sent) < 1.2 * len(json.dumps(LARGE))
