"""The adapters give a model's thoughts, whole and streamed, and send them back in every turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langgraph.checkpoint.memory import InMemorySaver
from llama_index.core.agent.workflow import AgentStream, AgentWorkflow, FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ThinkingBlock
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms.weftline import Weftline

from langchain_weftline import ChatWeftline, EarlyTools, accelerate
from langchain_weftline.lower.symbols import CannotCompile
from langchain_weftline.model.call_sampling import call_options
from tests.integrations.recording import Recording, recorded
from tests.integrations.thinking_model import TURNS, thinking_server, thought
from weftline_server.config import ServerConfig

CHATS = "/v1/chat/completions"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that puts no thoughts back: the adapters send them."""
    with thinking_server(ServerConfig(restore_thoughts=False)) as url:
        yield url


def look(number: int) -> str:
    """Look."""
    return f"found {number}"


def sent_thoughts(recording: Recording) -> list[str]:
    """The thoughts that the last request has."""
    *_, last = recording.bodies(CHATS)
    return [one["reasoning_content"] for one in last["messages"] if "reasoning_content" in one]


THOUGHTS = [thought(number) for number in range(1, TURNS)]


def test_an_answer_of_langchain_has_its_thoughts(url: str) -> None:
    """As LangChain's standard content block, and where its DeepSeek and Ollama classes have it."""
    made = ChatWeftline(base_url=url).invoke("Hi")
    assert made.content == "Hello."
    assert made.additional_kwargs["reasoning_content"] == thought(0)
    assert made.content_blocks == [
        {"type": "reasoning", "reasoning": thought(0)},
        {"type": "text", "text": "Hello."},
    ]
    again = ChatWeftline(base_url=url, output_version="v1").invoke("Hi")
    assert again.content == made.content_blocks


async def test_a_stream_of_langchain_has_its_thoughts(url: str) -> None:
    """The same, in chunks whose sum is the whole answer."""
    for version in (None, "v1"):
        llm = ChatWeftline(base_url=url, output_version=version)
        chunks = list(llm.stream("Hi"))
        again = [chunk async for chunk in llm.astream("Hi")]
        for made in (chunks, again):
            whole: Any = made[0]
            for chunk in made[1:]:
                whole = whole + chunk
            assert isinstance(whole, AIMessageChunk)
            blocks: list[dict[str, Any]] = [dict(block) for block in whole.content_blocks]
            for block in blocks:
                block.pop("index", None)
            assert blocks == [
                {"type": "reasoning", "reasoning": thought(0)},
                {"type": "text", "text": "Hello."},
            ]
        first = next(i for i, one in enumerate(chunks) if one.text)
        assert not any("reasoning_content" in one.additional_kwargs for one in chunks[first:])


@pytest.mark.parametrize(
    "message",
    [
        AIMessage("So.", additional_kwargs={"reasoning_content": "PLAN"}),
        AIMessage([{"type": "reasoning", "reasoning": "PLAN"}, {"type": "text", "text": "So."}]),
        AIMessage([{"type": "thinking", "thinking": "PLAN", "signature": "x"},
                   {"type": "text", "text": "So."}],
                  response_metadata={"model_provider": "anthropic"}),
        AIMessage([{"type": "reasoning", "id": "rs_1",
                    "summary": [{"type": "summary_text", "text": "PLAN"}]},
                   {"type": "text", "text": "So."}],
                  response_metadata={"model_provider": "openai"}),
    ],
    ids=["kwargs", "standard", "anthropic", "openai"],
)  # fmt: skip
def test_langchain_sends_thoughts_of_any_model_back(message: AIMessage, url: str) -> None:
    with recorded(url) as recording:
        ChatWeftline(base_url=recording.url).invoke([HumanMessage("Hi"), message])
        assert sent_thoughts(recording) == ["PLAN"]


def agents(base_url: str) -> dict[str, Any]:
    llm = ChatWeftline(base_url=base_url)
    early = ChatWeftline(base_url=base_url, early_tools=EarlyTools())
    plain = create_agent(llm, [look], checkpointer=InMemorySaver())
    return {
        "plain": plain,
        "accelerated": accelerate(create_agent(llm, [look], checkpointer=InMemorySaver())),
        "early": create_agent(early, [look], checkpointer=InMemorySaver()),
    }


