"""A trial of an advice on the simulated engine: what is cached, and how long a call takes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.null.advised import FAULTY, Advised
from tests.null.asgi import Serve
from tests.null.test_advice import send
from weftline_server.commands.advice_trial import Figures, Trial, trial


@pytest.mark.parametrize("program", FAULTY, ids=lambda one: one.requests.__name__)
async def test_the_change_helps_each_faulty_program(serve: Serve, program: Advised) -> None:
    """More of the prompts is cached, and a call takes less time."""
    server = await serve()
    await send(server, program.requests())
    answer = (await server.http.get("/v1/advice?lengths=true")).json()
    found = await asyncio.to_thread(trial, answer["advice"][0]["lengths"])
    assert found.then.cached >= found.now.cached + 0.15
    assert found.then.seconds < found.now.seconds
    assert (found.calls, found.is_measured) == (6, False)


def series(*prompts: list[list[int]]) -> list[dict[str, Any]]:
    """Calls of one output token, 10 s apart."""
    return [
        {"at_s": 10.0 * number, "segments": prompt, "output_tokens": 1}
        for number, prompt in enumerate(prompts)
    ]


def test_times_are_those_of_the_engine() -> None:
    """A step takes 1 s and 0.01 s for each prompt token. Of 170 tokens the second call finds 160
    in the cache after the change, where the segment of 160 stands first, and none before it.
    """
    rules, first, second = [0, 160], [1, 10], [2, 10]
    lengths = {
        "now": series([first, rules], [second, rules]),
        "then": series([rules, first], [rules, second]),
    }
    engine = {"kv_tokens": 4096, "step_s": 1.0, "fill_s": 0.01, "chunk": 512}
    found = trial({**lengths, "engine": engine})
    assert found.now == Figures(cached=0.0, seconds=2.7)
    assert found.then == Figures(cached=0.4706, seconds=1.9)
    assert found.is_measured
    assert str(found) == (
        "2 recorded calls, simulated with the engine's times: 0% of prompt tokens cached and "
        "2.70 s a call now, 47% and 1.90 s after the change"
    )


def test_an_unknown_engine_has_usual_times() -> None:
    """An endpoint tells no times, and its engine may be gone by now."""
    same = series([[0, 160]])
    found = trial({"now": same, "then": same, "engine": None})
    assert isinstance(found, Trial)
    assert found.now == found.then
    assert "usual times of a small CPU" in str(found)
