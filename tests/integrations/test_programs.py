"""Sixty typical programs, plain and accelerated: equal results, exceptions and run trees.

The table counts requests. Those of a plain program that follow one another are its waves. An
accelerated program makes fewer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.base import BaseTracer

from langchain_weftline import ChatWeftline, accelerate
from tests.integrations.program_table import PROGRAMS, Program
from tests.integrations.recording import Recording, recorded

SUBMIT = "/v1/submit"
# The explanation does not know which calls these make: a function or a failure decides, or the
# calls begin when LangChain has retrieved documents.
CALL_BY_THEMSELVES = (
    "routed_by_a_function",
    "with_a_fallback",
    "summary_of_any_length",
    "summary_that_collapses",
    "retrieval_qa",
    "conversational_retrieval",
    "retrieval_qa_by_map_and_reduce",
    "retrieval_qa_by_refine",
    "conversational_retrieval_by_map_and_reduce",
)


_UNIQUE = re.compile(r"id='[^']*'")  # of documents, which a store makes up


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


class Tree(BaseTracer):
    """The run trees: kind, name, tags, input and output of each run, and of the runs inside it."""

    def __init__(self) -> None:
        super().__init__(_schema_format="original+chat")
        self.trees: list[Any] = []

    def _persist_run(self, run: Any) -> None:
        self.trees.append(self._of(run))

    def _of(self, run: Any) -> Any:
        inside = sorted((self._of(child) for child in run.child_runs), key=str)
        outputs = run.outputs or {}
        seen = (
            [one[0]["text"] for one in outputs["generations"]]
            if "generations" in outputs
            else _UNIQUE.sub("", str(getattr(outputs.get("output"), "content", outputs)))
        )
        return run.run_type, run.name, sorted(run.tags), seen, (run.error or "")[:80], inside


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.name for program in PROGRAMS])
def test_a_program(program: Program, proxy: Recording) -> None:
    """The accelerated program does what the plain one does, with the requests of the table.

    Its explanation has said how many these are, where its input decides that.
    """

    def run(way: Callable[[Any], Any], **options: Any) -> tuple[Any, Any, list[str]]:
        proxy.requests.clear()
        llm = ChatWeftline(base_url=proxy.url, temperature=0, max_retries=0, **options)
        runnable, tree = way(program.make(llm)), Tree()
        made = outcome(
            lambda heard: runnable.invoke(
                program.given, {**program.config, "callbacks": [heard, tree]}
            )
        )
        paths = [path for verb, path, _ in proxy.requests if verb in ("POST", "PUT")]
        return made, tree.trees, paths

    plain, seen, calls = run(lambda runnable: runnable, provenance=False)
    ours, seen_too, requests = run(accelerate)
    assert ours[:2] == plain[:2]
    assert seen_too == seen
    assert sorted(ours[2].prompts) == sorted(plain[2].prompts)
    assert sorted(ours[2].answers) == sorted(plain[2].answers)
    assert len(calls) == program.plain[0] == len(plain[2].prompts)
    assert (len(requests), requests.count(SUBMIT)) == program.ours
    llm = ChatWeftline(base_url="http://127.0.0.1:1")
    told = accelerate(program.make(llm)).explain(program.given)
    assert told.advice == ()
    if not told.before.is_least and program.name not in CALL_BY_THEMSELVES:
        assert (told.before.count, told.before.waves) == program.plain
        assert told.after.count == program.ours[0]


def test_most_programs_make_at_most_two_requests() -> None:
    """Those that do not, make fewer than the plain program or have several steps of the client."""
    ours = [program.ours[0] for program in PROGRAMS]
    few = sum(made <= 2 for made in ours)
    count = f"{few} of {len(ours)} programs make at most two requests"
    assert len(ours) >= 60, count
    assert few >= max(50, len(ours) - 5), count
