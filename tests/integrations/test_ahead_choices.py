"""Functions that choose, compiled: where their conditions are data, the server chooses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.output_parsers import JsonOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableBranch, RunnableLambda, RunnablePassthrough

from langchain_weftline import ChatWeftline, accelerate
from langchain_weftline.lower.branch_drafts import Choices
from langchain_weftline.lower.conditions import Condition, condition_of
from langchain_weftline.lower.lowering import Lowering
from langchain_weftline.lower.symbols import Ref
from tests.integrations.ahead_chains import CHAT, SUBMIT, Heard, ask, both, run
from tests.integrations.recording import Recording
from tests.integrations.tiers import outcome
from weftline import predicates
from weftline.contract import transforms
from weftline.contract.transforms import run as transformed
from weftline.errors import TransformFailed

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("xyk 1", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("kxy"), inner, max_size=3)
    ),
    max_leaves=5,
)
CONDITIONS: list[Callable[[Any], Any]] = [
    lambda v: v["a"]["k"] == "x",
    lambda v: v["a"]["k"][0] != 1,
    lambda v: v["a"] > 1,
    lambda v: 0 < len(v["a"]) <= 2,
    lambda v: v["a"] >= "x",
    lambda v: v["c"] < v["a"] <= 2,
    lambda v: v["a"] in (1, "x", None, 1.0),
    lambda v: v["a"] not in ["x", True],
    lambda v: v["a"] in "xyz",
    lambda v: "x" in v["a"],
    lambda v: 1 in v["a"],
    lambda v: None not in v["a"],
    lambda v: v["a"] is None,
    lambda v: v["a"] is not None and v["a"] > 1,
    lambda v: v["a"] == [],
    lambda v: not v["a"],
    lambda v: v["a"]["k"],
    lambda v: v["a"].get("k") == 1,
    lambda v: v["a"].get("k", "x") == "x",
    lambda v: v["a"].strip() == "x",
    lambda v: v["a"].startswith("x"),
    lambda v: v["a"].endswith("y") if v["c"] == 1 else v["a"].isdigit(),
    lambda v: v["a"].isdigit() or v["a"].count("x") == 1,
    lambda v: v["a"] and v["b"],
    lambda v: v["a"] == 1 or v["b"] == "x",
    lambda v: not (v["a"] == "x" and len(v["b"]) > 1) or v["b"] == "y",
    lambda v: v["a"]["k"] == 1 or v["c"] == 1,
    lambda v: v["a"] > 1 and v["c"] == 2,
]

RULES = [
    ("Rate good", '{"kind": "praise", "score": 5}'),
    ("Rate bad", '{"kind": "complaint", "score": 1}'),
    ("Rate odd", '{"kind": "praise", "score": "high"}'),
    ("Language", "French\n"),
    ("Thank", "Many thanks."),
    ("Sorry", "We regret it."),
    ("Translate", "Merci."),
    ("", "An answer."),
]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(CONDITIONS), JSON, JSON)
def test_a_predicate_says_what_python_says(condition: Any, a: Any, b: Any) -> None:
    """For every JSON value: the same truth, or the same exception with the same message."""
    wanted = _said(lambda: bool(condition({"a": a, "b": b, "c": 1})))
    refs = {"a": Ref("v_a", is_text=False), "b": Ref("v_b", is_text=False), "c": 1}
    made = condition_of(condition, refs)
    if not isinstance(made, Condition):
        assert made is wanted
        return
    searches = Lowering().searches
    decision = Choices(lambda: "v_gathered", searches).decision([made], ())
    values: dict[str, Any] = {"v_a": a, "v_b": b}
    for draft in searches.drafts:
        [step] = draft.steps()
        texts = [
            part.value or transformed(part.transforms, values[part.var]) for part in step.parts
        ]
        values[draft.var] = "".join(texts)
    [when] = decision.whens
    predicates.check(when)
    assert _said(lambda: predicates.holds(when, values[decision.on])) == wanted


def _said(act: Callable[[], bool]) -> Any:
    try:
        return act()
    except TransformFailed as failure:
        return failure.message
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("method", sorted(transforms.methods.FACTS))
def test_a_method_that_looks_at_a_text(method: str) -> None:
    """It gives the number or the truth value that Python gives."""
    least, _ = transforms.methods.METHODS[method]
    args = ["x"] * least
    for text in ("", "x", "12", "X y", "½", "٣", " \t"):
        made = transformed([{"op": "text", "method": method, "args": args}], text)
        assert (type(made), made) == (type(expected := getattr(text, method)(*args)), expected)


def rated(llm: Any) -> Any:
    rate = ChatPromptTemplate.from_template("Rate {x}") | llm | JsonOutputParser()
    return RunnablePassthrough.assign(rating=rate)


def rated_and_named(llm: Any) -> Any:
    return rated(llm).assign(language=ask(llm, "Language of {x}?"))


def by_a_field(llm: Any) -> Any:
    """Conditions on a parsed field and a number; the last side is a constant."""
    return rated(llm) | RunnableBranch(
        (lambda v: v["rating"]["kind"] == "complaint", ask(llm, "Sorry for {x}")),
        (lambda v: v["rating"]["score"] > 3, ask(llm, "Thank for {x}")),
        lambda v: "nothing to say",
    )


def by_several(llm: Any) -> Any:
    """A condition on two answers; sides with and without a method, and with text around."""
    return rated_and_named(llm) | RunnableBranch(
        (
            lambda v: v["rating"]["score"] > 3 and v["language"].strip() == "French",
            ask(llm, "Translate {x}") | (lambda text: text.upper()),
        ),
        (lambda v: len(v["language"]) > 40, lambda v: v["language"]),
        ask(llm, "Sorry for {x}") | (lambda text: f"So: {text}"),
    )


def in_a_lambda(llm: Any) -> Any:
    """A conditional expression inside a dict makes a part of the next prompt."""
    shown = RunnableLambda(
        lambda v: {
            "tone": "warm" if v["rating"]["kind"] == "praise" else "calm",
            "language": v["language"].strip() or "English",
            "x": v["x"],
        }
    )
    return rated_and_named(llm) | shown | ask(llm, "Answer {x} in a {tone} tone, in {language}")


def advice(v: dict[str, Any]) -> str:
    score = v["rating"]["score"]
    if score > 3:
        return f"Good: {v['x']}"
    if v["language"] == "German":
        return "Deutsch"
    else:
        return f"Bad ({score}): {v['x']}"


def by_statements(llm: Any) -> Any:
    return rated_and_named(llm) | RunnableLambda(advice) | ask(llm, "Advise on {text}")


def by_parts(llm: Any) -> Any:
    """Each side is a dict with the same keys: each key has a branch."""
    thanks = {"said": ask(llm, "Thank for {x}"), "tone": lambda v: "warm", "x": itemgetter("x")}
    regret = {"said": ask(llm, "Sorry for {x}"), "tone": lambda v: "calm", "x": itemgetter("x")}
    ways = RunnableBranch((lambda v: v["rating"]["kind"] == "praise", thanks), regret)
    return rated(llm) | ways | ask(llm, "Again: {said} {tone} {x}")


def one_of_two_drafts(llm: Any) -> Any:
    """Both drafts are made before one is chosen, and callbacks hear of both."""
    drafts = rated(llm).assign(long=ask(llm, "Thank for {x}"), short=ask(llm, "Sorry for {x}"))
    chosen = RunnableLambda(lambda v: v["long"] if v["rating"]["score"] != 1 else v["short"])
    return drafts | chosen | ask(llm, "Again: {text}")


def by_a_function(llm: Any) -> Any:
    """As in LangChain's guide to routing: a function returns the chain that is to run."""
    thank, sorry = ask(llm, "Thank for {x}"), ask(llm, "Sorry for {x}")

    def route(v: dict[str, Any]) -> Any:
        if "complaint" in v["rating"]["kind"].lower():
            return sorry
        return thank if v["rating"]["score"] > 3 else "nothing to say"

    return rated(llm) | RunnableLambda(route) | ask(llm, "Again: {text}")


