"""A conversation is replaced by its summary, and the real engine computes nothing twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from tokenizers import Tokenizer

from langchain_weftline import ChatWeftline, WeftlineSummarizationMiddleware, accelerate

BLOCK = 16  # tokens of the engine's KV cache that are shared as a whole
SYSTEM = "You help at the river. " + "The loom weaves threads of wool and silk into cloth. " * 130
RESULT = "A heron and a boat with two oars lie at the bank, and the water is high this morning."
QUESTION = "And what lies on the other side of the river, behind the old mill?"


class Usages(BaseCallbackHandler):
    """The usage of each model call, in the order of their ends, and the second of the first end."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int]] = []
        self.began, self.first_s = time.monotonic(), 0.0

    def wait(self) -> None:
        """Wait longer than a summary and the fill behind it take: together they compute less than a
        tenth of what the first call did."""
        time.sleep(max(4.0, 2 * self.first_s))

    def on_llm_end(self, response: Any, **_: Any) -> None:
        usage = response.generations[0][0].message.usage_metadata
        self.first_s = self.first_s or time.monotonic() - self.began
        self.found.append((usage["input_tokens"], usage["input_token_details"]["cache_read"]))


class Forces(AgentMiddleware[Any, Any, Any]):
    """Makes the model call the tool when the user has spoken."""

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        asks = request.messages[-1].type == "human" and "other side" not in str(request.messages)
        return handler(request.override(tool_choice="look" if asks else None))


def marked(path: Path, role: str, text: str) -> int:
    """The tokens of a message as the model's template writes it, with the answer's beginning."""
    written = f"<|im_start|>{role}\n{text}<|im_end|>\n<|im_start|>assistant\n"
    encoder = Tokenizer.from_file(str(path / "tokenizer.json"))
    return len(encoder.encode(written, add_special_tokens=False).ids)


@pytest.mark.parametrize("reads", [True, False])
def test_nothing_is_computed_twice(reads: bool, model_url: str, smollm2_directory: Path) -> None:
    """The call that summarises has at least 95 % of its prompt from the cache. The first turn after
    it computes its own new tokens and at most a block: those of the user, or of a tool."""
    usages = Usages()

    @tool
    def look(at: str) -> str:
        """Look at a place."""
        usages.wait()  # the summary is written while a tool runs
        return RESULT

    llm = ChatWeftline(base_url=model_url, temperature=0, max_tokens=24)
    trigger = ("messages", 5 if reads else 3)
    summing = WeftlineSummarizationMiddleware(llm, trigger=trigger, keep=("messages", 2))
    agent = accelerate(
        create_agent(
            llm, [look], system_prompt=SYSTEM, middleware=[Forces(), summing],
            checkpointer=InMemorySaver(),
        )
    )  # fmt: skip
    config: Any = {"configurable": {"thread_id": "a"}, "callbacks": [usages]}
    agent.invoke({"messages": [("user", "Look at the river.")]}, config)
    if reads:
        usages.wait()
        agent.invoke({"messages": [("user", QUESTION)]}, config)
    *_, (asked, cached), (prompt, kept) = usages.found
    assert len(usages.found) == 3 + reads
    assert cached >= 0.95 * asked
    said = QUESTION if reads else f"<tool_response>\n{RESULT}\n</tool_response>"
    new = marked(smollm2_directory, "user", said)
    assert prompt - kept <= new + BLOCK
