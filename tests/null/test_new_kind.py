"""A new kind of primitive runs without a change in session, passes or schedule: `sleep`.

CONTRIBUTING.md ("Add a primitive kind") tells the same story in words.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.null.asgi import Serve
from weftline.errors import EngineFailed
from weftline.protocol import Call, Criterion, InOut, Placeholder, Segment
from weftline_engine import api
from weftline_engine.null import NullConfig, NullEngine
from weftline_server.graph.primitive import Effects, Primitive, Read, Task, ValueBody
from weftline_server.lowering.call import task_of
from weftline_server.runtime.driver import Driver
from weftline_server.runtime.registry import Registry, RegistryConfig
from weftline_server.schedule.dispatcher import Dispatcher
from weftline_server.session.task import RunState


class Sleeper:
    """An engine with a kind of its own: it waits and returns its input. It may die on the way."""

    def __init__(self, deaths: int = 0) -> None:
        self.seen: list[api.Op] = []
        self._deaths = deaths
        self._out: asyncio.Queue[api.Event | None] = asyncio.Queue()

    async def start(self) -> api.Description:
        return api.Description(model="nap", kinds=("sleep",), capabilities=(), max_running=4)

    def submit(self, op: api.Op) -> None:
        self.seen.append(op)
        if self._deaths:
            self._deaths -= 1
            self._out.put_nowait(None)
            return
        usage = api.Usage(
            prompt_tokens=0, cached_tokens=0, output_tokens=0, started=0.0, filled=0.0
        )
        ended = api.Finished(
            op=op.id,
            attempt=op.attempt,
            sequence=len(self.seen),
            time=0.0,
            reason=api.FinishReason.STOP,
            usage=usage,
            value={"slept": op.inputs["seconds"], "after": op.inputs.get("draft")},
        )
        loop = asyncio.get_running_loop()
        loop.call_later(0.001, self._out.put_nowait, ended)

    async def events(self) -> AsyncIterator[list[api.Event]]:
        while (event := await self._out.get()) is not None:
            yield [event]
        raise api.EngineDied("it overslept")

    def feed(self, op: str, offset: int, part: api.Fed, last: bool) -> None: ...
    def update(self, op: str, hints: api.Hints) -> None: ...
    def cancel(self, op: str) -> None: ...
    def retain(self, context: str, retention: api.Retention) -> None: ...
    def free(self, context: str) -> None: ...
    async def close(self) -> None: ...


def sleep(name: str, *reads: str, effects: Effects = Effects.NONE) -> Task:
    """The lowering of a step: it reads variables and writes the variable with the step's name."""
    primitive = Primitive(
        id=f"{name}/0",
        task=name,
        kind="sleep",
        resource="nap",
        reads=tuple(Read(variable) for variable in reads),
        writes=(name,),
        effects=effects,
        work=1,
        body=ValueBody({"seconds": 2}),
    )
    return Task(id=name, name=name, resource="nap", primitives=(primitive,), reads=reads)


def call(name: str, text: str, *reads: str) -> Task:
    prompt = (Segment(text=text), *(Segment(input=v) for v in reads), Segment(output="out"))
    holders = [Placeholder(name=v, in_out=InOut.IN, semantic_var_id=v) for v in reads]
    holders.append(Placeholder(name="out", in_out=InOut.OUT, semantic_var_id=name))
    made = Call(name=name, prompt=prompt, placeholders=tuple(holders), model="null")
    return task_of(name, made)


async def running(sleeper: Sleeper) -> tuple[Driver, Dispatcher]:
    """Run a driver with a null engine and `sleeper`."""
    makers: dict[str, Callable[[], api.Engine]] = {
        "null": lambda: NullEngine(NullConfig()),
        "nap": lambda: sleeper,
    }
    dispatcher = Dispatcher(makers, "app")
    driver = Driver(Registry(RegistryConfig()), dispatcher)
    await dispatcher.start(driver)
    return driver, dispatcher


async def test_a_sleep_runs_between_two_calls() -> None:
    """A call, a sleep that reads its output, and a call that reads the sleep: one graph."""
    sleeper = Sleeper()
    driver, dispatcher = await running(sleeper)
    try:
        session = driver.open("t")
        tasks = [call("draft", "hello"), sleep("nap", "draft"), call("final", "so: ", "nap")]
        await driver.start(session, tasks)
        assert (await driver.readers.get(session, "nap")).value == {"slept": 2, "after": "hello"}
        final = await driver.readers.get(session, "final")
        assert final.value == 'so: {"slept": 2, "after": "hello"}'
        [op] = sleeper.seen
        assert (op.kind, op.tokens, op.hints.depth) == ("sleep", None, 1)
        assert session.plan.objective["nap/0"] is Criterion.LATENCY
        assert session.plan.prefixes["nap/0"] == ()
        assert [task.state for task in session.tasks.values()] == [RunState.DONE] * 3
        assert dispatcher.models == ["null"], "no client can ask for a chat with it"
        session.validate()
    finally:
        await driver.shut_down()
        await dispatcher.close()


@pytest.mark.parametrize(
    ("effects", "attempts"), [(Effects.NONE, [0, 1]), (Effects.ONCE, [0])], ids=["none", "once"]
)
async def test_a_step_to_run_once_gets_no_second_attempt(
    effects: Effects, attempts: list[int]
) -> None:
    """Its engine dies during the step. A step with effects may have had them already."""
    sleeper = Sleeper(deaths=1)
    driver, dispatcher = await running(sleeper)
    try:
        session = driver.open("t")
        await driver.start(session, [sleep("nap", effects=effects)])
        if effects is Effects.ONCE:
            with pytest.raises(EngineFailed, match="it overslept"):
                await driver.readers.get(session, "nap")
        else:
            await driver.readers.get(session, "nap")
        assert [op.attempt for op in sleeper.seen] == attempts
    finally:
        await driver.shut_down()
        await dispatcher.close()


async def test_the_null_engine_gets_no_sleep(serve: Serve) -> None:
    """An engine is only sent the kinds that it announces."""
    server = await serve()
    session = server.driver.open("local")
    task = sleep("nap")
    await server.driver.start(session, [task])
    await asyncio.sleep(0.05)
    assert session.tasks["nap"].state is RunState.QUEUED
    server.driver.close(session)
