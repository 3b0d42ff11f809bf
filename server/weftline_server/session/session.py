"""The session: events in, actions out. A session decides everything and performs nothing.

No clock and no I/O: time enters with the events. Nothing but `handle` changes a session, so the
same events give the same session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

from weftline.contract.errors import Cancelled, UnknownCall, UnknownSession, UnknownVariable
from weftline_server.session import events as ev
from weftline_server.session.budget import Budget, Spent
from weftline_server.session.client_values import give, refuse
from weftline_server.session.control import fail, finish, take_items
from weftline_server.session.draft import Draft
from weftline_server.session.execution import Execution, IllegalMove, go_on, restarted
from weftline_server.session.invariants import validate
from weftline_server.session.resumption import abandon, resume
from weftline_server.session.task import UNDER_WAY, PrimitiveRun, RunState, TaskRun
from weftline_server.session.variable import SessionVariable, settled_of
from weftline_server.session.watch import Watch

# Events that a session remembers for its story: some hundred calls without their text parts.
MOST_REMEMBERED = 2048
# Lines of the story that an illegal move is raised with.
TOLD_OF_A_BUG = 20
SHOWN_CHARS = 80


class ServerSession:
    """One application run. `handle` returns actions, or raises and changes nothing.

    A session that `stays` may get more calls later. One that is `guessed` was found by its prompts,
    and no client tells when it ends.
    """

    def __init__(
        self,
        id: str,
        tenant: str,
        now: float,
        without: frozenset[str] = frozenset(),
        budget: Budget | None = None,
        stays: bool = True,
    ) -> None:
        self.id = id
        self.tenant = tenant
        self.opened = now
        self.stays = stays
        self.guessed = False
        self.beats = False  # its client promises heartbeats
        self.touched = now  # when a client last named it
        self.ended: float | None = None  # when it was closed
        self.spent = Spent(budget or Budget())
        self.execution = Execution(without, self.spent)
        # What the execution has, and changes in place. These are no properties: each call of a
        # session reads them two dozen times.
        self.graph = self.execution.graph
        self.plan = self.execution.planning.plan  # of the present graph
        self.variables: Mapping[str, SessionVariable] = self.execution.variables
        self.tasks: Mapping[str, TaskRun] = self.execution.tasks
        self.primitives: Mapping[str, PrimitiveRun] = self.execution.primitives
        self.watch = Watch(self.execution)
        self._remembered: deque[ev.SessionEvent] = deque(maxlen=MOST_REMEMBERED)
        self._handled = 0  # events
        self._told_left = 0  # the work left that the queued primitives were last told

    @property
    def alone_since(self) -> float | None:
        """When its last client left; None while a client has a get or a stream open."""
        return None if self.watch.readers else self.touched

    def heard(self, now: float) -> None:
        """Note a heartbeat of the client, which will send others."""
        self.touched, self.beats = now, True

    def variable(self, id: str) -> SessionVariable:
        """The variable. Raises UnknownVariable."""
        if id not in self.variables:
            raise UnknownVariable(f"the session has no variable {id[:64]!r}", param=id)
        return self.variables[id]

    def check(self, draft: Draft) -> None:
        """Raise unless the tasks of the draft can join the graph; see `Graph.check`."""
        self.graph.check(draft.added, settled_of(self.variables, draft.variables))

    def validate(self) -> None:
        """Assert what holds between any two events."""
        validate(self.execution)
        assert all(count > 0 for count in self.watch.readers.values())

    def story(self) -> list[ev.StoryLine]:
        """The newest events, oldest first, as a person reads them."""
        first = self._handled - len(self._remembered)
        return [
            ev.StoryLine(
                number=number,
                at_s=event.now - self.opened,
                event=type(event).__name__,
                about=ev.about(event)[:SHOWN_CHARS],
                text=ev.detail(event)[:SHOWN_CHARS],
            )
            for number, event in enumerate(self._remembered, first + 1)
        ]

    def handle(self, event: ev.SessionEvent, draft: Draft | None = None) -> list[ev.Action]:
        """Change the session by one event; the table at the end has a method for each type.

        A `draft` of the tasks of a submit saves the time to make one. Raises the errors of the
        event's method, and then changes nothing. An IllegalMove is our bug, and is raised with the
        end of the session's story.
        """
        self.execution.now = event.now
        try:
            if isinstance(event, ev.TasksSubmitted):
                actions = self._submit(event, draft)
            else:
                actions = _HANDLERS[type(event)](self, event)
        except IllegalMove as bug:
            story = "\n".join(map(str, self.story()[-TOLD_OF_A_BUG:]))
            raise IllegalMove(f"{bug}, at {event!r} after:\n{story}") from None
        self._remembered.append(event)
        self._handled += 1
        if event.by_client:
            self.touched = event.now
        if type(event) in _CHANGES_NO_PLAN:
            return actions
        if (self.execution.planning.is_due or self._work_moved()) and (moved := self._replan()):
            actions.append(ev.Replan(moved))
        for id in self.execution.planning.take_rewired():  # they wait for less than before
            self.execution.advance(self.primitives[id], event.now, actions)
        for id in self.execution.held.take_unsure():
            self.execution.advance(self.primitives[id], event.now, actions)
        return actions

    def _work_moved(self) -> bool:
        """Whether the work left has halved or doubled since the last hints of the
        queued primitives.
        """
        told, left = self._told_left, self.execution.work_left
        return left > 0 and not told < 2 * left < 4 * told

    def _replan(self) -> tuple[str, ...]:
        """Bring the plan up to date; return the primitives under way whose hints have changed.

        All queued primitives get new hints when the work left has halved or doubled. So each
        primitive gets its hints in time, and none of ten thousand gets hints more than a few times.
        """
        planning, runs = self.execution.planning, self.execution.primitives
        moved = [id for id in planning.update() if runs[id].state in UNDER_WAY or runs[id].filling]
        if self._work_moved():
            known: Collection[str] = planning.advised if self._told_left else ()
            moved += [id for id in known if runs[id].state is RunState.QUEUED or runs[id].filling]
            self._told_left = self.execution.work_left
        return tuple(dict.fromkeys(moved))

    def _submit(self, event: ev.TasksSubmitted, draft: Draft | None) -> list[ev.Action]:
        if self.ended is not None:
            raise UnknownSession(
                f"session {self.id} was closed before it got these calls: open another",
                param="session_id",
            )
        made = Draft.of(event.tasks, event.detach, event.origin) if draft is None else draft
        self.check(made)
        self.spent.take_tasks(event.tasks, event.now - self.opened)
        self.watch.take_whole(event.whole)
        if event.criteria is not None:
            outputs = (var for task in event.tasks for var in task.writes)
            self.execution.planning.presume(outputs, event.criteria)
        return self.execution.add(made, event.now, hold=True)

    def _set(self, event: ev.VariableSet) -> list[ev.Action]:
        return give(self.execution, self.spent, event, self.opened)

    def _read(self, event: ev.VariableRead) -> list[ev.Action]:
        variable = self.variable(event.variable)
        variable.reads += 1
        variable.taken |= bool(variable.parts) and not variable.settled
        return []

    def _cancel(self, event: ev.TaskCancelled) -> list[ev.Action]:
        """Cancel the task and all tasks below it. Raises UnknownCall."""
        if event.task not in self.tasks:
            raise UnknownCall(f"the session has no call {event.task[:64]!r}", param="call_id")
        task = self.tasks[event.task]
        if not task.live:
            return []
        error = Cancelled(f"call {task.task.name!r} was cancelled")
        return self.execution.fail(task, error, RunState.CANCELLED)

    def _cancel_variable(self, event: ev.VariableCancelled) -> list[ev.Action]:
        """Cancel the task that writes the variable, or what waits for a client to set it."""
        variable = self.variable(event.variable)
        if variable.settled:
            return []
        task = self.execution.producer(variable.id)
        if task is not None:
            return self._cancel(ev.TaskCancelled(now=event.now, task=task.task.id))
        error = Cancelled(f"variable {variable.id!r} was cancelled", param=variable.id)
        variable.fail(error)
        return self.execution.settled(variable, event.now)

    def _close(self, event: ev.SessionClosed) -> list[ev.Action]:
        self.ended = event.now
        return self.execution.close(event.reason)


# Most events are parts of text; a part neither changes the graph nor ends a primitive.
_CHANGES_NO_PLAN = frozenset(
    {
        ev.TextGenerated,
        ev.ItemsMade,
        ev.PrimitiveRestarted,
        ev.PrimitiveSent,
        ev.TextTaken,
        ev.VariableRead,
    }
)

_HANDLERS: Mapping[type[ev.SessionEvent], Callable[[ServerSession, Any], list[ev.Action]]] = (
    MappingProxyType(
        {
            ev.TurnCame: lambda session, event: go_on(session.execution),
            ev.VariableSet: ServerSession._set,
            ev.VariableRefused: lambda session, event: refuse(session.execution, event),
            ev.VariableRead: ServerSession._read,
            ev.TextTaken: lambda session, event: session.variable(event.variable).passed_on(),
            ev.VariableCancelled: ServerSession._cancel_variable,
            ev.TaskCancelled: ServerSession._cancel,
            ev.TasksAbandoned: lambda session, event: abandon(session.execution, event),
            ev.SessionResumed: lambda session, event: resume(session.execution, event),
            ev.SessionClosed: ServerSession._close,
            ev.ReaderOpened: lambda session, event: session.watch.open(event),
            ev.ReaderClosed: lambda session, event: session.watch.close(event),
            ev.PrimitivePrepared: lambda session, event: session.execution.prepared(event),
            ev.PrimitiveSent: lambda session, event: session.execution.sent(event),
            ev.ItemsMade: lambda session, event: session.execution.items(event),
            ev.TextGenerated: lambda session, event: session.execution.text(event),
            ev.PrimitiveRestarted: lambda session, event: restarted(session.execution, event),
            ev.PrimitiveFinished: lambda session, event: finish(
                session.execution, session.spent, event, session.opened
            ),
            ev.ItemsCame: lambda session, event: take_items(
                session.execution, session.spent, event, session.opened
            ),
            ev.PrimitiveFailed: lambda session, event: fail(
                session.execution, session.spent, event, session.opened
            ),
        }
    )
)
