"""Sixty typical programs, plain and compiled: equal results, calls and exceptions; fewer requests.

The table counts requests. Those of a plain program that follow one another are its waves. Those of
a compiled one are its submits, because texts of the client's own steps are sent while one runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler

from langchain_weftline import ChatWeftline, compile_chain
from tests.integrations.program_table import PROGRAMS, Program
from tests.integrations.recording import Recording, recorded

SUBMIT = "/v1/submit"


class Heard(BaseCallbackHandler):
    """The prompts and the answers of the model calls that callbacks hear of."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.answers: list[str] = []
        self.lock = Lock()

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        with self.lock:
            self.prompts.append(str([(m.type, m.content) for m in messages[0]]))

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        with self.lock:
            self.answers.append(response.generations[0][0].text)


def outcome(act: Callable[[Heard], Any]) -> tuple[str, str, Heard]:
    """The result, or the exception, and what callbacks heard."""
    heard = Heard()
    try:
        made = act(heard)
    except Exception as error:
        return type(error).__name__, str(error), heard
    return "value", str(getattr(made, "content", made)), heard


@pytest.fixture(scope="module")
def proxy(echo_url: str) -> Iterator[Recording]:
    with recorded(echo_url) as recording:
        yield recording


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.name for program in PROGRAMS])
def test_a_program(program: Program, proxy: Recording) -> None:
    """The compiled program gives what the plain one gives, with the requests of the table."""

    def run(way: Callable[[Any], Any], **options: Any) -> tuple[Any, list[str]]:
        proxy.requests.clear()
        llm = ChatWeftline(base_url=proxy.url, temperature=0, max_retries=0, **options)
        runnable = way(program.make(llm))
        made = outcome(
            lambda heard: runnable.invoke(program.given, {**program.config, "callbacks": [heard]})
        )
        paths = [path for verb, path, _ in proxy.requests if verb in ("POST", "PUT")]
        return made, paths

    plain, calls = run(lambda runnable: runnable, provenance=False)
    ours, requests = run(compile_chain)
    assert ours[:2] == plain[:2]
    assert sorted(ours[2].prompts) == sorted(plain[2].prompts)
    assert sorted(ours[2].answers) == sorted(plain[2].answers)
    assert len(calls) == program.plain[0] == len(plain[2].prompts)
    assert (len(requests), requests.count(SUBMIT)) == program.ours


def test_most_programs_make_at_most_two_requests() -> None:
    """Those that do not, make fewer than the plain program or have several steps of the client."""
    few = [program.name for program in PROGRAMS if program.ours[0] <= 2]
    assert len(few) >= len(PROGRAMS) * 5 // 6
