"""Builds and evaluations have no span. They are found on the call stack, whoever wraps them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import wraps
from typing import Any

import httpx2
import pytest
from llama_index.core import KeywordTableIndex
from llama_index.core.evaluation import BatchEvalRunner, CorrectnessEvaluator
from llama_index.core.indices.base import BaseIndex
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.schema import TextNode
from llama_index.llms.weftline import Weftline
from llama_index.llms.weftline.trace.span_handler import SPANS

from tests.integrations.conftest import StartServer
from tests.integrations.recording import Recording
from tests.integrations.test_llama_ahead import CHAT, SUBMIT, counts
from tests.waits import until, wait_until
from weftline.errors import EngineFailed

# LlamaIndex's own, of its runner.
pytestmark = pytest.mark.filterwarnings("ignore:asyncio_module:DeprecationWarning")

RULES = [("[RESULT]", "It fits. [RESULT] 2"), ("", "KEYWORDS: fox, crow")]
METHOD = "build_index_from_nodes"


def model(url: str, **options: Any) -> Weftline:
    return Weftline(base_url=url, max_tokens=16, context_window=3900, **options)


def leaves(name: str = "fox", count: int = 3) -> list[TextNode]:
    return [TextNode(text=f"Text {k} of the {name}.", id_=f"{name}{k}") for k in range(count)]


def build(llm: Any, name: str = "fox") -> list[str]:
    return sorted(KeywordTableIndex(leaves(name), llm=llm).index_struct.table)


def thread_names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def wrapper_of(function: Any, seen: list[str], has_name: bool) -> Any:
    """What another library puts in a method's place, with or without the method's name."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        seen.append("called")
        return function(*args, **kwargs)

    return wraps(function)(wrapper) if has_name else wrapper


@contextmanager
def replaced(seen: list[str], has_name: bool = True) -> Iterator[Any]:
    """Another library's function in the place of LlamaIndex's, inside the block."""
    original = BaseIndex.__dict__[METHOD]
    theirs = wrapper_of(original, seen, has_name)
    setattr(BaseIndex, METHOD, theirs)
    try:
        yield theirs
    finally:
        setattr(BaseIndex, METHOD, original)


@pytest.mark.parametrize("has_name", [True, False], ids=["wraps", "hides"])
def test_another_library_replaces_a_method_before(proxy: Recording, has_name: bool) -> None:
    """Another library has wrapped the method of a build. The build is one request, the library's
    function is called, and it stays where it was."""
    seen: list[str] = []
    with replaced(seen, has_name) as theirs:
        llm = model(proxy.url)
        assert build(llm) == ["crow", "fox"]
        assert BaseIndex.__dict__[METHOD] is theirs
    assert counts(proxy) == (1, 0) and seen == ["called"]


class Replacing(BaseEventHandler):
    """Replaces the method of a build at the first event of the build."""

    theirs: Any

    def handle(self, event: Any, **rest: Any) -> None:
        setattr(BaseIndex, METHOD, self.theirs)


def test_another_library_replaces_a_method_during_and_after(proxy: Recording) -> None:
    """Another library wraps the method while it runs, and again when it has run. Its functions
    stay, and the next build is one request, too."""
    seen: list[str] = []
    original = BaseIndex.__dict__[METHOD]
    during = wrapper_of(original, seen, True)
    handler, root = Replacing(theirs=during), get_dispatcher()
    llm = model(proxy.url)
    root.add_event_handler(handler)
    try:
        build(llm)
        root.event_handlers.remove(handler)
        assert BaseIndex.__dict__[METHOD] is during and seen == []
        after = wrapper_of(during, seen, False)
        setattr(BaseIndex, METHOD, after)
        build(llm, "crow")
        assert BaseIndex.__dict__[METHOD] is after and seen == ["called", "called"]
    finally:
        setattr(BaseIndex, METHOD, original)
    assert counts(proxy) == (2, 0)


def sessions(proxy: Recording) -> list[str]:
    return [body["session_id"] for body in proxy.bodies(SUBMIT)]


def test_builds_on_several_threads(proxy: Recording) -> None:
    """Eight builds on four threads with one LLM are eight sessions, and each is one request."""
    llm = model(proxy.url)
    names = [f"animal{n}" for n in range(8)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda name: build(llm, name), names))
    assert found == [["crow", "fox"]] * 8
    assert counts(proxy) == (8, 0) and len(set(sessions(proxy))) == 8


