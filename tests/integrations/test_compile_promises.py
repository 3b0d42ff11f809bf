"""Steps of the client inside a compiled graph: what is sent, what goes on, and how they end."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import (
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)

from langchain_weftline import ChatWeftline, compile_chain
from tests.integrations.recording import Recording, recorded
from tests.waits import until, wait_until

Chain = Runnable[Any, Any]
WAIT_S = 20  # for what happens at once, on a slow machine


def ask(llm: ChatWeftline, template: str = "Tell of {x}") -> Chain:
    return ChatPromptTemplate.from_template(template) | llm | StrOutputParser()


def tidy(text: str) -> str:
    return " ".join(word for word in text.split() if word.isalnum())


def model(url: str) -> ChatWeftline:
    return ChatWeftline(base_url=url, temperature=0, max_retries=0)


def sets(proxy: Recording) -> list[Any]:
    return [body for verb, _, body in proxy.requests if verb == "PUT"]


def test_what_is_sent(echo_url: str) -> None:
    """The step is declared with what it reads. Its texts come in one message, by their uses."""

    def ways(text: str) -> dict[str, str]:
        return {"short": tidy(text)[:4], "long": tidy(text), "unused": "secret"}

    with recorded(echo_url) as proxy:
        llm = model(proxy.url)
        compile_chain(ask(llm) | ways | ask(llm, "{short} and {long}")).invoke("soup")
        [submit] = proxy.bodies("/v1/submit")
        first, second = submit["calls"]
        [step] = submit["steps"]
        [made] = [p["semantic_var_id"] for p in first["placeholders"] if p["in_out"] == "out"]
        assert (step["kind"], step["reads"], step["effects"]) == ("client", [made], "once")
        assert step["name"] == "RunnableLambda 'ways'"
        read = [p for p in second["placeholders"] if p["in_out"] == "in"]
        assert {p["semantic_var_id"] for p in read} == {step["out"]}
        assert sets(proxy) == [{"value": {"format short": "Tell", "format long": "Tell of soup"}}]


def test_what_does_not_depend_on_the_step_goes_on(echo_url: str) -> None:
    """A call beside the step is answered while the step still runs."""
    answered = Event()

    def wait(text: str) -> str:
        assert answered.wait(WAIT_S), "the other branch waits for this step"
        return text

    def note(text: str) -> str:
        answered.set()
        return text

    llm = model(echo_url)
    chain = RunnableParallel(a=ask(llm) | wait, b=ask(llm) | ask(llm, "{y}") | note)
    assert compile_chain(chain | ask(llm, "{a} {b}")).invoke("soup")


def test_the_text_of_a_step_that_has_run_is_not_set(echo_url: str) -> None:
    """A condition needs the step's result. So the branch's submit has the text itself."""
    with recorded(echo_url) as proxy:
        llm = model(proxy.url)
        ways = RunnableBranch((lambda text: "no" in text, ask(llm)), ask(llm, "Again: {y}"))
        compile_chain(ask(llm) | tidy | ways).invoke("soup")
        assert [len(body["calls"]) for body in proxy.bodies("/v1/submit")] == [1, 1]
        assert sets(proxy) == []


def test_the_exception_is_the_users_own(echo_url: str) -> None:
    """The chain raises the very object. The server hears of it, so the calls below fail too."""
    raised = LookupError("no such soup")

    def refuse(text: str) -> str:
        raise raised

    with recorded(echo_url) as proxy:
        llm = model(proxy.url)
        with pytest.raises(LookupError) as caught:
            compile_chain(ask(llm) | refuse | ask(llm, "Again: {y}")).invoke("soup")
        assert caught.value is raised
        wait_until(lambda: len(proxy.requests) > 1)


def test_a_text_that_no_request_can_carry(echo_url: str) -> None:
    """Half of an emoji cannot be encoded: the plain chain's exception, and no endless wait."""

    def cut(text: str) -> str:
        return str.upper("\ud83d" + text)

    llm = model(echo_url)
    chain = ask(llm) | cut | ask(llm, "Again: {y}")
    for way in (chain, compile_chain(chain)):
        with pytest.raises(UnicodeEncodeError):
            way.invoke("soup")


@pytest.mark.parametrize("then", [False, True], ids=["last", "then"])
@pytest.mark.parametrize("kind", ["branch", "side", "map"])
def test_the_exception_passes_steps_of_the_server(echo_url: str, kind: str, then: bool) -> None:
    """A branch or a list of the server stands between the step that fails and the result."""
    llm = model(echo_url)

    def refuse(text: str) -> str:
        raise LookupError("nothing there")

    late = ask(llm, "Write on {x}") | refuse | ask(llm, "Again: {y}")
    values = {"kind": ask(llm, "A kind of {x}"), "text": ask(llm, "A text on {x}")}
    values["text" if kind == "side" else "kind"] = late
    ways = RunnableBranch(
        (lambda v: "fish" in v["kind"], ask(llm, "On {text}")), ask(llm, "No {text}")
    )
    chain: Chain = RunnableParallel(values) | ways
    if kind == "map":
        chain = late | (lambda text: text.split(" ")) | ask(llm, "Tell {part}").map()
    compiled = compile_chain(chain | ask(llm, "Last: {z}") if then else chain)
    with pytest.raises(LookupError, match="nothing there"):
        compiled.invoke({"x": "soup"})
    placed = {step.step.partition(" ")[0] for step in compiled.explain({"x": "soup"}).in_server}
    assert any(name.startswith(("RunnableBranch", "RunnableEach")) for name in placed)


