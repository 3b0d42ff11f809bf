"""The null engine, through the engine contract."""

from __future__ import annotations

import asyncio

from weftline_engine import api
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullEngine


def make_op(name: str, text: str, *, open: bool = False) -> api.Op:
    sampling = api.SamplingParams(max_tokens=5)
    kind = api.Kind.GENERATE
    return api.Op(id=name, kind=kind, context=name, text=text, sampling=sampling, open=open)


async def test_a_cancelled_op_says_so_once_as_the_embedded_one_does() -> None:
    """One op runs, one waits for the rest of its prompt, one has ended, one never existed."""
    engine = NullEngine(NullConfig(latency=LatencyProfile(step_s=60)))
    await engine.start()
    engine.submit(make_op("done", ""))
    events = engine.events()
    ended = (await anext(events))[0]
    assert isinstance(ended, api.Finished)
    engine.submit(make_op("running", "a b"))
    engine.submit(make_op("open", "a b", open=True))
    await asyncio.sleep(0)
    for name in ("running", "running", "open", "done", "nobody"):
        engine.cancel(name)
    await engine.close()
    said = [event for batch in [one async for one in events] for event in batch]
    assert all(isinstance(event, api.Failed) and event.error == "Cancelled" for event in said)
    assert [event.op for event in said] == ["running", "open"]
    assert [event.sequence for event in (ended, *said)] == [1, 2, 3]