@pytest.mark.parametrize("way", ["plain", "accelerated", "early"])
async def test_an_agent_of_langchain_keeps_ten_thoughts(way: str, url: str) -> None:
    """Invoked, streamed and with each turn saved; a turn ends the run if its thoughts are lost."""
    with recorded(url) as recording:
        agent = agents(recording.url)[way]
        config: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": 60}
        given = {"messages": [("user", "look")]}
        made = await agent.ainvoke(given, config)
        assert made["messages"][-1].content == "Done."
        assert made["messages"][-1].additional_kwargs["reasoning_content"] == thought(TURNS)
        assert sent_thoughts(recording) == THOUGHTS
        config["configurable"]["thread_id"] = "u"
        parts = [part async for part in agent.astream(given, config, stream_mode="messages")]
        shown = "".join(
            part.additional_kwargs.get("reasoning_content", "")
            for part, _ in parts
            if isinstance(part, AIMessageChunk)
        )
        assert shown == "".join([*THOUGHTS, thought(TURNS)])
        assert sent_thoughts(recording) == THOUGHTS
        [*_, last] = agent.get_state(config).values["messages"]
        assert last.content == "Done."


@pytest.mark.parametrize("version", [None, "v1", "responses/v1"])
def test_an_agent_on_responses_keeps_ten_thoughts(version: str | None, url: str) -> None:
    """LangChain's own class keeps the items of /v1/responses, and sends them back."""
    llm = ChatWeftline(base_url=url, use_responses_api=True, output_version=version)
    given: Any = {"messages": [("user", "look")]}
    made = create_agent(llm, [look]).invoke(given, {"recursion_limit": 60})
    assert made["messages"][-1].text == "Done."


def thinking_of(message: ChatMessage) -> Sequence[str | None]:
    return [block.content for block in message.blocks if isinstance(block, ThinkingBlock)]


async def test_an_answer_of_llamaindex_has_its_thoughts(url: str) -> None:
    """As its ThinkingBlock, whole and in a stream, whose parts have the new thoughts."""
    llm, asked = Weftline(base_url=url), [ChatMessage("Hi")]
    streamed = list(llm.stream_chat(asked))
    again = [part async for part in await llm.astream_chat(asked)]
    for made in (llm.chat(asked), await llm.achat(asked), streamed[-1], again[-1]):
        assert (thinking_of(made.message), made.message.content) == ([thought(0)], "Hello.")
    deltas = [part.additional_kwargs.get("thinking_delta") for part in streamed]
    assert "".join(one for one in deltas if one) == thought(0)


async def test_an_agent_of_llamaindex_keeps_ten_thoughts(url: str) -> None:
    """An AgentWorkflow sends its blocks back, and its events have the thoughts as they come."""
    with recorded(url) as recording:
        llm = Weftline(base_url=recording.url)
        agent = FunctionAgent(name="a", tools=[look], llm=llm, streaming=True)
        handler = AgentWorkflow(agents=[agent]).run("look", max_iterations=30)
        shown = [
            event.thinking_delta
            async for event in handler.stream_events()
            if isinstance(event, AgentStream) and event.thinking_delta
        ]
        assert str(await handler) == "Done."
        assert "".join(shown) == "".join([*THOUGHTS, thought(TURNS)])
        assert sent_thoughts(recording) == THOUGHTS
        still = FunctionAgent(name="a", tools=[look], llm=llm, streaming=False)
        assert str(await still.run("look", max_iterations=30)) == "Done."
        assert sent_thoughts(recording) == THOUGHTS


def summed(chunks: Sequence[Any]) -> Any:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    return whole


def shown(message: Any) -> tuple[Any, ...]:
    return (
        message.content,
        message.additional_kwargs.get("reasoning_content"),
        message.usage_metadata,
    )


