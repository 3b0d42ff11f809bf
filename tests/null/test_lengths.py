"""How long outputs become is learned from calls that are alike, and never cuts one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.null.asgi import Serve, call
from tests.simulator.lamps_mix import MOST_TOKENS, drawn, simulate
from weftline.contract.protocol import Call, InOut, Message, Placeholder, Sampling, Segment
from weftline.contract.tools import CalledFunction, ToolCall
from weftline_engine.pretend.null import NullConfig, NullMode
from weftline_server.config import ServerConfig
from weftline_server.lowering.kinds.prompt import PromptBody, lower_call, template_of, with_length
from weftline_server.runtime.length_clues import END_CHARS, MOST_WORDS, clues
from weftline_server.schedule.lengths import (
    FEWEST,
    MOST_TENANTS,
    NEAREST,
    OUTPUTS,
    Clues,
    Exactness,
    Expected,
    Lengths,
    Outputs,
)

ONE = Clues("one", 100)


def learned(*seen: tuple[Clues, int]) -> Outputs:
    """Outputs with a bound of 500 tokens, each as often as it takes to be told."""
    outputs = Outputs()
    for known, length in seen:
        for _ in range(FEWEST):
            outputs.learn(known, 500, length)
    return outputs


@pytest.mark.parametrize(
    "other",
    [
        Clues("other", 100),
        Clues("one", 400),
        Clues("one", 100, tool="look"),
        Clues("one", 100, words=("briefly",)),
    ],
    ids=["template", "size", "tool", "words"],
)
def test_an_output_is_as_long_as_those_of_calls_that_are_alike(other: Clues) -> None:
    """Each clue tells the two apart. The bound counts where it is lower."""
    known = ONE if not other.words else replace(ONE, words=("essay",))
    outputs = learned((known, 7), (other, 300))
    assert outputs.expect(known, 500) == Expected(7, 7)
    assert outputs.expect(other, 500) == Expected(300, 300)
    assert outputs.expect(other, 40) == Expected(40, 40)


def test_what_is_alike_in_part_is_told_by_the_rest() -> None:
    """A new template of a tenant is as its others with such a size; a later turn as its earlier
    ones."""
    outputs = learned((Clues("a", 100, 1), 7), (Clues("b", 800, 5), 300))
    assert outputs.expect(Clues("new", 90, 3), 500) == Expected(7, 7)
    assert outputs.expect(Clues("new", 900, 3), 500) == Expected(300, 300)
    turns = learned((Clues("a", 100, 3), 7), (Clues("a", 100, 5), 300))
    assert turns.expect(Clues("a", 100, 5), 500) == Expected(300, 300)


def test_the_likely_length_is_the_median_and_most_of_them_are_shorter_than_most() -> None:
    """Of 1 to 30 tokens."""
    outputs = Outputs()
    for length in range(30, 0, -1):
        outputs.learn(ONE, 500, length)
    assert outputs.expect(ONE, 500) == Expected(15, 27)


@given(st.lists(st.integers(1, 400), min_size=FEWEST, max_size=60), st.integers(1, 500))
def test_a_prediction_is_a_length_that_was_seen(seen: list[int], bound: int) -> None:
    """Or the bound, if that is lower."""
    outputs = Outputs()
    for at, length in enumerate(seen):
        assert (outputs.expect(ONE, bound) is None) is (at < FEWEST)
        outputs.learn(ONE, 500, length)
    told = outputs.expect(ONE, bound)
    assert told is not None and {told.likely, told.most} <= {*seen, bound}
    assert told.likely <= told.most <= bound


def test_a_template_that_changes_is_followed() -> None:
    """Of equal calls the newest ones tell the length. 256 are remembered in all."""
    outputs = Outputs()
    for count, length in ((OUTPUTS + 50, 10), (NEAREST, 100)):
        for _ in range(count):
            outputs.learn(ONE, 500, length)
    assert outputs.expect(ONE, 500) == Expected(100, 100)
    for _ in range(OUTPUTS):
        outputs.learn(Clues("other", 9), 500, 7)
    assert outputs.expect(ONE, 500) == Expected(7, 7)


def test_predictions_are_used_where_they_tell_more_than_the_bounds() -> None:
    """A client that sends the length as its bound keeps it. Tenants do not teach each other, and
    the one that was seen longest ago is forgotten."""
    lengths = Lengths()
    for number in range(FEWEST + 1):
        assert lengths.expect("t", ONE, 500) is None
        lengths.learn("t", ONE, 500, 7)
        lengths.learn("exact", ONE, 40 + number, 40 + number)
    assert lengths.expect("t", ONE, 500) == Expected(7, 7)
    assert lengths.expect("exact", ONE, 500) is lengths.expect("u", ONE, 500) is None
    lengths.learn("t", ONE, 500, 0)  # it says nothing
    for number in range(MOST_TENANTS):
        lengths.learn(f"other{number}", ONE, 500, 7)
    assert lengths.expect("t", ONE, 500) is None
    assert lengths.exactness.count == 2


def test_errors_are_counted_as_lamps_counts_them() -> None:
    """Acc-5, Acc-15 and the mean error of the predictions, beside that of the bounds."""
    found = Exactness()
    for told in (10, 15, 16, 25, 26):
        found.learn(told, 110, 10)
    assert found.near == pytest.approx((0.4, 0.8))
    assert (found.error, found.error_of_bound) == pytest.approx((8.4, 100.0))


def test_the_mix_of_lamps_is_told_without_its_classes() -> None:
    """All requests have one template, as those of an agent with six tools. A histogram of each
    template had 4 % and 12 %, and was 65 tokens off; one of each class 26 %, 43 % and 45."""
    outputs = Outputs()
    for number in range(600):
        request = drawn(number)
        size, tool = request.prompt, ""
        for at, turn in enumerate(request.turns):
            outputs.learn(Clues("one", size, 2 * at, tool), MOST_TOKENS, turn.output)
            size, tool = size + turn.output + turn.returned, request.kind
    found = outputs.exactness
    assert found.near[0] > 0.2 and found.near[1] > 0.4 and found.error < 55.0


@pytest.mark.timeout(120)
def test_a_server_that_predicts_serves_the_mix_sooner() -> None:
    """Four requests a second for 15 s, with a bound of 512 tokens: 9.5 s in place of 12.3 s."""
    plain = simulate(4.0, 15.0, 0, frozenset({"length_prediction"}))
    ours = simulate(4.0, 15.0, 0)
    assert plain.lengths is None and ours.lengths is not None
    assert ours.lengths.error < ours.lengths.error_of_bound / 4
    assert ours.serving_s < 0.9 * plain.serving_s


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


def clues_of(call: Call, size: int = 9) -> Clues:
    [primitive] = lower_call(call, "m").primitives
    assert isinstance(primitive.body, PromptBody)
    return clues(primitive.body, size)


def test_the_clues_of_a_call() -> None:
    """Its template, size and messages, and the last tool that its prompt has called."""
    call = asking("Be short.", "Why?")
    first = clues_of(call)
    assert (first.size, first.turn, first.tool, first.words) == (9, 3, "", ())
    made = tuple(
        ToolCall(id=name, function=CalledFunction(name=name, arguments="{}")) for name in "ab"
    )
    assert not isinstance(call.prompt, str)
    *before, answer = call.prompt
    said = Message(role="assistant", content=(), tool_calls=made)
    later = clues_of(Call(**{**vars_of(call), "name": "ask", "prompt": (*before, said, answer)}))
    assert (later.template, later.turn, later.tool) == (first.template, 4, "b")


SAYS = NullConfig(mode=NullMode.SCRIPT, script=(("Why", "one two three four"), ("", "one")))


async def ask(http: Any, question: str) -> str:
    body = {
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": question},
        ],
        "max_tokens": 400,
    }
    answer = await http.post("/v1/chat/completions", json=body)
    return str(answer.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize("learns", [True, False])
async def test_the_scheduler_plans_with_what_was_learned(serve: Serve, learns: bool) -> None:
    """After eleven answers of four words, of which the last was foretold, a call of the same prompt
    counts with four tokens, not 400. Its answer is not cut there."""
    off = frozenset[str]() if learns else frozenset({"length_prediction"})
    server = await serve(SAYS, ServerConfig(without=off))
    dispatcher = server.driver.dispatcher
    planned: list[int] = []
    works: list[int] = []
    said: list[Clues | None] = []
    hinted: list[int | None] = []
    enqueue = dispatcher.enqueue

    def seen(work: Any) -> None:
        planned.append(work.tokens)
        said.append(work.clues)
        hinted.append(work.op.hints.expected_output)
        session = server.driver.registry.by_id(work.primitive.session)
        assert session is not None
        works.append(session.graph.primitives[work.primitive.primitive].output)
        enqueue(work)

    dispatcher.enqueue = seen
    for _ in range(FEWEST + 3):
        assert await ask(server.http, "Why  NOT?") == "one two three four"
    told = FEWEST + 1
    less = [planned[0] - one for one in planned]
    assert less == [0] * told + [396 if learns else 0] * 2
    assert works == [400] * told + [4 if learns else 400] * 2
    assert hinted == [None] * told + [4 if learns else None] * 2
    metrics = (await server.http.get("/metrics")).text
    shown = 'weftline_predicted_outputs_error_tokens{of="bound"} 396.0'
    assert (shown in metrics) is learns
    near = 'weftline_predicted_outputs_near{tokens="5"} 1.0'
    assert (near in metrics) is learns
    assert [one and one.words for one in said] == [("why", "not?") if learns else None] * len(said)


async def test_words_are_those_of_the_values(serve: Serve) -> None:
    """The last values come first. Of a long one the ends count, and few words altogether."""
    server = await serve(SAYS)
    said: list[Clues] = []
    enqueue = server.driver.dispatcher.enqueue

    def seen(work: Any) -> None:
        said.append(work.clues)
        enqueue(work)

    server.driver.dispatcher.enqueue = seen
    prompt = "Of {{input:x}} tell {{input:how}}{{output:y}}"
    first = call("first", "Why {{output:x}}", x="x")
    how = {"in_out": "in", "value": "Briefly now"}
    second = call("second", prompt, how=how, x="x", y="y")
    body = {"calls": [first, second], "get": ["y"]}
    assert (await server.http.post("/v1/submit", json=body)).status_code == 200
    assert said.pop(0).words == ("why",)
    assert said.pop(0).words == ("briefly", "now", "tell", "one", "two", "three", "four")
    await ask(server.http, "begin " + "m " * 2 * END_CHARS + "end")
    await ask(server.http, "w " * 2 * MOST_WORDS)
    assert said[0].words[0] == "begin" and len(said[0].words) == MOST_WORDS
    assert said[1].words == ("w",) * MOST_WORDS
