"""Random graphs of calls and steps give what a plain interpreter gives, whatever passes are off,
and whether their primitives start at once or one in a turn.

Every session is also replayed from its events: the same events give the same session.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from unittest import mock

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tests.null.asgi import call
from tests.null.journal.test_replay import lasting
from tests.null.steps.wire import branch, each, loop
from tests.null.test_session_machine import state_of
from weftline import predicates
from weftline.errors import WeftlineError
from weftline.protocol import SetVariable, Submit
from weftline_engine.null import LatencyProfile, NullConfig, NullEngine
from weftline_server.journal.records import Clock, encode, noted
from weftline_server.journal.replay import Opened, replay, resumed
from weftline_server.passes import PASSES
from weftline_server.prompt.render import value_text
from weftline_server.runtime.driver import Driver
from weftline_server.runtime.registry import Registry, RegistryConfig
from weftline_server.schedule.dispatcher import Dispatcher
from weftline_server.session import held
from weftline_server.session.session import Session
from weftline_server.session.variable import VariableState

SUBMIT: TypeAdapter[Submit] = TypeAdapter(Submit)
LETTERS = "abc"
GRAPHS = int(os.environ.get("RANDOM_GRAPHS", "300"))  # more where a bug is sought
MOST_CHARS = 300  # of a value, so that no answer is cut at 512 tokens


class Failure(Exception):
    """A variable without a value."""


Values = Callable[[str], Any]


@dataclass
class Program:
    """Calls and steps, and for each variable how a plain program computes it."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    rules: dict[str, Callable[[Values], Any]] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    clients: dict[str, list[str]] = field(default_factory=dict)  # variable → what it reads
    careful: set[str] = field(default_factory=set)  # of these, what changes something
    uses: dict[str, set[str]] = field(default_factory=dict)  # variable → what it needs
    sides: dict[str, tuple[str, Any, str, str]] = field(default_factory=dict)  # of branches

    def needs(self, name: str, value: Values) -> bool:
        """Whether a variable that nothing reads needs this one, by the sides that are taken."""
        if name not in self.read:
            return True
        return any(
            (name in used or (reader in self.sides and name == self._taken(reader, value)))
            and self.needs(reader, value)
            for reader, used in self.uses.items()
        )

    def _taken(self, out: str, value: Values) -> str | None:
        on, when, side, default = self.sides[out]
        try:
            return side if holds(when, value(on)) else default
        except Failure:
            return None

    def values(self, outside: Values) -> Values:
        """The values of its variables, each computed when it is asked for."""
        known: dict[str, Any] = {}

        def value(name: str) -> Any:
            if name not in self.rules:
                return outside(name)
            if name not in known:
                try:
                    known[name] = self.rules[name](value)
                except Failure as failure:
                    known[name] = failure
            if isinstance(known[name], Failure):
                raise known[name]
            return known[name]

        return value

    def outcome(self, outside: Values, wanted: str) -> Any:
        """The value of `wanted` once all that nothing reads has ended well, too."""
        value = self.values(outside)
        for name in self.rules.keys() - self.read:
            value(name)
        return value(wanted)