def test_an_accelerated_chain_gives_what_the_plain_one_gives(url: str) -> None:
    """Later prompts have the answers without thoughts, and the last answer has its thoughts, before
    its text in a stream. One request brings it."""
    with recorded(url) as recording:
        llm = ChatWeftline(base_url=recording.url)
        first = ChatPromptTemplate.from_template("Say {x}.") | llm | StrOutputParser()
        chain: Any = first | ChatPromptTemplate.from_template("Again: {y}") | llm
        plain, parts = chain.invoke({"x": "a"}), list(chain.stream({"x": "a"}))
        assert shown(plain)[:2] == ("Hello.", thought(0))
        recording.requests.clear()
        fast = accelerate(chain)
        assert shown(fast.invoke({"x": "a"})) == shown(plain)
        again = list(fast.stream({"x": "a"}))
        assert shown(summed(again)) == shown(summed(parts)) == shown(plain)
        first_text = next(at for at, one in enumerate(again) if one.text)
        assert "reasoning_content" in again[first_text - 1].additional_kwargs
        assert [path for _, path, _ in recording.requests] == ["/v1/submit"] * 2


def test_words_for_the_template_are_sent_ahead(url: str) -> None:
    """`chat_template_kwargs` kept a call from it. A call with other words takes no result."""
    words = {"chat_template_kwargs": {"enable_thinking": True, "preserve_thinking": True}}
    with recorded(url) as recording:
        llm = ChatWeftline(base_url=recording.url, extra_body=words)
        first = ChatPromptTemplate.from_template("Say {x}.") | llm | StrOutputParser()
        chain: Any = first | ChatPromptTemplate.from_template("Again: {y}") | llm
        assert shown(accelerate(chain).invoke({"x": "a"}))[:2] == ("Hello.", thought(0))
        [(_, path, submit)] = recording.requests
        assert path == "/v1/submit"
        assert [call["chat_template_kwargs"] for call in submit["calls"]] == [
            words["chat_template_kwargs"]
        ] * 2
        other = {"chat_template_kwargs": {"enable_thinking": True}}
        assert call_options(llm, {}) != call_options(llm, {"extra_body": other})
        for bad in ({"a": [1]}, {"messages": "x"}, "x", {f"a{n}": 1 for n in range(17)}):
            with pytest.raises(CannotCompile):
                call_options(llm, {"extra_body": {"chat_template_kwargs": bad}})


def test_a_message_with_thoughts_is_sent_ahead_with_them(url: str) -> None:
    """A history of the user's. Its call and the framework's are equal only with the thoughts."""
    history = [("user", "Hi"), AIMessage("So.", additional_kwargs={"reasoning_content": "PLAN"})]
    with recorded(url) as recording:
        llm = ChatWeftline(base_url=recording.url)
        asked = ChatPromptTemplate.from_messages([*history, ("user", "{x}")])
        chain: Any = asked | llm | StrOutputParser() | asked | llm
        assert shown(accelerate(chain).invoke({"x": "a"})) == shown(chain.invoke({"x": "a"}))
        (_, ahead, submit), *_, (_, _, sent) = recording.requests
        assert (ahead, len(recording.requests)) == ("/v1/submit", 3)
        for call in submit["calls"]:
            assert call["prompt"][1]["reasoning_content"] == "PLAN"
        assert sent["messages"][1]["reasoning_content"] == "PLAN"


@pytest.mark.parametrize("streaming", [False, True])
def test_a_synthesis_of_llamaindex_has_no_thoughts_in_its_prompts(
    url: str, streaming: bool
) -> None:
    """Sent ahead as one graph, it says what single calls say."""
    nodes = [NodeWithScore(node=TextNode(text=f"k{k} " * 30), score=1) for k in range(3)]
    with recorded(url) as recording:

        def run(ahead: bool) -> tuple[str, set[str]]:
            recording.requests.clear()
            llm = Weftline(base_url=recording.url, context_window=400, max_tokens=8, ahead=ahead)
            made = get_response_synthesizer(response_mode="refine", llm=llm, streaming=streaming)
            made._response_padding_size = 20
            found: Any = made.synthesize("What?", nodes)
            text = "".join(found.response_gen) if streaming else str(found)
            return text, {path for method, path, _ in recording.requests if method == "POST"}

        assert run(ahead=True) == ("Hello.", {"/v1/submit"})
        assert run(ahead=False) == ("Hello.", {CHATS})
