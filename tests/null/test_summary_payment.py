"""When the advice says that a summary of a conversation pays, from what its calls have cost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.null.asgi import Serve
from weftline_server.observe.advice.advisor import Advisor
from weftline_server.observe.advice.program import Program, RecordedCall
from weftline_server.observe.advice.summary_payment import Costs, Payment, compaction_row, payment

TURN_TOKENS = 500  # that a turn adds, as two messages
FILL_S, DECODE_S, REREAD_S = 0.001, 0.02, 0.000_002


def turn(
    number: int, *, again: int = 0, reread_s: float = REREAD_S, output: int = 50
) -> RecordedCall:
    """Turn `number` of a conversation that grows evenly. It computes `again` old tokens."""
    prompt = TURN_TOKENS * number
    computed = TURN_TOKENS + again
    return RecordedCall(
        number=number,
        follows=number - 1 or None,
        at=float(number),
        segments=tuple((at, 250) for at in range(2 * number)),
        tools=(),
        output=output,
        prompt=prompt,
        computed=computed,
        fill_s=computed * FILL_S,
        decode_s=output * (DECODE_S + reread_s * prompt),
    )


def conversation(turns: int, **about: Any) -> Program:
    """A program of one conversation."""
    program = Program("chat", "m", "You help.", False, "torch", turns, 1000, 900)
    program.recorded.extend(turn(number, **about) for number in range(1, turns + 1))
    return program


def test_costs_are_those_of_the_calls() -> None:
    """A prompt token, an output token, and what the context adds to an output token."""
    found = Costs.of([turn(number) for number in range(1, 13)])
    assert found is not None
    measured = (found.fill_s, found.decode_s, found.reread_s)
    assert measured == pytest.approx((FILL_S, DECODE_S, REREAD_S))
    assert Costs.of([turn(number) for number in range(1, 8)]) is None
    assert Costs.of([turn(number, output=1) for number in range(1, 13)]) is None


def test_what_a_summary_costs_and_saves() -> None:
    """It computes the instruction and the new beginning, and writes 400 tokens. A later turn reads
    a shorter context for each token, and computes less where its context is evicted."""
    costs = Costs(fill_s=0.001, decode_s=0.02, reread_s=0.000_002)
    found = payment(costs, context=20_000, after=5_000, output=100, anew=0.0)
    assert found.cost_s == pytest.approx(5_080 * 0.001 + 400 * (0.02 + 0.04))
    assert found.saves_s == pytest.approx(15_000 * 100 * 0.000_002)
    assert found.turns == 10  # 29.08 s, and 3 s in each turn
    often = payment(costs, context=20_000, after=5_000, output=100, anew=0.5)
    assert often.saves_s == pytest.approx(3 + 15_000 * 0.5 * 0.001)
    assert often.turns == 3
    assert payment(costs, 20_000, 25_000, 100, 0.5).turns is None  # the summary makes it longer
    assert Payment(20_000, 5_000, 1.0, 0.0).turns is None


def test_a_row_names_the_turns() -> None:
    """A long conversation whose turns write much is worth a summary, which is said in seconds."""
    row = compaction_row(conversation(40, output=400))
    assert row is not None
    assert row["says"] == (
        "a conversation has 20,000 tokens: a summary of it takes 29.7 s and saves 11.48 s a turn, "
        "so it pays after 3 turns"
    )
    told = [row[name] for name in ("name", "engine", "cause", "times")]
    assert told == ["chat", "torch", "length", 40]


@pytest.mark.parametrize(
    "program",
    [
        conversation(40, output=8),  # it writes little, so a turn saves little
        conversation(40, reread_s=0.0),  # a long context is as fast as a short one, and cached
        conversation(11, output=400),  # nothing is longer than what stays
        Program("ask", "m", "", True),
        Program("chat", "m", "", False),
    ],
)
def test_a_summary_that_does_not_pay_gets_no_row(program: Program) -> None:
    assert compaction_row(program) is None


def test_a_context_that_is_computed_again_counts() -> None:
    """An agent whose context is evicted in most pauses saves its computing."""
    assert compaction_row(conversation(40, reread_s=0.0, again=5000)) is not None


async def test_it_stands_behind_the_other_advice(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GET /v1/advice has the row, unless one finding or the lengths of calls are asked for."""
    monkeypatch.setattr(Advisor, "programs", lambda *_: [conversation(40, output=400)])
    server = await serve()
    found = (await server.http.get("/v1/advice")).json()
    assert [row["cause"] for row in found["advice"]] == ["length"]
    assert found["total"] == 1
    none = (await server.http.get("/v1/advice?lengths=true")).json()
    assert none == {"advice": [], "total": 0}
