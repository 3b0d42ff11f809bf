"""A trial of an advice: recorded lengths on the simulated engine, before and after the change.

The simulated engine has the bookkeeping of our own engine: its KV blocks, its prefix sharing and
its steps. Time is simulated too, so hours of calls take a moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weftline_engine import api
from weftline_engine.pretend.simulation import SimulatedConfig, SimulatedEngine, StepCost
from weftline_engine.pretend.virtual_time import VirtualLoop, run

TEXT_STRIDE = 7919  # segments with different texts have no tokens in common for this many tokens


@dataclass(frozen=True, slots=True)
class Figures:
    """What the calls took: the share of prompt tokens that was cached, and the mean seconds of a
    call from its arrival to its last token."""

    cached: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Trial:
    """The figures without and with the advice. `is_measured` says that the engine's own times were
    used."""

    now: Figures
    then: Figures
    calls: int
    is_measured: bool

    def __str__(self) -> str:
        times = "the engine's times" if self.is_measured else "usual times of a small CPU"
        return (
            f"{self.calls} recorded calls, simulated with {times}: "
            f"{self.now.cached:.0%} of prompt tokens cached and {self.now.seconds:.2f} s a call "
            f"now, {self.then.cached:.0%} and {self.then.seconds:.2f} s after the change"
        )


def trial(lengths: Mapping[str, Any]) -> Trial:
    """Simulate both series of the `lengths` of a row of GET /v1/advice."""
    engine = lengths["engine"] or {}
    config = _config(engine)
    now, then = (_figures(lengths[key], config) for key in ("now", "then"))
    return Trial(now, then, len(lengths["now"]), engine.get("step_s") is not None)


def _config(engine: Mapping[str, Any]) -> SimulatedConfig:
    usual = SimulatedConfig(any_words=True)
    if engine.get("step_s") is None:
        return usual
    cost = StepCost(step_s=engine["step_s"], fill_s=engine["fill_s"])
    return SimulatedConfig(
        any_words=True,
        cost=cost,
        kv_tokens=engine["kv_tokens"] or usual.kv_tokens,
        step_tokens=engine["chunk"] or usual.step_tokens,
    )


def _figures(series: Sequence[Mapping[str, Any]], config: SimulatedConfig) -> Figures:
    """The figures of a run in which each call comes at its recorded time, whether or not earlier
    calls have ended."""
    most = max(sum(tokens for _, tokens in one["segments"]) for one in series)
    room = config.kv_tokens - most - 1

    async def main(loop: VirtualLoop) -> Figures:
        engine = SimulatedEngine(config, loop.time)
        await engine.start()
        for number, one in enumerate(series):
            loop.call_later(one["at_s"], engine.submit, _op(number, one, room))
        ended: list[tuple[int, api.Finished]] = []
        async for events in engine.events():
            ended += [(int(one.op), one) for one in events if isinstance(one, api.Finished)]
            if len(ended) == len(series):
                break
        await engine.close()
        prompts = sum(one.usage.prompt_tokens for _, one in ended)
        cached = sum(one.usage.cached_tokens for _, one in ended)
        took = sum(one.time - series[number]["at_s"] for number, one in ended)
        return Figures(round(cached / prompts, 4), round(took / len(ended), 4))

    return run(main)


def _op(number: int, one: Mapping[str, Any], room: int) -> api.Op:
    """The call as an op whose tokens stand for the texts of its segments."""
    tokens = tuple(
        (text * TEXT_STRIDE + at) % api.OTHER_WORDS
        for text, count in one["segments"]
        for at in range(count)
    )
    output = max(1, min(one["output_tokens"], room))
    sampling = api.SamplingParams(max_tokens=output, ignore_eos=True)
    return api.Op(
        id=f"{number}",
        kind=api.Kind.GENERATE,
        context=f"{number}",
        tokens=tokens or (0,),
        sampling=sampling,
    )