def test_a_build_on_another_thread_goes_call_by_call(proxy: Recording) -> None:
    """In a running loop LlamaIndex runs the calls of `use_async` on another thread, whose stack
    does not have the build. So nothing is sent ahead. The index is the same."""

    async def run() -> list[str]:
        made = KeywordTableIndex(leaves(), llm=model(proxy.url), use_async=True)
        return sorted(made.index_struct.table)

    assert asyncio.run(run()) == ["crow", "fox"] and counts(proxy) == (0, 3)
    proxy.requests.clear()
    made = KeywordTableIndex(leaves(), llm=model(proxy.url), use_async=True)
    assert sorted(made.index_struct.table) == ["crow", "fox"] and counts(proxy) == (1, 0)


def evaluation(llm: Any, name: str) -> Any:
    judge = CorrectnessEvaluator(llm, parser_function=lambda said: (2.0, said))
    runner = BatchEvalRunner({"right": judge})
    return runner.aevaluate_response_strs([f"Who is the {name}?"] * 3, [f"The {name}."] * 3)


def test_evaluations_on_several_loops(proxy: Recording) -> None:
    """Two loops on two threads evaluate two batches each, at once. Each batch is one session and
    one request, although no runner is on the stack of its calls."""
    llm = model(proxy.url)

    async def both(thread: int) -> list[Any]:
        made = (evaluation(llm, f"animal{thread}{n}") for n in range(2))
        return await asyncio.gather(*made)

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda thread: asyncio.run(both(thread)), range(2)))
    assert [len(batch["right"]) for pair in found for batch in pair] == [3] * 4
    assert counts(proxy) == (4, 0) and len(set(sessions(proxy))) == 4


def test_one_runner_evaluates_twice_at_once(proxy: Recording) -> None:
    """The calls of both batches have the same semaphore. They are one session. The first batch is
    sent ahead, the second goes call by call, and all results are there."""
    judge = CorrectnessEvaluator(model(proxy.url), parser_function=lambda said: (2.0, said))
    runner = BatchEvalRunner({"right": judge})

    async def both() -> list[Any]:
        made = (runner.aevaluate_response_strs([f"Who {n}?"] * 2, ["I."] * 2) for n in range(2))
        return await asyncio.gather(*made)

    assert [len(batch["right"]) for batch in asyncio.run(both())] == [2, 2]
    assert counts(proxy) == (1, 2)
    [told] = {body["weftline"]["session_id"] for body in proxy.bodies(CHAT)}
    assert sessions(proxy) == [told]


def test_nested_work_is_one_session(proxy: Recording) -> None:
    """A build in the step of another build joins its session, and each is sent ahead."""

    class Outer(KeywordTableIndex):
        """An index that builds another one before its own calls."""

        def _build_index_from_nodes(self, nodes: Any, **how: Any) -> Any:
            self._llm.predict(self.keyword_extract_template, text="first")
            build(self._llm, "inner")
            return super()._build_index_from_nodes(nodes, **how)

    Outer(leaves("outer"), llm=model(proxy.url))
    assert counts(proxy) == (1, 4), "the calls of an index of the user's are not known"
    told = [body["weftline"]["session_id"] for body in proxy.bodies(CHAT)]
    assert {*told, *sessions(proxy)} == {told[0]}


def test_a_build_that_fails_ends(start_script: StartServer) -> None:
    """The second of three calls fails, because the script has no rule for its text. No session,
    span, graph or thread of the adapter's is left."""
    url = start_script([(f"Text {k} of", "KEYWORDS: fox") for k in (0, 2)])
    llm = model(url)
    with pytest.raises(EngineFailed, match="no rule of the null engine's script"):
        build(llm)
    wait_until(lambda: len(SPANS) == 0 and "weftline-callers" not in thread_names())
    assert llm.asking.graphs == []
    is_closed = "weftline_sessions_open 0.0"
    wait_until(lambda: is_closed in httpx2.get(f"{url}/metrics").text)


def test_an_evaluation_in_a_long_task_ends(proxy: Recording) -> None:
    """A task waits in `aevaluate_response_strs`, which is then on no stack. The evaluation is known
    as long as it runs, and is forgotten soon after, although the task goes on."""
    llm = model(proxy.url)

    async def run() -> Any:
        found = await evaluation(llm, "fox")
        await until(lambda: len(SPANS) == 0)
        return found

    found = asyncio.run(run())
    assert len(found["right"]) == 3 and counts(proxy) == (1, 0)
