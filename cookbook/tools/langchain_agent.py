"""The travel agent with LangChain: `EarlyTools` starts its searches while the model writes."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tools import StructuredTool
from rehearsal import QUESTION, Times, main, weather_of

from langchain_weftline import ChatWeftline, EarlyTools


class Model(BaseCallbackHandler):
    """Notes when the model writes."""

    def __init__(self, times: Times) -> None:
        self._times = times
        self._turns: dict[Any, Any] = {}

    def on_chat_model_start(self, *args: Any, run_id: Any, **more: Any) -> None:
        self._turns[run_id] = self._times.span("model", "the model")
        self._turns[run_id].__enter__()

    def on_llm_end(self, *args: Any, run_id: Any, **more: Any) -> None:
        self._turns[run_id].__exit__(None, None, None)


def run(url: str, early: bool, times: Times) -> str:
    tools = [StructuredTool.from_function(weather_of(times))]
    middleware = [EarlyTools(["weather"])] if early else []
    model = ChatWeftline(base_url=url, temperature=0, max_tokens=400)
    agent = create_agent(model, tools, middleware=middleware)
    asked = {"messages": [("user", QUESTION)]}
    answer = agent.invoke(asked, config={"callbacks": [Model(times)]})
    return str(answer["messages"][-1].content)


if __name__ == "__main__":
    main(run)
