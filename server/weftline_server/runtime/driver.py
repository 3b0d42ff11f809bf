"""The driver of all sessions: it performs their actions and tells them the results."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from weftline.contract.errors import ClientStepFailed, WeftlineError
from weftline.contract.protocol import Criterion, SetVariable, SubmitBody
from weftline_engine import api
from weftline_server.graph.primitive import PrimitiveId, Task
from weftline_server.journal.journal import Key
from weftline_server.lowering.bounds import costly_specs
from weftline_server.lowering.control.sides import gated
from weftline_server.lowering.kinds import KINDS
from weftline_server.prompt.answer import CallState
from weftline_server.runtime.backlog import Backlog
from weftline_server.runtime.containment import Containment
from weftline_server.runtime.early_calls import EarlyCalls
from weftline_server.runtime.early_fill import EarlyFill
from weftline_server.runtime.early_items import EarlyItems
from weftline_server.runtime.engine_reports import EngineReports
from weftline_server.runtime.engineless_runner import EnginelessRunner
from weftline_server.runtime.hint_updates import HintUpdates
from weftline_server.runtime.next_turn import NextTurns
from weftline_server.runtime.readers import Readers
from weftline_server.runtime.registry import Make, Registry
from weftline_server.runtime.runners import Runners
from weftline_server.runtime.starts import TURN_CALLS, Starts
from weftline_server.runtime.submit_tasks import tasks_of
from weftline_server.runtime.tenant_exchange import TenantExchange
from weftline_server.schedule.dispatcher import Dispatcher
from weftline_server.session import events as ev
from weftline_server.session.draft import Draft
from weftline_server.session.origin import ORIGIN
from weftline_server.session.session import ServerSession
from weftline_server.session.task import RunState, TaskRun

log = logging.getLogger("weftline.driver")

TURN_PARTS = 1024  # placeholders of calls that are lowered in one turn, in about 12 ms


class TaskObserver(Protocol):
    """Reads tasks and sessions that have ended, and changes nothing: metrics, logs, traces."""

    def task_ended(self, session: ServerSession, run: TaskRun) -> None: ...

    def session_closed(self, session: ServerSession) -> None: ...


class Driver:
    """Runs every session of this server on the dispatcher's engines, which answer to `reports`."""

    def __init__(
        self,
        registry: Registry,
        dispatcher: Dispatcher,
        without: frozenset[str] = frozenset(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.registry = registry
        self.dispatcher = dispatcher
        self.exchange = TenantExchange(registry, dispatcher)
        self.readers = Readers(self.apply, clock, registry.kept)
        self.observers: tuple[TaskObserver, ...] = ()
        self.without, self._now = without, clock  # `without` are the optimisations that are off
        self._runners = Runners(
            dispatcher.catalogue.prompter,
            registry.salts.__getitem__,
            without,
            dispatcher.pace,
            dispatcher.lengths,
        )
        self._backlog = Backlog(self._perform, Containment(self.close))
        contained = self._backlog.contained
        self._prompts = EarlyFill(dispatcher, self._runners.prompts, clock, without)
        self._items = EarlyItems(
            dispatcher, self._runners.steps, clock, self.apply, contained.spawn
        )
        self._calls = EarlyCalls(
            dispatcher,
            self._runners.prompts.answers,
            clock,
            self.apply,
            self._cut,
            early="early_tools" not in without,
        )
        self._hint_updates = HintUpdates(contained, dispatcher.pace)
        self.reports = EngineReports(
            registry,
            self._runners,
            self._items,
            self._calls,
            self._hint_updates,
            NextTurns(dispatcher, self._runners.prompts, contained.spawn, without),
            contained,
            self.apply,
            clock,
        )
        self._engineless = EnginelessRunner(self.reports.hear, self.apply, self.readers.wake, clock)
        self._starts = Starts(
            self._runners,
            dispatcher,
            self._engineless,
            self._prompts,
            self._items,
            self._calls,
            registry.journal,
            contained,
            self.apply,
            clock,
        )

    def open(self, tenant: str, *, stays: bool = True, alias: str | None = None) -> ServerSession:
        """Open a session; one that `stays` may get more calls than the first submit has.

        With an `alias` it is kept on disk, if this server keeps any; "" is no other name.
        Raises Overloaded at the registry's limit, and StorageFull.
        """
        journal = None if alias is None else self.registry.journal
        if journal is not None:
            journal.admit()
        session = self.registry.open(tenant, self._now(), stays=stays)
        if journal is not None:
            journal.opened(session, alias or "")
        return session

    def close(self, session: ServerSession, reason: str = "the session was closed") -> None:
        """Cancel what the session still runs, and forget it.

        From the return on none of its calls starts. Of a large session some still run then, and
        are stopped in the next turns of the event loop.
        """
        if session.ended is not None:
            return
        try:
            self.apply(session, ev.SessionClosed(now=self._now(), reason=reason))
        finally:
            self.registry.end(session, self._now())
            self._hint_updates.forget(session.id)
            self.dispatcher.withdraw(session.id)
            self._backlog.after(session, partial(self._closed, session))

    def sweep(self) -> None:
        """Close the sessions that no client has used for the registry's idle time, or
        that are too old.
        """
        for session in self.registry.idle(self._now()):
            why = "its client sent no heartbeat" if session.beats else "it was not used"
            self.close(session, f"the session expired: {why}")
        for session in self.registry.aged(self._now()):
            self.close(session, "the session expired: it used up its budget of seconds")
        self.registry.expire(self._now())
        if self.registry.journal is not None:
            self.registry.journal.sweep()

    async def submit(
        self,
        session: ServerSession,
        submit: SubmitBody,
        key: Key | None = None,
        *,
        whole: bool = False,
        restored: int = 0,
    ) -> tuple[Task, ...]:
        """Lower and start all calls and steps of `submit`, or raise and change nothing.

        The journal keeps the `key` of the request with them. With `whole` the client streams
        none of their outputs. In so many turns of their prompts thoughts were `restored`.
        """
        if not submit.calls and not submit.steps:
            return ()  # it only reads
        self._admit(session, len(submit.calls) + len(submit.steps))
        specs = costly_specs(submit, KINDS)
        await self._runners.workers.check(session.tenant, specs)
        tasks: list[Task] = []
        begun = 0
        for task in tasks_of(session, submit, self.dispatcher, self.registry.salts[session.tenant]):
            tasks.append(replace(task, restored_thoughts=restored) if restored else task)
            parts = 0 if task.call is None else len(task.call.placeholders)
            begun += TURN_PARTS // TURN_CALLS + parts
            if begun >= TURN_PARTS:
                begun = 0
                await asyncio.sleep(0)
        tasks = gated(tasks, steps="speculate" in self.without)
        taken = [id for task in tasks for id in task.writes] if whole else _taken_whole(submit)
        await self.start(
            session, tasks, detach=submit.detach, whole=taken, criteria=submit.criteria, key=key
        )
        return tuple(tasks)

    async def start(
        self,
        session: ServerSession,
        tasks: Sequence[Task],
        *,
        detach: bool = False,
        whole: Sequence[str] = (),
        criteria: Criterion | None = None,
        key: Key | None = None,
    ) -> None:
        """Start lowered tasks, all or none. Constant prompts are tokenised first."""
        draft = Draft(tasks, detach, ORIGIN.get())
        for _ in draft.make():
            await asyncio.sleep(0)
        session.check(draft)
        prepared = await self._starts.prepare(
            session, [primitive for task in tasks for primitive in task.primitives]
        )
        try:
            event = ev.TasksSubmitted(
                now=self._now(),
                tasks=tuple(tasks),
                detach=detach,
                origin=ORIGIN.get(),
                whole=tuple(whole),
                criteria=criteria,
            )
            self.apply(session, event, key, draft)
        finally:
            for id in prepared:
                run = session.primitives.get(id.primitive)
                if run is None or not run.live:
                    # The tasks were refused, or the primitive has ended: its prompt is not needed.
                    self._starts.forget(id)

    def set(self, session: ServerSession, variable: str, given: SetVariable) -> None:
        """`Service.set`"""
        self._admit(session)
        if given.error is None:
            event: ev.SessionEvent = ev.VariableSet(
                now=self._now(), variable=variable, value=given.value
            )
        else:
            error = ClientStepFailed(given.error.message, param=variable)
            error.own_code = given.error.code
            event = ev.VariableRefused(now=self._now(), variable=variable, error=error)
        self.apply(session, event)

    def cancel_variable(self, session: ServerSession, variable: str) -> None:
        """`Service.cancel_variable`"""
        self.apply(session, ev.VariableCancelled(now=self._now(), variable=variable))

    def cancel(self, session: ServerSession, task: str) -> None:
        """`Service.cancel`"""
        self.apply(session, ev.TaskCancelled(now=self._now(), task=task))

    def apply(
        self,
        session: ServerSession,
        event: ev.SessionEvent,
        key: Key | None = None,
        draft: Draft | None = None,
    ) -> None:
        """Tell the session an event, and perform the actions that follow from it.

        `draft` is the draft of the tasks that the event submits. If there are many actions, they
        are performed in later turns.
        """
        actions = session.handle(event, draft)
        if self.registry.journal is not None:
            self.registry.journal.note(session, event, actions, key)
        self._backlog.add(session, actions)

    def _perform(self, session: ServerSession, action: ev.Action) -> None:
        contained = self._backlog.contained
        match action:
            case ev.Notify(variable):
                self.readers.wake(session, variable)
            case ev.Run(id):
                self._starts.soon(session, id)
            case ev.Fill(id) if not session.graph.primitives[id].traits.has_prompt:
                contained.run(session, self._items.advance, session, id)
            case ev.Fill(id) if self._prompts.may_advance(session, id):
                contained.spawn(session, _filled(self._prompts, session, id))
            case ev.Stop(id):
                self._stop(PrimitiveId(session.id, id))
            case ev.Cut(id):
                self._cut(session, id)
            case ev.Replan(primitives):
                self._hint_updates.note(session, primitives)
                self.dispatcher.advise()
            case ev.GoOn():
                contained.spawn(session, self._next_turn(session))
            case ev.Ended(task):
                self._ended(session, session.tasks[task])

    def _cut(self, session: ServerSession, id: str) -> None:
        """End an output, which an engine generates, as if it had ended by itself."""
        if session.primitives[id].state is not RunState.RUNNING:
            return  # its text will come again
        self.dispatcher.cancel(str(PrimitiveId(session.id, id)))
        self._calls.ended(session, id, CallState.REFUSED)
        value = self._runners.prompts.said(session, session.graph.primitives[id])
        event = ev.PrimitiveFinished(
            now=self._now(), primitive=id, reason=api.FinishReason.STOP, value=value
        )
        self.apply(session, event)

    async def _next_turn(self, session: ServerSession) -> None:
        await asyncio.sleep(0)  # what was started in this turn runs before
        self.apply(session, ev.TurnCame(now=self._now()))

    def _closed(self, session: ServerSession) -> None:
        """All that the session ran was stopped."""
        self.dispatcher.forget(session.id)
        for observer in self.observers:
            try:
                observer.session_closed(session)
            except Exception:  # the session is closed, even if its trace cannot be written
                log.exception("an observer of session %s failed", session.id)

    def _admit(self, session: ServerSession, more: int = 0) -> None:
        """Raise Overloaded where the session's tenant, or the server, has no room for `more`."""
        quotas, tenant = self.registry.quotas, session.tenant
        quotas.charge(session)
        of_tenant = self.dispatcher.queued_of(self.registry.salts[tenant])
        quotas.admit(tenant, self.dispatcher.queued, of_tenant, more)

    def _ended(self, session: ServerSession, task: TaskRun) -> None:
        for run in task.primitives:
            id = PrimitiveId(session.id, run.id)
            self._engineless.end(id)
            self._calls.forget(id)
        for observer in self.observers:
            try:
                observer.task_ended(session, task)
            except Exception:  # the call has ended, even if it cannot be counted or compared
                log.exception(
                    "an observer of call %s of session %s failed", task.task.id, session.id
                )

    def _stop(self, id: PrimitiveId) -> None:
        self._starts.forget(id)
        self._prompts.forget(id)
        self._items.forget(id)
        self._calls.forget(id)
        self._runners.prompts.answers.forget(str(id))
        self.dispatcher.cancel(str(id))

    def resume(self, stored: Callable[[Make], Iterable[ServerSession]]) -> None:
        """Go on with sessions that are on disk."""
        journal = self.registry.journal
        assert journal is not None
        for session in self.registry.restore(stored):
            self._backlog.contained.run(session, self.apply, session, journal.resumed())

    def abandon(self) -> None:
        """Forget the sessions that another server goes on with."""
        journal = self.registry.journal
        for session in list(self.registry):
            if journal is not None and journal.has_lost(session):
                self.close(session, "another server goes on with the session")

    async def shut_down(self) -> None:
        """Close every session and wait for the tasks that this leaves. On disk they stay open."""
        if self.registry.journal is not None:
            await self.registry.journal.close()
        for session in list(self.registry):
            self.close(session, "the server is shutting down")
        await self._runners.workers.close()
        await self._backlog.contained.settle()


async def _filled(early: EarlyFill, session: ServerSession, id: str) -> None:
    """Send the known part of a prompt. An error in it is reported when the prompt is run."""
    try:
        await early.advance(session, id)
    except WeftlineError as error:
        log.debug("no early fill for primitive %s: %s", id, error.type)


def _taken_whole(submit: SubmitBody) -> Sequence[str]:
    """The variables whose values the request waits for, without their parts."""
    return (*submit.get, *(() if submit.parts else submit.watch))