def test_a_failure_that_a_fallback_deals_with(echo_url: str) -> None:
    """The failed step does not fail the run, and what the run raises later is its own."""

    def refuse(text: str) -> str:
        raise LookupError(text)

    llm = model(echo_url)
    strict = ask(llm) | refuse | ask(llm, "Again: {y}")
    chain = strict.with_fallbacks([ask(llm, "Instead of {x}")])
    assert compile_chain(chain).invoke("soup") == chain.invoke("soup")


def test_a_step_that_nobody_reads_still_counts(echo_url: str) -> None:
    """Its effect takes place, and its exception ends the run."""
    seen: list[str] = []

    def note(text: str) -> str:
        seen.append(text)
        return text

    def refuse(text: str) -> str:
        raise LookupError("unread")

    llm = model(echo_url)
    for function, fails in ((note, False), (refuse, True)):
        both = RunnableParallel(a=ask(llm) | function, b=ask(llm))
        compiled = compile_chain(both | (lambda made: made["b"]))
        if fails:
            with pytest.raises(LookupError, match="unread"):
                compiled.invoke("soup")
        else:
            assert compiled.invoke("soup") == ask(llm).invoke("soup") == seen[0]


async def test_every_way_to_run_it(echo_url: str) -> None:
    """Async functions are awaited, streams have the plain chain's text, batches each input's."""
    calls: list[str] = []

    async def slowly(text: str) -> str:
        calls.append("async")
        await asyncio.sleep(0)
        return tidy(text)

    llm = model(echo_url)
    chain: Chain = ask(llm) | RunnableLambda(tidy, afunc=slowly) | ask(llm, "Again: {y}")
    compiled = compile_chain(chain)
    expected = [chain.invoke(x) for x in ("soup", "salt")]
    assert calls == []
    assert compiled.batch(["soup", "salt"]) == expected
    assert "".join(compiled.stream("soup")) == expected[0]
    assert calls == []
    assert await compiled.abatch(["soup", "salt"]) == expected
    assert "".join([part async for part in compiled.astream("soup")]) == expected[0]
    assert calls == ["async"] * 3


async def test_as_many_at_once_as_the_config_allows(echo_url: str) -> None:
    """`max_concurrency` bounds the steps of one run."""
    running, most = 0, 0

    async def count(text: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return tidy(text)

    llm = model(echo_url)
    parts = {f"p{n}": ask(llm) | RunnableLambda(count) for n in range(5)}
    joined = ask(llm, " ".join("{" + name + "}" for name in parts))
    await compile_chain(RunnableParallel(parts) | joined).ainvoke("soup", {"max_concurrency": 2})
    assert most == 2


def test_the_first_failure_of_the_chain_is_raised(echo_url: str) -> None:
    """The later of two steps fails first. The plain chain runs only the earlier one."""
    later_failed = Event()

    def earlier(text: str) -> str:
        assert later_failed.wait(WAIT_S)
        raise LookupError("earlier")

    def later(text: str) -> str:
        later_failed.set()
        raise LookupError("later")

    llm = model(echo_url)
    first = RunnablePassthrough.assign(v=ask(llm) | earlier)
    chain = first | RunnablePassthrough.assign(w=ask(llm, "Say {x}") | later)
    for ending in (chain, chain | ask(llm, "{v} and {w}")):
        later_failed.clear()
        with pytest.raises(LookupError, match="earlier"):
            compile_chain(ending).invoke({"x": "soup"})


async def test_a_cancel_ends_the_step_and_the_session(echo_url: str) -> None:
    """The step's task is cancelled, and the session is closed with what it still runs."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def hang(text: str) -> str:
        began.set()
        try:
            await asyncio.sleep(WAIT_S)
        finally:
            ended.set()
        return text

    with recorded(echo_url) as proxy:
        llm = model(proxy.url)
        chain = ask(llm) | RunnableLambda(hang) | ask(llm, "Again: {y}")
        run = asyncio.create_task(compile_chain(chain).ainvoke("soup"))
        await asyncio.wait_for(began.wait(), WAIT_S)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await asyncio.wait_for(ended.wait(), WAIT_S)
        await until(lambda: any(verb == "DELETE" for verb, _, _ in proxy.requests))
