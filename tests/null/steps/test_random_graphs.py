"""Random graphs of calls and steps of every kind give what a plain interpreter gives, whatever
optimisations are off, and whether their primitives start at once or one in a turn. What changes
something runs if the interpreter needs it, and only then.

Every session is also replayed from its events: the same events give the same session.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from unittest import mock

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tests.null.asgi import call
from tests.null.journal.test_replay import lasting
from tests.null.steps.random_steps import TENANT, Retrieval, joined
from tests.null.steps.wire import branch, each, loop
from tests.null.test_session_machine import state_of
from weftline import predicates
from weftline.contract import transforms
from weftline.contract.protocol import SetVariable, SubmitBody
from weftline.contract.steps import Embed, Ingest, Merge, Rerank, Search, Source
from weftline.errors import WeftlineError
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullEngine
from weftline_engine.services.retrieval.core import InputRefused
from weftline_server.config import OPTIMISATIONS
from weftline_server.journal.records import Clock, encode, noted
from weftline_server.journal.replay import Opened, replay, resumed
from weftline_server.prompt.render import value_text
from weftline_server.runtime.driver import Driver
from weftline_server.runtime.registry import Registry, RegistryConfig
from weftline_server.schedule.dispatcher import Dispatcher
from weftline_server.session import hold_queue
from weftline_server.session.session import ServerSession
from weftline_server.session.variable import VariableState

SUBMIT: TypeAdapter[SubmitBody] = TypeAdapter(SubmitBody)
LETTERS = "abc"
GRAPHS = int(os.environ.get("RANDOM_GRAPHS", "300"))  # more where a bug is sought
MOST_CHARS = 300  # of a value, so that no answer is cut at 512 tokens


class Failure(Exception):
    """A variable without a value."""


Values = Callable[[str], Any]
Retrieved = Embed | Search | Merge | Rerank | Ingest


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
    # Of an each and a loop: whether its body needs a variable, in one of its items or rounds.
    inner: dict[str, Callable[[str, Values], bool]] = field(default_factory=dict)
    bodies: dict[str, Program] = field(default_factory=dict)  # of these
    asked: set[str] = field(default_factory=set)  # of a body: what its step wants of it

    def needs(self, name: str, value: Values, sure: bool = False) -> bool:
        """Whether something that nothing reads needs this variable, by the sides that are taken. An
        each that fails may have failed before it needed one, so with `sure` it needs none.
        """
        if name not in self.read or name in self.asked:
            return True
        return any(
            (
                name in used
                or (reader in self.sides and name == self._taken(reader, value))
                or (reader in self.inner and self._inside(reader, name, value, sure))
            )
            and self.needs(reader, value, sure)
            for reader, used in self.uses.items()
        )

    def always(self, name: str) -> bool:
        """Whether it is needed whatever sides are taken, and however many items a list has."""
        if name not in self.read or name in self.asked:
            return True
        return any(
            (name in used or (reader in self.bodies and self.bodies[reader].always_reads(name)))
            and self.always(reader)
            for reader, used in self.uses.items()
        )

    def always_reads(self, name: str) -> bool:
        """Whether a body needs a variable around it in every item or round."""
        return name in self.read and self.always(name)

    def _inside(self, reader: str, name: str, value: Values, sure: bool) -> bool:
        try:
            if sure:
                value(reader)
        except Failure:
            return False
        return self.bodies[reader].always_reads(name) or self.inner[reader](name, value)

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


@dataclass
class Shared:
    """What the bodies of a program share: its retrieval, the texts that its steps `stored` by their
    variables, and pairs of variables of which the first is made after the second. A step may come
    after those in `sound`, which have a value.
    """

    retrieval: Retrieval = field(default_factory=Retrieval)
    stored: dict[str, str] = field(default_factory=dict)
    after: list[tuple[str, str]] = field(default_factory=list)
    sound: list[str] = field(default_factory=list)


class Builder:
    """Builds one program from random numbers. `texts` are the variables that it can read."""

    def __init__(
        self, random: Random, prefix: str, texts: list[str], depth: int, shared: Shared
    ) -> None:
        self.random = random
        self.prefix = prefix
        self.shared = shared
        self.texts = texts
        self.depth = depth
        self.made = Program()
        self.own: list[str] = []

    def build(self, size: int) -> Program:
        kinds = [self.call, self.call, self.bad, self.branch, self.text, self.function]
        kinds += [self.search, self.ingest]
        kinds += [self.each, self.loop] if self.depth else []
        kinds += [self.client, self.for_sides] if self.prefix == "v" else []
        self.call()
        for _ in range(size):
            if self.prefix == "v":
                self._find_sound()
            self.random.choice(kinds)()
        return self.made

    def _find_sound(self) -> None:
        value = self.made.values(lambda name: Failure(name))
        self.shared.sound.clear()
        for name in self.made.rules:
            try:
                value(name)
            except Failure:
                continue
            self.shared.sound.append(name)

    def _after(self, out: str) -> list[str]:
        """A variable that has to be there before the step `out` of a function starts."""
        if not self.shared.sound or self.random.random() < 0.5:
            return []
        before = self.random.choice(self.shared.sound)
        self.made.read.add(before)
        self.made.uses[out].add(before)
        self.shared.after.append((out, before))
        return [before]

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
        line_break = self.random.choice(["", "\n"])
        prompt = letter + line_break + "".join(f"{{{{input:i{n}}}}}" for n in range(len(reads)))
        holders = {f"i{n}": read for n, read in enumerate(reads)}
        target = {"in_out": "out", "semantic_var_id": out, "transforms": list(transforms)}
        self.made.calls.append(call(out, prompt + "{{output:o}}", **holders, o=target))
        self.made.uses[out] = set(reads)

        def text(value: Values) -> str:
            return letter + line_break + "".join(value_text(value(read)) for read in reads)

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
        self.made.uses[out] = set(reads)
        step = {"kind": "client", "name": out, "reads": list(dict.fromkeys(reads)), "out": out,
                "effects": effects, "after": self._after(out)}  # fmt: skip
        self.made.careful.update([out] if effects != "none" else [])
        self.made.steps.append(step)
        self.made.clients[out] = reads
        self.made.rules[out] = lambda value: joined([value(read) for read in reads])
        return out

    def function(self) -> str:
        """A function of the operator."""
        reads, out = self._pick(self.random.randint(0, 2)), self._new()
        effects = self.random.choice(["none", "idempotent", "once"])
        self.made.uses[out] = set(reads)
        args = {f"a{number}": {"var": read} for number, read in enumerate(reads)}
        step = {"kind": "function", "name": out, "function": "glue", "args": args, "out": out,
                "effects": effects, "after": self._after(out)}  # fmt: skip
        self.made.careful.update([out] if effects != "none" else [])
        self.made.steps.append(step)
        self.made.rules[out] = lambda value: joined([value(read) for read in reads])
        return out

    def text(self) -> None:
        reads, out = self._pick(self.random.randint(1, 2)), self._new()
        parts = [{"value": "t"}, *({"var": read} for read in reads)]
        self.made.steps.append({"kind": "text", "name": out, "parts": parts, "out": out})
        self.made.uses[out] = set(reads)

        def text(value: Values) -> str:
            found = ["t", *(value(read) for read in reads)]
            if not all(isinstance(one, str) for one in found):
                raise Failure(out)
            return "".join(found)

        self.made.rules[out] = text

    def search(self) -> None:
        """Embed one or several texts, or the lines of one as they come, search for them, merge the
        hits and rerank them.
        """
        [read] = self._pick(1)
        lines = self.random.choice([(), ({"op": "line_list"},)])
        found = self._step(Embed(in_=Source(var=read, transforms=lines)))
        found = self._step(Search(in_=Source(var=found), store="docs", k=2))
        for _ in range(self.random.randint(0, 2)):
            query, source = Source(value=self.random.choice(LETTERS)), Source(var=found)
            merged, few = Merge(in_=source), Merge(in_=source, limit=2)
            choices: list[Retrieved] = [merged, few, Rerank(in_=source, query=query, k=2)]
            found = self._step(self.random.choice(choices))

    def ingest(self) -> str:
        """Store a text that no other step stores."""
        said = f"text of {self.prefix}{len(self.own)}"
        vectors = self._step(Embed(in_=Source(value=said)))
        out = self._step(Ingest(in_=Source(var=vectors), store="kept"))
        self.shared.stored[out] = said
        self.made.careful.add(out)
        self.made.steps[-1]["after"] = self._after(out)
        return out

    def _step(self, step: Retrieved) -> str:
        """Add a step, which computes what the retrieval says."""
        out, source = self._new(), step.in_
        wire: dict[str, Any] = {"kind": step.kind, "name": out, "out": out}
        wire["in"] = {"value": source.value} if source.var is None else {"var": source.var}
        if source.transforms:
            wire["in"]["transforms"] = list(source.transforms)
        for name in ("store", "k", "limit"):
            if getattr(step, name, None) is not None:
                wire[name] = getattr(step, name)
        if isinstance(step, Rerank):
            wire["query"] = {"value": step.query.value}
        reads = {source.var} if source.var else set()
        self.made.read.update(reads)
        self.made.uses[out] = reads
        self.made.steps.append(wire)

        def result(value: Values) -> Any:
            read = source.value if source.var is None else value(source.var)
            try:
                given = {"in": transforms.run(source.transforms, read)}
                given |= {"query": step.query.value} if isinstance(step, Rerank) else {}
                return self.shared.retrieval.run(step, given)
            except (WeftlineError, InputRefused) as error:
                raise Failure(out) from error

        self.made.rules[out] = result
        return out

    def for_sides(self) -> None:
        """A step with effects that nothing reads but sides of two branches."""
        side = self.random.choice([self.client, self.function, self.ingest])()
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
                        self.depth - 1, self.shared)  # fmt: skip
        body = inner.build(self.random.randint(0, 2))
        self.made.read.update(body.read)
        own, out = self.random.choice(inner.own), self._new()
        self.made.uses[out] = set()
        body.asked, self.made.bodies[out] = {own}, body

        def needs(name: str, value: Values) -> bool:
            items = (body.values(with_names(value, {item: one})) for one in listed)
            return name in body.read and any(body.needs(name, one) for one in items)

        self.made.inner[out] = needs
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
                        self.depth - 1, self.shared)  # fmt: skip
        body = inner.build(self.random.randint(0, 2))
        self.made.read.update(body.read)
        after, asked = self.random.choice(inner.own), self.random.choice(inner.own)
        when, most, out = self._when(), self.random.randint(1, 3), self._new()
        self.made.uses[out] = {first}
        body.asked, self.made.bodies[out] = {after, asked}, body
        until = {"on": asked, "when": when}
        step = loop({carry: first}, {carry: after}, {"calls": body.calls, "steps": body.steps},
                    until, most=most, out=out, name=out)  # fmt: skip
        self.made.steps.append(step)

        def rounds(value: Values) -> Iterator[tuple[Values, Any]]:
            """What each round reads around it, and its carry."""
            outside: Values = lambda name: value(first if name == carry else name)  # noqa: E731
            for _ in range(most):
                yield outside, Failure(out)
                carried = body.outcome(outside, after)
                yield outside, carried
                if holds(when, body.outcome(outside, asked)):
                    return
                outside = with_names(value, {carry: carried})

        def last(value: Values) -> Any:
            return [carried for _, carried in rounds(value)][-1]

        def needs(name: str, value: Values) -> bool:
            try:
                for outside, _ in rounds(value):
                    if name in body.read and body.needs(name, body.values(outside)):
                        return True
            except Failure:
                pass
            return False

        self.made.rules[out], self.made.inner[out] = last, needs

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


async def computed(driver: Driver, session: ServerSession, out: str, reads: list[str]) -> None:
    """Play the client of a step, which computes it when the server says that it is due."""
    if not await driver.readers.due(session, out):
        return
    try:
        values = [(await driver.readers.get(session, read)).value for read in reads]
        driver.set(session, out, SetVariable(value=joined(values)))
    except WeftlineError:
        pass  # the step has been skipped since


async def outcomes(
    program: Program, without: frozenset[str], random: Random, retrieval: Retrieval
) -> ServerSession:
    """Run the program on engines with random delays, until every variable is settled."""
    config = NullConfig(latency=LatencyProfile(step_s=random.choice([0.0, 0.0002])))
    engines = {"null": lambda: NullEngine(config), **retrieval.engines(without)}
    dispatcher = Dispatcher(engines, "app", without=without)
    driver = Driver(Registry(RegistryConfig(), without), dispatcher, without)
    await dispatcher.start(driver.reports)
    try:
        session = driver.open(TENANT)
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
        await driver._runners.workers.close()  # the session itself stays as it is
        await dispatcher.close()


# A wall clock's time has fewer bits than the difference of two real ones, so these are the same.
CLOCK = Clock(0.0)


def check_replay(session: ServerSession, without: frozenset[str]) -> None:
    """Every event again, through a new session that is checked after each."""
    again = ServerSession(session.id, session.tenant, session.opened, without)
    records: list[bytes] = []
    for event in session._remembered:
        record = noted(again, event, again.handle(event))
        if record is not None:
            records.append(encode(record, CLOCK))
        again.validate()
    found, wanted = state_of(again), state_of(session)
    assert found == wanted
    check_records(session, records, without)


def at_once(session: ServerSession) -> dict[str, Any]:
    """What lasts of a session, with each step queued when the session was opened: the replay takes
    all turns at once, so that it queues what was held a little earlier.
    """
    found = lasting(session)
    found["steps"] = {
        id: replace(step, queued=session.opened) for id, step in found["steps"].items()
    }
    return found


def check_records(session: ServerSession, records: list[bytes], without: frozenset[str]) -> None:
    """What a store would hold gives the same session; cut off anywhere, one that can go on."""

    def made(id: str, tenant: str, now: float, stays: bool) -> ServerSession:
        return ServerSession(id, tenant, now, without, stays=stays)

    opened = Opened(session.tenant, session.id, "", CLOCK.wall(session.opened), session.stays)
    assert at_once(replay(opened, records, CLOCK, made)) == at_once(session)
    for count in range(0, len(records), 1 + len(records) // 8):
        cut = replay(opened, records[:count], CLOCK, made)
        cut.validate()
        cut.handle(resumed(session.opened, 2))
        cut.validate()


# 300 graphs take a minute or two of a slow core. Beside much other work they took 309 s.
@pytest.mark.timeout(900)
@settings(max_examples=GRAPHS, deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    random=st.randoms(use_true_random=False),
    size=st.integers(1, 7),
    without=st.frozensets(st.sampled_from(sorted(OPTIMISATIONS))),
)
def test_a_graph_gives_what_its_steps_give_one_by_one(
    random: Random, size: int, without: frozenset[str]
) -> None:
    """Random graphs, with random optimisations switched off, and their replay."""
    shared = Shared()
    program = Builder(random, "v", [], 2, shared).build(size)
    with mock.patch.object(hold_queue, "PART", 1 if size % 2 else hold_queue.PART):
        session = asyncio.run(outcomes(program, without, random, shared.retrieval))
        check_outcomes(program, session)
        check_effects(program, shared, session)
        session.validate()
        check_replay(session, without)


def check_outcomes(program: Program, session: ServerSession) -> None:
    """Every variable has the value or the failure that the interpreter gives it."""
    value = program.values(lambda name: Failure(name))
    for name in program.rules:
        variable = session.variables[name]
        if variable.state is VariableState.SKIPPED:
            assert name in program.read, "only what something reads can be skipped"
            is_needed = name in program.careful and program.needs(name, value, sure=True)
            assert not is_needed, f"{name} did not run for a side that was taken"
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


def check_effects(program: Program, shared: Shared, session: ServerSession) -> None:
    """The store holds what the steps that ended have stored. What comes after a step begins when
    that has ended.
    """
    made = {id.rsplit(".", 1)[-1] for id, one in session.variables.items() if one.value is not None}
    assert shared.retrieval.texts() == {said for id, said in shared.stored.items() if id in made}
    for out, before in shared.after:
        if before not in program.careful:
            continue
        first = session.execution.producer(before)
        for task in session.tasks.values():
            if first is None or out not in [id.rsplit(".", 1)[-1] for id in task.task.writes]:
                continue
            for step in task.steps:
                assert step.queued >= (first.steps[-1].finished or 0.0), (out, before)
