"""The middleware that summarises behind the live context keeps what LangChain's class keeps."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from langchain_weftline import ChatWeftline, WeftlineSummarizationMiddleware
from langchain_weftline.compaction import live_conversation
from tests.integrations.recording import Recording
from tests.integrations.test_tool_loops import called
from weftline.kit.compaction import ABOVE, INSTRUCTION

SUMMARY = "One and two were found."
RULES = [
    ("Be brief.", "In short: one."),
    ("calls instead", called("two")),
    ("summarise the conversation", SUMMARY),
    ("extract the highest quality", SUMMARY),
    ("once more", "Again."),
    ("found two", "Done."),
    ("found one", called("two")),
    ("", called("one")),
]
SYSTEM = "You search."


def search(query: str) -> str:
    """Search."""
    return f"found {query}"


async def talked(
    recording: Recording, kind: Any, *asked: str, sync: bool = False, **options: Any
) -> list[list[tuple[Any, ...]]]:
    """What the state of an agent has after each of the user's questions."""
    llm = ChatWeftline(base_url=recording.url, temperature=0)
    middleware = [kind(llm, **options)]
    agent: Any = create_agent(
        llm, [search], system_prompt=SYSTEM, middleware=middleware, checkpointer=InMemorySaver()
    )
    config = {"configurable": {"thread_id": "a"}}
    states = []
    for text in asked:
        given = {"messages": [("user", text)]}
        state = agent.invoke(given, config) if sync else await agent.ainvoke(given, config)
        states.append([shown(one) for one in state["messages"]])
    return states


def shown(message: Any) -> tuple[Any, ...]:
    calls = [(one["name"], one["args"]) for one in getattr(message, "tool_calls", ())]
    return (message.type, message.content, calls, message.additional_kwargs.get("lc_source"))


KEEPS: list[dict[str, Any]] = [
    {"trigger": ("messages", 5), "keep": ("messages", 3)},
    {"trigger": ("messages", 5), "keep": ("messages", 1)},
    {"trigger": ("messages", 3), "keep": ("messages", 2)},
    {"trigger": ("messages", 7), "keep": ("messages", 1)},
    {"trigger": {"messages": 4, "tokens": 10}, "keep": ("messages", 2)},
    {"trigger": [("messages", 50), ("tokens", 60)], "keep": ("messages", 2)},
    {"trigger": ("messages", 5), "keep": ("messages", 2), "summary_prompt": "Be brief. {messages}"},
]


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("options", KEEPS)
async def test_the_same_messages_are_kept(
    options: dict[str, Any], sync: bool, recording: Recording
) -> None:
    """After each turn of the user the state is that of LangChain's class: what is kept, calls with
    their results, and the message that replaces the others."""
    asked = ("look", "once more", "and once more")
    plain = await talked(recording, SummarizationMiddleware, *asked, sync=sync, **options)
    ours = await talked(recording, WeftlineSummarizationMiddleware, *asked, sync=sync, **options)
    assert ours == plain
    assert any("summary of the conversation" in one[1] for state in ours for one in state)


async def chats(recording: Recording, count: int, **options: Any) -> list[dict[str, Any]]:
    """The first `count` requests for chats that an agent makes with our class. One more may follow,
    while its user reads."""
    options = {"trigger": ("messages", 5), "keep": ("messages", 2), **options}
    await talked(recording, WeftlineSummarizationMiddleware, "look", **options)
    return recording.bodies("/v1/chat/completions")[:count]


def texts(body: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(one["role"], one["content"]) for one in body["messages"]]


async def test_the_question_ends_the_live_context(recording: Recording) -> None:
    """The prompt of the summary is that of the last turn with the instruction behind it. It says
    what replaces the conversation, up to the result of the tool that runs."""
    _, second, summary, third = await chats(
        recording,
        4,
    )
    assert summary["messages"] == [*second["messages"], {"role": "user", "content": INSTRUCTION}]
    assert (summary["tools"], summary.get("tool_choice")) == (second["tools"], None)
    assert summary["weftline"]["session_id"] == second["weftline"]["session_id"]
    system, said, calls, result = summary["weftline"]["compacts_to"]
    assert system == {"role": "system", "content": [{"text": SYSTEM}]}
    assert said["content"] == [
        {"text": "Here is a summary of the conversation to date:\n\n"},
        {"input": "answer"},
    ]
    [call] = third["messages"][2]["tool_calls"]
    assert calls["tool_calls"] == [{"id": call["id"], "function": call["function"]}]
    assert result == {"role": "tool", "tool_call_id": call["id"], "content": [{"input": "later"}]}
    assert texts(third)[:2] == [("system", SYSTEM), ("user", said["content"][0]["text"] + SUMMARY)]


async def test_a_question_after_the_user_is_a_part_of_that_message(recording: Recording) -> None:
    """Templates refuse two messages of the user in a row."""
    first, summary = await chats(recording, 2, trigger=("messages", 3), keep=("messages", 2))
    assert texts(first) == [("system", SYSTEM), ("user", "look")]
    assert texts(summary) == [("system", SYSTEM), ("user", f"look\n\n{INSTRUCTION}")]


