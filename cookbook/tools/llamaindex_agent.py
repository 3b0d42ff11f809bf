"""The travel agent with LlamaIndex: `early(tools)` starts its searches while the model writes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from llama_index.core.agent.workflow import AgentInput, AgentOutput, FunctionAgent
from llama_index.core.tools import FunctionTool
from llama_index.llms.weftline import Weftline, early
from rehearsal import QUESTION, Times, main, weather_of


async def _answer(url: str, is_early: bool, times: Times) -> str:
    weather: Any = FunctionTool.from_defaults(_threaded(weather_of(times)))
    tools = early([weather]) if is_early else [weather]
    llm = Weftline(base_url=url, temperature=0, max_tokens=400)
    running = FunctionAgent(tools=tools, llm=llm).run(user_msg=QUESTION)
    began = 0.0
    async for event in running.stream_events():
        if isinstance(event, AgentInput):
            began = time.monotonic()
        elif isinstance(event, AgentOutput):
            times.spans.append(("model", "the model", began, time.monotonic()))
    return str(await running)


def _threaded(weather: Any) -> Any:
    async def awaited(town: str, why: str = "") -> str:
        return str(await asyncio.to_thread(weather, town, why))

    awaited.__name__, awaited.__doc__ = weather.__name__, weather.__doc__
    return awaited


def run(url: str, early: bool, times: Times) -> str:
    return asyncio.run(_answer(url, early, times))


if __name__ == "__main__":
    main(run)