class Builder:
    """Builds one program from random numbers. `texts` are the variables that it can read."""

    def __init__(self, random: Random, prefix: str, texts: list[str], depth: int) -> None:
        self.random = random
        self.prefix = prefix
        self.texts = texts
        self.depth = depth
        self.made = Program()
        self.own: list[str] = []

    def build(self, size: int) -> Program:
        kinds = [self.call, self.call, self.bad, self.branch]
        kinds += [self.each, self.loop] if self.depth else []
        kinds += [self.client, self.shared] if self.prefix == "v" else []
        self.call()
        for _ in range(size):
            self.random.choice(kinds)()
        return self.made

    def _new(self) -> str:
        name = f"{self.prefix}{len(self.own)}"
        self.own.append(name)
        self.texts = [*self.texts, name]
        return name

    def _pick(self, count: int) -> list[str]:
        found = [self.random.choice(self.texts) for _ in range(min(count, len(self.texts)))]
        self.made.read.update(found)
        return found

    def call(self, transforms: Any = ()) -> str:
        reads = self._pick(self.random.randint(0, 2))
        letter, out = self.random.choice(LETTERS), self._new()
        prompt = letter + "".join(f"{{{{input:i{n}}}}}" for n in range(len(reads)))
        holders = {f"i{n}": read for n, read in enumerate(reads)}
        target = {"in_out": "out", "semantic_var_id": out, "transforms": list(transforms)}
        self.made.calls.append(call(out, prompt + "{{output:o}}", **holders, o=target))
        self.made.uses[out] = set(reads)

        def text(value: Values) -> str:
            return letter + "".join(value_text(value(read)) for read in reads)

        self.made.rules[out] = text
        return out

    def bad(self) -> None:
        """A call whose text is no JSON."""
        out = self.call([{"op": "json"}])

        def fails(value: Values) -> Any:
            raise Failure(out)

        self.made.rules[out] = fails

    def client(self) -> str:
        reads, out = self._pick(self.random.randint(0, 2)), self._new()
        effects = self.random.choice(["none", "idempotent", "once"])
        step = {"kind": "client", "name": out, "reads": list(dict.fromkeys(reads)), "out": out,
                "effects": effects}  # fmt: skip
        self.made.uses[out] = set(reads)
        self.made.careful.update([out] if effects != "none" else [])
        self.made.steps.append(step)
        self.made.clients[out] = reads
        self.made.rules[out] = lambda value: joined([value(read) for read in reads])
        return out

    def shared(self) -> None:
        """A step of the client that nothing reads but sides of two branches."""
        side = self.client()
        self.texts.remove(side)
        self.made.read.add(side)
        for _ in range(2):
            self.branch(side)

    def branch(self, only: str = "") -> None:
        count = 2 if only else 3
        on, *sides = self._pick(count) if len(self.texts) >= count else self._pick(1) * count
        side, default = [only, *sides] if only else sides
        when, out = self._when(), self._new()
        self.made.steps.append(branch(on, {side: when}, default, out, name=out))
        self.made.uses[out], self.made.sides[out] = {on}, (on, when, side, default)

        def taken(value: Values) -> Any:
            return value(side if holds(when, value(on)) else default)

        self.made.rules[out] = taken

    def each(self) -> None:
        listed = [self.random.choice(LETTERS) for _ in range(self.random.randint(0, 3))]
        item = f"{self.prefix}i{len(self.own)}"
        inner = Builder(self.random, f"{self.prefix}{len(self.own)}_", [*self.texts, item],
                        self.depth - 1)  # fmt: skip
        body = inner.build(self.random.randint(0, 2))
        self.made.read.update(body.read)
        own, out = self.random.choice(inner.own), self._new()
        self.made.uses[out] = body.read
        policy = self.random.choice(["fail", "skip", "value"])
        more = {"otherwise": "else"} if policy == "value" else {}
        step = each(listed, {"calls": body.calls, "steps": body.steps}, {own: out}, item=item,
                    on_error=policy, name=out, **more)  # fmt: skip
        self.made.steps.append(step)

        def gathered(value: Values) -> list[Any]:
            found = []
            for one in listed:
                try:
                    found.append(body.outcome(with_names(value, {item: one}), own))
                except Failure:
                    if policy == "fail":
                        raise
                    if policy == "value":
                        found.append("else")
            return found

        self.made.rules[out] = gathered

    def loop(self) -> None:
        [first] = self._pick(1)
        carry = f"{self.prefix}k{len(self.own)}"
        inner = Builder(self.random, f"{self.prefix}{len(self.own)}_", [*self.texts, carry],
                        self.depth - 1)  # fmt: skip
        body = inner.build(self.random.randint(0, 2))
        self.made.read.update(body.read)
        after, asked = self.random.choice(inner.own), self.random.choice(inner.own)
        when, most, out = self._when(), self.random.randint(1, 3), self._new()
        self.made.uses[out] = {first, *body.read}
        until = {"on": asked, "when": when}
        step = loop({carry: first}, {carry: after}, {"calls": body.calls, "steps": body.steps},
                    until, most=most, out=out, name=out)  # fmt: skip
        self.made.steps.append(step)

        def last(value: Values) -> Any:
            outside: Values = lambda name: value(first if name == carry else name)  # noqa: E731
            for _ in range(most):
                carried = body.outcome(outside, after)
                if holds(when, body.outcome(outside, asked)):
                    break
                outside = with_names(value, {carry: carried})
            return carried

        self.made.rules[out] = last

    def _when(self) -> dict[str, Any]:
        letter = self.random.choice(LETTERS)
        found: list[dict[str, Any]] = [
            {"op": "contains", "value": letter * 2},
            {"op": "not", "of": {"op": "starts", "value": letter}},
            {"op": "truthy"},
            {"op": "matches", "value": f"{letter}$"},
        ]
        return self.random.choice(found)


def with_names(outside: Values, names: dict[str, Any]) -> Values:
    return lambda name: names[name] if name in names else outside(name)


