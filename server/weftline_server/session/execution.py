"""Which primitives of a session can run, and the effects of a result or a failure on the others.

Pure: every method returns the actions that follow from the change that it makes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from weftline.contract.errors import BudgetExceeded, Cancelled, WeftlineError
from weftline_server.graph.graph import Graph
from weftline_server.graph.growth import TakesItems
from weftline_server.graph.primitive import Flow
from weftline_server.session import events as ev
from weftline_server.session.budget import Spent
from weftline_server.session.burst import Burst
from weftline_server.session.draft import Draft
from weftline_server.session.hold_queue import HoldQueue
from weftline_server.session.need import (
    Need,
    changes,
    is_needed,
    need_of,
)
from weftline_server.session.planning import Planning
from weftline_server.session.readiness import (
    continues,
    failed_input,
    gathers,
    is_behind,
    lost_read,
    ready_reads,
    takers,
    undecided,
)
from weftline_server.session.task import (
    ALLOWED,
    UNDER_WAY,
    PrimitiveRun,
    PrimitiveTimes,
    RunState,
    TaskRun,
)
from weftline_server.session.variable import SessionVariable

# Primitives of a session that an op may name as references.
_MOST_RECENT = 8

# Characters with which an item of a list may end, in lines, by commas or in JSON.
_ENDS_ITEM = frozenset('\n,]}"')


# A prompt that joins a list is filled item by item up to this many results. Each result makes the
# server render the known part of the prompt again.
_MOST_TOLD = 256


class IllegalMove(AssertionError):
    """A bug of the server: a state change that the table of allowed moves does not have."""


class Execution:
    """The tasks, primitives and variables of a session, and the moves between their states."""

    def __init__(self, without: frozenset[str], spent: Spent) -> None:
        self._spent = spent
        self.graph = Graph()
        self.planning = Planning(self.graph, without)
        self.variables: dict[str, SessionVariable] = {}
        self.tasks: dict[str, TaskRun] = {}
        self.primitives: dict[str, PrimitiveRun] = {}
        self.work_left = 0  # estimated tokens of the primitives that have not ended
        self.output_left = 0  # those of them that will be generated
        # The primitives that an engine got last; a later output may repeat what they have said.
        self.recent: deque[str] = deque(maxlen=_MOST_RECENT)
        self.under_way = 0  # primitives on an engine or on their way to one
        self.burst = Burst()
        self.now = 0.0  # the time of the event that is handled
        self.held = HoldQueue()
        self._owned: dict[str, list[TaskRun]] = {}  # task → tasks that it has added

    def add(self, draft: Draft, now: float, hold: bool = False) -> list[ev.Action]:
        """Add tasks that the graph has accepted, and start what can run; with `hold`, later where
        they are many.
        """
        self.graph.add(draft.added)
        for task in draft.runs.values():
            task.submitted = now
        self.tasks.update(draft.runs)
        self.primitives.update(draft.primitives)
        for id, variable in draft.variables.items():
            self.variables.setdefault(id, variable)
        for owner, owned in draft.owned.items():
            self._owned.setdefault(owner, []).extend(owned)
        self.work_left += draft.work
        self.output_left += draft.output
        self.burst.grows(self.work_left, self.output_left)
        self.held.branches |= draft.branches
        are_held = hold and bool(draft.order)
        if are_held:
            self.planning.postpone(draft.primitives)
        else:
            self.planning.add(draft.primitives)
        for variable_id, criterion in draft.criteria:
            self.planning.want(variable_id, criterion)
        known = draft.added.primitives.values()
        reads = (read.variable for one in known for read in one.reads)
        self.held.look_above(self.graph, self.primitives, reads)
        fresh = draft.primitives.values()
        return self.held.hold(fresh, draft.order) if are_held else start(self, fresh)

    def settled(self, variable: SessionVariable, now: float) -> list[ev.Action]:
        """Start the primitives that waited for a variable of the client. Fail them if it failed."""
        actions: list[ev.Action] = [ev.Notify(variable.id)]
        for id in tuple(self.graph.consumers.get(variable.id, ())):
            error = lost_read(self.graph.primitives[id], self.variables)
            if error is None:
                self.advance(self.primitives[id], now, actions)
            else:
                actions += self.fail(self.primitives[id].task, error)
        return actions

    def prepared(self, event: ev.PrimitivePrepared) -> list[ev.Action]:
        """Charge the tokens of a prompt to the budget; fail the task if they exceed it."""
        run = self._live(event)
        if run is None:
            return []
        try:
            self._spent.take_tokens(event.tokens)
        except BudgetExceeded as error:
            return self.fail(run.task, error)
        run.tokens += event.tokens
        if run.step is not None:
            run.step.charged = event.tokens
        return []

    def sent(self, event: ev.PrimitiveSent) -> list[ev.Action]:
        """An engine got the primitive. This happens again when an earlier attempt has failed."""
        run = self._live(event)
        if run is None or run.step is None:
            return []
        if run.state is RunState.QUEUED:
            self._move(run, RunState.RUNNING)
            self.planning.start(run.id)
            self.recent.append(run.id)
        run.step.sent, run.step.engine, run.step.node = event.now, event.engine, event.node
        run.step.why, run.step.admitted = event.why, event.admitted
        return []

    def text(self, event: ev.TextGenerated) -> list[ev.Action]:
        """Log a part of the primitive's text; tell its readers."""
        run = self._live(event)
        if run is None or run.step is None:
            return []
        run.step.made = event.made or run.step.made + bool(event.text or event.thoughts)
        if event.thoughts:
            run.step.thoughts.append(event.thoughts)
        if event.logprobs:
            run.step.logprobs += event.logprobs
        if not event.text and not event.deltas:
            return []
        variable = self.variables[self.graph.primitives[run.id].writes[0]]
        actions: list[ev.Action] = [ev.Notify(variable.id)]
        variable.deltas += event.deltas
        if not event.text:
            return actions
        is_full = variable.append(event.text)
        if not _ENDS_ITEM.isdisjoint(event.text):
            actions += takers(self.graph, self.primitives, variable.id)
        if is_full:  # another piece
            for id in self.graph.consumers.get(variable.id, ()):
                if (reader := self.primitives[id]).state is RunState.WAITING:
                    self._text_came(reader, variable.id, actions)
        return actions

    def items(self, event: ev.ItemsMade) -> list[ev.Action]:
        """Log items of the primitive's list, and tell the steps that take the items one by one."""
        if self._live(event) is None:
            return []
        actions: list[ev.Action] = []
        for var in self.graph.primitives[event.primitive].writes:
            self.variables[var].items += event.values
            actions += takers(self.graph, self.primitives, var)
        return actions

    def finished(self, event: ev.PrimitiveFinished) -> list[ev.Action]:
        """Set the primitive's output, and start the primitives that waited for it."""
        run = self._live(event)
        if run is None:
            return []
        step = run.step
        assert step is not None, "a primitive finished that was never queued"
        step.finished, step.usage, step.reason = event.now, event.usage, event.reason
        step.transform_s = event.transform_s
        if event.error is not None:
            return self.fail(run.task, event.error)
        self._move(run, RunState.DONE)
        self._end(run)
        actions: list[ev.Action] = []
        for var in self.graph.primitives[run.id].writes:
            self._spent.add_value(event.value)
            self.variables[var].set(event.value)
            actions.append(ev.Notify(var))
        if run.task.state is RunState.DONE:
            actions.append(ev.Ended(run.task.task.id))
        for below in self.graph.downstream(run.id):
            self.advance(self.primitives[below], event.now, actions)
        return actions

    def fail(
        self, task: TaskRun, error: WeftlineError, state: RunState = RunState.FAILED
    ) -> list[ev.Action]:
        """End `task` and, at once, every task that lacks an input for that reason, all with the
        same error. A task that reads only outputs that `task` had made before goes on.
        """
        error.of_call(task.task.name)
        actions: list[ev.Action] = []
        tolerant: dict[str, None] = {}
        ending = deque([task])
        while ending:
            task = ending.popleft()
            if not task.live:
                continue
            task.error = error
            lost = [run.id for run in task.primitives if run.live]
            for id in lost:
                actions += self._drop(self.primitives[id], error, state)
            actions.append(ev.Ended(task.task.id))
            if state is RunState.FAILED:
                actions += self.skip(undecided(self.graph, lost))
            else:
                lost_sides = undecided(self.graph, lost)
                self.held.look_above(self.graph, self.primitives, lost_sides)
            below, go_on = self.graph.affected_by(lost)
            ending.extend(self.tasks[id] for id in below)
            ending.extend(self._owned.get(task.task.id, ()))
            tolerant.update(dict.fromkeys(go_on))
        for id in tolerant:
            self.advance(self.primitives[id], self.now, actions)
        return actions

    def skip(self, variables: Iterable[str]) -> list[ev.Action]:
        """End, without failure, what only served `variables`, which nothing needs any more."""
        actions: list[ev.Action] = []
        released = dict.fromkeys(variables)
        self.held.released.update(released)
        waiting = deque(task for var in released if (task := self.producer(var)) is not None)
        seen: set[str] = set()  # of those that had failed
        while waiting:
            task = waiting.popleft()
            has_failed = task.error is not None and task.task.id not in seen
            owner = self.tasks.get(task.task.owner)
            is_owned = owner is None or owner.live
            known = self.graph, self.primitives, self.held.released
            if not has_failed and (not task.live or (is_owned and is_needed(*known, task))):
                continue
            seen.add(task.task.id)
            above = self.graph.tasks_above(task.task.id)
            lost = [run for run in task.primitives if run.live]
            for run in lost:
                actions += self._drop(run, None, RunState.SKIPPED)
            actions += [ev.Ended(task.task.id)] if lost else []
            waiting.extend(self.tasks[id] for id in above)
            waiting.extend(self._owned.get(task.task.id, ()))
        return actions

    def close(self, reason: str) -> list[ev.Action]:
        """Cancel every task that has not ended. No failure is propagated, because all tasks end."""
        actions: list[ev.Action] = []
        self.held = HoldQueue()
        for task in self.tasks.values():
            if not task.live:
                continue
            task.error = Cancelled(reason)
            task.error.of_call(task.task.name)
            for run in task.primitives:
                if run.live:
                    actions += self._drop(run, task.error, RunState.CANCELLED)
            actions.append(ev.Ended(task.task.id))
        for variable in self.variables.values():
            if not variable.settled:
                variable.fail(Cancelled(reason))
                actions.append(ev.Notify(variable.id))
        return actions

    def producer(self, variable: str) -> TaskRun | None:
        found = self.graph.producer.get(variable)
        return None if found is None else self.primitives[found].task

    def _live(self, event: ev.PrimitiveEvent) -> PrimitiveRun | None:
        """The primitive that `event` is about; None if it has ended before the event came."""
        run = self.primitives.get(event.primitive)
        return run if run is not None and run.live else None

    def _drop(
        self, run: PrimitiveRun, error: WeftlineError | None, state: RunState
    ) -> list[ev.Action]:
        """End a primitive that has not ended, without a result. Without an error it is skipped."""
        actions: list[ev.Action] = []
        if run.filling or run.state in UNDER_WAY:
            actions.append(ev.Stop(run.id))
        self._move(run, state)
        self._end(run)
        for var in self.graph.primitives[run.id].writes:
            if error is None:
                self.variables[var].skip()
            else:
                self.variables[var].fail(error)
            actions.append(ev.Notify(var))
        return actions

    def _end(self, run: PrimitiveRun) -> None:
        self.work_left -= run.work
        self.output_left -= run.output
        run.task.ended = self.now
        self.planning.end(run.id)

    def _move(self, run: PrimitiveRun, state: RunState) -> None:
        if state not in ALLOWED[run.state]:
            raise IllegalMove(f"{run.task.task.name} {run.id}: {run.state} to {state}")
        before = self.under_way
        self.under_way += (state in UNDER_WAY) - (run.state in UNDER_WAY)
        run.state = state
        if not before and self.under_way:
            self.burst.goes_on(self.now, self.work_left, self.output_left)
        elif before and not self.under_way:
            self.burst.rests(self.now)

    def advance(self, run: PrimitiveRun, now: float, actions: list[ev.Action]) -> None:
        """Queue a waiting primitive if its inputs are there; else fill what is new of its prompt.

        An input that is ready stays ready, so each look begins at the first input that was not
        ready in the last one.
        """
        if run.state is not RunState.WAITING or run.held:
            return
        primitive = self.graph.primitives[run.id]
        was_ready = run.ready if run.looked_at is primitive else 0
        run.looked_at, run.ready = primitive, ready_reads(primitive, self.variables, was_ready)
        if was_ready < run.ready <= _MOST_TOLD and gathers(primitive):
            for var in primitive.writes:
                actions += takers(self.graph, self.primitives, var)
        is_late = bool(primitive.after) and is_behind(primitive, self.primitives)
        if is_late and (run.task.task.call is None or continues(primitive, self.primitives)):
            return  # a step, or a prompt that continues an output that is not done
        if is_late or run.ready < len(primitive.reads):
            if run.ready > was_ready or not run.filling:
                run.filling = True
                actions.append(ev.Fill(run.id))
        elif (error := failed_input(run.task.task, primitive, self.variables)) is not None:
            actions += self.fail(run.task, error)
        elif self._is_certain(run, actions):
            run.filling = False
            self._move(run, RunState.QUEUED)
            run.step = PrimitiveTimes(queued=now)
            actions.append(ev.Run(run.id))

    def _is_certain(self, run: PrimitiveRun, actions: list[ev.Action]) -> bool:
        """Whether the primitive is needed, if it changes something. Else it is held, or skipped."""
        if not self.held.branches or not changes(self.graph.primitives[run.id]):
            return True
        need = need_of(self.graph, self.primitives, self.held.released, run.task)
        if need is Need.UNDECIDED:
            self.held.until_certain(run.id)
        elif need is Need.NONE:
            actions += self.skip(run.task.task.writes)
        return need is Need.CERTAIN

    def _text_came(self, run: PrimitiveRun, variable: str, actions: list[ev.Action]) -> None:
        """Extend the early fill of `run` if the text is of its first input that is not ready."""
        reads = self.graph.primitives[run.id].reads
        if run.filling and reads[run.ready : run.ready + 1] == ((variable, Flow.STREAM),):
            actions.append(ev.Fill(run.id))


