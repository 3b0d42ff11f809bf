"""The tokens that handlers see of taken results are those of the plain program, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langgraph.graph import END, START, StateGraph
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.llm import LLMChatInProgressEvent
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms.weftline import Weftline
from pydantic import PrivateAttr
from typing_extensions import TypedDict

from langchain_weftline import ChatWeftline, accelerate

from .conftest import served

TOKENS = 5
FRAME = 3  # chunks around the tokens of an answer: the role, the finish reason and the usage


@pytest.fixture(scope="module")
def words_url() -> Iterator[str]:
    """A server whose model writes each word as a token."""
    with served("--null-mode", "words", "--null-step-s", "0.002") as url:
        yield url


class Shown(BaseCallbackHandler):
    """Notes each token that a model of LangChain shows."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    def on_llm_new_token(self, token: str, **kwargs: Any) -> None:
        self.tokens.append(token)


def two_calls(llm: ChatWeftline) -> Any:
    ask = ChatPromptTemplate.from_template("Name {x}.") | llm | StrOutputParser()
    again = ChatPromptTemplate.from_template("Again: {said}") | llm | StrOutputParser()
    return {"said": ask} | again


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])
def test_a_model_that_streams_in_invoke(words_url: str, streaming: bool) -> None:
    """With `streaming=True` LangChain streams each model call of an invoke. A taken result comes in
    the server's tokens, too. Without it no token is shown."""
    llm = ChatWeftline(base_url=words_url, max_tokens=TOKENS, streaming=streaming)
    plainly, ahead = Shown(), Shown()
    said = two_calls(llm).invoke({"x": "a soup"}, {"callbacks": [plainly]})
    assert accelerate(two_calls(llm)).invoke({"x": "a soup"}, {"callbacks": [ahead]}) == said
    assert ahead.tokens == plainly.tokens
    assert sum(map(bool, ahead.tokens)) == (2 * TOKENS if streaming else 0)


class State(TypedDict):
    x: str
    said: str


def test_tokens_of_a_chain_inside_a_node(words_url: str) -> None:
    """A graph's stream mode `messages` shows the tokens of the chain that a node invokes."""

    def shown(chain: Any) -> list[str]:
        graph: Any = StateGraph(State)
        graph.add_node("say", lambda state: {"said": chain.invoke({"x": state["x"]})})
        graph.add_edge(START, "say")
        graph.add_edge("say", END)
        parts = graph.compile().stream({"x": "a soup"}, stream_mode="messages")
        return [message.content for message, _ in parts]

    chain = two_calls(ChatWeftline(base_url=words_url, max_tokens=TOKENS))
    tokens = shown(accelerate(chain))
    assert tokens == shown(chain)
    assert sum(map(bool, tokens)) == 2 * TOKENS


class Progress(BaseEventHandler):
    """Notes what each event of a chat in progress adds."""

    _added: list[str | None] = PrivateAttr(default_factory=list)

    def handle(self, event: Any, **kwargs: Any) -> None:
        if isinstance(event, LLMChatInProgressEvent):
            self._added.append(event.response.delta)


@pytest.mark.parametrize(("mode", "calls"), [("refine", 3), ("tree_summarize", 1)])
def test_progress_of_a_streamed_synthesis(words_url: str, mode: str, calls: int) -> None:
    """Every chunk of each call is an event, also of the calls whose answers were taken."""

    def progress(ahead: bool) -> list[str | None]:
        handler = Progress()
        get_dispatcher().add_event_handler(handler)
        llm = Weftline(base_url=words_url, max_tokens=TOKENS, context_window=400, ahead=ahead)
        made: Any = get_response_synthesizer(response_mode=mode, llm=llm, streaming=True)
        made._response_padding_size = 20
        texts = (" ".join(f"k{k}w{i}" for i in range(30)) for k in range(3))
        nodes = [NodeWithScore(node=TextNode(text=text), score=1) for text in texts]
        try:
            assert "".join(made.synthesize("What?", nodes).response_gen).count("w") == TOKENS
        finally:
            get_dispatcher().event_handlers.remove(handler)
        return handler._added

    added = progress(ahead=True)
    assert added == progress(ahead=False)
    assert len(added) == calls * (TOKENS + FRAME)