def holds(when: dict[str, Any], value: Any) -> bool:
    try:
        return predicates.holds(when, value)
    except WeftlineError as error:
        raise Failure(str(error)) from error


def joined(values: list[Any]) -> str:
    return "<" + "|".join(map(value_text, values)) + ">"


async def computed(driver: Driver, session: Session, out: str, reads: list[str]) -> None:
    """Play the client of a step, which computes it when the server says that it is due."""
    if not await driver.readers.due(session, out):
        return
    try:
        values = [(await driver.readers.get(session, read)).value for read in reads]
        driver.set(session, out, SetVariable(value=joined(values)))
    except WeftlineError:
        pass  # the step has been skipped since


async def outcomes(program: Program, without: frozenset[str], random: Random) -> Session:
    """Run the program on an engine with random delays, until every variable is settled."""
    config = NullConfig(latency=LatencyProfile(step_s=random.choice([0.0, 0.0002])))
    dispatcher = Dispatcher({"null": lambda: NullEngine(config)}, "app", without=without)
    driver = Driver(Registry(RegistryConfig(), without), dispatcher, without)
    await dispatcher.start(driver)
    try:
        session = driver.open("t")
        wire = json.dumps({"calls": program.calls, "steps": program.steps, "detach": True})
        await driver.submit(session, SUBMIT.validate_json(wire, strict=True))
        clients = [
            asyncio.create_task(computed(driver, session, out, reads))
            for out, reads in program.clients.items()
        ]
        await asyncio.gather(*clients)
        while any(run.live for run in session.tasks.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.0005)
        return session
    finally:
        await dispatcher.close()


# A wall clock's time has fewer bits than the difference of two real ones, so these are the same.
CLOCK = Clock(0.0)


def check_replay(session: Session, without: frozenset[str]) -> None:
    """Every event again, through a new session that is checked after each."""
    again = Session(session.id, session.tenant, session.opened, without)
    records: list[bytes] = []
    for event in session._remembered:
        record = noted(again, event, again.handle(event))
        if record is not None:
            records.append(encode(record, CLOCK))
        again.validate()
    found, wanted = state_of(again), state_of(session)
    assert found == wanted
    check_records(session, records, without)


def at_once(session: Session) -> dict[str, Any]:
    """What lasts of a session, with each step queued when the session was opened: the replay takes
    all turns at once, so that it queues what was held a little earlier.
    """
    found = lasting(session)
    found["steps"] = {
        id: replace(step, queued=session.opened) for id, step in found["steps"].items()
    }
    return found


def check_records(session: Session, records: list[bytes], without: frozenset[str]) -> None:
    """What a store would hold gives the same session; cut off anywhere, one that can go on."""

    def made(id: str, tenant: str, now: float, stays: bool) -> Session:
        return Session(id, tenant, now, without, stays=stays)

    opened = Opened(session.tenant, session.id, "", CLOCK.wall(session.opened), session.stays)
    assert at_once(replay(opened, records, CLOCK, made)) == at_once(session)
    for count in range(0, len(records), 1 + len(records) // 8):
        cut = replay(opened, records[:count], CLOCK, made)
        cut.validate()
        cut.handle(resumed(session.opened, 2))
        cut.validate()


@settings(max_examples=GRAPHS, deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    random=st.randoms(use_true_random=False),
    size=st.integers(1, 7),
    without=st.frozensets(st.sampled_from(sorted({*PASSES, "speculate"}))),
)
def test_a_graph_gives_what_its_steps_give_one_by_one(
    random: Random, size: int, without: frozenset[str]
) -> None:
    """Random graphs, with random optimisations switched off, and their replay."""
    program = Builder(random, "v", [], depth=2).build(size)
    with mock.patch.object(held, "PART", 1 if size % 2 else held.PART):
        session = asyncio.run(outcomes(program, without, random))
        check_outcomes(program, session)
        session.validate()
        check_replay(session, without)


def check_outcomes(program: Program, session: Session) -> None:
    """Every variable has the value or the failure that the interpreter gives it."""
    value = program.values(lambda name: Failure(name))
    for name in program.rules:
        variable = session.variables[name]
        if variable.state is VariableState.SKIPPED:
            assert name in program.read, "only what something reads can be skipped"
            continue
        try:
            wanted = value(name)
        except Failure:
            assert variable.state is VariableState.FAILED, (name, variable)
        else:
            assert variable.state is VariableState.READY, (name, variable.error)
            assert variable.value == wanted
        if name in program.careful and variable.state is VariableState.READY:
            assert program.needs(name, value), f"{name} ran for a side that was not taken"
