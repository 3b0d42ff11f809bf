"""An answer that lacks its form, in all places of a chain: it fails there, as in the plain chain.

The server would repair a half answer and go on. The client checks each answer that has a form, and
nothing that depends on a wrong one counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import openai
import pytest
from langchain_core.output_parsers import CommaSeparatedListOutputParser, JsonOutputParser
from langchain_core.runnables import (
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)

from langchain_weftline import accelerate

from .conftest import StartServer
from .recording import recorded
from .test_like_plain import Heard
from .test_structure_table import CUT, JSON, Town, outcome, whole
from .tiers import AGAIN, ASK, TEXT, Chain, chat_weftline

FORM = {"type": "json_object"}
GIVEN = {"x": "a town"}


@pytest.fixture(scope="module")
def places_url(start_script: StartServer) -> str:
    """Answers with a town, with a list, or, when asked again, with what it was told."""
    return start_script([("Again", "It is so."), ("a list", "a, b"), ("", JSON)])


def half(llm: Any, form: Any = FORM) -> Chain:
    """A part whose answer is cut off."""
    return ASK | llm.bind(response_format=form, max_tokens=CUT) | JsonOutputParser()


def named(made: Any) -> dict[str, Any]:
    return {"x": made["name"]}


def between(llm: Any) -> Chain:
    return half(llm) | (lambda made: {"x": made["name"]}) | AGAIN | llm | TEXT


def between_objects(llm: Any) -> Chain:
    return half(llm, Town) | (lambda made: {"x": made}) | AGAIN | llm | TEXT


def before_a_function(llm: Any) -> Chain:
    return half(llm) | RunnableLambda(named) | AGAIN | llm | TEXT


def message_between(llm: Any) -> Chain:
    asked = llm.bind(response_format=FORM, max_tokens=CUT)
    return ASK | asked | (lambda said: {"x": said.content}) | AGAIN | llm | TEXT


def fallen_back(llm: Any) -> Chain:
    return half(llm).with_fallbacks([RunnableLambda(lambda given: "the fallback")])


def retried(llm: Any) -> Chain:
    return half(llm).with_retry(stop_after_attempt=2, wait_exponential_jitter=False)


def beside(llm: Any) -> Chain:
    return RunnableParallel(a=half(llm), b=AGAIN | llm | TEXT)


def assigned(llm: Any) -> Chain:
    return RunnablePassthrough.assign(y=half(llm)) | itemgetter("x", "y")


def branched(llm: Any) -> Chain:
    is_rome = (lambda made: made["name"] == "Rome", AGAIN | llm | TEXT)
    return half(llm) | named | RunnableBranch(is_rome, RunnableLambda(lambda given: "other"))


def on_a_side(llm: Any) -> Chain:
    listed = ASK | llm | TEXT
    return listed | RunnableBranch(
        (lambda text: "Rome" in text, (lambda text: {"x": text}) | half(llm)),
        RunnableLambda(lambda given: "other"),
    )


def on_another_side(llm: Any) -> Chain:
    return (
        ASK
        | llm
        | TEXT
        | RunnableBranch(
            (lambda text: "Paris" in text, (lambda text: {"x": text}) | half(llm)),
            (lambda text: {"x": text}) | AGAIN | llm | TEXT,
        )
    )


def mapped(llm: Any) -> Chain:
    listed = (lambda given: {"x": "a list"}) | ASK | llm | CommaSeparatedListOutputParser()
    return listed | ((lambda text: {"x": text}) | half(llm) | AGAIN | llm | TEXT).map()


PLACES = (
    between,
    between_objects,
    before_a_function,
    message_between,
    fallen_back,
    retried,
    beside,
    assigned,
    branched,
    on_a_side,
    on_another_side,
    mapped,
)


async def _astream(chain: Chain) -> Any:
    return whole([part async for part in chain.astream(GIVEN)])


WAYS: dict[str, Callable[[Chain], Any]] = {
    "invoke": lambda chain: chain.invoke(GIVEN),
    "ainvoke": lambda chain: asyncio.run(chain.ainvoke(GIVEN)),
    "stream": lambda chain: whole(list(chain.stream(GIVEN))),
    "astream": lambda chain: asyncio.run(_astream(chain)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", PLACES)
def test_a_cut_answer_fails_where_it_stands(
    make: Callable[[Any], Chain], way: str, places_url: str
) -> None:
    """Between two calls, in a fallback, beside others, on a side of a branch, for each item."""
    run = WAYS[way]
    expected = outcome(lambda: run(make(chat_weftline(places_url, provenance=False))))
    chain = accelerate(make(chat_weftline(places_url)))
    assert outcome(lambda: run(chain)) == expected
    if make in (between, beside, branched):
        assert expected[0] is openai.LengthFinishReasonError


def test_callbacks_hear_of_it_once(places_url: str) -> None:
    """The model of the cut answer ends with the error. The next one ends too, unseen by plain."""
    told = []
    for wrap, options in ((lambda chain: chain, {"provenance": False}), (accelerate, {})):
        heard = Heard()
        chain = wrap(between(chat_weftline(places_url, **options)))
        with pytest.raises(openai.LengthFinishReasonError):
            chain.invoke(GIVEN, {"callbacks": [heard]})
        told.append(heard.told)
    assert told[1] == told[0]


def test_a_whole_answer_is_still_one_request(places_url: str) -> None:
    """The check costs no round trip: the value comes along, and the next call does not wait."""
    with recorded(places_url) as passed:
        llm = chat_weftline(passed.url)
        asked = ASK | llm.bind(response_format=FORM) | JsonOutputParser()
        chain = accelerate(asked | (lambda made: {"x": made["name"]}) | AGAIN | llm | TEXT)
        assert chain.invoke(GIVEN) == "It is so."
        [body] = passed.bodies("/v1/submit")
    assert len(body["calls"]) == 2 and len(body["watch"]) == 2
