"""The exceptions of a compiled chain whose model fails, and its messages' fields beside text."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda

from langchain_weftline import ChatWeftline, compile_chain
from weftline.errors import ConnectionFailed, InvalidRequest, UnknownModel, WeftlineError

SUM = ChatPromptTemplate.from_template("Sum up:\n{text}")
CHUNKS = [{"text": "The weft crosses the warp."}]


@pytest.fixture
def llm(echo_url: str) -> ChatWeftline:
    return ChatWeftline(base_url=echo_url, temperature=0)


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"model": "nonesuch"}, UnknownModel),
        ({"base_url": "http://127.0.0.1:1"}, ConnectionFailed),
        ({"max_tokens": -1}, InvalidRequest),
    ],
)
async def test_server_errors_raise_the_models_exceptions(
    options: dict[str, Any], cause: type[WeftlineError], echo_url: str
) -> None:
    """Retries and fallbacks get the plain chain's exception. Its cause is the server's error."""
    chain = SUM | ChatWeftline(**{"base_url": echo_url, "max_retries": 0, **options})
    compiled = compile_chain(chain)
    with pytest.raises(openai.OpenAIError) as plain:
        chain.invoke(CHUNKS[0])
    for act in (compiled.invoke, lambda chunk: list(compiled.stream(chunk))):
        with pytest.raises(type(plain.value)) as raised:
            act(CHUNKS[0])
        assert str(raised.value) == str(plain.value)
        if act == compiled.invoke:  # LangChain makes the call of a stream that is refused here
            assert type(raised.value.__cause__) is cause
    with pytest.raises(type(plain.value)):
        await compiled.ainvoke(CHUNKS[0])
    fallback = RunnableLambda(lambda chunk: "fallen back")
    safe = compiled.with_fallbacks([fallback], exceptions_to_handle=(openai.OpenAIError,))
    assert safe.invoke(CHUNKS[0]) == "fallen back"


async def test_a_message_brings_its_usage(llm: ChatWeftline) -> None:
    """The usage equals that of the plain chain's message. In a stream it comes with the
    last chunk.
    """
    chain, compiled = SUM | llm, compile_chain(SUM | llm)
    expected = chain.invoke(CHUNKS[0])
    streamed = list(compiled.stream(CHUNKS[0]))
    total = streamed[0]
    for chunk in streamed[1:]:
        total += chunk
    assert streamed[-1].chunk_position == "last"
    for answer in (compiled.invoke(CHUNKS[0]), await compiled.ainvoke(CHUNKS[0]), total):
        assert answer.usage_metadata["input_tokens"] == expected.usage_metadata["input_tokens"]
        assert answer.usage_metadata["total_tokens"] == expected.usage_metadata["total_tokens"]
        assert answer.response_metadata["finish_reason"] == "stop"
