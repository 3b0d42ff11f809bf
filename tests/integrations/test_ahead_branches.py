"""RunnableBranch compiled: where its conditions are data, the server decides and skips a side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.output_parsers import CommaSeparatedListOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import (
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)

from langchain_weftline import accelerate
from langchain_weftline.lower.conditions import condition_of
from langchain_weftline.lower.symbols import CannotCompile, Ref
from tests.integrations.ahead_chains import CHAT, SUBMIT, TEXT, ask, both, model, sent
from tests.integrations.ahead_chains import run as run_on
from tests.integrations.recording import Recording
from tests.integrations.tiers import outcome
from tests.waits import wait_until
from weftline import predicates

GIVEN = {"x": "soup", "tone": "calm"}
PROMPT = ChatPromptTemplate.from_template("On {x}, {kind}")
# What the model answers to "Which kind is soup?": the echo of its prompt.
KIND = "user: Which kind is soup?\nassistant: "


def routed(llm: Any, *ways: Any, then: bool = True) -> Any:
    """A model says the kind, the branch has the ways, and a model reads what the branch gives."""
    chain = RunnablePassthrough.assign(kind=ask(llm, "Which kind is {x}?")) | RunnableBranch(*ways)
    return chain | ask(llm, "Again: {y}") if then else chain


def run(chain: Any, is_async: bool = False, config: Any = None) -> Any:
    return run_on(chain, GIVEN, is_async, config)


class Runs(BaseCallbackHandler):
    """The ids of the runs of models."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self.ids.append(str(kwargs["run_id"]))


CONSTANT = "soup"
CONDITIONS: list[Callable[[Any], Any]] = [
    lambda v: "soup" in v["kind"],
    lambda v: "fish" in v["kind"],
    lambda v: "fish" not in v["kind"],
    lambda v: CONSTANT in v["kind"].lower(),
    lambda v: v["kind"].strip().endswith("assistant:"),
    lambda v: v["kind"].startswith("user"),
    lambda v: v["kind"].startswith(("user", "system")),
    lambda v: v["kind"].endswith(("x", "y")),
    lambda v: v["kind"] == "user",
    lambda v: v["kind"] != "user",
    lambda v: v["kind"].split(":")[0] == "user",
    lambda v: v["kind"].split(":")[0] == "user",
    lambda v: v["kind"].split(":")[0] in ("user", "system"),
    lambda v: v["kind"].split(":")[0] in {"assistant", "system", 3},
    lambda v: v["kind"].split(":")[0] not in ["assistant", 1],
    lambda v: v["kind"] > "t",
    lambda v: v["kind"] <= "t",
    lambda v: v["kind"] > "t",
    lambda v: v["kind"],
    lambda v: not v["kind"],
    lambda v: v["kind"] == 1,
    lambda v: v["kind"] is not None,
    lambda v: "soup" in v["kind"] and "kind" in v["kind"],
    lambda v: "fish" in v["kind"] or v["kind"].startswith("user"),
    lambda v: not ("soup" in v["kind"] and not v["kind"].endswith("?")),
    lambda v: v["tone"] == "calm" and "soup" in v["kind"],
    lambda v: v["tone"] == "loud" or "soup" in v["kind"],
    lambda v: "soup" in v["kind"] or v["tone"] == "calm",
    lambda v: len(v["kind"]) > 4,
    lambda v: "a" < v["kind"] < "t",
    lambda v: v["kind"] in "user, system",
    lambda v: v["kind"].isalpha(),
    lambda v: v["kind"].count("soup") == 1,
    lambda v: v["kind"].find("soup") >= 0,
]


@pytest.mark.parametrize("number", range(len(CONDITIONS)))
def test_a_condition_means_what_it_means_in_python(number: int) -> None:
    """The predicate holds for those texts for which the function is true."""
    condition = CONDITIONS[number]
    found = condition_of(condition, {"kind": Ref("v_1"), "tone": "calm"})
    for kind in (KIND, "", "user", "Soup: fish", "system: soup", "t", "soup"):
        wanted = bool(condition({"kind": kind, "tone": "calm"}))
        if isinstance(found, bool):
            assert found is wanted
        else:
            assert found.variables == ("v_1",)
            assert predicates.holds(found.placed({"v_1": ()}), kind) is wanted, (found.when, kind)


