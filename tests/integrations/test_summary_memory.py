"""The memory whose summary is asked behind the live context keeps what LlamaIndex's class keeps."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.memory import ChatSummaryMemoryBuffer
from llama_index.core.tools import FunctionTool
from llama_index.llms.weftline import Weftline, WeftlineSummaryMemory

from tests.integrations.recording import Recording
from tests.integrations.test_tool_loops import called
from weftline.kit.compaction import INSTRUCTION

SUMMARY = "One was found."
RULES = [
    ("calls instead", called("two")),
    ("summarise the conversation", SUMMARY),
    ("concise summary", SUMMARY),
    ("once more", "Again."),
    ("found one", "Done."),
    ("", called("one")),
]
SYSTEM = "You search."


def search(query: str) -> str:
    """Search."""
    return f"found {query}"


TOOLS = [FunctionTool.from_defaults(search)]


async def talked(
    recording: Recording, kind: Any, limit: int, *asked: str, **options: Any
) -> list[list[tuple[str, str | None]]]:
    """What the memory of an agent has after each of the user's questions."""
    llm = Weftline(api_base=recording.url, is_function_calling_model=True)
    memory = kind.from_defaults(llm=llm, token_limit=limit, tokenizer_fn=str.split, **options)
    agent = FunctionAgent(tools=TOOLS, llm=llm, system_prompt=SYSTEM, streaming=False)
    found = []
    for text in asked:
        await agent.run(text, memory=memory)
        found.append([(one.role.value, one.content) for one in memory.get_all()])
    return found


OURS: dict[str, Any] = {"system_prompt": SYSTEM, "tools": TOOLS}
ASKED = ("look", "and look once more", "and look once more again")


@pytest.mark.parametrize("limit", [2, 4, 6, 10])
async def test_the_same_messages_are_kept(limit: int, recording: Recording) -> None:
    """After each turn the memory is that of LlamaIndex's class."""
    plain = await talked(recording, ChatSummaryMemoryBuffer, limit, *ASKED)
    ours = await talked(recording, WeftlineSummaryMemory, limit, *ASKED, **OURS)
    assert ours == plain
    assert any(("system", SUMMARY) in state for state in ours)


async def test_the_question_ends_the_live_context(recording: Recording) -> None:
    """The prompt of the summary is the agent's with an instruction, and it says what replaces the
    conversation, up to what the user will say."""
    await talked(recording, WeftlineSummaryMemory, 3, "look", **OURS)
    _, before, summary = recording.bodies("/v1/chat/completions")
    done = {"role": "assistant", "content": "Done."}
    question = {"role": "user", "content": INSTRUCTION}
    assert summary["messages"] == [*before["messages"], done, question]
    assert summary["tools"] == before["tools"]
    assert summary["weftline"]["session_id"] == before["weftline"]["session_id"]
    assert summary["weftline"]["compacts_to"] == [
        {"role": "system", "content": [{"text": SYSTEM}]},
        {"role": "system", "content": [{"input": "answer"}]},
        {"role": "user", "content": [{"input": "later"}]},
    ]


async def test_a_question_after_the_user_is_a_part_of_that_message(recording: Recording) -> None:
    """Where the user's message does not fit the buffer, the turn follows at once: nothing is said
    of what replaces the conversation."""
    await talked(recording, WeftlineSummaryMemory, 1, "look here", **OURS)
    summary, *_ = recording.bodies("/v1/chat/completions")
    assert [one["content"] for one in summary["messages"]] == [
        SYSTEM, f"look here\n\n{INSTRUCTION}",
    ]  # fmt: skip
    assert "compacts_to" not in summary["weftline"]


async def test_a_call_in_place_of_a_summary(recording: Recording) -> None:
    """The history then goes as text, as LlamaIndex's class sends it."""
    said = "The model calls instead."
    memory = WeftlineSummaryMemory
    await talked(recording, memory, 3, "look", **OURS, summarize_prompt=said)
    _, _, refused, again, *_ = recording.bodies("/v1/chat/completions")
    assert refused["messages"][-1] == {"role": "user", "content": said}
    assert again["messages"][0] == {"role": "system", "content": said}
    assert "Transcript so far" in again["messages"][1]["content"]
    assert "tools" in refused and "tools" not in again