def start(execution: Execution, runs: Iterable[PrimitiveRun]) -> list[ev.Action]:
    """Queue the new primitives whose inputs are ready. Fail those whose inputs have failed."""
    actions: list[ev.Action] = []
    for run in runs:
        primitive = execution.graph.primitives[run.id]
        if (error := failed_input(run.task.task, primitive, execution.variables)) is not None:
            actions += execution.fail(run.task, error)
        else:
            execution.advance(run, execution.now, actions)
    return actions


def go_on(execution: Execution) -> list[ev.Action]:
    """Plan the next part of the primitives that are held, or start it when all are planned."""
    execution.planning.add(execution.held.planned_next())
    actions = start(execution, execution.held.started_next())
    if execution.held:
        actions.append(ev.GoOn())
    return actions


def may_restart(execution: Execution, primitive: str) -> bool:
    """Whether another attempt is safe: neither a client nor the graph has text that it could
    change.
    """
    run, found = execution.primitives[primitive], execution.graph.primitives[primitive]
    is_used = isinstance(found.body, TakesItems) and bool(found.body.taken)
    return (
        run.live and not is_used and not any(execution.variables[var].taken for var in found.writes)
    )


def restarted(execution: Execution, event: ev.PrimitiveRestarted) -> list[ev.Action]:
    """Forget what the primitive has generated: another attempt begins."""
    run = execution.primitives[event.primitive]
    if not run.live or run.step is None:
        return []
    run.step.logprobs.clear()
    run.step.thoughts.clear()
    run.step.made = 0
    for var in execution.graph.primitives[run.id].writes:
        execution.variables[var].restart(event.attempt)
    return []