@pytest.mark.parametrize(
    "condition",
    [
        lambda v: v["kind"] == v["other"],
        lambda v: v["kind"].encode() == b"a",
        lambda v: v["made"]["x"] == 1e400,
        lambda v: v["made"]["x"] == 2**80,
        lambda v: v["made"]["x"] == (1, 2),
        lambda v: v["made"]["x"] in {1, 2},
        lambda v: v["made"] is True,
        lambda v: "\ud800" in v["kind"],
        lambda v: "x" * 5000 in v["kind"],
        lambda v: v["kind"].startswith("a", 3),
    ],
)
def test_what_is_not_certain_is_no_predicate(condition: Any) -> None:
    """A condition becomes data only if the server is sure to decide as Python would."""
    value = {"kind": Ref("a"), "other": Ref("b"), "made": Ref("c", is_text=False)}
    with pytest.raises(CannotCompile):
        condition_of(condition, value)


@both
@pytest.mark.parametrize("word", ["soup", "fish"])
def test_the_server_decides(recording: Recording, word: str, is_async: bool) -> None:
    """One submit has both sides. The side that is not taken is skipped, and costs nothing."""
    graphs: list[dict[str, Any]] = []
    llm = model(recording)
    chain = routed(
        llm,
        (lambda v: "fish" in v["kind"], ask(llm, "Fish: {x}")),
        (RunnableLambda(lambda v: v["kind"].endswith("!")), ask(llm, "Loud: {x}")),
        (lambda v: "soup" in v["kind"], ask(llm, "Soup: {x} {kind}") | (lambda text: text)),
        ask(llm, "Else: {x}") | ask(llm, "And: {y}"),
    )
    given = {**GIVEN, "x": word}
    expected = chain.invoke(given)
    assert sent(recording) == [CHAT] * 3
    compiled = accelerate(chain, on_graph=graphs.append)
    made = asyncio.run(compiled.ainvoke(given)) if is_async else compiled.invoke(given)
    assert made == expected
    assert sent(recording)[:1] == [SUBMIT]
    wait_until(lambda: bool(graphs))
    [graph] = graphs
    states = {call["name"]: call["state"] for call in graph["calls"]}
    taken = {"soup": "branch 3", "fish": "branch 1"}[word]
    assert {states.pop(name) for name in ("kind", taken, "call")} == {"done"}
    assert states.keys() == {"branch 1", "branch 2", "branch 3", "default", "default 2"} - {taken}
    assert set(states.values()) <= {"skipped", "done"}  # one that ended before the decision is done
    explained = compiled.explain(given)
    why = {step.step: step.why for step in explained.in_server}
    assert why["RunnableBranch"] == "a branch, whose conditions are data"
    assert str(explained.after) == "1 request, 1 in a row"
    assert str(explained.before) == "at least 3 requests, 4 in a row"


@both
def test_a_condition_that_is_known_needs_no_branch(recording: Recording, is_async: bool) -> None:
    """It looks at a value of the client: the side that it takes is lowered alone."""
    llm = model(recording)
    chain = routed(
        llm, (lambda v: v["tone"] == "calm", ask(llm, "Calm {kind}")), ask(llm, "Loud {kind}")
    )
    expected = run(chain)
    sent(recording)
    assert run(accelerate(chain), is_async) == expected
    [body] = recording.bodies(SUBMIT)
    assert len(body["calls"]) == 3 and "steps" not in body
    sent(recording)
    shouted = routed(
        llm, (lambda v: v["tone"] == "calm", ask(llm, "Calm {kind}") | shout), ask(llm, "Loud")
    )
    expected = run(shouted)
    sent(recording)
    assert run(accelerate(shouted), is_async) == expected
    assert [path for path in sent(recording) if path == SUBMIT] == [SUBMIT]


@both
@pytest.mark.parametrize("word", ["soup", "fish"])
def test_sides_that_are_messages(recording: Recording, word: str, is_async: bool) -> None:
    """As in LangChain's guide to routing. The message has the usage and the id of its call."""
    llm = model(recording)
    inner = RunnableBranch(
        (lambda v: "salt" in v["kind"], PROMPT | llm), ChatPromptTemplate.from_template("{x}") | llm
    )
    chain = routed(llm, (lambda v: word in v["kind"].lower(), PROMPT | llm), inner, then=False)
    plain, ours, runs = run(chain, is_async), None, Runs()
    sent(recording)
    ours = run(accelerate(chain), is_async, {"callbacks": [runs]})
    assert sent(recording) == [SUBMIT]
    assert ours.id == f"lc_run--{runs.ids[-1]}-0" and len(runs.ids) == 2
    for message in (plain, ours):
        message.id = None
        for name in ("id", "session_id"):
            message.response_metadata.pop(name, None)
    assert ours == plain and plain.usage_metadata is not None
    parsed = chain | TEXT | ask(llm, "Again: {y}")
    assert run(accelerate(parsed), is_async) == run(parsed, is_async)


