"""The session: events in, actions out; it decides what runs and who is told, and acts on nothing.

No clock and no I/O: time enters with the events, so every behaviour here can be tested as data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from weftline.errors import (
    AlreadySet,
    Cancelled,
    NoProducer,
    UnknownCall,
    UnknownVariable,
    WeftlineError,
)
from weftline_server.graph.graph import Graph, Node
from weftline_server.passes import Plan
from weftline_server.prompt.render import segments_before
from weftline_server.session import events as ev
from weftline_server.session.budget import Budget, Spent
from weftline_server.session.call import UNDER_WAY, CallRun, CallState, Step
from weftline_server.session.planning import Planning
from weftline_server.session.reuse import Reuse
from weftline_server.session.variable import Variable, VariableState


class Session:
    """One application run. `handle` gives actions, or raises and changes nothing."""

    def __init__(
        self,
        id: str,
        tenant: str,
        now: float,
        without: frozenset[str] = frozenset(),
        budget: Budget | None = None,
    ) -> None:
        self.id = id
        self.spent = Spent(budget or Budget())
        self.tenant = tenant
        self.opened = now
        self.touched = now  # when a client last named it
        self.closed = False
        self.graph = Graph()
        self.variables: dict[str, Variable] = {}
        self.calls: dict[str, CallRun] = {}
        self.planning = Planning(self.graph, without)
        self.readers: dict[str, int] = {}  # variable → open gets and streams
        self.work_left = 0  # tokens of the calls that have not ended, roughly
        self.under_way = 0  # calls that are on an engine, or on their way there
        self._told_left = 0  # the same, when the calls that wait were told last
        self.ended: list[CallRun] = []  # calls that have ended since the driver looked
        self.stays = True  # more calls may come than it knows; a route may know better
        self.reuse = Reuse()

    @property
    def plan(self) -> Plan:
        """What the passes say of the graph as it stands; what has changed is planned anew first."""
        self._replan()
        return self.planning.plan

    @property
    def due(self) -> bool:
        """Whether calls that wait may have to be told of another plan, or of half or twice the work
        that is left: so each hears of it in time, and of ten thousand none more than a few times.
        """
        told, left = self._told_left, self.work_left
        return self.planning.due or (left > 0 and not told < 2 * left < 4 * told)

    def replanned(self) -> Sequence[str]:
        """Calls that wait, and of which something else is true than it was: each is given once."""
        self._replan()
        moved = self.planning.take_moved()
        if not self._told_left < 2 * self.work_left < 4 * self._told_left:
            self._told_left = self.work_left
            moved = [id for id, run in self.calls.items() if run.state is CallState.QUEUED]
        return moved

    def _replan(self) -> None:
        for call in self.planning.update():
            if self.calls[call].live:
                self.reuse.add(call, self.planning.plan.prefixes.get(call, ()))

    def variable(self, id: str) -> Variable:
        if id not in self.variables:
            raise UnknownVariable(f"the session has no variable {id[:64]!r}", param=id)
        return self.variables[id]

    def check(self, nodes: Sequence[Node]) -> None:
        """Raise unless `nodes` can join the graph; see `Graph.check`."""
        writes = (v for node in nodes for v in node.writes if v in self.variables)
        self.graph.check(nodes, [v for v in writes if self.variables[v].settled])

    def validate(self) -> None:
        """Assert what holds between any two events."""
        for id, run in self.calls.items():
            settled = [self.variables[v].settled for v in run.node.writes]
            assert run.live or all(settled), f"call {id} is {run.state}, an output is open"
            assert not run.live or not any(settled[run.index :]), f"call {id} lives, output settled"
            if run.state is CallState.WAITING:
                assert self._missing(run), f"call {id} waits for nothing"
        assert self.work_left == sum(run.work for run in self.calls.values() if run.live)
        assert self.under_way == sum(run.state in UNDER_WAY for run in self.calls.values())
        for var, variable in self.variables.items():
            if variable.state is VariableState.STREAMING:
                assert self.graph.producer.get(var), f"variable {var} streams from nowhere"
            assert (variable.error is not None) == (variable.state is VariableState.FAILED)

    def handle(self, event: ev.SessionEvent) -> list[ev.Action]:
        """Take one event; what each type does is in the table at the end."""
        return _HANDLERS[type(event)](self, event)

    def story(self) -> list[Any]:
        """The session's newest events, oldest first."""
        return []

    def _submit(self, event: ev.CallsSubmitted) -> list[ev.Action]:
        self.check(event.nodes)
        self.spent.take_calls(event.nodes, event.now - self.opened)
        self.graph.add(event.nodes)
        actions: list[ev.Action] = []
        for node in event.nodes:
            for var in (*node.reads, *node.writes):
                self.variables.setdefault(var, Variable(var))
            run = CallRun(node, event.now, event.detach)
            self.calls[node.id] = run
            self.work_left += run.work
            self.planning.add(node.id)
            if node.call.criteria is not None:
                for var in node.writes:
                    self.planning.want(var, node.call.criteria)
        self._told_left = self._told_left or self.work_left
        for node in event.nodes:
            actions += self._advance(self.calls[node.id], event.now)
        return actions

    def _set(self, event: ev.VariableSet) -> list[ev.Action]:
        variable = self.variables.get(event.variable)
        if event.variable in self.graph.producer or (variable is not None and variable.settled):
            raise AlreadySet(
                f"variable {event.variable!r} already has a value or a producer",
                param=event.variable,
            )
        self.spent.take_value(event.value, event.now - self.opened)
        variable = self.variables.setdefault(event.variable, Variable(event.variable))
        variable.set(event.value)
        return [ev.Notify(variable.id), *self._feed_consumers(variable.id, event.now)]

    def check_reader(self, variable: str, wait: bool) -> None:
        """Raise unless `variable` may be waited for: UnknownVariable, NoProducer without `wait`."""
        if wait or self.variable(variable).settled:
            return
        if (empty := self._source(variable)) is not None:
            waits = "" if empty == variable else f", which {variable!r} waits for,"
            raise NoProducer(
                f"variable {empty!r}{waits} has no value and no call that produces it: "
                "set it, submit its call, or get with wait=true",
                param=empty,
            )

    def _open_reader(self, event: ev.ReaderOpened) -> list[ev.Action]:
        self.check_reader(event.variable, event.wait)
        # With `wait`, a variable may be named before anything else names it.
        self.variables.setdefault(event.variable, Variable(event.variable))
        self.readers[event.variable] = self.readers.get(event.variable, 0) + 1
        if event.criteria is not None:
            self.planning.want(event.variable, event.criteria)
        return []

    def _close_reader(self, event: ev.ReaderClosed) -> list[ev.Action]:
        self.readers[event.variable] -= 1
        if not self.readers[event.variable]:
            del self.readers[event.variable]
        if event.served or event.variable in self.readers:
            return []
        return self._cancel_unwatched(event.variable)

    def _sent(self, event: ev.PrimitiveSent) -> list[ev.Action]:
        run = self._run_at(event)
        if run is None or run.state not in (CallState.QUEUED, CallState.RUNNING):
            return []
        if run.state is CallState.QUEUED:  # else another attempt, perhaps on another engine
            self._move(run, CallState.RUNNING)
            self.planning.start(run.node.id)
        run.steps[-1].sent = event.now
        run.steps[-1].engine, run.steps[-1].node = event.engine, event.node
        return []

    def _text(self, event: ev.TextGenerated) -> list[ev.Action]:
        run = self._run_at(event)
        if run is None:
            return []
        run.steps[-1].logprobs += event.logprobs
        if not event.text:
            return []
        variable = self.variables[run.node.writes[event.index]]
        news = variable.append(event.text)
        return [ev.Notify(variable.id), *(self._fill_consumers(variable.id) if news else ())]

    def _finished(self, event: ev.PrimitiveFinished) -> list[ev.Action]:
        run = self._run_at(event)
        if run is None:
            return []
        step = run.steps[-1]
        step.finished, step.usage, step.reason = event.now, event.usage, event.reason
        step.transform_s = event.transform_s
        if event.error is not None:
            return self._fail(run, event.error)
        variable = self.variables[run.node.writes[event.index]]
        variable.set(event.value)
        self.spent.add_value(event.value)
        run.index += 1
        if run.index == len(run.node.writes):
            self._move(run, CallState.DONE)
            self.work_left -= run.work
            self.planning.start(run.node.id)
            self.reuse.end(run.node.id)
            self.ended.append(run)
            own: list[ev.Action] = []
        else:
            self._move(run, CallState.WAITING)
            own = self._advance(run, event.now)
        return [ev.Notify(variable.id), *own, *self._feed_consumers(variable.id, event.now)]

    def _failed(self, event: ev.PrimitiveFailed) -> list[ev.Action]:
        run = self._run_at(event)
        return [] if run is None else self._fail(run, event.error)

    def _cancel(self, event: ev.CallCancelled) -> list[ev.Action]:
        """The call and all that hangs below it; raises UnknownCall."""
        if event.call not in self.calls:
            raise UnknownCall(f"the session has no call {event.call[:64]!r}", param="call_id")
        run = self.calls[event.call]
        if not run.live:
            return []
        name = run.node.call.name
        return self._fail(run, Cancelled(f"call {name!r} was cancelled"), CallState.CANCELLED)

    def _cancel_variable(self, event: ev.VariableCancelled) -> list[ev.Action]:
        """The call that makes it, or what waits for it to be set, is cancelled."""
        variable = self.variable(event.variable)
        if variable.settled:
            return []
        producer = self.graph.producer.get(variable.id)
        if producer is not None:
            return self._cancel(ev.CallCancelled(now=event.now, call=producer))
        variable.fail(Cancelled(f"variable {variable.id!r} was cancelled", param=variable.id))
        return [ev.Notify(variable.id), *self._feed_consumers(variable.id, event.now)]

    def _close(self, event: ev.SessionClosed) -> list[ev.Action]:
        self.closed = True
        actions: list[ev.Action] = []
        for run in self.calls.values():
            if run.live:
                actions += self._fail(run, Cancelled(event.reason), CallState.CANCELLED)
        for variable in self.variables.values():
            if not variable.settled:
                variable.fail(Cancelled(event.reason))
                actions.append(ev.Notify(variable.id))
        return actions

    def _move(self, run: CallRun, state: CallState) -> None:
        self.under_way += (state in UNDER_WAY) - (run.state in UNDER_WAY)
        run.move_to(state)

    def _run_at(self, event: ev.PrimitiveEvent) -> CallRun | None:
        """The call that `event` is about, or None if it has moved on (late news)."""
        run = self.calls.get(event.call)
        return run if run is not None and run.live and run.index == event.index else None

    def _missing(self, run: CallRun) -> bool:
        """Whether an input before the current output has no value yet."""
        output = run.node.outputs[run.index]
        names = {s.input for s in segments_before(run.node.call, output.name)}
        needed = (p.semantic_var_id for p in run.node.inputs if p.name in names)
        return any(v and self.variables[v].state is not VariableState.READY for v in needed)

    def _advance(self, run: CallRun, now: float) -> list[ev.Action]:
        """Queue the next output of a waiting call if its inputs are there; fail if one failed."""
        if run.state is not CallState.WAITING:
            return []
        failed = (self.variables[v].error for v in run.node.reads)
        error = next((e for e in failed if e is not None), None)
        if error is not None:
            return self._fail(run, error)
        if self._missing(run):
            return self._fill(run)
        run.filling = False
        self._move(run, CallState.QUEUED)
        run.steps.append(Step(queued=now))
        return [ev.Run(run.node.id, run.index)]

    def _feed_consumers(self, variable: str, now: float) -> list[ev.Action]:
        consumers = self.graph.consumers.get(variable, ())
        return [a for call in consumers for a in self._advance(self.calls[call], now)]

    def _fill(self, run: CallRun) -> list[ev.Action]:
        """What is known of a waiting call's prompt can be filled before the rest of it exists."""
        run.filling = True
        return [ev.Fill(run.node.id, run.index)]

    def _fill_consumers(self, variable: str) -> list[ev.Action]:
        consumers = (self.calls[call] for call in self.graph.consumers.get(variable, ()))
        waiting = (run for run in consumers if run.state is CallState.WAITING)
        return [action for run in waiting for action in self._fill(run)]

    def _fail(
        self, run: CallRun, error: WeftlineError, state: CallState = CallState.FAILED
    ) -> list[ev.Action]:
        """End `run` and, at once, every call below it, all with the first call's error."""
        error.of_call(run.node.call.name)
        actions: list[ev.Action] = []
        ending = deque([(run, state)])
        while ending:
            run, state = ending.popleft()
            if not run.live:
                continue
            if run.filling or run.state in (CallState.QUEUED, CallState.RUNNING):
                actions.append(ev.Stop(run.node.id, run.index))
            self._move(run, state)
            run.error = error
            self.work_left -= run.work
            self.planning.start(run.node.id)
            self.reuse.end(run.node.id)
            self.ended.append(run)
            for var in run.node.writes[run.index :]:
                self.variables[var].fail(error)
                actions.append(ev.Notify(var))
            below = (self.calls[c] for c in self.graph.downstream(run.node.id))
            ending.extend((child, state) for child in below)
        return actions

    def _source(self, variable: str) -> str | None:
        """An empty variable without producer that `variable` is or depends on, if any."""
        seen = {variable}
        waiting = [variable]
        while waiting:
            var = waiting.pop()
            if self.variables[var].state is not VariableState.EMPTY:
                continue
            producer = self.graph.producer.get(var)
            if producer is None:
                return var
            for read in self.graph.nodes[producer].reads:
                if read not in seen:
                    seen.add(read)
                    waiting.append(read)
        return None

    def _cancel_unwatched(self, variable: str) -> list[ev.Action]:
        """Cancel what only the reader of `variable` waited for: its ancestry, up to other uses."""
        actions: list[ev.Action] = []
        producer = self.graph.producer.get(variable)
        waiting = [producer] if producer is not None else []
        while waiting:
            run = self.calls[waiting.pop()]
            if not run.live or run.detached or self._used(run.node, besides=variable):
                continue
            gone = Cancelled("its last reader went away")
            actions += self._fail(run, gone, CallState.CANCELLED)
            waiting.extend(self.graph.upstream(run.node.id))
        return actions

    def _used(self, node: Node, besides: str) -> bool:
        """Whether a reader, a live call or a later get may still want an output of `node`."""

        def users(var: str) -> Iterator[bool]:
            consumers = self.graph.consumers.get(var, ())
            yield var in self.readers
            yield any(self.calls[c].live for c in consumers)
            yield not consumers and var != besides  # a sink that nobody has asked for yet

        return any(used for var in node.writes for used in users(var))


_HANDLERS: Mapping[type[ev.SessionEvent], Callable[[Session, Any], list[ev.Action]]] = (
    MappingProxyType(
        {
            ev.CallsSubmitted: Session._submit,
            ev.VariableSet: Session._set,
            ev.ReaderOpened: Session._open_reader,
            ev.ReaderClosed: Session._close_reader,
            ev.PrimitiveSent: Session._sent,
            ev.TextGenerated: Session._text,
            ev.PrimitiveFinished: Session._finished,
            ev.PrimitiveFailed: Session._failed,
            ev.CallCancelled: Session._cancel,
            ev.VariableCancelled: Session._cancel_variable,
            ev.SessionClosed: Session._close,
        }
    )
)
