"""A parameter of a wrong type is refused by its name, on every way that a call can take."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.llms.weftline import Weftline

from tests.integrations.test_llama_ahead import nodes
from tests.integrations.tiers import (
    AGAIN,
    ASK,
    GIVEN,
    TEXT,
    TIERS,
    Way,
    chat_openai,
    chat_weftline,
    outcome,
    tiers,
    unchanged,
)
from weftline.errors import InvalidRequest

# The parameter, a wrong value, and what the server says of it.
WRONG: list[tuple[str, Any, str]] = [
    ("stop", 5, "stop: Input should be a valid string"),
    ("stop", [1], "stop.0: Input should be a valid string"),
    ("stop", {"a": 1}, "stop: Input should be a valid string"),
    ("stop", ["a", ["b"]], "stop.1: Input should be a valid string"),
    ("stop", "", "each stop string must have 1 to 256 characters"),
    ("logit_bias", 5, "logit_bias: Input should be an object"),
    ("logit_bias", {"a": 1}, "'a' in logit_bias is not the id of a token"),
    ("logit_bias", {"5": "x"}, "logit_bias: Input should be a valid number"),
    ("logit_bias", {"5": None}, "logit_bias: Input should be a valid number"),
    ("temperature", "warm", "temperature: Input should be a valid number"),
]
wrong = pytest.mark.parametrize(("name", "value", "says"), WRONG, ids=[str(w[:2]) for w in WRONG])


def asked(make: Any, way: Way, options: dict[str, Any], url: str, name: str, value: Any) -> Any:
    llm = make(url, max_tokens=9, **options).bind(**{name: value})
    return outcome(lambda: way(ASK | llm | TEXT | AGAIN | llm | TEXT).invoke(GIVEN))


@tiers
@wrong
def test_langchain_names_the_parameter(
    name: str, value: Any, says: str, tier: str, echo_url: str
) -> None:
    """The exception is ChatOpenAI's, also of a chain that would have been sent ahead."""
    ours, way = TIERS[tier]
    expected = asked(chat_openai, unchanged, {}, echo_url, name, value)
    assert says in expected[1]
    assert asked(chat_weftline, way, ours, echo_url, name, value) == expected


@pytest.mark.parametrize("ahead", [False, True], ids=["swapped", "ahead"])
@wrong
def test_llama_index_names_the_parameter(
    name: str, value: Any, says: str, ahead: bool, echo_url: str
) -> None:
    """A synthesizer's graph and a call of its own end in the server's words."""
    llm = Weftline(
        base_url=echo_url, max_tokens=9, context_window=3900, additional_kwargs={name: value}
    )
    with pytest.raises(InvalidRequest) as raised:
        if ahead:
            made = get_response_synthesizer(response_mode="refine", llm=llm)
            made.synthesize("Where?", nodes(2))
        else:
            llm.complete("Hello.")
    assert raised.value.message == says
