"""What the tests of accelerated chains share: a model, a step that asks it, and how to run it."""

from __future__ import annotations

import asyncio
from threading import Lock
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from langchain_weftline import ChatWeftline
from tests.integrations.recording import Recording

SUBMIT, CHAT = "/v1/submit", "/v1/chat/completions"
TEXT = StrOutputParser()

both = pytest.mark.parametrize("is_async", [False, True], ids=["invoke", "ainvoke"])


def model(recording: Recording, **options: Any) -> ChatWeftline:
    return ChatWeftline(base_url=recording.url, temperature=0, max_retries=0, **options)


def ask(llm: Any, template: str) -> Any:
    return ChatPromptTemplate.from_template(template) | llm | TEXT


def sent(recording: Recording) -> list[str]:
    """The requests that carry work, which are then forgotten."""
    paths = [path for verb, path, _ in recording.requests if verb in ("POST", "PUT")]
    recording.requests.clear()
    return paths


def run(chain: Any, given: Any, is_async: bool = False, config: Any = None) -> Any:
    return asyncio.run(chain.ainvoke(given, config)) if is_async else chain.invoke(given, config)


class Heard(BaseCallbackHandler):
    """The prompts and the answers that callbacks hear of."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.lock = Lock()

    def on_chat_model_start(self, serialized: Any, messages: Any, **_: Any) -> None:
        with self.lock:
            self.said += [str(one.content) for one in messages[0]]

    def on_llm_end(self, response: Any, **_: Any) -> None:
        with self.lock:
            self.said.append(response.generations[0][0].text)

    def on_llm_error(self, error: BaseException, **_: Any) -> None:
        with self.lock:
            self.said.append(type(error).__name__)
