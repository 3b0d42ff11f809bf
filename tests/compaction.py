"""A conversation that is replaced by its summary, in LangChain and in LlamaIndex, on a real engine.

The call that summarises has at least 95 % of its prompt from the cache. The first turn after it
computes its own new tokens and at most a block: those of the user, or of a tool.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.weftline import Weftline, WeftlineSummaryMemory
from tokenizers import Tokenizer

from langchain_weftline import ChatWeftline, WeftlineSummarizationMiddleware, accelerate

RESULT = "A heron and a boat with two oars lie at the bank, and the water is high this morning."
QUESTION = "And what lies on the other side of the river, behind the old mill?"
LOOK = "Look at the river."
# The memory counts words: this with its answer is too long, and its summary, of at most 24 words
# like each answer, with the answer and QUESTION is not.
LOOK_LONG, MOST_WORDS = "Look at the river, and tell me what lies at the bank. " * 5, 62


@dataclass(slots=True, eq=False)
class Usages(BaseCallbackHandler):
    """The prompt and the cached tokens of each model call, in the order of their ends, and the
    second of the first end."""

    found: list[tuple[int, int]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    first_s: float = 0.0

    def wait(self, count: int) -> None:
        """Wait until so many calls have ended, of which the last is the summary, and then longer
        than the fill behind it takes: it computes less than a tenth of what the first call did."""
        deadline = time.monotonic() + 200
        while len(self.found) < count:
            assert time.monotonic() < deadline, "there is no summary"
            time.sleep(0.05)
        time.sleep(max(4.0, self.first_s))

    def on_llm_end(self, response: Any, **_: Any) -> None:
        usage = response.generations[0][0].message.usage_metadata
        self.first_s = self.first_s or time.monotonic() - self.began
        self.found.append((usage["input_tokens"], usage["input_token_details"]["cache_read"]))

    def check(self, count: int, new: int, block: int) -> None:
        """The last two of so many calls are the summary, and a turn with so many `new` tokens."""
        *_, (asked, cached), (prompt, kept) = self.found
        assert len(self.found) == count
        assert cached >= 0.95 * asked, self.found
        assert prompt - kept <= new + block, self.found


class Forces(AgentMiddleware[Any, Any, Any]):
    """Makes the model call the tool when the user has spoken."""

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        asks = request.messages[-1].type == "human" and QUESTION not in str(request.messages)
        return handler(request.override(tool_choice="look" if asks else None))


def system(block: int) -> str:
    """So long that the instruction and a block are less than 5 % of it."""
    sentences = 130 if block <= 16 else 200
    return (
        "You help at the river. "
        + "The loom weaves threads of wool and silk into cloth. " * sentences
    )


def marked(path: Path, text: str) -> int:
    """The tokens of a message of the user as the model's template writes it, with the answer's
    beginning."""
    written = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    encoder = Tokenizer.from_file(str(path / "tokenizer.json"))
    return len(encoder.encode(written, add_special_tokens=False).ids)


def check_langchain(url: str, path: Path, block: int, *, reads: bool) -> None:
    """The summary is made while the user `reads`, or while a tool runs."""
    usages = Usages()

    @tool
    def look(at: str) -> str:
        """Look at a place."""
        if not reads:  # the summary is written while the tool runs
            usages.wait(2)
        return RESULT

    llm = ChatWeftline(base_url=url, temperature=0, max_tokens=24)
    trigger = ("messages", 5 if reads else 3)
    summing = WeftlineSummarizationMiddleware(llm, trigger=trigger, keep=("messages", 2))
    agent = accelerate(
        create_agent(
            llm, [look], system_prompt=system(block), middleware=[Forces(), summing],
            checkpointer=InMemorySaver(),
        )
    )  # fmt: skip
    config: Any = {"configurable": {"thread_id": "a"}, "callbacks": [usages]}
    agent.invoke({"messages": [("user", LOOK)]}, config)
    if reads:
        usages.wait(3)
        agent.invoke({"messages": [("user", QUESTION)]}, config)
    said = QUESTION if reads else f"<tool_response>\n{RESULT}\n</tool_response>"
    usages.check(3 + reads, marked(path, said), block)


async def check_llamaindex(url: str, path: Path, block: int) -> None:
    """The memory asks for the summary when the turn has ended."""
    usages = Usages()
    llm = Weftline(api_base=url, temperature=0, max_tokens=24, is_function_calling_model=True)
    memory = WeftlineSummaryMemory.from_defaults(
        llm=llm, token_limit=MOST_WORDS, tokenizer_fn=str.split, system_prompt=system(block)
    )
    agent = FunctionAgent(tools=[], llm=llm, system_prompt=system(block), streaming=False)
    with httpx2.Client(base_url=url, timeout=60) as http:
        before = {one["session_id"] for one in http.get("/v1/sessions").json()["sessions"]}
        for said in (LOOK_LONG, QUESTION):
            await agent.run(said, memory=memory)
            usages.first_s = usages.first_s or time.monotonic() - usages.began
            usages.wait(0)
        for one in reversed(http.get("/v1/sessions").json()["sessions"]):
            if (id := one["session_id"]) not in before:
                calls = http.get(f"/v1/session/{id}/graph").json()["calls"]
                usages.found += [(call["prompt_tokens"], call["cached_tokens"]) for call in calls]
    del usages.found[3:]  # a summary behind the second turn
    usages.check(3, marked(path, QUESTION), block)
