"""How long outputs become is learned by template, and never cuts one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.null.asgi import Serve
from weftline.contract.protocol import Call, InOut, Message, Placeholder, Sampling, Segment
from weftline_engine.pretend.null import NullConfig, NullMode
from weftline_server.config import ServerConfig
from weftline_server.lowering.kinds.prompt import PromptBody, lower_call, template_of, with_length
from weftline_server.schedule.memory.lengths import (
    ENDS,
    FEWEST,
    FEWEST_OF_ALL,
    MOST_TEMPLATES,
    Expected,
    Histogram,
    Lengths,
)


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=60))
def test_a_histogram_knows_the_mean_and_what_is_likely(seen: list[int]) -> None:
    """The mean is exact. At least nine of ten are not longer than `most`, which is at most an
    eighth above one that was seen."""
    histogram = Histogram()
    for one in seen:
        histogram.learn(one)
    told = histogram.expect()
    assert told.mean == round(sum(seen) / len(seen))
    assert sum(one <= told.most for one in seen) >= 0.9 * len(seen)
    assert any(told.most / 1.126 <= one <= told.most for one in seen)


def test_the_bins_have_no_gap() -> None:
    """Up to 8 each length has a bin. Then a bin is at most an eighth as wide as what is in it."""
    assert ENDS[:8] == tuple(range(1, 9)) and ENDS[-1] > 100_000
    assert all(low < high <= low * 1.13 for low, high in pairwise(ENDS[7:]))


def test_a_template_that_changes_is_followed() -> None:
    """After a thousand outputs of 10 tokens, a thousand of 100 count almost alone."""
    histogram = Histogram()
    for length in (10, 100):
        for _ in range(1000):
            histogram.learn(length)
    assert histogram.expect() == Expected(mean=99, most=104)


def test_a_new_template_is_like_the_others_of_its_tenant() -> None:
    """Until it was seen a few times. The client's bound counts where it is lower, and tenants do
    not teach each other."""
    lengths = Lengths()
    for number in range(FEWEST_OF_ALL - 1):
        lengths.learn("t", f"other{number}", 40)
    assert lengths.expect("t", "mine", 512) is None
    lengths.learn("t", "other", 40)
    assert lengths.expect("t", "mine", 512) == Expected(40, 40)
    for _ in range(FEWEST):
        lengths.learn("t", "mine", 7)
    assert lengths.expect("t", "mine", 512) == Expected(7, 7)
    assert lengths.expect("t", "other", 30) == Expected(30, 30)
    assert lengths.expect("u", "mine", 512) is None
    for number in range(MOST_TEMPLATES + 5):
        lengths.learn("t", f"many{number}", 1)
    assert len(lengths._templates) == MOST_TEMPLATES


def asking(system: str, question: str, most: int | None = 300) -> Call:
    """A chat with a system prompt and a question."""
    sampling = None if most is None else Sampling(max_tokens=most)
    out = Placeholder(name="o", in_out=InOut.OUT, semantic_var_id="x", sampling=sampling)
    prompt = (
        Message(role="system", content=(Segment(text=system),)),
        Message(role="user", content=(Segment(text=question),)),
        Message(role="assistant", content=(Segment(output="o"),)),
    )
    return Call(name="ask", prompt=prompt, placeholders=(out,))


def test_a_template_is_what_stays_the_same() -> None:
    """Two questions to one system prompt are of one template; another system prompt or name is
    another one."""

    def of(call: Call) -> str:
        [primitive] = lower_call(call, "m").primitives
        assert isinstance(primitive.body, PromptBody)
        return template_of(primitive.body)

    first = asking("Be short.", "Why?")
    assert of(first) == of(asking("Be short.", "How?", most=None))
    others = [asking("Be long.", "Why?"), Call(**{**vars_of(first), "name": "other"})]
    assert of(first) not in map(of, others)


def vars_of(call: Call) -> dict[str, Any]:
    return {"prompt": call.prompt, "placeholders": call.placeholders}


@pytest.mark.parametrize(("most", "bound"), [(300, 300), (None, 128)])
def test_the_work_of_an_output_is_what_was_learned(most: int | None, bound: int) -> None:
    """In place of the bound, or of what is assumed without one."""
    [primitive] = lower_call(asking("Be short.", "Why?", most), "m").primitives
    assert with_length(primitive, 20).work == primitive.work - bound + 20


SAYS = NullConfig(mode=NullMode.SCRIPT, script=(("Why", "one two three four"), ("", "one")))


async def ask(http: Any, question: str) -> str:
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": 400}
    answer = await http.post("/v1/chat/completions", json=body)
    return str(answer.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize("learns", [True, False])
async def test_the_scheduler_plans_with_what_was_learned(serve: Serve, learns: bool) -> None:
    """After three answers of four words a call of the same prompt counts with four tokens, not 400.
    Its answer is not cut there."""
    also = frozenset({"length_prediction"}) if learns else frozenset[str]()
    server = await serve(SAYS, ServerConfig(also=also))
    dispatcher = server.driver.dispatcher
    planned: list[int] = []
    enqueue = dispatcher.enqueue

    def seen(work: Any) -> None:
        planned.append(work.tokens)
        enqueue(work)

    dispatcher.enqueue = seen
    for _ in range(4):
        assert await ask(server.http, "Why?") == "one two three four"
    less = [planned[0] - one for one in planned]
    assert less == ([0, 0, 0, 396] if learns else [0] * 4)
