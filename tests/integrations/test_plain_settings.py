"""Settings of models, options, messages and inputs have the effect that ChatOpenAI gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.callbacks import get_usage_metadata_callback
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder

from .recording import recorded
from .test_like_plain import SUBMIT, Heard, in_tier, two_in_a_row
from .tiers import AGAIN, ASK, GIVEN, TEXT, Chain, chat_openai, outcome, tiers

Make = Callable[[Any], Chain]


def after(message: Any) -> Make:
    """Two calls, of which the first has an earlier message."""

    def make(llm: Any) -> Chain:
        first = ChatPromptTemplate([message, ("human", "{x}")]) | llm | TEXT
        return first | AGAIN | llm | TEXT

    return make


CALLED = {"function_call": {"name": "f", "arguments": "{}"}}


@tiers
@pytest.mark.parametrize("more", [CALLED, {"audio": {"id": "a"}}], ids=["function_call", "audio"])
def test_fields_of_a_message_that_a_graph_lacks(tier: str, more: Any, echo_url: str) -> None:
    """The server refuses them, also where the chain would have been a graph without them."""
    make = after(AIMessage("Earlier.", additional_kwargs=more))
    expected = outcome(lambda: make(chat_openai(echo_url)).invoke(GIVEN))
    assert "is not served" in expected[1]
    chain = in_tier(tier, echo_url, make)
    assert outcome(lambda: chain.invoke(GIVEN)) == expected


def test_a_name_among_the_additional_arguments_of_a_message(echo_url: str) -> None:
    """LangChain sends it as the message's name, and so does a graph."""
    make = after(HumanMessage("Earlier.", additional_kwargs={"name": "ann"}))
    with recorded(echo_url) as passed:
        make(chat_openai(passed.url)).invoke(GIVEN)
        in_tier("accelerated", passed.url, make).invoke(GIVEN)
        plain, _ = passed.bodies("/v1/chat/completions")
        [ours] = passed.bodies(SUBMIT)
    assert plain["messages"][0]["name"] == ours["calls"][0]["prompt"][0]["name"] == "ann"


@tiers
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_callbacks_hear_of_the_most_tokens_by_one_name(tier: str, name: str, echo_url: str) -> None:
    """Both names are one parameter of the model."""
    heard, plain = Heard(), Heard()
    two_in_a_row(chat_openai(echo_url, **{name: 3})).invoke(GIVEN, {"callbacks": [plain]})
    chain = in_tier(tier, echo_url, two_in_a_row, **{name: 3})
    chain.invoke(GIVEN, {"callbacks": [heard]})
    params = [[one[2] for one in found.told if one[0] == "start"] for found in (heard, plain)]
    names = [[(one["max_completion_tokens"], "max_tokens" in one) for one in has] for has in params]
    assert names == [[(3, False), (3, False)]] * 2


@tiers
def test_the_last_of_two_names_counts(tier: str, echo_url: str) -> None:
    """A call that is bound both names is cut where ChatOpenAI's is cut."""

    def make(llm: Any) -> Chain:
        bound = llm.bind(max_completion_tokens=1, max_tokens=3)
        return ASK | bound | TEXT | AGAIN | llm | TEXT

    expected = make(chat_openai(echo_url)).invoke(GIVEN)
    assert in_tier(tier, echo_url, make).invoke(GIVEN) == expected


@tiers
async def test_a_stream_without_usage(tier: str, echo_url: str) -> None:
    """No part has usage where the model is asked for none."""

    def make(llm: Any) -> Chain:
        return ASK | llm | TEXT | AGAIN | llm

    chain = in_tier(tier, echo_url, make, stream_usage=False)
    with get_usage_metadata_callback() as usage:
        parts = [*chain.stream(GIVEN), *[part async for part in chain.astream(GIVEN)]]
    assert [part for part in parts if part.usage_metadata is not None] == []
    assert usage.usage_metadata == {}


@tiers
async def test_a_stream_of_responses(tier: str, echo_url: str) -> None:
    """With `use_responses_api` a stream has the parts that ChatOpenAI's has."""

    def make(llm: Any) -> Chain:
        return ASK | llm | TEXT | AGAIN | llm

    expected = [one.text for one in make(responding(echo_url)).stream(GIVEN)]
    chain = in_tier(tier, echo_url, make, use_responses_api=True)
    assert "".join(expected) == "user: Again: user: Tell of soup.\nassistant: \nassistant: "
    assert [one.text for one in chain.stream(GIVEN)] == expected
    assert [one.text async for one in chain.astream(GIVEN)] == expected


def responding(url: str) -> Any:
    return chat_openai(url, use_responses_api=True)


@tiers
def test_headers_of_responses(tier: str, echo_url: str) -> None:
    """An answer has the headers of its own response where the model keeps them."""

    def make(llm: Any) -> Chain:
        return ASK | llm | TEXT | AGAIN | llm

    chain = in_tier(tier, echo_url, make, include_response_headers=True)
    headers = chain.invoke(GIVEN).response_metadata["headers"]
    assert headers["content-type"] == "application/json"
    [first, *_] = chain.stream(GIVEN)
    assert first.response_metadata["headers"]["content-type"].startswith("text/event-stream")


@tiers
async def test_parts_of_an_input_that_cannot_be_added(tier: str, echo_url: str) -> None:
    """The last one counts, as in LangChain's own steps."""

    def parts() -> Iterator[dict[str, str]]:
        yield {"x": "bread"}
        yield GIVEN

    async def later() -> Any:
        for part in parts():
            yield part

    chain = in_tier(tier, echo_url, lambda llm: ASK | llm | TEXT | AGAIN | llm | TEXT)
    expected = "user: Again: user: Tell of soup.\nassistant: \nassistant: "
    assert "".join(chain.transform(parts())) == expected
    assert "".join([one async for one in chain.atransform(later())]) == expected


@tiers
def test_a_tool_that_is_bound_twice(tier: str, echo_url: str) -> None:
    """It is the server's refusal, as an error of the openai client."""
    tool = {"type": "function", "function": {"name": "look"}}

    def make(llm: Any) -> Chain:
        return ASK | llm.bind(tools=[tool, tool]) | TEXT | AGAIN | llm | TEXT

    expected = outcome(lambda: make(chat_openai(echo_url)).invoke(GIVEN))
    assert "declared twice" in expected[1]
    chain = in_tier(tier, echo_url, make)
    assert outcome(lambda: chain.invoke(GIVEN)) == expected


@tiers
@pytest.mark.parametrize("first", [[MessagesPlaceholder("x")], []], ids=["placeholder", "template"])
def test_a_prompt_without_messages(tier: str, first: list[Any], echo_url: str) -> None:
    """The server refuses it, also as the first call of several."""

    def make(llm: Any) -> Chain:
        return ChatPromptTemplate(first) | llm | TEXT | AGAIN | llm | TEXT

    expected = outcome(lambda: make(chat_openai(echo_url)).invoke({"x": []}))
    assert "messages must not be empty" in expected[1]
    chain = in_tier(tier, echo_url, make)
    assert outcome(lambda: chain.invoke({"x": []})) == expected
