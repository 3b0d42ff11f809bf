"""A new kind of steps is a file, a class of the wire types and a row of the registry: `sleep`.

CONTRIBUTING.md ("Add a primitive kind") tells the same story in words, and names the same files.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from pydantic import TypeAdapter, ValidationError

from tests.null.asgi import Serve
from weftline.contract import steps
from weftline.contract.protocol import Call, Criterion, InOut, Placeholder, Segment, SubmitBody
from weftline.contract.steps import Body, Each, Reading, Source, Step
from weftline.errors import EngineFailed, InvalidRequest, WeftlineError
from weftline_engine import api
from weftline_engine.pretend.null import NullConfig, NullEngine
from weftline_server.graph.primitive import Effects, Task, Traits, Where
from weftline_server.lowering.kinds import KINDS
from weftline_server.lowering.step import Field, Says, StepKind, named
from weftline_server.runtime.driver import Driver
from weftline_server.runtime.registry import Registry, RegistryConfig
from weftline_server.schedule.dispatcher import Dispatcher
from weftline_server.session.need import changes
from weftline_server.session.task import RunState

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep(Reading):
    """What the client sends: the class in `client/weftline/contract/steps.py`."""

    engine: str | None = None
    seconds: float = 2
    effects: Literal["none", "idempotent", "once"] = "none"
    kind: Literal["sleep"] = field(default_factory=lambda: "sleep")


class SleepKind(StepKind[Sleep]):
    """The kind's own file, `lowering/kinds/sleep.py`: what an engine gets, and what comes back."""

    traits = Traits(operation="rest")
    engine = "bed"
    says: ClassVar[Says] = {"seconds": Field("How long it sleeps.", 2.0)}

    def effects(self, step: Sleep) -> Effects:
        return Effects(step.effects)

    def inputs(self, step: Sleep, given: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(given["in"], str):
            raise InvalidRequest(f"{named(step)} takes a text", param="in")
        return {"seconds": step.seconds, "draft": given["in"]}

    def result(self, step: Sleep, given: Mapping[str, Any], result: Any) -> object:
        return {**result, "dreamt": given["in"].upper()}


class NapKind(StepKind[Sleep]):
    """The same step without an engine: the server lets the time pass, and computes the value."""

    traits = Traits(where=Where.SERVER)

    def wait_s(self, step: Sleep) -> float:
        return step.seconds

    def result(self, step: Sleep, given: Mapping[str, Any], result: Any) -> object:
        return given["in"].upper()


@pytest.fixture
def with_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of the kind: in the table of the wire types, and in the registry."""
    monkeypatch.setattr(steps, "STEPS", {**steps.STEPS, "sleep": Sleep})
    monkeypatch.setitem(KINDS.by_name, "sleep", SleepKind())


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


def sleep(name: str, *, effects: Effects = Effects.NONE) -> Task:
    """The task of a step that needs no variable. It writes the variable with the step's name."""
    step = Sleep(name=name, in_=Source(value="hello"), out=name, effects=effects.value)
    return KINDS.lower_step(step, "nap", name)


def asked(name: str, text: str, *reads: str) -> Call:
    prompt = (Segment(text=text), *(Segment(input=v) for v in reads), Segment(output="out"))
    holders = [Placeholder(name=v, in_out=InOut.IN, semantic_var_id=v) for v in reads]
    holders.append(Placeholder(name="out", in_out=InOut.OUT, semantic_var_id=name))
    return Call(name=name, prompt=prompt, placeholders=tuple(holders), model="null")


async def running(sleeper: Sleeper) -> tuple[Driver, Dispatcher]:
    """Run a driver with a null engine and `sleeper`."""
    makers: dict[str, Callable[[], api.Engine]] = {
        "null": lambda: NullEngine(NullConfig()),
        "nap": lambda: sleeper,
    }
    dispatcher = Dispatcher(makers, "app")
    driver = Driver(Registry(RegistryConfig()), dispatcher)
    await dispatcher.start(driver.reports)
    return driver, dispatcher


def read(**fields: Any) -> Any:
    """A step as the server reads it from a request."""
    return TypeAdapter(Step).validate_python({"kind": "sleep", **fields})


async def test_a_sleep_runs_between_two_calls(with_sleep: None) -> None:
    """A call, a sleep that reads its output, and a call that reads the sleep: one graph."""
    sleeper = Sleeper()
    driver, dispatcher = await running(sleeper)
    try:
        session = driver.open("t")
        step = read(**{"in": {"var": "draft"}}, out="nap")
        made = [asked("draft", "hello"), asked("final", "so: ", "nap")]
        await driver.submit(session, SubmitBody(calls=tuple(made), steps=(step,)))
        slept = {"slept": 2, "after": "hello", "dreamt": "HELLO"}
        assert (await driver.readers.get(session, "nap")).value == slept
        final = await driver.readers.get(session, "final")
        assert final.value == f"so: {json.dumps(slept)}"
        [op] = sleeper.seen
        assert (op.kind, op.tokens, op.hints.depth) == ("sleep", None, 1)
        nap = session.graph.producer["nap"]
        assert session.plan.objective[nap] is Criterion.LATENCY
        assert session.plan.prefixes[nap] == ()
        assert [task.state for task in session.tasks.values()] == [RunState.DONE] * 3
        assert dispatcher.catalogue.models == ["null"], "no client can ask for a chat with it"
        session.validate()
    finally:
        await driver.shut_down()
        await dispatcher.close()


async def test_a_nap_needs_no_engine(with_sleep: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's timer is between two calls. A session that is closed stops its timer."""
    monkeypatch.setitem(KINDS.by_name, "sleep", NapKind())
    dispatcher = Dispatcher({"null": lambda: NullEngine(NullConfig())}, "app")
    driver = Driver(Registry(RegistryConfig()), dispatcher)
    await dispatcher.start(driver.reports)
    try:
        session = driver.open("t")
        short = read(**{"in": {"var": "draft"}}, out="nap", seconds=0.05)
        long = read(**{"in": {"value": "hello"}}, out="night", seconds=3600)
        made = [asked("draft", "hello"), asked("final", "so: ", "nap")]
        await driver.submit(session, SubmitBody(calls=tuple(made), steps=(short, long)))
        assert (await driver.readers.get(session, "final")).value == "so: HELLO"
        nap = session.primitives[session.graph.producer["nap"]]
        assert nap.step is not None and nap.task.ended is not None
        assert nap.task.ended - nap.step.queued >= 0.05
        assert session.tasks[session.graph.producer["night"].partition("/")[0]].state is (
            RunState.RUNNING
        )
        session.validate()
        driver.close(session)
        assert not driver._engineless._timers
    finally:
        await driver.shut_down()
        await dispatcher.close()


async def test_a_sleep_runs_for_each_item(with_sleep: None) -> None:
    """In a body its variables get names of their own for each item, and its engine is named."""
    sleeper = Sleeper()
    driver, dispatcher = await running(sleeper)
    try:
        session = driver.open("t")
        body = Body(steps=(read(**{"in": {"var": "item"}}, out="nap"),))
        each = Each(over=Source(value=["a", "b"]), body=body, collect={"nap": "naps"})
        await driver.submit(session, SubmitBody(steps=(each,)))
        naps = (await driver.readers.get(session, "naps")).value
        assert [nap["dreamt"] for nap in naps] == ["A", "B"]
        assert not any(map(changes, session.graph.primitives.values()))
    finally:
        await driver.shut_down()
        await dispatcher.close()


async def test_what_does_not_fit_is_refused(with_sleep: None) -> None:
    """A constant of a wrong type, an engine that is not there, and a field that nobody knows."""
    driver, dispatcher = await running(Sleeper())
    try:
        session = driver.open("t")
        for step, why in (
            (read(**{"in": {"value": 1}}, name="n"), "sleep 'n' takes a text"),
            (read(**{"in": {"var": "x"}}, engine="sofa"), "there is no bed 'sofa': use one of nap"),
        ):
            with pytest.raises(WeftlineError, match=why):
                await driver.submit(session, SubmitBody(steps=(step,)))
        with pytest.raises(ValidationError, match="sheep"):
            read(**{"in": {"var": "x"}}, sheep=3)
    finally:
        await driver.shut_down()
        await dispatcher.close()


@pytest.mark.parametrize(
    ("effects", "attempts"), [(Effects.NONE, [0, 1]), (Effects.ONCE, [0])], ids=["none", "once"]
)
async def test_a_step_to_run_once_gets_no_second_attempt(
    with_sleep: None, effects: Effects, attempts: list[int]
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


async def test_the_null_engine_gets_no_sleep(with_sleep: None, serve: Serve) -> None:
    """An engine is only sent the kinds that it announces."""
    server = await serve()
    session = server.driver.open("local")
    task = sleep("nap")
    await server.driver.start(session, [task])
    await asyncio.sleep(0.05)
    assert session.tasks["nap"].state is RunState.QUEUED
    server.driver.close(session)


_, _, _BEHIND = (ROOT / "CONTRIBUTING.md").read_text().partition("## Add a primitive kind")
GUIDE = _BEHIND.partition("\n## ")[0]
NAMED = set(re.findall(r"`((?:\w+/)+\w+\.(?:py|md))`", GUIDE))
OWN_FILE = "server/weftline_server/lowering/kinds/{}.py"


def test_the_guide_names_files_that_exist() -> None:
    """All paths in the section are files of this tree, but for that of the new kind."""
    assert {path for path in NAMED if not (ROOT / path).is_file()} == {OWN_FILE.format("sleep")}


def test_the_guide_names_what_a_kind_has() -> None:
    """Each method and field of the kind `sleep` stands in the section."""
    own = {name for name in vars(SleepKind) if not name.startswith("_")}
    own |= {name for name in vars(NapKind) if not name.startswith("_")}
    assert own == {"traits", "engine", "effects", "inputs", "result", "says", "wait_s"}
    assert own <= set(re.findall(r"`(\w+)`", GUIDE))


def test_a_kind_of_this_tree_stands_where_the_guide_says() -> None:
    """Beside the sentences of docs, `mean` is named in these files of the contract and the server,
    and in no other.
    """
    files = [*(ROOT / "server").rglob("*.py"), *(ROOT / "client").rglob("steps.py")]
    uses = re.compile(r"^[^#]*\bMean(Kind\b|[,.:\]]|$)", re.M)
    found = {path.relative_to(ROOT).as_posix() for path in files if uses.search(path.read_text())}
    assert OWN_FILE.format("mean") in found
    assert found - {OWN_FILE.format("mean")} <= NAMED
    assert len(found) == 3
