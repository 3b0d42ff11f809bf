"""What the advice says of states that an engine kept nowhere near the place where prompts part."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.null.asgi import Serve
from tests.null.test_advice_parts import USAGE, template
from weftline_server.observe.advice.advisor import Advisor
from weftline_server.observe.advice.lost_state import state_row
from weftline_server.observe.advice.program_ledger import LEAST_TOKENS, Ledger, Told


def ledger_of(*lost: int) -> Ledger:
    """Calls of one program, each of which computed so many tokens again."""
    ledger = Ledger()
    for number, tokens in enumerate(lost):
        usage = replace(USAGE, prompt_tokens=1000, cached_tokens=100, lost_tokens=tokens)
        call = template("ask", "noon")
        ledger.note(Told(call, {}, None, usage, "llamacpp", float(number), float(number) + 1))
    return ledger


def test_a_row_says_how_often_states_were_lost_and_what_that_cost() -> None:
    """Two of five calls computed 600 and 200 tokens again. The first call is compared with none."""
    (program,) = ledger_of(0, 600, LEAST_TOKENS - 1, 0, 200).programs
    row = state_row(program)
    assert row is not None
    assert row["says"] == (
        "state: the model keeps no state where the prompts part, 400 tokens that the engine held "
        "are computed anew in 50 % of 4 calls: send calls that begin alike in one request, or give "
        "the engine more slots"
    )
    sums = ("calls", "times", "lost_tokens", "prompt_tokens", "cached_tokens")
    assert [row[name] for name in sums] == [4, 2, 800, 4000, 400]
    assert (row["cause"], row["engine"], row["begins"]) == ("state", "llamacpp", None)


@pytest.mark.parametrize("lost", [(0, 0, 0), (0, 900, 0)])
def test_one_loss_is_not_told(lost: tuple[int, ...]) -> None:
    """The engine learns from the first one where prompts part."""
    (program,) = ledger_of(*lost).programs
    assert state_row(program) is None


async def test_the_rows_are_in_the_order_of_what_was_lost(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state stands before a finding that cost less."""
    server = await serve()
    told = ledger_of(0, 600, 600)
    (program,) = told.programs
    monkeypatch.setattr(Advisor, "programs", lambda self, tenant: (program,))
    body = (await server.http.get("/v1/advice")).json()
    assert [(row["cause"], row["lost_tokens"]) for row in body["advice"]] == [("state", 1200)]
    assert body["total"] == 1
