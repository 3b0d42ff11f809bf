"""Streamed objects, from LlamaIndex's synthesizers and from the LLM itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core import PromptTemplate
from llama_index.llms.weftline import Weftline
from pydantic import BaseModel

from tests.integrations.conftest import StartServer
from tests.integrations.recording import Recording, recorded
from tests.integrations.test_llama_ahead import CHAT, counts, nodes, synthesizer
from tests.integrations.test_llama_objects import (  # the fixtures too
    SECOND,
    River,
    call_of,
    ours,
    proxy,
    urls,
    with_tools,
)

__all__ = ["proxy", "urls", "with_tools"]


class Found(BaseModel):
    """An object with an answer."""

    sure: bool
    answer: str


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("mode", ["tree_summarize", "refine", "compact"])
def test_streamed_synthesis_of_objects(
    start_script: StartServer, with_tools: bool, mode: str, is_async: bool
) -> None:
    """With `streaming` LlamaIndex requests objects and passes on text. It is still one request."""
    first, then = (
        '{"sure": true, "answer": "a \\"quoted\\"\\nriver"}',
        '{"sure": true, "answer": "b"}',
    )
    # The last prompt holds the answer to refine, or the answers to combine, in LlamaIndex's form.
    rules = [('a "quoted"\nriver', then), ('"answer":"a \\"quoted\\"', then), ("", first)]
    if with_tools:
        rules = [(when, call_of(reply, "Found")) for when, reply in rules]

    async def asynchronous(llm: Weftline) -> str:
        made = synthesizer(mode, llm, output_cls=Found, streaming=True)
        response: Any = await made.asynthesize("What?", nodes())
        return "".join([part async for part in response.response_gen])

    def run(llm: Weftline) -> str:
        if is_async:
            return asyncio.run(asynchronous(llm))
        made = synthesizer(mode, llm, output_cls=Found, streaming=True)
        response: Any = made.synthesize("What?", nodes())
        return "".join(response.response_gen)

    with recorded(start_script(rules)) as proxy:
        llm = ours(proxy.url, is_function_calling_model=with_tools)
        text = run(llm)
        assert counts(proxy) == (1, 0)
        plain = run(llm.model_copy(update={"ahead": False}))
        assert counts(proxy)[0] == 1 and counts(proxy)[1] > 1
        last = proxy.bodies(CHAT)[-1]["messages"][-1]["content"]
    assert text == plain
    if mode == "tree_summarize":  # The last call writes text, whatever is in it.
        assert text == (call_of(then, "Found") if with_tools else then)
    else:
        assert text == "b" and 'a "quoted"\nriver' in last


def test_streams_of_objects_without_an_answer(proxy: Recording, with_tools: bool) -> None:
    """LlamaIndex keeps only the `answer` of a streamed object, so a class without one
    gives none.
    """
    llm = ours(proxy.url, is_function_calling_model=with_tools)
    made = synthesizer("refine", llm, output_cls=River, streaming=True)
    assert str(made.synthesize("What?", nodes(2))) == "Empty Response"
    assert counts(proxy) == (0, 2)


def test_a_streamed_object_is_forced(start_script: StartServer) -> None:
    """The tool of a streamed object must be called, like that of a whole one."""
    prompt = PromptTemplate("Which river? {text}")
    with recorded(start_script([("", call_of(SECOND))])) as proxy:
        llm = ours(proxy.url)

        async def last() -> Any:
            parts = await llm.astream_structured_predict(River, prompt, text="k0w0")
            return [part async for part in parts][-1]

        *_, made = llm.stream_structured_predict(River, prompt, text="k0w0")
        assert made == asyncio.run(last()) == River(name="second", km=50.0)
        assert [body["tool_choice"] for body in proxy.bodies(CHAT)] == ["required"] * 2
