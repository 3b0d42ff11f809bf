"""OpenAI's own client and LangChain's, pointed at a server with a real model."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.prompts import ChatPromptTemplate
from openai import OpenAI

from langchain_weftline import ChatWeftline, accelerate

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


@pytest.fixture
def client(model_url: str) -> OpenAI:
    return OpenAI(base_url=f"{model_url}/v1", api_key="none", max_retries=0)


def test_a_chat_completion(client: OpenAI) -> None:
    """The answer, its finish reason and its usage."""
    answer = client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_completion_tokens=32,
    )
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == (ANSWER, "stop")
    assert answer.usage is not None and answer.usage.prompt_tokens == 37
    assert answer.usage.total_tokens == 37 + answer.usage.completion_tokens
    assert answer.model in {model.id for model in client.models.list()}


def test_the_second_time_the_prompt_is_cached(client: OpenAI) -> None:
    """All but the last token, whose logits are needed, come from the KV cache."""
    message = {"role": "user", "content": "Name a river in Egypt."}
    for _ in range(2):
        answer = client.chat.completions.create(
            model="default", messages=[message], temperature=0, max_tokens=4
        )
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == answer.usage.prompt_tokens - 1


def test_a_streamed_chat_is_the_same_text(client: OpenAI) -> None:
    """Several chunks make up the whole answer. The last one holds the usage."""
    chunks = list(
        client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=32,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    texts = [c.choices[0].delta.content for c in chunks if c.choices]
    assert "".join(text or "" for text in texts) == ANSWER
    assert len([text for text in texts if text]) > 3
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage is not None and chunks[-1].usage.prompt_tokens == 37


def test_a_text_completion_with_a_stop_string(client: OpenAI) -> None:
    """The prompt goes to the model unchanged, and the text ends before the stop string."""
    whole = client.completions.create(
        model="default", prompt="1, 2, 3, 4,", max_tokens=12, temperature=0
    )
    cut = client.completions.create(
        model="default", prompt="1, 2, 3, 4,", max_tokens=12, temperature=0, stop=" 7"
    )
    assert whole.choices[0].text.startswith(" 5, 6, 7")
    assert (cut.choices[0].text, cut.choices[0].finish_reason) == (" 5, 6,", "stop")


def test_the_usage_counts_cached_tokens(model_url: str) -> None:
    """A repeated prompt is read from the KV cache, and the usage says so."""
    prompt = "Tell why the weft crosses the warp, and not the other way around. " * 4
    llm = ChatWeftline(base_url=model_url, temperature=0, max_tokens=4)
    chain = ChatPromptTemplate.from_template("{prompt}") | llm
    llm.invoke(prompt)
    streamed = sum(chain.stream({"prompt": prompt}), AIMessageChunk(content=""))
    for way, message in {
        "alone": llm.invoke(prompt),
        "in a chain": chain.invoke({"prompt": prompt}),
        "streamed": streamed,
        "accelerated": accelerate(chain).invoke({"prompt": prompt}),
    }.items():
        assert isinstance(message, AIMessage) and message.usage_metadata is not None
        told = message.usage_metadata
        cached = told["input_token_details"]["cache_read"]
        # All but the last block of 16 tokens and the last token, whose logits are needed.
        assert told["input_tokens"] - 17 <= cached < told["input_tokens"], way