def by_the_clients_value(llm: Any) -> Any:
    thank, sorry = ask(llm, "Thank for {x}"), ask(llm, "Sorry for {x}")
    return RunnableLambda(lambda v: sorry if v["x"] == "bad" else thank) | ask(llm, "Again: {text}")


CHAINS: list[Callable[[Any], Any]] = [
    by_a_field,
    by_several,
    in_a_lambda,
    by_statements,
    by_parts,
    one_of_two_drafts,
    by_a_function,
    by_the_clients_value,
]


NEVER_FAIL = (in_a_lambda, by_parts, one_of_two_drafts)


@both
@pytest.mark.parametrize("make", CHAINS)
@pytest.mark.parametrize("word", ["good", "bad", "odd"])
def test_one_request(make: Any, word: str, recording: Recording, is_async: bool) -> None:
    """The result or exception, the prompts and the answers of the plain chain, in one submit."""
    chain = make(ChatWeftline(base_url=recording.url, temperature=0, max_retries=0))
    plain, ours = Heard(), Heard()
    expected = outcome(partial(run, chain, {"x": word}, is_async, {"callbacks": [plain]}))
    if word == "odd" and make is not by_the_clients_value:
        assert expected[0] is TypeError or make in NEVER_FAIL
    recording.requests.clear()
    assert (
        outcome(partial(run, accelerate(chain), {"x": word}, is_async, {"callbacks": [ours]}))
        == expected
    )
    assert [path for verb, path, _ in recording.requests if verb in ("POST", "PUT")] == [SUBMIT]
    if expected[0] == "value":
        assert sorted(ours.said) == sorted(plain.said)
        assert "".join(accelerate(chain).stream({"x": word})) == expected[1]


