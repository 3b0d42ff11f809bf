"""`.map()` over a list that a model writes: the server runs the body for each item, as it comes."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.output_parsers import (
    CommaSeparatedListOutputParser,
    JsonOutputParser,
)
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import RunnableParallel, RunnablePassthrough

from langchain_weftline import accelerate
from tests.integrations.ahead_chains import SUBMIT, TEXT, ask, both, model, sent
from tests.integrations.ahead_chains import run as run_on
from tests.integrations.recording import Recording
from tests.integrations.tiers import outcome
from tests.waits import wait_until

GIVEN = {"x": "soup, salt,, fish"}
LIST = CommaSeparatedListOutputParser()


def listed(llm: Any) -> Any:
    return ChatPromptTemplate.from_template("{x}") | llm | LIST


def explained(llm: Any) -> Any:
    """The body: two calls, of which the second one reads the item, too."""
    part = {"item": RunnablePassthrough(), "said": ask(llm, "Explain {part}")}
    return part | ask(llm, "Shorten {said} on {item}")


def merged(llm: Any) -> Any:
    return (lambda parts: {"all": "\n".join(parts)}) | ask(llm, "Merge {all}")


def run(chain: Any, is_async: bool = False, config: Any = None) -> Any:
    return run_on(chain, GIVEN, is_async, config)


@both
def test_list_items_and_merge_are_one_request(recording: Recording, is_async: bool) -> None:
    """The list has five items, one of them empty. Each is worked on, and the texts are merged."""
    llm = model(recording)
    graphs: list[dict[str, Any]] = []
    chain = listed(llm) | explained(llm).map() | merged(llm)
    expected = run(chain, is_async)
    assert len(sent(recording)) == 12
    compiled = accelerate(chain, on_graph=graphs.append)
    assert run(compiled, is_async) == expected
    (body,) = recording.bodies(SUBMIT)
    assert sent(recording) == [SUBMIT]
    (step,) = body["steps"]
    assert step["kind"] == "each" and len(step["body"]["calls"]) == 2
    assert step["over"]["transforms"] == [{"op": "comma_list"}]
    wait_until(lambda: bool(graphs))
    names = {call["name"] for call in graphs[0]["calls"]}
    assert {f"map[{number}].said" for number in range(5)} <= names
    told = compiled.explain(GIVEN)
    [why] = [step.why for step in told.in_server if step.step.startswith("RunnableEach")]
    assert why == "the server runs it for each item of the list"
    assert str(told.before) == "at least 4 requests, 4 in a row"
    assert str(told.after) == "1 request, 1 in a row"


@both
def test_the_results_are_the_plain_ones(recording: Recording, is_async: bool) -> None:
    """As the chain's result, in a dict, taken apart, stripped, parsed, and shown as a list."""
    llm = model(recording)
    short = (lambda part: {"part": part}) | ask(llm, "Say {part}")
    items = listed(llm)
    for chain in (
        items | short.map(),
        RunnableParallel(a=items | short.map(), b=items | (short | (lambda t: t.strip())).map()),
        items | short.map() | (lambda parts: parts[1]) | ask(llm, "Again {y}"),
        items | (ask(llm, "Say {part}") | LIST).map(),
        items | short.map() | ask(llm, "All: {parts}"),
        items | (lambda parts: " / ".join(parts)) | (lambda t: t.split("/")) | short.map(),
        items.with_retry() | short.map().with_fallbacks([items]),
    ):
        expected = run(chain, is_async)
        sent(recording)
        assert run(accelerate(chain), is_async) == expected
        assert set(sent(recording)) == {SUBMIT}


def test_an_empty_list(recording: Recording) -> None:
    """A text without lines has no items, so nothing is asked."""
    llm = model(recording)
    empty = PromptTemplate.from_template("{x}") | llm.bind(stop=["u"]) | TEXT
    none = empty | (lambda text: text.splitlines())
    chain = none | ask(llm, "Explain {part}").map()
    assert run(chain) == run(accelerate(chain)) == []
    assert run(accelerate(chain | merged(llm))) == run(chain | merged(llm))


# Whether the calls for the items begin early.
BEGINS = {"json": False, "function": True, "parsed": True, "messages": True}


@pytest.mark.parametrize("kind", BEGINS)
def test_whatever_the_body_gives(recording: Recording, kind: str) -> None:
    """LangChain runs what follows the calls, as in the plain chain. JSON may be no list."""
    llm = model(recording)
    body, ran = ask(llm, "Explain {part}"), list[str]()

    def note(text: str) -> str:
        ran.append(text)
        return text

    prompt = ChatPromptTemplate.from_template('```json\n["{x}", "b"]\n```')
    chain = {
        "json": prompt | llm | JsonOutputParser() | body.map(),
        "function": listed(llm) | (body | note).map(),
        "parsed": listed(llm) | (body | JsonOutputParser()).map(),
        "messages": listed(llm) | (ChatPromptTemplate.from_template("{x}") | llm).map(),
    }[kind]

    def texts(chain: Any) -> Any:
        return [getattr(one, "content", one) for one in run(chain)]

    plain = outcome(lambda: texts(chain))
    count = len(ran)
    assert outcome(lambda: texts(accelerate(chain))) == plain
    assert len(ran) == 2 * count
    steps = accelerate(chain).explain(GIVEN).steps
    [begins] = [step.in_server for step in steps if step.step.startswith("RunnableEach")]
    assert begins is BEGINS[kind]


@both
@pytest.mark.parametrize("then", [True, False], ids=["then", "last"])
@pytest.mark.parametrize("fault", ["model", "item", "list"])
def test_what_fails(recording: Recording, fault: str, then: bool, is_async: bool) -> None:
    """By an unknown model in the body, by an item, and by the model that writes the list."""
    llm, wrong = model(recording), model(recording, model="nosuch")
    body = ask(wrong if fault == "model" else llm, "Explain {part}")
    if fault == "item":  # the second line is there for one item only
        body = (lambda part: part.split(" ")[1]) | body
    chain = listed(wrong if fault == "list" else llm) | body.map()
    chain = chain | merged(llm) if then else chain
    plain = outcome(lambda: run(chain, is_async))
    assert plain[0] != "value"
    assert outcome(lambda: run(accelerate(chain), is_async)) == plain