async def test_a_prompt_of_the_user_has_no_copy_of_the_history(recording: Recording) -> None:
    said = "Be brief.\n<messages>\n{messages}\n</messages>"
    _, _, summary, _ = await chats(recording, 4, summary_prompt=said)
    assert texts(summary)[-1] == ("user", said.format(messages=ABOVE))


async def test_a_call_in_place_of_a_summary(recording: Recording) -> None:
    """The history then goes as text, as LangChain's class sends it."""
    said = "The model calls instead. {messages}"
    _, _, refused, again, last = await chats(recording, 5, summary_prompt=said)
    assert texts(refused)[-1] == ("user", said.format(messages=ABOVE))
    assert "tools" in refused and "tools" not in again
    [(role, text)] = texts(again)
    assert role == "user" and "<message" in text and "compacts_to" not in again["weftline"]
    assert len(last["messages"]) == 4


async def test_another_model_or_function_summarises_the_history_as_text(
    recording: Recording,
) -> None:
    made: list[int] = []

    def count(messages: list[Any]) -> str:
        made.append(len(messages))
        return "counted"

    sent = await chats(
        recording, 3, summarizer=count,
    )  # fmt: skip
    assert (made, len(sent)) == ([3], 3)
    recording.requests.clear()
    other = ChatWeftline(base_url=recording.url, model="null", temperature=1)
    sent = await chats(
        recording, 4, summarizer=other,
    )  # fmt: skip
    assert [body["model"] for body in sent] == ["default", "default", "null", "default"]


async def test_an_equal_model_is_the_agents(recording: Recording) -> None:
    """A model of one's own for the middleware, of the same server and name, has the live context,
    too."""
    llm, equal = (ChatWeftline(base_url=recording.url, max_tokens=n) for n in (64, 32))
    summing = WeftlineSummarizationMiddleware(equal, trigger=("messages", 5), keep=("messages", 2))
    agent: Any = create_agent(llm, [search], middleware=[summing])
    await agent.ainvoke({"messages": [("user", "look")]})
    _, second, summary, *_ = recording.bodies("/v1/chat/completions")
    assert summary["messages"][:-1] == second["messages"]
    assert (summary["tools"], summary["max_completion_tokens"]) == (second["tools"], 32)


async def test_a_result_that_is_too_long(recording: Recording) -> None:
    """A conversation that only a tool's result makes too long is summarised where LangChain's class
    does it, behind the live context too."""
    long = f"found two {'words ' * 400}"

    def search(query: str) -> str:
        """Search."""
        return long

    llm = ChatWeftline(base_url=recording.url, temperature=0)
    summing = WeftlineSummarizationMiddleware(llm, trigger=("tokens", 300), keep=("messages", 2))
    agent: Any = create_agent(llm, [search], middleware=[summing])
    await agent.ainvoke({"messages": [("user", "look")]})
    first, summary, second, *_ = recording.bodies("/v1/chat/completions")
    assert texts(summary) == [("user", f"look\n\n{INSTRUCTION}")]
    assert first["tools"] == summary["tools"] and "compacts_to" not in summary["weftline"]
    assert [role for role, _ in texts(second)] == ["user", "assistant", "tool"]


async def test_a_summary_that_does_not_come_is_asked_again(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next turn asks for it itself, behind the live context."""
    fails = [True]

    class Fails(WeftlineSummarizationMiddleware):
        def _ahead(self, *given: Any) -> Any:
            found = super()._ahead(*given)
            if fails and found is not None:
                fails.clear()
                found.result(60)
                failed = type(found)()  # type: ignore[var-annotated]
                failed.set_exception(ConnectionError("gone"))
                return failed
            return found

    await talked(recording, Fails, "look", trigger=("messages", 5), keep=("messages", 2))
    _, second, lost, again, third = recording.bodies("/v1/chat/completions")[:5]
    assert lost["messages"] == again["messages"] == [
        *second["messages"], {"role": "user", "content": INSTRUCTION}
    ]  # fmt: skip
    assert texts(third)[1][1].endswith(SUMMARY)


async def test_a_stream_has_no_text_of_the_summary(recording: Recording) -> None:
    llm = ChatWeftline(base_url=recording.url, temperature=0)
    summing = WeftlineSummarizationMiddleware(llm, trigger=("messages", 5), keep=("messages", 2))
    agent: Any = create_agent(llm, [search], middleware=[summing])
    said = ""
    async for part, about in agent.astream(
        {"messages": [("user", "look")]}, stream_mode="messages"
    ):
        if about.get("lc_source") != "summarization" and isinstance(part, AIMessage):
            said += part.text
    assert said == "Done."


def test_conversations_are_bounded_and_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation is found by the ids of its messages, the least recently used leaves, and one
    of another branch is none of it."""
    monkeypatch.setattr(live_conversation, "MOST", 2)
    kept = live_conversation.LiveConversations()
    talks = [[HumanMessage("a", id=f"{at}"), AIMessage("b", id=f"{at}b")] for at in range(3)]
    for talk in talks:
        kept.put(live_conversation.LiveConversation(None, talk))  # type: ignore[arg-type]
    assert [kept.find(talk) is None for talk in talks] == [True, False, False]
    assert kept.find([talks[1][0], AIMessage("c", id="other")]) is None
    assert kept.find([*talks[1], HumanMessage("d", id="d")]) is not None
    assert kept.find([]) is None