@pytest.mark.parametrize("make", CHAINS)
def test_an_explanation_counts_it_as_one_request(make: Any) -> None:
    llm = ChatWeftline(base_url="http://127.0.0.1:1")
    explained = accelerate(make(llm)).explain({"x": "good"})
    assert str(explained.after) == "1 request, 1 in a row"


@pytest.mark.parametrize("taken", [True, False], ids=["taken", "not taken"])
def test_a_refused_side_that_is_a_text(recording: Recording, taken: bool) -> None:
    """The server refuses a call whose text is changed on a side, or in a branch on a side."""
    llm = ChatWeftline(base_url=recording.url, temperature=0, max_retries=0)
    lost = ask(llm.bind(model="nosuch"), "Lost {x}") | (lambda text: f"So: {text}")
    kind = "praise" if taken else "complaint"
    inner = RunnableBranch((lambda v: v["rating"]["score"] > 1, lost), lambda v: "nothing")
    for side in (lost, inner):
        chain = rated(llm) | RunnableBranch(
            (lambda v: v["rating"]["kind"] == kind, side), ask(llm, "Thank for {x}")
        )
        expected = outcome(partial(chain.invoke, {"x": "good"}))
        assert (expected[0] != "value") is taken
        assert outcome(partial(accelerate(chain).invoke, {"x": "good"})) == expected


def test_where_langchain_chooses(recording: Recording) -> None:
    """A side runs a function of the user, so nothing behind the choice begins early."""
    llm = ChatWeftline(base_url=recording.url, temperature=0, max_retries=0)
    ran: list[str] = []

    def note(text: str) -> str:
        ran.append(text)
        return text

    own = ask(llm, "Thank for {x}") | RunnableLambda(note)
    other = ask(llm, "Sorry for {x}")
    route = RunnableLambda(lambda v: own if v["rating"]["score"] > 3 else other)
    chain = rated(llm) | route | ask(llm, "Again: {text}")
    for word in ("good", "bad"):
        expected = run(chain, {"x": word}, False)
        recording.requests.clear()
        assert run(accelerate(chain), {"x": word}, False) == expected
        sent = [path for verb, path, _ in recording.requests if verb == "POST"]
        assert sent == [SUBMIT, CHAT, CHAT]
    assert ran == ["Many thanks."] * 2
