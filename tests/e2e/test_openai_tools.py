"""Tools, schemas, choices and log probabilities with OpenAI's own client, on a real model."""

from __future__ import annotations

import json
import math
from typing import Any

import openai
import pytest
from openai import OpenAI

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIME: Any = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
}
ASK: Any = [{"role": "user", "content": "How is the weather in Rome?"}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def client(model_url: str) -> OpenAI:
    return OpenAI(base_url=f"{model_url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_a_forced_call_keeps_to_its_schema(client: OpenAI, choice: Any) -> None:
    """Required or by name, even a small model calls the tool with valid arguments."""
    answer = client.chat.completions.create(
        model="default",
        messages=ASK,
        tools=[WEATHER],
        tool_choice=choice,
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=96,
    )
    [made] = answer.choices
    assert made.finish_reason == "tool_calls" and made.message.content is None
    assert made.message.tool_calls is not None
    [called] = made.message.tool_calls
    assert called.type == "function" and called.function.name == "get_weather"
    assert json.loads(called.function.arguments).keys() == {"city"}


def test_a_named_tool_among_several_streams(client: OpenAI) -> None:
    """OpenAI's client joins the deltas. The answer equals the one that is not streamed."""
    more: Any = {
        "model": "default",
        "messages": ASK,
        "tools": [TIME, WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "temperature": 0,
        "max_tokens": 96,
    }
    whole = client.chat.completions.create(**more).choices[0].message.tool_calls
    with client.chat.completions.stream(**more) as stream:
        final = stream.get_final_completion().choices[0]
    assert whole is not None and final.message.tool_calls is not None
    assert final.finish_reason == "tool_calls"
    [streamed], [first] = final.message.tool_calls, whole
    assert first.type == "function"
    assert streamed.function.name == first.function.name == "get_weather"
    assert streamed.function.arguments == first.function.arguments


def test_a_strict_tool_leaves_the_model_free_to_answer(client: OpenAI) -> None:
    """With tool_choice auto the answer is text, or calls that keep to their schema."""
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    answer = client.chat.completions.create(
        model="default", messages=ASK, tools=[strict], temperature=0, max_tokens=64
    )
    message = answer.choices[0].message
    for called in message.tool_calls or ():
        assert called.type == "function"
        assert json.loads(called.function.arguments).keys() == {"city"}
    assert message.content or message.tool_calls


def test_a_tool_answers_and_the_model_goes_on(client: OpenAI) -> None:
    """A history with calls and their results, as an agent sends it."""
    called: Any = {
        "role": "assistant",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
            }
        ],
    }
    seen: Any = {"role": "tool", "tool_call_id": "c1", "content": "sunny, 21 degrees"}
    answer = client.chat.completions.create(
        model="default", messages=[*ASK, called, seen], temperature=0, max_tokens=48
    )
    assert "sunny" in (answer.choices[0].message.content or "")


def test_an_answer_by_json_schema(client: OpenAI) -> None:
    """response_format with a schema, then a choice and a pattern in our own field."""
    ask: Any = [{"role": "user", "content": "Ann is 31 years old. Who is it?"}]
    schema: Any = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}
    answer = client.chat.completions.create(
        model="default", messages=ask, response_format=schema, temperature=0, max_tokens=96
    )
    person = json.loads(answer.choices[0].message.content or "")
    assert person.keys() == {"name", "age"} and isinstance(person["age"], int)
    for constraint, texts in (
        ({"choice": ["yes", "no"]}, {"yes", "no"}),
        ({"regex": "[0-9]"}, set("0123456789")),
    ):
        answer = client.chat.completions.create(
            model="default", messages=ask, temperature=0, extra_body={"constraint": constraint}
        )
        assert answer.choices[0].message.content in texts
    with pytest.raises(openai.BadRequestError, match="cannot be followed"):
        client.completions.create(
            model="default", prompt="x", extra_body={"constraint": {"regex": "a("}}
        )


def test_log_probabilities(client: OpenAI) -> None:
    """The greedy token is the likeliest, and the tokens make up the text, streamed or not."""
    more: Any = {
        "model": "default",
        "messages": [{"role": "user", "content": "What is the capital of France? 😀"}],
        "temperature": 0,
        "max_tokens": 16,
        "logprobs": True,
        "top_logprobs": 3,
    }
    choice = client.chat.completions.create(**more).choices[0]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    found = choice.logprobs.content
    assert b"".join(bytes(t.bytes or []) for t in found).decode() == choice.message.content
    for token in found:
        assert len(token.top_logprobs) == 3 and token.logprob <= 0
        assert token.top_logprobs[0].token == token.token
        assert math.isclose(token.top_logprobs[0].logprob, token.logprob, abs_tol=1e-5)
    chunks = client.chat.completions.create(**more, stream=True)
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    streamed = [t for c in choices if c.logprobs for t in c.logprobs.content or []]
    assert [t.token for t in streamed] == [t.token for t in found]

    text = client.completions.create(
        model="default", prompt="1, 2, 3,", temperature=0, max_tokens=4, logprobs=2
    ).choices[0]
    assert text.logprobs is not None and text.logprobs.tokens is not None
    assert "".join(text.logprobs.tokens) == text.text
    assert text.logprobs.text_offset == [0, 1, 2, 3] or len(text.logprobs.text_offset or []) == 4
    assert [len(top) for top in text.logprobs.top_logprobs or []] == [2, 2, 2, 2]


def test_choices_share_the_prompt(client: OpenAI) -> None:
    """Three samples of one prompt differ, because each has its own seed. The prompt is computed
    once.
    """
    answer = client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": "Tell a story about a fox. " * 12}],
        n=3,
        seed=5,
        temperature=1.0,
        max_tokens=12,
        extra_body={"weftline": {"session_id": "choices", "open": True}},
    )
    assert len({choice.message.content for choice in answer.choices}) == 3
    assert answer.usage is not None and answer.usage.completion_tokens <= 36
    session = answer.model_dump()["weftline"]["session_id"]
    graph = client.get(f"/session/{session}/graph", cast_to=object)
    calls = graph["calls"]  # type: ignore[index]
    computed = sorted(call["computed_tokens"] for call in calls)
    prompt = calls[0]["prompt_tokens"]
    # Whole blocks are shared while they are computed. Each sample computes the rest by itself.
    assert computed[-1] <= prompt and sum(computed) < prompt + 2 * 33, computed


def test_penalties_change_the_answer(client: OpenAI) -> None:
    """Each penalty changes the greedy answer, so it reaches the engine."""

    def ask(**more: Any) -> str:
        return (
            client.completions.create(
                model="default", prompt="la la la la", temperature=0, max_tokens=24, extra_body=more
            )
            .choices[0]
            .text
        )

    plain = ask()
    for field, value in (
        ("presence_penalty", 2.0),
        ("frequency_penalty", 2.0),
        ("repetition_penalty", 2.0),
    ):
        assert ask(**{field: value}) != plain, field