@both
def test_a_side_that_the_graph_has_anyway(recording: Recording, is_async: bool) -> None:
    """The text that decides may be the value. A condition that fails has Python's exception."""
    llm = model(recording)
    kind = itemgetter("kind")
    for condition in (
        lambda v: "soup" in v["kind"],
        lambda v: "fish" in v["kind"],
        lambda v: v["kind"].split(":")[9] == "x",
    ):
        chain = routed(llm, (condition, kind | ask(llm, "S {y}")), RunnableLambda(kind))
        plain = outcome(partial(run, chain, is_async))
        sent(recording)
        assert outcome(partial(run, accelerate(chain), is_async)) == plain
        assert sent(recording) == [SUBMIT]


def test_branches_in_branches_lists_and_dicts(recording: Recording) -> None:
    """A side may be a branch, sides may parse alike, and a branch may stand in a dict."""
    llm = model(recording)
    inner = RunnableBranch((lambda v: "user" in v["kind"], ask(llm, "A {x}")), ask(llm, "B {x}"))
    outer = routed(llm, (lambda v: "soup" in v["kind"], inner), ask(llm, "C {x}"), then=False)
    comma = CommaSeparatedListOutputParser()
    listed = routed(
        llm,
        (lambda v: "fish" in v["kind"], ask(llm, "a, b {x}") | comma),
        ask(llm, "c, d {x}") | comma,
        then=False,
    )
    chain = RunnableParallel(outer=outer, listed=listed, again=outer | ask(llm, "Again {y}"))
    expected = run(chain)
    sent(recording)
    assert run(accelerate(chain)) == expected
    assert sent(recording) == [SUBMIT]


def shout(text: str) -> str:
    """A function that the server cannot read."""
    return text.center(80)


def test_where_langchain_decides(recording: Recording) -> None:
    """Nothing behind the choice begins early. A function of the user is not called to find out."""
    ran: list[str] = []

    def note(text: str) -> str:
        ran.append(text)
        return text

    llm = model(recording)
    soup = (lambda v: "soup" in v["kind"], ask(llm, "Soup: {x}"))
    plain = ask(llm, "Else: {x}")
    chains = {
        "the client runs some of it": routed(llm, soup, plain | note),
        "its sides give values of different kinds": routed(
            llm, soup, plain | CommaSeparatedListOutputParser()
        ),
        "it compares two values": routed(
            llm, (lambda v: v["kind"] == v["kind"].strip(), soup[1]), plain
        ),
    }
    for reason, chain in chains.items():
        expected = run(chain)
        sent(recording)
        assert run(accelerate(chain)) == expected
        assert sent(recording) == [SUBMIT, CHAT, CHAT]
        [why] = [
            step.why
            for step in accelerate(chain).explain(GIVEN).in_client
            if step.step == "RunnableBranch"
        ]
        assert reason in why
    assert ran == []


@both
@pytest.mark.parametrize("taken", [True, False], ids=["taken", "not taken"])
@pytest.mark.parametrize("then", [True, False], ids=["then", "last"])
@pytest.mark.parametrize("fault", ["model", "option"])
def test_a_side_that_the_server_refuses(
    recording: Recording, fault: str, then: bool, taken: bool, is_async: bool
) -> None:
    """It fails the chain as the plain one, and only if it is taken."""
    llm = model(recording)
    wrong = model(recording, model="nosuch") if fault == "model" else llm.bind(top_p=7.0)
    word = "soup" if taken else "fish"
    bad = ask(wrong, "Bad {x}") | ask(llm, "Worse {y}")
    chain = routed(llm, (lambda v: word in v["kind"], bad), ask(llm, "Else: {x}"), then=then)
    plain = outcome(lambda: run(chain, is_async))
    assert (plain[0] != "value") is taken
    assert outcome(lambda: run(accelerate(chain), is_async)) == plain


@both
@pytest.mark.parametrize("taken", [True, False], ids=["taken", "not taken"])
def test_a_side_that_cannot_be_parsed(recording: Recording, taken: bool, is_async: bool) -> None:
    """What a side needs may fail before the decision. It counts if the side is taken."""
    llm = model(recording)
    listed = ask(llm, "a {x}") | CommaSeparatedListOutputParser() | (lambda parts: parts[9])
    word = "soup" if taken else "fish"
    chain = routed(
        llm, (lambda v: word in v["kind"], listed | ask(llm, "B {y}")), ask(llm, "C {x}")
    )
    plain = outcome(lambda: run(chain, is_async))
    assert plain[0] is (IndexError if taken else "value")
    assert outcome(lambda: run(accelerate(chain), is_async)) == plain
